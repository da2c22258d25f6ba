"""From what a load tool left behind to metrics. Pure: no files, no clocks.

Latencies are in milliseconds and count from the intended start of a request: in a closed loop that is when it was sent,
in an open loop when the timetable wanted it sent, so that a server that stalls its clients is not flattered. Failed
requests never enter a latency or a throughput, and always enter `error_rate`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from gpurun.errors import GpurunError

LOAD_SCHEMA = "gpurun.load/1"


@dataclass(frozen=True)
class ParsedLoad:
    """The result of one load run.

    `metrics` has units in its names and holds only what could be computed: never NaN, never a made-up zero. `problems`
    are sentences on why this is no valid measurement, or is one with a reservation; `measured` is false where there is
    no number at all to be trusted (nothing completed, or no token).
    """

    metrics: dict[str, float]
    completed: int
    failed: int
    problems: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)  # the distinct error texts of failed requests, most frequent first

    interrupted: bool = False

    @property
    def measured(self) -> bool:
        """Whether at least one request completed with at least one output token."""
        return self.completed > 0 and self.metrics.get("output_tokens", 0) > 0


def parse_builtin(raw: Mapping[str, Any]) -> ParsedLoad:
    """Metrics of the builtin client's RAW (`gpurun.load/1`). Raises GpurunError if it is something else.

    ttft   first content event - intended start
    tpot   (last - first content event) / (output tokens - 1): time per output token after the first, by the server's
           token count; one figure a request; undefined below two tokens or two events
    itl    gaps between content events. An event may carry several tokens (speculative decoding): in a request with m
           tokens an event on average, m = (output tokens - 1) / (events - 1), a gap counts as gap / m. The mean is over
           tokens (all gaps / all tokens after the first), percentiles are over events
    e2e    end of the answer - intended start
    *_tok_per_s, request_per_s   over the window: from its start to the last end, or, where a duration was set, that
           duration: then a request that ended later counts with the share of its events within the window, and as a
           request not at all
    """
    if raw.get("schema") != LOAD_SCHEMA:
        raise GpurunError(
            f"a load tool's result with schema {raw.get('schema')!r}, where {LOAD_SCHEMA!r} is expected",
            hint="the file is from another version of gpurun, or not from its builtin client; measure again",
        )
    requests: Sequence[Mapping[str, Any]] = raw["requests"]
    good = [request for request in requests if request["ok"]]
    failed = len(requests) - len(good)
    duration = float(raw["window"]["duration_s"])
    limit = duration if raw["window"].get("fixed") else math.inf
    metrics: dict[str, float] = {"requests": len(good), "failed_requests": failed, "duration_s": duration}
    if requests:
        metrics["error_rate"] = failed / len(requests)
    if "cpu_s" in raw.get("client", {}):
        metrics["client_cpu_s"] = float(raw["client"]["cpu_s"])
    if good:
        metrics["output_tokens"] = sum(request["output_tokens"] for request in good)
        metrics["prompt_tokens"] = sum(request["prompt_tokens"] or 0 for request in good)
        metrics |= _throughput(good, duration, limit) | _latencies(good) | _accept_length(good)
    problems, errors = _problems(raw, good, failed), _errors(requests)
    return ParsedLoad(metrics, len(good), failed, problems, errors, bool(raw.get("interrupted")))


def invalid(parsed: ParsedLoad, error_rate_limit: float) -> str | None:
    """Why this load is no measurement, in one sentence; None if it is one.

    It is none when nothing completed, when no token came, when it was interrupted, or when the share of failed requests
    is above `error_rate_limit` (0 to 1): what a server does while it refuses a part of its work compares with nothing.
    """
    error_rate = parsed.metrics.get("error_rate", 0.0)
    first = f": {parsed.errors[0]}" if parsed.errors else ""
    if not parsed.measured or parsed.interrupted:
        return (parsed.problems[0] if parsed.problems else "nothing was measured") + first
    if error_rate > error_rate_limit:
        share = f"{parsed.failed} of {parsed.completed + parsed.failed} requests failed"
        return f"{share}, more than the limit of {error_rate_limit:.1%}{first}"
    return None


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the sorted `values` lie, linear between neighbours (numpy's default).

    At rank r = share * (n - 1): values[floor r] + (r - floor r) * (values[floor r + 1] - values[floor r]).
    Hyndman and Fan, "Sample Quantiles in Statistical Packages", The American Statistician 50 (1996), definition 7.
    """
    rank = share * (len(values) - 1)
    below = math.floor(rank)
    above = min(below + 1, len(values) - 1)
    return values[below] + (rank - below) * (values[above] - values[below])


