"""A plan and the samples that came of it -> everything that is said about them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpurun.compare import Case, Effect, Rules, RunView, cases_of, judge
from gpurun.notes import notes
from gpurun.samples import Sample


@dataclass(frozen=True)
class Assessment:
    """What a results table and the result document are made of.

    `rounds` is how many were planned; `directory` is the run's, for paths to logs.
    """

    cases: Sequence[Case]
    samples: Sequence[Sample]
    effects: Sequence[Effect]
    rules: Rules
    rounds: int
    notes: Sequence[str] = ()
    directory: Path | None = None


def assess(plan: Mapping[str, Any], samples: Sequence[Sample], directory: Path | None = None) -> Assessment:
    """Judge a run by its stored plan; samples that the plan does not name (of an earlier plan) are left out."""
    planned = plan["samples"]
    cases = cases_of(planned)
    rules = Rules.of(plan["compare"])
    rounds = int(plan["rounds"])
    known = {case.id for case in cases}
    samples = [sample for sample in samples if sample.case in known]
    effects = judge(cases, samples, rules)
    loads = {item["benchmark"]: item["load"]["spec"] for item in planned if _spec(item) is not None}
    return Assessment(
        cases,
        samples,
        effects,
        rules,
        rounds,
        notes(cases, samples, effects, rules, rounds=rounds, loads=loads),
        directory,
    )


# What of a load's specification belongs to the place where it runs, not to what is measured.
_LOCAL = ("base_url", "progress", "tokenize", "timeout_s", "model")


def run_view(run: str, assessment: Assessment, plan: Mapping[str, Any], hosts: Mapping[str, Any]) -> RunView:
    """A run as the comparison of two runs sees it. `hosts` are the manifest's facts by host name."""
    prints: dict[str, dict[str, Any]] = {}
    for item in plan["samples"]:
        spec = _spec(item) or {}
        prints[item["case"]] = {
            "tool": (item.get("load") or {}).get("tool"),
            "data": {name: value for name, value in spec.items() if name not in _LOCAL},
            "model": _source((item.get("server") or {}).get("model")) or spec.get("model"),
        }
    hardware = {name: _hardware(facts) for name, facts in hosts.items()}
    return RunView(run, assessment.cases, assessment.samples, prints, hardware)


def _spec(item: Mapping[str, Any]) -> Mapping[str, Any] | None:
    spec = (item.get("load") or {}).get("spec")
    return spec if isinstance(spec, Mapping) else None


def _source(model: Any) -> Any:
    """Which model it is, wherever it lies on the host."""
    return {name: value for name, value in model.items() if name != "path"} if isinstance(model, Mapping) else None


def _hardware(facts: Any) -> Any:
    """The facts that make two measurements comparable: processors, architecture and GPUs, not what is free or busy."""
    if not isinstance(facts, Mapping):
        return facts
    inner = facts.get("host")
    host = inner if isinstance(inner, Mapping) else facts
    gpus = facts.get("gpus") or []
    return (
        host.get("cpus"),
        host.get("arch"),
        [(gpu.get("name"), gpu.get("memory_total_mib")) for gpu in gpus if isinstance(gpu, Mapping)],
    )
