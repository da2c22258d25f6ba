#!/usr/bin/python
"""What a package repository offers, read without configuring it: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpurun_index
short_description: What a package repository offers, read without configuring it
description:
  - Reads the index of a repository (Packages.gz, or repomd.xml and what it names), so that a plan and a check know
    exact versions before anything is changed. What is installed later is verified by apt or dnf, as always.
  - An index that cannot be read is a result (C(index.error)), not a failure.
options:
  url:
    description: The folder of the repository.
    type: str
    required: true
  manager:
    description: Which kind of repository it is.
    type: str
    choices: [apt, dnf]
    required: true
  patterns:
    description: Regular expressions; packages whose names match one of them are told.
    type: list
    elements: str
    required: true
  system:
    description: Packages that the system's own repositories should have.
    type: list
    elements: str
    default: []
  limit_s:
    description: Seconds that one download gets.
    type: float
    default: 60
author: gpurun
"""

EXAMPLES = r"""
- name: Read the index
  gpurun_index:
    url: https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64
    manager: apt
    patterns: [nvidia]
"""

RETURN = r"""
index:
  description:
    - C(packages) (name -> versions), C(error), and C(system) (name -> whether the system's own repositories have it,
      null where that is not known).
  returned: always
  type: dict
"""

import gzip
import re
import subprocess
import urllib.request
from typing import Any
from xml.etree import ElementTree

from ansible.module_utils.basic import AnsibleModule

_REPO = "{http://linux.duke.edu/metadata/repo}"
_COMMON = "{http://linux.duke.edu/metadata/common}"


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "manager": {"type": "str", "choices": ["apt", "dnf"], "required": True},
            "patterns": {"type": "list", "elements": "str", "required": True},
            "system": {"type": "list", "elements": "str", "default": []},
            "limit_s": {"type": "float", "default": 60.0},
        },
        supports_check_mode=True,
    )
    url, limit_s = module.params["url"].rstrip("/"), module.params["limit_s"]
    apt = module.params["manager"] == "apt"
    index: dict[str, Any] = {"packages": {}, "error": None}
    try:
        pattern = "|".join(f"(?:{one})" for one in module.params["patterns"])
        index["packages"] = (_read_apt if apt else _read_dnf)(url, limit_s, pattern)
    except (OSError, ValueError, EOFError, ElementTree.ParseError) as error:
        index["error"] = f"{url}: {getattr(error, 'reason', None) or error}"
    index["system"] = {name: (_has_apt if apt else _has_dnf)(name) for name in module.params["system"]}
    module.exit_json(changed=False, index=index)


def _get(url: str, limit_s: float) -> bytes:
    if not url.startswith(("https://", "http://")):
        raise ValueError("neither http nor https")
    with urllib.request.urlopen(url, timeout=limit_s) as answer:  # noqa: S310 (checked above)
        return bytes(answer.read())


def _read_apt(url: str, limit_s: float, pattern: str) -> dict[str, list[str]]:
    text = gzip.decompress(_get(f"{url}/Packages.gz", limit_s)).decode(errors="replace")
    found: dict[str, list[str]] = {}
    for stanza in re.split(r"\n{2,}", text):
        fields = dict(re.findall(r"^(Package|Version): *(\S+)", stanza, re.MULTILINE))
        if len(fields) == 2 and re.search(pattern, fields["Package"]):
            found.setdefault(fields["Package"], []).append(fields["Version"])
    return found


def _read_dnf(url: str, limit_s: float, pattern: str) -> dict[str, list[str]]:
    listed = ElementTree.fromstring(_get(f"{url}/repodata/repomd.xml", limit_s))  # noqa: S314
    place = listed.find(f"{_REPO}data[@type='primary']/{_REPO}location")
    packed = _get(f"{url}/{place.get('href')}", limit_s) if place is not None else b""
    if packed[:2] != b"\x1f\x8b":
        raise ValueError("its index is not packed with gzip")
    found: dict[str, list[str]] = {}
    for package in ElementTree.fromstring(gzip.decompress(packed)).iter(f"{_COMMON}package"):  # noqa: S314
        name, version = package.findtext(f"{_COMMON}name") or "", package.find(f"{_COMMON}version")
        if version is not None and re.search(pattern, name):
            epoch = "" if version.get("epoch") in (None, "0") else f"{version.get('epoch')}:"
            found.setdefault(name, []).append(f"{epoch}{version.get('ver')}-{version.get('rel')}")
    return found


def _ask(*argv: str) -> str | None:
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _has_apt(name: str) -> bool | None:
    """By the lists as they are here; None where there are none yet."""
    said = _ask("apt-cache", "policy", name)
    if not said and not _ask("apt-cache", "dumpavail"):
        return None
    return "Candidate:" in (said or "") and "Candidate: (none)" not in (said or "")


def _has_dnf(name: str) -> bool | None:
    said = _ask("dnf", "-q", "repoquery", "--qf", "%{name}", name)
    return None if said is None else bool(said)


if __name__ == "__main__":
    main()
