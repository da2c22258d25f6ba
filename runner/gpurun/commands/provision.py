"""`gpurun provision`: bring hosts from a bare system to serving."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from gpurun.commands import options
from gpurun.data import read
from gpurun.errors import ExitCode
from gpurun.paths import content

# The tasks that take time, as progress; those that change something are told as that.
_SHOWN = {
    "Read what the repository has",
    "Install key and definition",
    "Install headers and compiler",
    "Install the driver",
    "Install the packages",
    "Install CUDA",
    "Install CUDA from wheels",
    "Install the engine",
    "Fetch the model",
    "Try and judge",
    "Remove packages",
    "Reboot now",
}


# Of the role's options those that are the command line's too.
_OPTIONS = (
    *("driver_branch", "driver_version", "flavour", "mode", "toolkit", "cuda", "cuda_from", "engines", "models"),
    *("reboot", "remove", "repository_url", "keyring_sha256", "without_gpu", "reports"),
)


def _of_the_role(command: Callable[..., Any]) -> Callable[..., Any]:
    """The role's options, as its argument specification has them: one text for both ways in."""
    specs = read(content() / "roles/provision/meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    for name in reversed(_OPTIONS):
        spec = specs[f"provision_{name}"]
        told = spec["description"][0].lower() + spec["description"][1:].rstrip(".")
        option = name.replace("_", "-").removesuffix("s" if spec["type"] == "list" else "")
        more: dict[str, Any] = {"default": spec["default"], "show_default": bool(spec["default"])}
        more |= (
            {"type": click.Choice(spec["choices"])}
            if "choices" in spec
            else {"metavar": option.rpartition("-")[2].upper()}
        )
        more |= {"is_flag": spec["type"] == "bool", "multiple": spec["type"] == "list"}
        command = click.option(f"--{option}", name, cls=options.Option, help=told, **more)(command)
    return command


@click.command("provision")
@options.inventory
@options.limit
@click.option("--plan", is_flag=True, help="only say what would be done on each host, and why")
@click.option("--check", is_flag=True, help="Ansible's check mode: go through every task, change nothing")
@click.option("--diff", is_flag=True, help="show how files change")
@_of_the_role
@options.as_json
def command(
    inventory: Path | None, limit: str | None, plan: bool, check: bool, diff: bool, as_json: bool, **wanted: Any
) -> int:
    """Bring the hosts of the group gpu_hosts from a bare system to serving: driver, CUDA, engines, models, checks.

    What cannot work is refused before anything is touched. Run again, it changes nothing. An installed driver stays at
    its version until another is asked for.
    """
    from gpurun.environments import check_cuda, engines_on, models_on
    from gpurun.errors import HostError
    from gpurun.reachability import told
    from gpurun.target import check_wishes
    from gpurun.text import fill

    check_wishes(wanted["driver_branch"], wanted["cuda"])
    wanted["models"] = tuple(_model(text) for text in wanted["models"])
    engines_on({}, wanted["engines"], {}, gpus=False)
    models_on({}, wanted["models"])
    check_cuda(wanted["cuda"] if wanted["cuda_from"] == "wheels" else "")
    if wanted["reports"]:
        wanted["reports"] = str(Path(wanted["reports"]).absolute())
    flags = [*(["--check"] if check else []), *(["--diff"] if diff else [])]
    # What is not given stays as the inventory has it.
    context = click.get_current_context()
    given = {
        f"provision_{name}": list(value) if isinstance(value, tuple) else value
        for name, value in wanted.items()
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
    }
    hosts, lost = _run(inventory, limit, {**given, "provision_plan": plan}, flags)
    for known in hosts.values():  # what was planned first and then done is no longer planned
        if known.get("status") in ("ok", "planned"):
            known["status"] = "planned" if (plan or check) and known.get("steps") else "ok"
    document = {"schema": "gpurun.provision/1", "hosts": hosts}
    if not as_json:
        click.echo(fill("provision.txt.j2", hosts=hosts))
    if lost:
        message, fix = told(lost)
        hint = fix or "what was done is kept; run the same command again"
        raise HostError(message, hint=hint, result=document)
    if as_json:
        options.print_json(document)
    return int(ExitCode.DONE)


def _run(
    inventory: Path | None, limit: str | None, variables: Mapping[str, Any], flags: list[str]
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """What is known of each host at the end, and why hosts failed."""
    from gpurun.errors import InterruptedRunError
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
                _learn(known, event.result)
                if event.result.get("changed"):
                    known["changed"].append(task)
                for change in _differences(event.result) if "--diff" in flags else ():
                    click.echo(change, err=True)
        if interrupts.count:
            hint = "what was begun goes on to its end on the hosts; the same command takes it up"
            raise InterruptedRunError("interrupted", terminated=interrupts.terminated, hint=hint)
        outcome = playbook.outcome
    if not hosts or (not outcome.lost and outcome.status != "successful"):
        raise outcome.no_hosts("gpu_hosts", controller.inventory)
    for host, why in outcome.lost.items():
        known = hosts.setdefault(host, {"changed": []})
        known.update(status="refused" if known.get("refusals") else known.get("status"), error=why)
        if known["status"] in (None, "ok", "planned"):
            known["status"] = "failed"
    return hosts, outcome.lost


def _model(text: str) -> Any:
    from gpurun.load import load_text

    return load_text(text, "--model").root.plain


def _learn(known: dict[str, Any], result: Mapping[str, Any]) -> None:
    """What a task says of a host: lists grow, all else is replaced."""
    for key, value in result.get("provision", {}).items():
        known[key] = [*known.get(key, []), *value] if key in ("steps", "refusals", "notes") else value
    if result.get("note"):
        known.setdefault("notes", []).append(result["note"])


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
