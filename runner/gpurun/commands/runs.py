"""`gpurun runs`: list stored runs, show one."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path

import click

from gpurun import started
from gpurun.assess import Assessment
from gpurun.commands import options
from gpurun.references import find, list_runs, name_run
from gpurun.remote import Remote, locate
from gpurun.result import document
from gpurun.terminal import Terminal
from gpurun.terminal.tables import results_table, runs_table


@click.group("runs", invoke_without_command=True)
@options.results("results")
@options.store("those of this results store")
@options.as_json
@click.option("--campaign", metavar="PATTERN", help="only of these campaigns, such as `nightly*`")
@click.option(
    "--status", type=click.Choice(["running", "done", "failed", "interrupted", "unreadable"]), help="only these"
)
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M"]),
    metavar="DATE",
    help="only those that began then or later: 2026-11-30, or 2026-11-30T09:00 (UTC)",
)
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="only the newest N of them")
@click.pass_context
def command(
    context: click.Context,
    results: Path,
    store: str | None,
    as_json: bool,
    campaign: str | None,
    status: str | None,
    since: datetime | None,
    last: int | None,
) -> None:
    """List stored runs, newest first; `show` prints one again."""
    context.obj = results, as_json, store
    if context.invoked_subcommand is not None:
        return
    from_then = since.isoformat() if since else ""
    runs = [
        run
        for run in (Remote(store).runs() if store else list_runs(results))
        if fnmatchcase(run.campaign, campaign or "*")
        and status in (None, run.status)
        and (run.started_at or "") >= from_then
    ][:last]
    if as_json:
        options.print_json({"schema": "gpurun.runs/1", "runs": [asdict(run) for run in runs]})
    elif runs:
        Terminal().show(runs_table(runs))
    else:
        told = f"no{' such' if any((campaign, status, since)) else ''} runs in {store or results}"
        Terminal().message(f"{told}; `gpurun bench --config FILE` makes one")


@command.command("show")
@click.argument("run")
@options.results(None)
@options.store("a run of this results store: it is fetched")
@options.as_json
@click.pass_context
def show(context: click.Context, run: str, results: Path | None, store: str | None, as_json: bool) -> None:
    """Print a run's table again. RUN is an id, either end of one, a run's directory, a name, or `last`:
    the newest that has begun to measure."""
    folder, json_too, url = context.obj  # options may stand before or after `show`
    show_run(_typed(context, results) or folder, run, as_json or json_too, store or url)


@command.command("name")
@click.argument("run")
@click.argument("name")
@options.results(None)
@click.pass_context
def name(context: click.Context, run: str, name: str, results: Path | None) -> None:
    """Let NAME stand for RUN: `gpurun runs name last before-upgrade`, later `gpurun compare before-upgrade last`."""
    folder = _typed(context, results) or context.obj[0]
    store = find(folder, run)
    before = name_run(folder, store, name)
    Terminal().message(f"{name} is {store.manifest.run}{f', and no longer {before}' if before else ''}")


def _typed(context: click.Context, results: Path | None) -> Path | None:
    """What was given after the verb: the variable, which answers for both, does not overrule what stands before it."""
    by_hand = context.get_parameter_source("results") is click.core.ParameterSource.COMMANDLINE
    return results if by_hand else None


def show_run(results_dir: Path, reference: str, as_json: bool, url: str | None = None) -> Assessment:
    """Judge a stored run anew, print it, and return its assessment."""
    store = locate(results_dir, reference, url)
    manifest, directory = store.manifest, store.directory
    judged = store.judged()
    if as_json:
        options.print_json(document(manifest.run, str(directory), manifest.status_now, judged.samples, judged.effects))
    else:
        terminal = Terminal()
        terminal.message(f"run {manifest.run}  {manifest.campaign}  {manifest.status_now}  {directory}\n")
        terminal.show(results_table(judged) if judged.samples else "nothing was measured")
        for line in [
            *started.memory_lines(judged.samples),
            *started.settings_lines(store.plan["samples"], store.settings()),
        ]:
            terminal.message(line)
    return judged
