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
    import json
    from dataclasses import asdict

    from gpurun.doctor import HERE, of_here, of_host

    findings = of_here(_look_here(results))
    if not any(one.state == "fail" for one in findings):
        for host, seen in sorted(_look_at_hosts(inventory, limit).items()):
            findings += of_host(host, seen)
    if as_json:
        document = {"schema": "gpurun.doctor/1", "findings": [asdict(one) for one in findings]}
        click.echo(json.dumps(document, indent=2, sort_keys=True))
    for number, one in enumerate(() if as_json else findings):
        if number == 0 or findings[number - 1].where != one.where:
            click.echo(one.where)
        click.echo(f"  {one.state:4}  {one.check}: {one.message}" + (f"\n        fix: {one.fix}" if one.fix else ""))
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
    import time

    from gpurun.doctor import Seen
    from gpurun.errors import HostError
    from gpurun.playbooks import Controller

    hosts: dict[str, Seen] = {}
    asked: dict[str, float] = {}
    with Controller(inventory, limit=limit) as controller:
        playbook = controller.start("doctor", {"gpurun_hosts": "all"})
        for event in playbook.events():
            if event is None:
                continue
            seen, result = hosts.setdefault(event.host, Seen()), event.result
            if event.kind == "start":
                asked[event.host] = time.time()
            elif event.kind == "ok" and "ansible_facts" in result:
                seen.facts = result["ansible_facts"]["gpurun_facts"]
                clock = float(seen.facts["host"]["clock_unix"])
                seen.skew_s = max(0.0, asked[event.host] - clock, clock - time.time())
            elif event.kind == "ok" and "ended" in result:
                seen.left = result["ended"]
            elif event.kind == "ok" and "holder" in result:
                seen.lock = result["holder"]
        for host, why in {**playbook.outcome.failed, **playbook.outcome.unreachable}.items():
            hosts.setdefault(host, Seen()).trouble = why
    if not hosts:
        said = playbook.outcome.output.strip()
        raise HostError(f"the inventory has no such hosts: {said}", where=str(controller.inventory))
    return hosts
