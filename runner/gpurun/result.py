"""The `--json` document and the exit code: what programs read of a run. Both are contracts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from gpurun.compare import Case, Effect
from gpurun.errors import ExitCode
from gpurun.samples import AGAIN, Sample

FailOn = Literal["failure", "regression", "never"]
_OF_SAMPLE = {"variant", "benchmark", "case", "round", "host", "status", "metrics", "failure", "taints"}


def document(
    run: str, directory: str, status: str, samples: Sequence[Sample], effects: Sequence[Effect]
) -> dict[str, Any]:
    """`gpurun.result/1`: the run, every sample, every effect.

    `estimate` and `interval` are relative changes against the baseline (0.12 is 12 % more), null where there is none.
    Metrics carry their units in their names; a number that is not finite is null. Samples that are a second or later
    measurement on one server say which, as `repeat`.
    """
    return {
        "schema": "gpurun.result/1",
        "run": {"id": run, "dir": directory, "status": status},
        "samples": [_sample(sample) for sample in samples],
        "effects": [_effect(effect) for effect in effects],
    }


def comparison(before: str, after: str, effects: Sequence[Effect], notes: Sequence[str]) -> dict[str, Any]:
    """`gpurun.comparison/1`: two runs, `after` against `before`; effects as in the result, with a reason each."""
    return {
        "schema": "gpurun.comparison/1",
        "runs": {"before": before, "after": after},
        "effects": [{**_effect(effect), "reason": effect.reason} for effect in effects],
        "notes": list(notes),
    }


def exit_code(
    cases: Sequence[Case],
    samples: Sequence[Sample],
    effects: Sequence[Effect],
    *,
    fail_on: FailOn = "failure",
    host_failed: bool = False,
) -> ExitCode:
    """How a run that was not interrupted ends, the first of these that holds.

    3 a host failed; 5 nothing was measured; 6 the primary metric of a variant is worse (with `fail_on` regression);
    1 a sample failed otherwise than its variant expects, or one that should have failed was measured (unless `fail_on`
    is never); 0.
    """
    measured = {sample.case for sample in samples if sample.status == "measured"}
    if host_failed or any(s.failure is not None and s.failure.klass == "host_unreachable" for s in samples):
        return ExitCode.HOST_FAILED
    if not measured:
        return ExitCode.NOTHING_MEASURED
    if fail_on == "regression" and regressed(effects):
        return ExitCode.REGRESSION
    unexpected = any(s.status == "failed" and not (s.failure and s.failure.expected) for s in samples)
    unexpected = unexpected or any(case.expect and case.id in measured for case in cases)
    return ExitCode.CASE_FAILED if unexpected and fail_on != "never" else ExitCode.DONE


def regressed(effects: Sequence[Effect]) -> list[Effect]:
    """The effects on the primary metric that are worse; noise is none."""
    return [e for e in effects if e.primary and e.verdict == "worse" and e.case.variant != AGAIN]


def _sample(sample: Sample) -> dict[str, Any]:
    own = _OF_SAMPLE | ({"repeat"} if sample.repeat > 1 else set())
    told = sample.model_dump(mode="json", by_alias=True, include=own, exclude={"failure": {"line"}})
    told["metrics"] = {name: value if math.isfinite(value) else None for name, value in sample.metrics.items()}
    return told


def _effect(effect: Effect) -> dict[str, Any]:
    return {
        "variant": effect.case.variant,
        "benchmark": effect.case.benchmark,
        "case": effect.case.id,
        "metric": effect.metric,
        "estimate": effect.estimate,
        "interval": effect.interval and list(effect.interval),
        "verdict": effect.verdict,
        "rounds": effect.rounds,
    }
