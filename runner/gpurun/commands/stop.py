"""`gpurun stop`: end what a run left on the hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gpurun.commands import options
from gpurun.errors import ExitCode


@click.command()
@click.argument("run", required=False)
@click.option("--all", "everything", cls=options.Option, is_flag=True, help="what any run left")
@options.inventory
@options.limit
@options.results("results", "to find a run by its short name")
@options.as_json
def command(
    run: str | None, everything: bool, inventory: Path | None, limit: str | None, results: Path, as_json: bool
) -> int:
    """End every process that RUN (or, with --all, any run) left on the hosts, remove its job folders there, and give
    the hosts back. What was brought home stays.

    Works from any machine that has the inventory; only what gpurun started is ended. Safe to repeat.
    """
    from gpurun.errors import ConfigError, HostError
    from gpurun.playbooks import Controller
    from gpurun.reachability import told
    from gpurun.text import fill

    if (run is None) != everything or run == "*":  # which a shell leaves in an empty folder, and hosts take for any
        raise ConfigError("name a run, or use --all", hint="`gpurun runs` lists runs; `last` is the newest")
    wanted = "*" if everything or run is None else _whole_id(results, run)
    with Controller(inventory, limit=limit) as controller:
        outcome, events = controller.run("stop", {"gpurun_run_id": wanted})
    ended: dict[str, list[Any]] = {}
    for event in events:
        if event.kind == "ok" and "ended" in event.result:
            ended.setdefault(event.host, []).extend(event.result["ended"])
    _sweep(results, wanted)
    document = {"schema": "gpurun.stop/1", "ended": ended, "failed": outcome.lost}
    if as_json:
        if not outcome.lost:  # else it is part of the error's document
            options.print_json(document)
    else:
        click.echo(fill("stop.txt.j2", ended=ended), nl=bool(ended))
        if run is not None and not any(ended.values()):
            click.echo(f"note: looked for run {wanted}; `gpurun doctor` tells what else is there", err=True)
    if outcome.lost:
        message, fix = told(outcome.lost)
        raise HostError(message, hint=f"{fix or 'cure that'}; then run the same command again", result=document)
    return int(ExitCode.DONE)


def _sweep(results: Path, run: str) -> None:
    """Remove what was being written here when its writer was killed."""
    from gpurun.store import RunStore, list_runs

    for known in list_runs(results):
        if run in ("*", known.id) and known.status != "unreadable":
            RunStore.open(Path(known.dir)).sweep()


def _whole_id(results: Path, run: str) -> str:
    """The run's full id; a name that no stored run here bears is taken as it is (the results may be elsewhere)."""
    from gpurun import store
    from gpurun.errors import GpurunError

    try:
        return store.find(results, run).manifest.run
    except GpurunError:
        if run == "last":
            raise
        return store.safe_name(run, "run")
