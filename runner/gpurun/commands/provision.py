"""`gpurun provision`: bring hosts to a working driver."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from gpurun.commands import options
from gpurun.errors import ExitCode

# The tasks that take time, as progress; those that change something are told as that.
_SHOWN = {
    "Read what the repository has",
    "Install key and definition",
    "Install headers and compiler",
    "Install the driver",
    "Install the packages",
    "Remove packages",
    "Reboot now",
}


@click.command("provision")
@options.inventory
@options.limit
@click.option("--plan", is_flag=True, help="only say what would be done on each host, and why")
@click.option("--check", is_flag=True, help="Ansible's check mode: go through every task, change nothing")
@click.option("--diff", is_flag=True, help="show how files change")
@click.option(
    "--driver-branch", metavar="BRANCH", default="580", show_default=True, help="none leaves the driver alone"
)
@click.option(
    "--driver-version",
    metavar="VERSION",
    default="",
    help="an exact version, or `latest` of the branch; default: what is installed stays",
)
@click.option(
    "--flavour",
    type=click.Choice(["open", "proprietary"]),
    default="open",
    show_default=True,
    help="which kernel modules",
)
@click.option(
    "--mode",
    type=click.Choice(["compute", "full"]),
    default="compute",
    show_default=True,
    help="without or with what a display needs",
)
@click.option("--toolkit", is_flag=True, help="also NVIDIA's container toolkit")
@click.option(
    "--reboot",
    type=click.Choice(["never", "if_required", "always"]),
    default="if_required",
    show_default=True,
    help="when to reboot; never this machine itself",
)
@click.option(
    "--remove", type=click.Choice(["driver", "toolkit"]), multiple=True, help="remove what gpurun has installed of it"
)
@click.option("--repository-url", metavar="URL", default="", help="a mirror of NVIDIA's CUDA repositories")
@click.option("--keyring-sha256", metavar="SUM", default="", help="checksum of the package with the repository's key")
@click.option("--without-gpu", is_flag=True, help="install although no GPU is there, for an image")
@options.as_json
def command(
    inventory: Path | None, limit: str | None, plan: bool, check: bool, diff: bool, as_json: bool, **wanted: Any
) -> int:
    """Bring the hosts of the group gpu_hosts to a working driver; what cannot work is refused before it is touched.

    Run again, it changes nothing. An installed driver stays at its version until another is asked for.
    """
    import json

    from gpurun.errors import HostError
    from gpurun.reachability import told

    flags = [*(["--check"] if check else []), *(["--diff"] if diff else [])]
    # What is not given stays as the inventory has it.
    context = click.get_current_context()
    given = {
        f"provision_{name}": list(value) if isinstance(value, tuple) else value
        for name, value in wanted.items()
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
    }
    hosts, lost = _run(inventory, limit, {**given, "provision_plan": plan}, flags)
    document = {"schema": "gpurun.provision/1", "hosts": hosts}
    if not as_json:
        click.echo("\n".join(line for host in sorted(hosts) for line in _lines(host, hosts[host])))
    if lost:
        message, fix = told(lost)
        error = HostError(message, hint=fix or "what was done is kept; run the same command again")
        error.result = document
        raise error
    if as_json:
        click.echo(json.dumps(document, indent=2, sort_keys=True))
    return int(ExitCode.DONE)


def _run(
    inventory: Path | None, limit: str | None, variables: Mapping[str, Any], flags: list[str]
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """What is known of each host at the end, and why hosts failed."""
    from gpurun.errors import HostError, InterruptedRunError
    from gpurun.interrupts import Interrupts
    from gpurun.playbooks import Controller

    hosts: dict[str, dict[str, Any]] = {}
    told: set[tuple[str, str]] = set()
    with Controller(inventory, limit=limit) as controller, Interrupts() as interrupts:
        playbook = controller.start("provision", variables, flags=flags)
        for event in playbook.events():
            if interrupts.count:
                playbook.cancel()
            if event is None:
                continue
            known = hosts.setdefault(event.host, {"changed": []})
            task = event.task.rpartition(" : ")[2]
            if event.kind == "start" and task in _SHOWN and (event.host, task) not in told:
                told.add((event.host, task))  # a task may be several, of which one is not skipped
                click.echo(f"{event.host}: {task.lower()}", err=True)
            elif event.kind == "ok":
                known.update(event.result.get("provision", {}))
                if event.result.get("changed"):
                    known["changed"].append(task)
                for change in _differences(event.result) if "--diff" in flags else ():
                    click.echo(change, err=True)
        if interrupts.count:
            hint = "what was begun goes on to its end on the hosts; the same command takes it up"
            raise InterruptedRunError("interrupted", terminated=interrupts.terminated, hint=hint)
        outcome = playbook.outcome
    lost = {**outcome.failed, **outcome.unreachable}
    for host, why in lost.items():
        known = hosts.setdefault(host, {"changed": []})
        known.update(status="refused" if known.get("refusals") else known.get("status"), error=why)
        if known["status"] in (None, "ok", "planned"):
            known["status"] = "failed"
    if not lost and (not hosts or outcome.status != "successful"):
        said = outcome.output.strip() or "there is no host in the group gpu_hosts"
        raise HostError(f"nothing could be done: {said[-1000:]}", where=str(controller.inventory))
    return hosts, lost


def _differences(result: Mapping[str, Any]) -> list[str]:
    import difflib

    found = []
    for one in [result, *result.get("results", [])]:
        for diff in one.get("diff") or [] if isinstance(one.get("diff"), list) else [one.get("diff") or {}]:
            before, after = str(diff.get("before") or ""), str(diff.get("after") or "")
            if before != after:
                names = (str(diff.get("before_header") or ""), str(diff.get("after_header") or ""))
                lines = difflib.unified_diff(before.splitlines(), after.splitlines(), *names, lineterm="")
                found.append("\n".join(lines))
    return found


def _lines(host: str, known: Mapping[str, Any]) -> list[str]:
    """What a person wants to know of a host."""
    lines = [f"{host}: {known.get('status', 'failed')}; {known.get('summary', 'it was not looked at')}"]
    lines += [f"  {step['role']:10}  {step['what']}\n{'':14}because: {step['why']}" for step in known.get("steps", [])]
    lines += [f"  {'reboot':10}  {reason}" for reason in known.get("reboot_reasons", [])]
    lines += [f"  note: {note}" for note in known.get("notes", [])]
    lines += [f"  problem: {problem}" for problem in known.get("problems", [])]
    for refusal in known.get("refusals", []):
        lines += [f"  refused, {refusal['check']}: {refusal['say']}", f"{'':10}fix: {refusal['fix']}"]
    lines += [f"  changed: {', '.join(known['changed'])}"] if known.get("changed") else []
    return lines
