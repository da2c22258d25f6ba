"""Metrics from raw load results: every definition by a small case whose answer is worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpurun.errors import GpurunError
from gpurun.parsers import invalid, parse_builtin, percentile


def request(**changes: Any) -> dict[str, Any]:
    """Sent at 1.0, five tokens from 1.1 on, one each 0.1 s."""
    chunks = changes.pop("chunks", [1.1, 1.2, 1.3, 1.4, 1.5])
    base = {
        "intended": 1.0,
        "sent": 1.0,
        "first": chunks[0] if chunks else None,
        "last": chunks[-1] if chunks else None,
        "end": 1.5,
        "ok": True,
        "error": None,
        "status": 200,
        "prompt_tokens": 10,
        "output_tokens": 5,
        "usage": True,
        "chunks": chunks,
        "finish": "length",
        "timings": None,
    }
    return {**base, **changes}


def raw(*requests: dict[str, Any], **changes: Any) -> dict[str, Any]:
    window = {"start_unix": 1.0, "duration_s": 2.0, "fixed": False, **changes.pop("window", {})}
    client = {"cpu_s": 0.25, "startup_s": 0.1, "max_lag_s": 0.0}
    return {"schema": "gpurun.load/1", "window": window, "client": client, "requests": list(requests), **changes}


def failure(text: str = "HTTP 500: no") -> dict[str, Any]:
    return request(ok=False, error=text, chunks=[], output_tokens=0, end=99.0)


def test_one_request() -> None:
    parsed = parse_builtin(raw(request()))
    assert parsed.problems == []
    assert parsed.measured
    expected = {"ttft": 100, "tpot": 100, "itl": 100, "e2e": 500}
    for name, value in expected.items():
        for part in ("mean", "p50", "p90", "p99"):
            assert parsed.metrics[f"{name}_{part}_ms"] == pytest.approx(value)
    assert parsed.metrics["output_tok_per_s"] == pytest.approx(2.5)
    assert parsed.metrics["total_tok_per_s"] == pytest.approx(7.5)
    assert parsed.metrics["request_per_s"] == pytest.approx(0.5)
    assert parsed.metrics["client_cpu_s"] == 0.25
    assert "accept_length" not in parsed.metrics


def test_latency_counts_from_the_intended_start() -> None:
    late = request(intended=0.0)  # sent a second too late: the stalled server's fault, not the request's luck
    parsed = parse_builtin(raw(late))
    assert parsed.metrics["ttft_mean_ms"] == pytest.approx(1100)
    assert parsed.metrics["e2e_mean_ms"] == pytest.approx(1500)


def test_failures_count_as_errors_and_never_as_latency() -> None:
    parsed = parse_builtin(raw(request(), failure(), failure(), failure("dropped")))
    assert parsed.metrics["error_rate"] == 0.75
    assert parsed.metrics["e2e_p99_ms"] == pytest.approx(500)
    assert (parsed.completed, parsed.failed) == (1, 3)
    assert parsed.errors == ["HTTP 500: no", "dropped"]


def test_tokens_come_from_usage_not_from_events() -> None:
    # Speculative decoding: nine tokens in three events.
    parsed = parse_builtin(raw(request(output_tokens=9, chunks=[1.1, 1.3, 1.5])))
    assert parsed.metrics["tpot_mean_ms"] == pytest.approx(50)
    assert parsed.metrics["itl_mean_ms"] == pytest.approx(50)
    assert parsed.metrics["itl_p99_ms"] == pytest.approx(50)


def test_itl_mean_weighs_tokens_not_events() -> None:
    fast = request(output_tokens=5, chunks=[1.0, 1.1])  # 4 tokens in one gap of 100 ms
    slow = request(output_tokens=2, chunks=[1.0, 1.5])  # 1 token in one gap of 500 ms
    assert parse_builtin(raw(fast, slow)).metrics["itl_mean_ms"] == pytest.approx(600 / 5)


def test_one_token_has_no_time_per_token() -> None:
    metrics = parse_builtin(raw(request(output_tokens=1, chunks=[1.1]))).metrics
    assert not [name for name in metrics if name.startswith(("tpot", "itl"))]
    assert metrics["ttft_p50_ms"] == pytest.approx(100)


def test_a_fixed_window_counts_what_arrived_within_it() -> None:
    inside, across = request(), request(chunks=[1.9, 1.95, 2.05, 2.1, 2.15], end=2.15, late=True)
    parsed = parse_builtin(raw(inside, across, window={"fixed": True}))
    assert parsed.metrics["output_tok_per_s"] == pytest.approx((5 + 5 * 2 / 5) / 2)
    assert parsed.metrics["request_per_s"] == pytest.approx(0.5)
    assert parsed.metrics["requests"] == 2


def test_accept_length_is_tokens_per_step() -> None:
    # 41 tokens: one from the prompt, then 10 steps that each took 3 of a draft and added one of their own.
    drafted = request(timings={"predicted_n": 41, "draft_n": 50, "draft_n_accepted": 30})
    assert parse_builtin(raw(drafted)).metrics["accept_length"] == pytest.approx(4.0)
    useless = request(timings={"predicted_n": 41, "draft_n": 50, "draft_n_accepted": 0})
    assert parse_builtin(raw(useless)).metrics["accept_length"] == pytest.approx(1.0)
    assert "accept_length" not in parse_builtin(raw(request(timings={"predicted_n": 41}))).metrics


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (raw(), "no request was made"),
        (raw(failure(), failure()), "all 2 requests failed"),
        (raw(request(output_tokens=0, chunks=[])), "single output token"),
        (raw(request(usage=False, prompt_tokens=None)), "no usage"),
        (raw(request(), spec={"data": {"kind": "synthetic", "output_tokens": 4}}), "more tokens than were asked for"),
        (raw(request(), interrupted=True), "interrupted"),
        (raw(request(), aborted="no connection"), "gave up: no connection"),
    ],
)
def test_problems(document: dict[str, Any], said: str) -> None:
    parsed = parse_builtin(document)
    assert any(said in problem for problem in parsed.problems)
    assert all(math.isfinite(value) for value in parsed.metrics.values())


def test_nothing_measured_gives_no_made_up_numbers() -> None:
    parsed = parse_builtin(raw(failure(), window={"duration_s": 0.0}))
    assert not parsed.measured
    assert set(parsed.metrics) == {"requests", "failed_requests", "duration_s", "error_rate", "client_cpu_s"}


def test_another_schema_is_refused() -> None:
    with pytest.raises(GpurunError, match=r"gpurun\.load/2"):
        parse_builtin({"schema": "gpurun.load/2"})


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0, 1))
def test_percentile_is_numpys(values: list[float], share: float) -> None:
    assert percentile(sorted(values), share) == pytest.approx(numpy.percentile(values, share * 100), abs=1e-6)


def test_what_is_no_measurement() -> None:
    assert invalid(parse_builtin(raw(request())), 0.0) is None
    half = parse_builtin(raw(request(), failure()))
    assert invalid(half, 0.5) is None
    assert invalid(half, 0.4) == "1 of 2 requests failed, more than the limit of 40.0%: HTTP 500: no"
    assert invalid(parse_builtin(raw(failure())), 1.0) == "all 1 requests failed: HTTP 500: no"
    assert "single output token" in str(invalid(parse_builtin(raw(request(output_tokens=0, chunks=[]))), 1.0))
    assert "interrupted" in str(invalid(parse_builtin(raw(request(), interrupted=True)), 1.0))
