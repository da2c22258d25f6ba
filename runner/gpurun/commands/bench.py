"""`gpurun bench`: run a campaign."""

from __future__ import annotations

import sys
from typing import Any

import click

from gpurun.commands import options


@click.command()
@options.config
@options.inventory
@options.limit
@options.variants
@options.overrides
@options.force
@options.results(None, "where results go; default: as the campaign says")
@options.store("push each sample there as well: s3://, sftp:// or file://; default: as the campaign says")
@options.fail_on("failure", "regression", "never", told="what makes the exit code other than 0")
@options.duration("--wait", default="0s", told="wait for a host that another run holds")
@click.option("--resume", metavar="RUN", help="go on with this run: what was measured with the same content is kept")
@click.option("--retry-failed", is_flag=True, help="with --resume: measure again what failed, whatever the cause")
@options.as_json
@options.color
@click.option("--progress/--no-progress", default=None, help="live line or plain lines; default: by the terminal")
def command(
    config: str,
    overrides: tuple[str, ...],
    variants: tuple[str, ...],
    as_json: bool,
    color: Any,
    progress: bool | None,
    **asked: Any,
) -> int:
    """Run a campaign: each variant is served, measured in interleaved rounds, and compared with the baseline.

    A variant that fails is a result too: its cause and the line that proves it are recorded, and the rest goes on.
    """
    from gpurun import opening, paths
    from gpurun.execute import BenchOptions, bench
    from gpurun.terminal import Terminal
    from gpurun.terminal.tables import results_table

    if asked["retry_failed"] and asked["resume"] is None:
        raise click.UsageError("--retry-failed goes with --resume RUN")
    campaign, cases = opening.read_campaign(paths.find_campaign(config), overrides=overrides, variants=variants)
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
