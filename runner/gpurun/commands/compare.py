"""`gpurun compare`: a run's variants again, or one run against another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from gpurun.assess import compare_runs
from gpurun.commands import options
from gpurun.commands.runs import show_run
from gpurun.compare import Effect
from gpurun.errors import ConfigError, ExitCode
from gpurun.manifest import Manifest
from gpurun.references import find
from gpurun.result import comparison, regressed
from gpurun.terminal import Terminal
from gpurun.terminal.tables import comparison_table


@click.command("compare")
@click.argument("run")
@click.argument("other", required=False)
@options.results("results")
@options.as_json
@options.fail_on("regression", "never", told="regression: exit with 6 where the primary metric is worse, or fails now.")
@click.option("--force", is_flag=True, help="compare two runs although tool, data, model or hosts differ; says so")
def command(run: str, other: str | None, results: Path, as_json: bool, fail_on: str, force: bool) -> int:
    """Judge the variants of RUN against its baseline; or, with two runs, each variant of OTHER against that of RUN.

    A run is named by its id, either end of it, its directory, a name given with `gpurun runs name`, or `last`.
    """
    effects = _two(results, run, other, as_json, force) if other else show_run(results, run, as_json).effects
    return int(_code(effects, bool(other)) if fail_on == "regression" else ExitCode.DONE)


def _code(effects: Sequence[Effect], two: bool) -> ExitCode:
    """A gate must not pass for want of numbers. Of two runs, what fails now and did not before is a regression, too."""
    primary = [effect for effect in effects if effect.primary]
    broken = [e for e in primary if e.verdict == "failed" and not e.expected and e.baseline is not None]
    if regressed(effects) or (two and broken):
        return ExitCode.REGRESSION
    compared = any(effect.verdict != "not comparable" for effect in primary)
    return ExitCode.DONE if compared or not two else ExitCode.NOTHING_MEASURED


def _two(results_dir: Path, first: str, second: str, as_json: bool, force: bool) -> list[Effect]:
    stores = [find(results_dir, reference) for reference in (first, second)]
    if stores[0].manifest.run == stores[1].manifest.run:
        hint = f"`gpurun compare {first}` compares its variants; `gpurun runs` lists the others"
        raise ConfigError(f"`{first}` and `{second}` are one run: {stores[0].manifest.run}", hint=hint)
    before, after = (store.judged() for store in stores)
    effects = compare_runs(before, after, force=force)
    notes = ["the runs were not interleaved: whatever else changed between them is part of each effect"]
    for what, of in (("engine versions", _engines), ("drivers", _drivers)):
        old, new = (of(store.manifest) or "unknown" for store in stores)
        if old != new:
            notes.append(f"{what} differ: {old} before, {new} after")
    if as_json:
        options.print_json(comparison(before.run, after.run, effects, notes))
    else:
        Terminal().show(comparison_table(before.run, after.run, effects, notes))
    return effects


def _engines(manifest: Manifest) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(manifest.engines.items()))


def _drivers(manifest: Manifest) -> str:
    return ", ".join(sorted({str(d["version"]) for facts in manifest.hosts.values() if (d := facts.get("driver"))}))
