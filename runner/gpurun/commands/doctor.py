"""`gpurun doctor`: is this machine ready, and is every host?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpurun.commands import options
from gpurun.errors import ExitCode

if TYPE_CHECKING:
    from gpurun.doctor import Seen


@click.command("doctor")
@options.inventory
@options.limit
@options.results("results")
@options.as_json
def command(inventory: Path | None, limit: str | None, results: Path, as_json: bool) -> int:
    """Check this machine and every host of the inventory. Changes nothing; each finding that matters has a fix.

    Exit code 0: ready; 4: this machine is not; 3: a host is not.
    """
    from dataclasses import asdict

    from gpurun.doctor import HERE, of_here, of_host
    from gpurun.text import fill

    findings = of_here(_look_here(results))
    if not any(one.state == "fail" for one in findings):
        for host, seen in sorted(_look_at_hosts(inventory, limit).items()):
            findings += of_host(host, seen)
    if as_json:
        options.print_json({"schema": "gpurun.doctor/1", "findings": [asdict(one) for one in findings]})
    else:
        click.echo(fill("doctor.txt.j2", findings=findings))
    failed = {one.where for one in findings if one.state == "fail"}
    return int(ExitCode.NOT_READY if HERE in failed else ExitCode.HOST_FAILED if failed else ExitCode.DONE)


def _look_here(results: Path) -> dict[str, Any]:
    import locale
    import os
    import shutil
    import sys
    from importlib import metadata

    from gpurun.doctor import version

    beside = Path(sys.executable).parent
    path = os.pathsep.join([str(beside), os.environ.get("PATH", os.defpath)])
    place = next(one for one in (results.absolute(), *results.absolute().parents) if one.exists())
    home = Path(os.environ.get("HOME") or "/")
    try:
        ansible = version(metadata.version("ansible-core"))
    except metadata.PackageNotFoundError:
        ansible = None
    return {
        "python": sys.version_info[:3],
        "ansible": ansible,
        "playbook": shutil.which("ansible-playbook", path=path),
        "uv": shutil.which("uv", path=str(beside)),
        "ssh": shutil.which("ssh"),
        "host_keys": os.environ.get("ANSIBLE_HOST_KEY_CHECKING", "true").lower() in ("true", "1", "yes", "on"),
        "encoding": locale.getencoding() if os.environ.get("LC_ALL") else "UTF-8",  # gpurun sets it where it is not set
        "home": str(home),
        "home_writable": home.is_dir() and os.access(home, os.W_OK),
        "results": str(place),
        "results_free": shutil.disk_usage(place).free,
    }


def _look_at_hosts(inventory: Path | None, limit: str | None) -> dict[str, Seen]:
    from gpurun.doctor import Seen
    from gpurun.playbooks import Controller

    hosts: dict[str, Seen] = {}
    with Controller(inventory, limit=limit) as controller:
        outcome, events = controller.run("doctor", {"gpurun_hosts": "all"})
    for event in events:
        seen = hosts.setdefault(event.host, Seen())
        seen.facts = event.facts or seen.facts
        if event.kind == "ok":
            seen.left, seen.lock = event.result.get("ended", seen.left), event.result.get("holder", seen.lock)
    for host, why in outcome.lost.items():
        hosts.setdefault(host, Seen()).trouble = why
    return hosts
