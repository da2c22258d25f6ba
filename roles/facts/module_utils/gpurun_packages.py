"""What dpkg or rpm has installed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable

_DPKG = ["dpkg-query", "-W", "-f", "${Package}\t${Version}\t${db:Status-Status}\t${Maintainer}\n"]
_RPM = ["rpm", "-qa", "--qf", "%{NAME}\t%{EPOCHNUM}:%{VERSION}-%{RELEASE}\tinstalled\t%{VENDOR}\n"]


def installed(manager: str, patterns: Iterable[str] = ("",)) -> dict[str, dict[str, str]]:
    """Packages whose names match one of the patterns: version (epoch only where it is not 0), state, who made them.

    `manager` is apt or dnf. A state other than `installed` is a package that is not done with.
    """
    wanted = re.compile("|".join(f"(?:{pattern})" for pattern in patterns))
    try:
        done = subprocess.run(
            _DPKG if manager == "apt" else _RPM, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    found = {}
    for line in done.stdout.splitlines():
        name, version, state, maker = (line.split("\t") + [""] * 4)[:4]
        if state not in ("not-installed", "config-files") and wanted.search(name):
            version = re.sub("^0:", "", version)
            if found.get(name, {}).get("version", version) != version and not name.startswith("kernel"):
                state = "twice"  # only of kernels may there be several
            found[name] = {"version": version, "state": state, "maker": maker}
    return found
