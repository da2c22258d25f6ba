"""From what a load tool left behind to metrics. Pure: no files, no clocks.

Latencies are in milliseconds and count from the intended start of a request: in a closed loop that is when it was sent,
in an open loop when the timetable wanted it sent, so that a server that stalls its clients is not flattered. Failed
requests never enter a latency or a throughput, and always enter `error_rate`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from gpurun.errors import GpurunError

LOAD_SCHEMA = "gpurun.load/1"
_Requests = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class ParsedLoad:
    """The result of one load run.

    `metrics` has units in its names and holds only what could be computed: never NaN, never a made-up zero. `problems`
    are sentences on why this is no valid measurement, or is one with a reservation; `errors` are the distinct texts of
    failed requests, most frequent first.
    """

    metrics: dict[str, float]
    completed: int
    failed: int
    problems: list[str]
    errors: list[str]
    interrupted: bool
    window: tuple[float, float] | None = None  # begin and end of the measured time, unix seconds of the load's host
    warmup_tokens: int | None = None  # output tokens of requests before the measured ones; None: not told
    notes: list[str] = field(default_factory=list)  # what of the tool's own figures is known to be wrong

    @property
    def measured(self) -> bool:
        """Whether at least one request completed with at least one output token, where tokens are told at all."""
        return self.completed > 0 and self.metrics.get("output_tokens", 1) > 0


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
    requests: _Requests = raw["requests"]
    good = [request for request in requests if request["ok"]]
    failed, duration = len(requests) - len(good), float(raw["window"]["duration_s"])
    metrics: dict[str, float] = {"requests": len(good), "failed_requests": failed, "duration_s": duration}
    if requests:
        metrics["error_rate"] = failed / len(requests)
    if "cpu_s" in raw.get("client", {}):
        metrics["client_cpu_s"] = float(raw["client"]["cpu_s"])
    if good:
        metrics["output_tokens"] = sum(request["output_tokens"] for request in good)
        metrics["prompt_tokens"] = sum(request["prompt_tokens"] or 0 for request in good)
        limit = duration if raw["window"].get("fixed") else math.inf
        metrics |= _throughput(good, duration, limit) | _latencies(good) | _accept_length(good)
    errors = Counter(request["error"] or "no reason given" for request in requests if not request["ok"])
    problems, texts = _problems(raw, good, failed), [text for text, _ in errors.most_common()]
    begin, warm = raw["window"].get("start_unix"), raw.get("warmup", {}).get("output_tokens")
    window = None if begin is None else (float(begin), float(begin) + duration)
    return ParsedLoad(metrics, len(good), failed, problems, texts, bool(raw.get("interrupted")), window, warm)


def invalid(parsed: ParsedLoad, error_rate_limit: float) -> str | None:
    """Why this load is no measurement, in one sentence; None if it is one.

    It is none when nothing completed, when no token came, when it was interrupted, or when the share of failed requests
    is above `error_rate_limit` (0 to 1): what a server does while it refuses a part of its work compares with nothing.
    """
    first = f": {parsed.errors[0]}" if parsed.errors else ""
    if not parsed.measured or parsed.interrupted:
        return (parsed.problems[0] if parsed.problems else "nothing was measured") + first
    if parsed.metrics.get("error_rate", 0.0) > error_rate_limit:
        share = f"{parsed.failed} of {parsed.completed + parsed.failed} requests failed"
        return f"{share}, more than the limit of {error_rate_limit:.1%}{first}"
    return None


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the sorted `values` lie, linear between neighbours (numpy's default).

    Hyndman and Fan, "Sample Quantiles in Statistical Packages", The American Statistician 50 (1996), definition 7.
    """
    rank = share * (len(values) - 1)
    below = math.floor(rank)
    above = min(below + 1, len(values) - 1)
    return values[below] + (rank - below) * (values[above] - values[below])


