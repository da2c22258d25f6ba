"""The document that programs read, and the exit code: both exactly as promised."""

from __future__ import annotations

import json
import math
from typing import Any

import jsonschema
import pytest
from tests.unit import stored

from gpurun.assess import assess
from gpurun.errors import ExitCode
from gpurun.result import document, exit_code
from gpurun.samples import Failure, Sample

NUMBER = {"type": ["number", "null"]}
FAILURE = {
    "type": "object",
    "required": ["class", "phase", "proof", "advice", "expected"],
    "properties": {"expected": {"type": "boolean"}},
    "maxProperties": 5,
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["schema", "run", "samples", "effects"],
    "maxProperties": 4,
    "properties": {
        "schema": {"const": "gpurun.result/1"},
        "run": {"type": "object", "required": ["id", "dir", "status"], "maxProperties": 3},
        "samples": {
            "items": {
                "required": [
                    *("variant", "benchmark", "case", "round", "host", "status", "metrics", "failure", "taints")
                ],
                "maxProperties": 9,
                "properties": {
                    "status": {"enum": ["measured", "failed", "skipped"]},
                    "metrics": {"additionalProperties": NUMBER},
                    "failure": {"oneOf": [{"type": "null"}, FAILURE]},
                },
            }
        },
        "effects": {
            "items": {
                "required": ["variant", "benchmark", "case", "metric", "estimate", "interval", "verdict", "rounds"],
                "maxProperties": 8,
                "properties": {
                    "estimate": NUMBER,
                    "interval": {"oneOf": [{"type": "null"}, {"type": "array", "minItems": 2, "maxItems": 2}]},
                    "verdict": {
                        "enum": ["better", "worse", "no difference found", "cannot tell", "not comparable", "failed"]
                    },
                    "rounds": {"type": "integer"},
                },
            }
        },
    },
}


def test_the_document_is_the_contract_and_nothing_else() -> None:
    judged = assess(stored.plan(), stored.samples())
    made = document("r", "results/q/r", "done", judged.samples, judged.effects)
    jsonschema.validate(made, SCHEMA)
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    assert len(made["samples"]) == 25
    assert {effect["variant"] for effect in made["effects"]} == {"one-thread", "flash-attn", "ngram", "too-many"}


def test_a_number_that_is_none_is_null() -> None:
    sample = stored.samples()[0].model_copy(update={"metrics": {"output_tok_per_s": math.nan}})
    made = document("r", "d", "done", [sample], [])
    assert made["samples"][0]["metrics"] == {"output_tok_per_s": None}
    json.dumps(made, allow_nan=False)


def unexpected_failure(klass: str = "oom_gpu") -> Failure:
    return Failure.model_validate({"class": klass, "phase": "kv"})


def code(change: Any = None, **options: Any) -> ExitCode:
    """The exit code of the quickstart with each sample changed by `change`."""
    found = [change(sample) if change else sample for sample in stored.samples()]
    judged = assess(stored.plan(), found)
    return exit_code(judged.cases, judged.samples, judged.effects, **options)


def failing(variant: str, klass: str = "oom_gpu", rounds: tuple[int, ...] = (1, 2, 3, 4, 5)) -> Any:
    def change(sample: Sample) -> Sample:
        if (variant not in (sample.variant, "*")) or sample.round not in rounds:
            return sample
        return sample.model_copy(update={"status": "failed", "failure": unexpected_failure(klass), "metrics": {}})

    return change


def succeeding(sample: Sample) -> Sample:
    if sample.variant != "too-many":
        return sample
    return sample.model_copy(update={"status": "measured", "failure": None, "metrics": {"output_tok_per_s": 1.0}})


@pytest.mark.parametrize(
    ("change", "options", "expected"),
    [
        (None, {}, ExitCode.DONE),  # too-many fails as expected, one-thread is worse: neither counts
        (failing("ngram"), {}, ExitCode.CASE_FAILED),
        (failing("ngram", rounds=(3,)), {}, ExitCode.CASE_FAILED),
        (failing("ngram"), {"fail_on": "never"}, ExitCode.DONE),
        (failing("too-many", "oom_gpu"), {}, ExitCode.CASE_FAILED),  # another failure than the expected one
        (succeeding, {}, ExitCode.CASE_FAILED),
        (None, {"fail_on": "regression"}, ExitCode.REGRESSION),
        (failing("one-thread"), {"fail_on": "regression"}, ExitCode.CASE_FAILED),
        (failing("*"), {}, ExitCode.NOTHING_MEASURED),
        (failing("*"), {"fail_on": "never"}, ExitCode.NOTHING_MEASURED),
        (failing("*", "host_unreachable"), {}, ExitCode.HOST_FAILED),
        (failing("ngram", "host_unreachable", (5,)), {"fail_on": "never"}, ExitCode.HOST_FAILED),
        (None, {"host_failed": True}, ExitCode.HOST_FAILED),
    ],
)
def test_exit_codes(change: Any, options: dict[str, Any], expected: ExitCode) -> None:
    assert code(change, **options) == expected


def test_nothing_at_all_is_nothing_measured() -> None:
    assert exit_code([], [], []) == ExitCode.NOTHING_MEASURED
