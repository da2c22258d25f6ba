"""`gpurun bench`: run a campaign."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from gpurun.commands import options

_OF_A_RUN = ("config", "inventory", "limit", "variants", "overrides", "force", "results", "store", "fail_on")


@click.command()
@options.config_file(required=False, told="the campaign file; with --resume, by default as the run was begun")
@options.inventory
@options.limit
@options.variants
@options.overrides
@options.force
@options.results(None, "where results go; default: as the campaign says")
@options.store("push each sample there as well: s3://, sftp:// or file://; default: as the campaign says")
@options.fail_on("failure", "regression", "never", told="what makes the exit code other than 0")
@options.wait
@click.option("--resume", metavar="RUN", help="go on with this run: what was measured with the same content is kept")
@click.option("--retry-failed", is_flag=True, help="with --resume: measure again what failed, whatever the cause")
@options.as_json
@options.color
@click.option("--progress/--no-progress", default=None, help="live line or plain lines; default: by the terminal")
@click.pass_context
def command(context: click.Context, /, as_json: bool, color: Any, progress: bool | None, **asked: Any) -> int:
    """Run a campaign: each variant is served, measured in interleaved rounds, and compared with the baseline.

    A variant that fails is a result too: its cause and the line that proves it are recorded, and the rest goes on.
    With --resume and no --config, the file and what else is not given are those of the command that began the run.
    """
    from gpurun import opening, paths
    from gpurun.execute import BenchOptions, bench
    from gpurun.terminal import Terminal
    from gpurun.terminal.tables import results_table

    if asked["retry_failed"] and asked["resume"] is None:
        raise click.UsageError("--retry-failed goes with --resume RUN")
    if asked["config"] is None:
        asked |= _as_begun(context, asked)
    config, *narrowed = (asked.pop(name) for name in ("config", "overrides", "variants"))
    campaign, cases = opening.read_campaign(paths.find_campaign(config), overrides=narrowed[0], variants=narrowed[1])
    terminal = Terminal(color, progress=progress)
    done = bench(campaign, cases, BenchOptions(**asked, command=["gpurun", *sys.argv[1:]]), terminal.observer())
    if as_json:
        options.print_json(done.document)
    else:
        terminal.show(results_table(done.report))
        terminal.message(f"results: {done.store.directory}\nreport:  {done.store.directory / 'report.html'}")
    where = done.store.manifest.store
    if where and not done.not_stored:
        terminal.message(f"store:   {where}")
    elif where:
        terminal.message(f"error: not all of this run is in the results store: {done.not_stored}\n  --> {where}")
        terminal.message(f"hint: `gpurun report {done.document['run']['id']} --store {where}` pushes the rest")
    return int(done.exit_code)


def _as_begun(context: click.Context, asked: dict[str, Any]) -> dict[str, Any]:
    """What the run to go on with was begun with and is not given anew, by the command line that its manifest keeps."""
    from gpurun.remote import locate

    if asked["resume"] is None:
        raise click.UsageError("Missing option '-c' / '--config': the campaign file.", context)
    known = locate(asked["results"] or Path("results"), asked["resume"], asked["store"]).manifest
    if known.command[:2] != ["gpurun", "bench"]:
        raise click.UsageError(f"run {known.run} was not begun by `gpurun bench`: give its campaign's file", context)
    begun = context.command.make_context("bench", known.command[2:], parent=context.parent).params
    return {
        name: begun[name]
        for name in _OF_A_RUN
        if context.get_parameter_source(name) is click.core.ParameterSource.DEFAULT
    }
