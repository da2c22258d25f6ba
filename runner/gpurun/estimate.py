"""How long a plan will take: from what was measured before, else from plain assumptions that the plan names."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from gpurun.samples import Sample

ASSUMED_STREAM_TOK_PER_S = 30.0  # of one stream, whatever the concurrency
ASSUMED_PROMPT_TOK_PER_S = 1000.0
ASSUMED_STOP_S = 2.0
ASSUMED_STEP_S = 1.5  # orchestration of a sample


class Estimate(BaseModel):
    """Seconds until a run ends (hosts work side by side), and what makes them; counts are over all hosts and rounds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    total_s: float
    start_s: float
    load_s: float
    samples: int
    starts: int
    measured: bool


def estimate(
    planned: Sequence[Mapping[str, Any]], start_guess_s: Mapping[str, float], measured: Iterable[Sample] = ()
) -> Estimate:
    """The time that `planned` samples (as in plan.json) take.

    `start_guess_s` is the assumed start of each variant's server. Medians of `measured` samples replace assumptions:
    a case's load by that case's, a variant's start by that variant's.
    """
    loads: dict[str, list[float]] = defaultdict(list)
    starts: dict[str, list[float]] = defaultdict(list)
    for sample in measured:
        if sample.timing.load_s is not None:
            loads[sample.case].append(sample.timing.load_s)
        if sample.timing.server_start_s is not None:
            starts[sample.variant].append(sample.timing.server_start_s)
    known_before = bool(loads)
    start_s = load_s = 0.0
    hosts: dict[str, float] = defaultdict(float)
    for item in planned:
        own = statistics.median(loads[item["case"]]) if loads[item["case"]] else assumed_load_s(item["load"]["spec"])
        own = min(own, float(item["load"]["timeout_s"]))
        load_s += own
        hosts[item["host"]] += own + ASSUMED_STEP_S
        if item["start"]:
            known = starts[item["variant"]]
            begin = statistics.median(known) if known else start_guess_s[item["variant"]]
            start_s += begin
            hosts[item["host"]] += begin + ASSUMED_STOP_S
    return Estimate(
        total_s=round(max(hosts.values(), default=0.0), 1),
        start_s=round(start_s, 1),
        load_s=round(load_s, 1),
        samples=len(planned),
        starts=sum(1 for item in planned if item["start"]),
        measured=known_before,
    )


def assumed_load_s(spec: Mapping[str, Any]) -> float:
    """Seconds of one load, warm-up included, if one stream generates at the assumed rate."""
    data, load = spec["data"], spec["load"]
    one_s = data["output_tokens"] / ASSUMED_STREAM_TOK_PER_S + data.get("prompt_tokens", 0) / ASSUMED_PROMPT_TOK_PER_S
    if "request_rate" in load:
        count_s = (spec["requests"] or float("inf")) / load["request_rate"]
        return float(min(count_s, spec["duration_s"] or float("inf")) + one_s + spec["warmup"] / load["request_rate"])
    at_once = load["concurrency"]
    count_s = -(-(spec["requests"] or 10**9) // at_once) * one_s
    return float(min(count_s, spec["duration_s"] or float("inf")) + -(-spec["warmup"] // at_once) * one_s)
