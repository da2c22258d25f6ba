"""`gpurun stop`: end what a run left on the hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpurun.commands import options
from gpurun.errors import ExitCode

if TYPE_CHECKING:
    from gpurun.playbooks import Controller


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
    wanted, certain = ("*", True) if everything or run is None else _whole_id(results, run)
    with Controller(inventory, limit=limit) as controller:
        found = _Found.by(controller, wanted)
        if not (certain or found.changed or found.lost):  # perhaps the end of an id that only the hosts know
            meant = [other for other in found.others if other.startswith(wanted) or other.endswith(wanted)]
            if len(meant) != 1:
                told_of = (
                    f"jobs of these run there: {', '.join(found.others)}" if found.others else "nothing runs there"
                )
                raise ConfigError(f"there is no run `{run}` here, nor one of that name on the hosts", hint=told_of)
            wanted, found = meant[0], _Found.by(controller, meant[0])
    _sweep(results, wanted)
    document = {"schema": "gpurun.stop/1", "ended": found.ended, "failed": found.lost}
    if as_json:
        if not found.lost:  # else it is part of the error's document
            options.print_json(document)
    else:
        click.echo(fill("stop.txt.j2", ended=found.ended, run=wanted), nl=bool(found.ended))
        if run is not None and not any(found.ended.values()):
            others = f"jobs of others are there: {', '.join(found.others)}; " if found.others else ""
            click.echo(f"note: looked for run {wanted}; {others}`gpurun doctor` tells what is there", err=True)
    if found.lost:
        message, fix = told(found.lost)
        raise HostError(message, hint=f"{fix or 'cure that'}; then run the same command again", result=document)
    return int(ExitCode.DONE)


@dataclass(frozen=True)
class _Found:
    """What one pass over the hosts has ended, the runs that still have jobs there, and the hosts that did not do it."""

    ended: dict[str, list[Any]]
    others: list[str]
    lost: Mapping[str, str]
    changed: bool

    @classmethod
    def by(cls, controller: Controller, run: str) -> _Found:
        outcome, events = controller.run("stop", {"gpurun_run_id": run})
        told = [event for event in events if event.kind == "ok" and "ended" in event.result]
        ended: dict[str, list[Any]] = {}
        for event in told:
            ended.setdefault(event.host, []).extend(event.result["ended"])
        others = sorted({other for event in told for other in event.result["others"]})
        return cls(ended, others, outcome.lost, any(event.result["changed"] for event in told))


def _sweep(results: Path, run: str) -> None:
    """Remove what was being written here when its writer was killed."""
    from gpurun.references import list_runs
    from gpurun.store import RunStore

    for known in list_runs(results):
        if run in ("*", known.id) and known.status != "unreadable":
            RunStore.open(Path(known.dir)).sweep()


def _whole_id(results: Path, run: str) -> tuple[str, bool]:
    """The run's id, and whether that is certain: a name that no stored run here bears is taken as it is (the results
    may be elsewhere, and what `gpurun serve` started has none)."""
    from gpurun import references, store
    from gpurun.errors import GpurunError

    try:
        return references.find(results, run).manifest.run, True
    except GpurunError:
        if run == "last":
            raise
        return store.safe_name(run, "run"), bool(store.RUN_ID.fullmatch(run))
