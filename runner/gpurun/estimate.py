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


def estimate(planned: Sequence[Any], start_guess_s: Mapping[str, float], measured: Iterable[Sample] = ()) -> Estimate:
    """The time that the samples of a plan take.

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
    start_s = load_s = 0.0
    hosts: dict[str, float] = defaultdict(float)
    for item in planned:
        own = loads.get(item.case) or [assumed_load_s(item.load["spec"])]
        load = min(statistics.median(own), item.load["timeout_s"])
        begin = statistics.median(starts.get(item.variant) or [start_guess_s[item.variant]]) if item.start else 0.0
        load_s, start_s = load_s + load, start_s + begin
        hosts[item.host] += load + ASSUMED_STEP_S + begin + (ASSUMED_STOP_S if item.start else 0.0)
    return Estimate(
        total_s=round(max(hosts.values(), default=0.0), 1),
        start_s=round(start_s, 1),
        load_s=round(load_s, 1),
        samples=len(planned),
        starts=sum(item.start for item in planned),
        measured=bool(loads),
    )


def assumed_load_s(spec: Mapping[str, Any]) -> float:
    """Seconds of one load, warm-up included, if one stream generates at the assumed rate."""
    data, load = spec["data"], spec["load"]
    one_s = data["output_tokens"] / ASSUMED_STREAM_TOK_PER_S + data.get("prompt_tokens", 0) / ASSUMED_PROMPT_TOK_PER_S
    limit_s, requests, warmup = spec["duration_s"] or float("inf"), spec["requests"] or 10**9, spec["warmup"]
    if "request_rate" in load:
        return float(min(requests / load["request_rate"], limit_s) + one_s + warmup / load["request_rate"])
    return float(min(-(-requests // load["concurrency"]) * one_s, limit_s) - (-warmup // load["concurrency"]) * one_s)
