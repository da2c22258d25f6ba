"""`gpurun compare`: a run's variants again, or one run against another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpurun.commands.runs import json_option, print_json, results_option, show_run
from gpurun.errors import ExitCode

if TYPE_CHECKING:
    from gpurun.compare import Effect


@click.command("compare")
@click.argument("run")
@click.argument("other", required=False)
@results_option
@json_option
@click.option(
    "--fail-on",
    type=click.Choice(["regression", "never"]),
    default="never",
    show_default=True,
    show_envvar=True,
    help="regression: exit with 6 where the primary metric is worse.",
)
def command(run: str, other: str | None, results_dir: Path, as_json: bool, fail_on: str) -> int:
    """Judge the variants of RUN against its baseline; or, with two runs, each variant of OTHER against that of RUN.

    A run is named by its id, either end of it, its directory, or `last`.
    """
    from gpurun.result import regressed

    effects = _two(results_dir, run, other, as_json) if other else show_run(results_dir, run, as_json).effects
    return int(ExitCode.REGRESSION if fail_on == "regression" and regressed(effects) else ExitCode.DONE)


def _two(results_dir: Path, first: str, second: str, as_json: bool) -> list[Effect]:
    from gpurun.assess import assess, run_view
    from gpurun.compare import compare_runs
    from gpurun.store import find

    views = []
    engines = []
    for reference in (first, second):
        store = find(results_dir, reference)
        manifest, plan = store.manifest, store.plan
        judged = assess(plan, store.samples())
        views.append(run_view(manifest.run, judged, plan, manifest.hosts))
        engines.append(manifest.engines)
    before, after = views
    effects = compare_runs(before, after, judged.rules)
    notes = ["the runs were not interleaved: whatever else changed between them is part of each effect"]
    if engines[0] != engines[1]:
        notes.append(f"engine versions differ: {_versions(engines[0])} before, {_versions(engines[1])} after")
    if as_json:
        from gpurun.result import comparison

        print_json(comparison(before.run, after.run, effects, notes))
    else:
        from gpurun.terminal import Terminal
        from gpurun.terminal.tables import comparison_table

        Terminal().show(comparison_table(before.run, after.run, effects, notes))
    return effects


def _versions(engines: dict[str, object]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(engines.items())) or "unknown"
