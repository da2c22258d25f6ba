"""`gpurun compare`: a run's variants again, or one run against another."""

from __future__ import annotations

from pathlib import Path

import click

from gpurun.assess import compare_runs
from gpurun.commands import options
from gpurun.commands.runs import show_run
from gpurun.compare import Effect
from gpurun.errors import ExitCode
from gpurun.result import comparison, regressed
from gpurun.store import find
from gpurun.terminal import Terminal
from gpurun.terminal.tables import comparison_table


@click.command("compare")
@click.argument("run")
@click.argument("other", required=False)
@options.results("results")
@options.as_json
@options.fail_on("regression", "never", told="regression: exit with 6 where the primary metric is worse.")
@click.option("--force", is_flag=True, help="compare two runs although tool, data, model or hosts differ; says so")
def command(run: str, other: str | None, results: Path, as_json: bool, fail_on: str, force: bool) -> int:
    """Judge the variants of RUN against its baseline; or, with two runs, each variant of OTHER against that of RUN.

    A run is named by its id, either end of it, its directory, a name given with `gpurun runs name`, or `last`.
    """
    effects = _two(results, run, other, as_json, force) if other else show_run(results, run, as_json).effects
    return int(ExitCode.REGRESSION if fail_on == "regression" and regressed(effects) else ExitCode.DONE)


def _two(results_dir: Path, first: str, second: str, as_json: bool, force: bool) -> list[Effect]:
    stores = [find(results_dir, reference) for reference in (first, second)]
    before, after = (store.judged() for store in stores)
    effects = compare_runs(before, after, force=force)
    notes = ["the runs were not interleaved: whatever else changed between them is part of each effect"]
    engines = [
        ", ".join(f"{name} {version}" for name, version in sorted(store.manifest.engines.items())) or "unknown"
        for store in stores
    ]
    if engines[0] != engines[1]:
        notes.append(f"engine versions differ: {engines[0]} before, {engines[1]} after")
    if as_json:
        options.print_json(comparison(before.run, after.run, effects, notes))
    else:
        Terminal().show(comparison_table(before.run, after.run, effects, notes))
    return effects