def _throughput(good: _Requests, duration: float, limit: float) -> dict[str, float]:
    if duration <= 0:
        return {}
    output = sum(request["output_tokens"] * _share_within(request, limit) for request in good)
    prompt = sum(request["prompt_tokens"] or 0 for request in good if (request["first"] or request["end"]) <= limit)
    return {
        "output_tok_per_s": output / duration,
        "total_tok_per_s": (output + prompt) / duration,
        "request_per_s": sum(request["end"] <= limit for request in good) / duration,
    }


def _share_within(request: Mapping[str, Any], limit: float) -> float:
    """The share of a request's content events that arrived within the window."""
    chunks = request["chunks"]
    if request["end"] <= limit or not chunks:
        return float(request["end"] <= limit)
    return float(sum(at <= limit for at in chunks) / len(chunks))


def _latencies(good: _Requests) -> dict[str, float]:
    streams = [(r["chunks"], r["output_tokens"] - 1) for r in good if len(r["chunks"]) > 1 and r["output_tokens"] > 1]
    spans = [chunks[-1] - chunks[0] for chunks, _ in streams]
    seconds = {
        "ttft": [request["first"] - request["intended"] for request in good if request["first"] is not None],
        "e2e": [request["end"] - request["intended"] for request in good],
        "tpot": [span / tokens for span, (_, tokens) in zip(spans, streams, strict=True)],
        "itl": [(b - a) * (len(chunks) - 1) / tokens for chunks, tokens in streams for a, b in pairwise(chunks)],
    }
    metrics: dict[str, float] = {}
    for name, found in seconds.items():
        if values := sorted(1e3 * value for value in found):
            metrics[f"{name}_mean_ms"] = math.fsum(values) / len(values)
            metrics |= {f"{name}_p{part}_ms": percentile(values, part / 100) for part in (50, 90, 99)}
    if streams:
        metrics["itl_mean_ms"] = 1e3 * sum(spans) / sum(tokens for _, tokens in streams)
    return metrics


def _accept_length(good: _Requests) -> dict[str, float]:
    """Tokens per verification step, from llama.cpp's `timings` (llama-server: draft_n, draft_n_accepted, predicted_n).

    The first token comes from the prompt's pass; each later step gives one token and those of its draft that were
    accepted. So steps = predicted_n - 1 - draft_n_accepted, and length = (predicted_n - 1) / steps. Steps without a
    draft count too, as in SGLang's completion_tokens / verify_ct; vLLM's 1 + accepted / drafts leaves them out.
    """
    timings = [request.get("timings") or {} for request in good]
    known = [timing for timing in timings if "predicted_n" in timing]
    produced = sum(max(0, timing["predicted_n"] - 1) for timing in known)
    steps = produced - sum(timing.get("draft_n_accepted") or 0 for timing in known)
    drafted = any(timing.get("draft_n") for timing in timings)
    return {"accept_length": produced / steps} if drafted and steps > 0 else {}


def _problems(raw: Mapping[str, Any], good: _Requests, failed: int) -> list[str]:
    def count(wrong: Iterable[bool]) -> str | None:
        share = sum(wrong)
        return f"{share} of {len(good)} answers carried no" if share else None

    uncounted, silent = count(not r["usage"] for r in good), count(not r["chunks"] for r in good)
    asked = raw.get("spec", {}).get("data", {})
    limit = math.inf if asked.get("kind") == "file" else asked.get("output_tokens") or math.inf
    over = sum(r["usage"] and r["output_tokens"] > limit for r in good)
    again = raw.get("client", {}).get("retries", 0)
    checks = [
        (raw.get("interrupted"), "the load was interrupted before it was complete"),
        (raw.get("aborted"), f"the load client gave up: {raw.get('aborted')}"),
        (not good and not failed, "no request was made"),
        (not good and failed, f"all {failed} requests failed"),
        (good and not any(request["output_tokens"] for request in good), "no request gave a single output token"),
        (uncounted, f"{uncounted} usage: their tokens are counted by events"),
        (over, f"the server counts more tokens than were asked for in {over} of {len(good)} answers"),
        (silent, f"{silent} text: they have no time to first token"),
        (again, f"retries: {again} requests were sent once more, as the server closed their connection after a wait"),
    ]
    return [text for wrong, text in checks if wrong]
