"""A small campaign's plan and samples, with numbers that were written down by hand. Used by several tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpurun.samples import Sample

FAILURE = {
    "class": "bad_flag",
    "phase": "start",
    "proof": "error: --parallel: -7 is not a valid number of slots",
    "advice": "give `server.flags.parallel` a positive number",
    "expected": True,
}
# Output tok/s by round.
NUMBERS: dict[str, list[float | None]] = {
    "baseline": [81.9, 82.4, 81.2, 82.0, 81.7],
    "one-thread": [52.1, 52.6, 51.9, 52.3, 52.4],
    "flash-attn": [82.0, 82.1, 81.4, 81.9, 81.9],
    "ngram": [90.1, 96.9, 88.2, 93.0, 79.5],
    "too-many": [None] * 5,
}


def plan(
    numbers: Mapping[str, Sequence[float | None]] = NUMBERS,
    points: Sequence[int] = (4,),
    hosts: Sequence[str] = ("localhost",),
    warmup: int = 4,
    rounds: int = 5,
) -> dict[str, Any]:
    """As plan.py writes it, as far as judging needs it."""
    samples = [
        {
            "round": number,
            "host": host,
            "case": f"{variant}-chat-{point}",
            "variant": variant,
            "benchmark": "chat",
            "axes": {"benchmarks.chat.load.concurrency": point},
            "label": f"chat@{point}",
            "expect": "bad_flag" if variant == "too-many" else None,
            "load": {"tool": "builtin", "spec": {"requests": 32, "warmup": warmup, "load": {"concurrency": point}}},
        }
        for number in range(1, rounds + 1)
        for point in points
        for variant in numbers
        for host in hosts
    ]
    metrics = {
        "output_tok_per_s": {"better": "higher", "threshold": 0.02},
        "ttft_p99_ms": {"better": "lower", "threshold": 0.05},
    }
    compare = {"primary": "output_tok_per_s", "metrics": metrics}
    return {"schema": "gpurun.plan/1", "rounds": rounds, "compare": compare, "samples": samples}


def samples(
    numbers: Mapping[str, Sequence[float | None]] = NUMBERS,
    points: Sequence[int] = (4,),
    hosts: Sequence[str] = ("localhost",),
    factor: float = 1.0,
) -> list[Sample]:
    """One sample for each number, a failed one for each None. TTFT falls as throughput rises."""
    found = []
    for variant, series in numbers.items():
        for index, value in enumerate(series):
            for point in points:
                for host in hosts:
                    fields: dict[str, Any] = {"run": "20261130-1204-a1f3", "variant": variant, "benchmark": "chat"}
                    fields |= {"case": f"{variant}-chat-{point}", "round": index + 1, "host": host}
                    fields |= {"axes": {"benchmarks.chat.load.concurrency": point}, "engine": {"version": "0.9.0"}}
                    if value is None:
                        fields |= {"status": "failed", "failure": FAILURE, "files": ["server.log"]}
                    else:
                        rate = value * factor
                        fields |= {
                            "status": "measured",
                            "metrics": {"output_tok_per_s": rate, "ttft_p99_ms": 9e3 / rate},
                        }
                    found.append(Sample.model_validate(fields))
    return found