def _throughput(good: Sequence[Mapping[str, Any]], duration: float, limit: float) -> dict[str, float]:
    if duration <= 0:
        return {}
    output = sum(request["output_tokens"] * _share_within(request, limit) for request in good)
    prompt = sum(request["prompt_tokens"] or 0 for request in good if (request["first"] or request["end"]) <= limit)
    ended = sum(1 for request in good if request["end"] <= limit)
    return {
        "output_tok_per_s": output / duration,
        "total_tok_per_s": (output + prompt) / duration,
        "request_per_s": ended / duration,
    }


def _share_within(request: Mapping[str, Any], limit: float) -> float:
    """The share of a request's content events that arrived within the window."""
    chunks = request["chunks"]
    if request["end"] <= limit or not chunks:
        return float(request["end"] <= limit)
    return sum(1 for at in chunks if at <= limit) / len(chunks)


def _latencies(good: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    ttft = [request["first"] - request["intended"] for request in good if request["first"] is not None]
    e2e = [request["end"] - request["intended"] for request in good]
    tpot: list[float] = []
    itl: list[float] = []
    streamed_s, streamed_tokens = 0.0, 0
    for request in good:
        chunks, tokens = request["chunks"], request["output_tokens"]
        if len(chunks) < 2 or tokens < 2:
            continue
        span = chunks[-1] - chunks[0]
        tpot.append(span / (tokens - 1))
        streamed_s += span
        streamed_tokens += tokens - 1
        per_event = (tokens - 1) / (len(chunks) - 1)
        itl.extend((after - before) / per_event for before, after in pairwise(chunks))
    metrics = _summary("ttft", ttft) | _summary("e2e", e2e) | _summary("tpot", tpot) | _summary("itl", itl)
    if streamed_tokens:
        metrics["itl_mean_ms"] = 1e3 * streamed_s / streamed_tokens
    return metrics


def _summary(name: str, seconds: Iterable[float]) -> dict[str, float]:
    values = sorted(1e3 * value for value in seconds)
    if not values:
        return {}
    found = {f"{name}_mean_ms": math.fsum(values) / len(values)}
    return found | {f"{name}_p{part}_ms": percentile(values, part / 100) for part in (50, 90, 99)}


def _accept_length(good: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Tokens per verification step, from llama.cpp's `timings` (llama-server: draft_n, draft_n_accepted, predicted_n).

    The first token comes from the prompt's pass; each later step gives one token and those of its draft that were
    accepted. So steps = predicted_n - 1 - draft_n_accepted, and length = (predicted_n - 1) / steps. Steps without a
    draft count too, as in SGLang's completion_tokens / verify_ct; vLLM's 1 + accepted / drafts leaves them out.
    """
    produced = accepted = drafted = 0
    for request in good:
        timings = request.get("timings") or {}
        if timings.get("draft_n"):
            drafted += timings["draft_n"]
        if "predicted_n" in timings:
            produced += max(0, timings["predicted_n"] - 1)
            accepted += timings.get("draft_n_accepted") or 0
    steps = produced - accepted
    return {"accept_length": produced / steps} if drafted and steps > 0 else {}


def _problems(raw: Mapping[str, Any], good: Sequence[Mapping[str, Any]], failed: int) -> list[str]:
    count: Callable[[Iterable[bool]], int] = sum
    uncounted = count(not request["usage"] for request in good)
    silent = count(not request["chunks"] for request in good)
    checks = [
        (raw.get("interrupted"), "the load was interrupted before it was complete"),
        (raw.get("aborted"), f"the load client gave up: {raw.get('aborted')}"),
        (not good and not failed, "no request was made"),
        (not good and failed, f"all {failed} requests failed"),
        (good and not any(request["output_tokens"] for request in good), "no request gave a single output token"),
        (uncounted, f"{uncounted} of {len(good)} answers carried no usage: their tokens are counted by events"),
        (silent, f"{silent} of {len(good)} answers carried no text: they have no time to first token"),
    ]
    return [text for wrong, text in checks if wrong]


def _errors(requests: Sequence[Mapping[str, Any]]) -> list[str]:
    counts: dict[str, int] = {}
    for request in requests:
        if not request["ok"]:
            text = request["error"] or "no reason given"
            counts[text] = counts.get(text, 0) + 1
    return sorted(counts, key=lambda text: -counts[text])
