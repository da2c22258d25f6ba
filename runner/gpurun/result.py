"""The `--json` document and the exit code: what programs read of a run. Both are contracts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from gpurun.compare import Case, Effect
from gpurun.errors import ExitCode
from gpurun.samples import Sample

RESULT_SCHEMA = "gpurun.result/1"
COMPARISON_SCHEMA = "gpurun.comparison/1"
FailOn = Literal["failure", "regression", "never"]


def document(
    run: str, directory: str, status: str, samples: Sequence[Sample], effects: Sequence[Effect]
) -> dict[str, Any]:
    """`gpurun.result/1`: the run, every sample, every effect.

    `estimate` and `interval` are relative changes against the baseline (0.12 is 12 % more), null where there is none.
    Metrics carry their units in their names; a number that is not finite is null.
    """
    return {
        "schema": RESULT_SCHEMA,
        "run": {"id": run, "dir": directory, "status": status},
        "samples": [_sample(sample) for sample in samples],
        "effects": [_effect(effect) for effect in effects],
    }


def comparison(before: str, after: str, effects: Sequence[Effect], notes: Sequence[str]) -> dict[str, Any]:
    """`gpurun.comparison/1`: two runs, `after` against `before`; effects as in the result, with a reason each."""
    return {
        "schema": COMPARISON_SCHEMA,
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
    if host_failed or any(s.failure is not None and s.failure.klass == "host_unreachable" for s in samples):
        return ExitCode.HOST_FAILED
    if not any(sample.status == "measured" for sample in samples):
        return ExitCode.NOTHING_MEASURED
    if fail_on == "regression" and regressed(effects):
        return ExitCode.REGRESSION
    if fail_on != "never" and unexpected(cases, samples):
        return ExitCode.CASE_FAILED
    return ExitCode.DONE


def regressed(effects: Sequence[Effect]) -> list[Effect]:
    """The effects on the primary metric that are worse."""
    return [effect for effect in effects if effect.primary and effect.verdict == "worse"]


def unexpected(cases: Sequence[Case], samples: Sequence[Sample]) -> list[Sample]:
    """The samples that ended otherwise than declared: failures that nobody expected, numbers where a failure was."""
    expect = {case.id: case.expect for case in cases}
    return [
        sample
        for sample in samples
        if (sample.status == "failed" and not (sample.failure is not None and sample.failure.expected))
        or (sample.status == "measured" and expect.get(sample.case) is not None)
    ]


def _sample(sample: Sample) -> dict[str, Any]:
    failure = sample.failure
    return {
        "variant": sample.variant,
        "benchmark": sample.benchmark,
        "case": sample.case,
        "round": sample.round,
        "host": sample.host,
        "status": sample.status,
        "metrics": {name: _finite(value) for name, value in sorted(sample.metrics.items())},
        "failure": None
        if failure is None
        else {
            "class": failure.klass,
            "phase": failure.phase,
            "proof": failure.proof,
            "advice": failure.advice,
            "expected": failure.expected,
        },
        "taints": list(sample.taints),
    }


def _effect(effect: Effect) -> dict[str, Any]:
    return {
        "variant": effect.case.variant,
        "benchmark": effect.case.benchmark,
        "case": effect.case.id,
        "metric": effect.metric,
        "estimate": _finite(effect.estimate),
        "interval": None if effect.interval is None else [_finite(end) for end in effect.interval],
        "verdict": effect.verdict,
        "rounds": effect.rounds,
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
