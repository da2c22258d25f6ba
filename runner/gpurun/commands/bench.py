"""`gpurun bench`: run a campaign."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gpurun.commands import options
from gpurun.result import FailOn


@click.command()
@options.config
@options.inventory
@options.limit
@options.variants
@options.overrides
@options.force
@options.results(None, "where results go; default: as the campaign says")
@options.store("push each sample there as well: s3://, sftp:// or file://; default: as the campaign says")
@click.option(
    "--fail-on",
    type=click.Choice(["failure", "regression", "never"]),
    default="failure",
    show_default=True,
    help="what makes the exit code other than 0",
)
@click.option(
    "--wait",
    metavar="DURATION",
    default="0s",
    show_default=True,
    help="wait for a host that another run holds",
)
@click.option("--resume", metavar="RUN", help="go on with this run: what was measured with the same content is kept")
@click.option("--retry-failed", is_flag=True, help="with --resume: measure again what failed, whatever the cause")
@options.as_json
@options.color
@click.option("--progress/--no-progress", default=None, help="live line or plain lines; default: by the terminal")
def command(
    config: str,
    inventory: Path | None,
    limit: str | None,
    variants: tuple[str, ...],
    overrides: tuple[str, ...],
    force: tuple[str, ...],
    results: Path | None,
    store: str | None,
    fail_on: FailOn,
    wait: str,
    resume: str | None,
    retry_failed: bool,
    as_json: bool,
    color: str,
    progress: bool | None,
) -> int:
    """Run a campaign: each variant is served, measured in interleaved rounds, and compared with the baseline.

    A variant that fails is a result too: its cause and the line that proves it are recorded, and the rest goes on.
    """
    import json

    from gpurun import opening, paths
    from gpurun.execute import BenchOptions, bench
    from gpurun.terminal import Terminal
    from gpurun.terminal.tables import results_table

    wait_s = _seconds(wait)
    if retry_failed and resume is None:
        raise click.UsageError("--retry-failed goes with --resume RUN")
    campaign, cases = opening.read_campaign(paths.find_campaign(config), overrides=overrides, variants=variants)
    terminal = Terminal(color, progress=progress)  # type: ignore[arg-type]
    command = ["gpurun", *sys.argv[1:]]
    options = BenchOptions(inventory, limit, results, fail_on, wait_s, resume, retry_failed, force, command, store)
    done = bench(campaign, cases, options, terminal.observer())
    if as_json:
        click.echo(json.dumps(done.document, indent=2, sort_keys=True, allow_nan=False))
    else:
        terminal.show(results_table(done.report))
        terminal.message(f"results: {done.store.directory}\nreport:  {done.store.directory / 'report.html'}")
    if done.not_stored:
        where = done.store.manifest.store
        terminal.message(f"error: not all of this run is in the results store: {done.not_stored}\n  --> {where}")
        terminal.message(f"hint: `gpurun report {done.document['run']['id']} --store {where}` pushes the rest")
    return int(done.exit_code)


def _seconds(wait: str) -> float:
    from gpurun.fields import Complaint, duration

    try:
        return duration(wait)
    except Complaint as complaint:
        raise click.BadParameter(f"{complaint}: {complaint.hint}", param_hint="--wait") from None
