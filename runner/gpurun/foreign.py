"""From what other load tools write to the builtin client's form, so that all metrics have one definition. Pure.

Each tool keeps something of every request: when its first token came, the gaps after it, its tokens. That becomes
`gpurun.load/1`, and `parsers` computes from it what it computes for the builtin client. Where a tool is known to be
wrong, it is corrected here, or told in `notes`.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from gpurun.errors import ODD_DATA, GpurunError
from gpurun.parsers import LOAD_SCHEMA, ParsedLoad, parse_builtin, percentile

Planned = Mapping[str, Any]  # a planned sample's `load`
_NS = 1e-9


def parse(planned: Planned, text: str) -> ParsedLoad:
    """What a load tool measured, from its raw output. GpurunError (of any kind of damage) where it is not readable."""
    name = str(planned.get("parser") or "builtin")
    try:
        return _PARSERS[name](text, planned)
    except ODD_DATA as error:
        what = f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)
        raise GpurunError(f"the output of {planned.get('tool', name)} cannot be read: {what}") from error


def _builtin(text: str, planned: Planned) -> ParsedLoad:
    return parse_builtin(json.loads(text))


def _sglang(text: str, planned: Planned) -> ParsedLoad:
    """bench_serving with --output-details: one JSON line a run, the last one counts.

    Its token counts are what was asked for, not what came: the check against the server's counters tells. Its peak
    counts events, so that it is below the mean under speculative decoding (sglang PR 33193).
    """
    found = json.loads(text.strip().splitlines()[-1])
    columns = zip(*(found[key] for key in ("ttfts", "itls", "input_lens", "output_lens", "errors")), strict=True)
    requests = [
        _request(first, gaps, prompt, output, error, assumed=True) for first, gaps, prompt, output, error in columns
    ]
    notes = []
    if 0 < found.get("max_output_tokens_per_s", math.inf) < found["output_throughput"]:
        notes.append("its peak throughput is below its mean: it counts events, and each carries several tokens")
    return _parsed(requests, found["duration"], notes, planned, accept_length=found.get("accept_length"))


def _vllm(text: str, planned: Planned) -> ParsedLoad:
    """`vllm bench serve --save-detailed`: lists by request.

    What a request waited for --max-concurrency is no part of its latencies (vllm 54101). Where `queue_times` are there
    (since 0.33), the intended start is put before that wait, if requests came at a rate.
    """
    found = json.loads(text)
    count = len(found["ttfts"])
    waits = found.get("queue_times") if planned["spec"]["load"].get("request_rate") else None
    starts = found.get("start_times") or [0.0] * count
    begin = min(starts, default=0.0)
    columns = (starts, waits or [0.0] * count, *(found[k] for k in ("ttfts", "itls", "input_lens", "output_lens")))
    requests = [
        _request(first, gaps, prompt, output, error, start=start - begin, waited=waited)
        for start, waited, first, gaps, prompt, output, error in zip(*columns, found["errors"], strict=True)
    ]
    return _parsed(requests, found["duration"], [], planned)


def _aiperf(text: str, planned: Planned) -> ParsedLoad:
    """profile_export.jsonl, one record a request; those of the warm-up are left out."""
    records = [json.loads(line) for line in text.splitlines() if line.strip()]
    records = [one for one in records if one["metadata"].get("benchmark_phase", "profiling") == "profiling"]
    begin = min((one["metadata"]["request_start_ns"] for one in records), default=0)
    requests = []
    for one in records:
        about, metrics = one["metadata"], {key: found["value"] for key, found in one["metrics"].items()}
        start = (about["request_start_ns"] - begin) * _NS
        if one.get("error") or "time_to_first_token" not in metrics:
            requests.append(_request(None, [], None, 0, str((one.get("error") or {}).get("message") or "no text")))
            continue
        gaps = metrics.get("inter_chunk_latency")
        first = metrics["time_to_first_token"] / 1e3
        end = start + metrics["request_latency"] / 1e3
        output, prompt = int(metrics["output_sequence_length"]), int(metrics["input_sequence_length"])
        between = [gap / 1e3 for gap in gaps] if isinstance(gaps, list) else [end - start - first]
        one_request = _request(first, between, prompt, output, "", start=start)
        requests.append(one_request | {"end": max(end, one_request["end"]), "gaps": isinstance(gaps, list)})
    ends = [one["metadata"]["request_end_ns"] for one in records]
    duration = (max(ends) - begin) * _NS if ends else 0.0
    return _parsed(requests, duration, [], planned, begin * _NS if ends else None)


def _guidellm(text: str, planned: Planned) -> ParsedLoad:
    """The JSON report: times of each request (unix seconds), none of its tokens but the first and the last.

    At a rate, latencies count from when a request should have been sent, as the builtin client's do.
    """
    (found,) = json.loads(text)["benchmarks"]
    listed, rate = found["requests"], planned["spec"]["load"].get("request_rate")
    begin = min((one["request_start_time"] for one in listed["successful"]), default=0.0)
    requests, duration = [], 0.0
    for one in listed["successful"]:
        times, start = one["info"]["timings"], one["request_start_time"]
        first, last = times["first_token_iteration"], times["last_token_iteration"]
        waited = max(0.0, start - times["targeted_start"]) if rate else 0.0
        made = _request(
            first - start, [last - first], one["prompt_tokens"], one["output_tokens"] or 0, "",
            start=start - begin, waited=waited,
        )  # fmt: skip
        requests.append(made | {"end": one["request_end_time"] - begin, "gaps": False})
        duration = max(duration, one["request_end_time"] - begin)
    for one in listed["errored"]:
        requests.append(_request(None, [], None, 0, str(one["info"].get("error") or "no reason given")))
    return _parsed(requests, duration, [], planned, begin or None)


def _llama_bench(text: str, planned: Planned) -> ParsedLoad:
    """`-o json`, between whatever else it prints: a test with n_gen 0 is the prompt's pass, one with n_prompt 0 the
    generation. A sample is a repetition of one stream; the prompt's pass is what a first token waits for."""
    begin = text.index("[\n") if "[\n" in text else text.index("[")
    tests, _ = json.JSONDecoder().raw_decode(text[begin:])
    prompts = [test for test in tests if not test["n_gen"]]
    (generation,) = [test for test in tests if not test["n_prompt"]]
    tokens, runs = generation["n_gen"], [1e-6 * ns for ns in generation["samples_ns"]]
    metrics = {
        "requests": float(len(runs)),
        "failed_requests": 0.0,
        "error_rate": 0.0,
        "output_tokens": float(tokens * len(runs)),
        "output_tok_per_s": float(generation["avg_ts"]),
        **_spread("tpot", [run / tokens for run in runs]),
        **(_spread("ttft", [1e-6 * ns for ns in prompts[0]["samples_ns"]]) if prompts else {}),
    }
    return ParsedLoad(metrics, len(runs), 0, [], [], False)


def _script(text: str, planned: Planned) -> ParsedLoad:
    """A script's own results, where the campaign says that they are."""
    wanted = planned["parse"]
    kind, places = wanted["format"], wanted["metrics"]
    if kind == "text":
        found = {name: _match(pattern, text) for name, pattern in places.items()}
    else:
        row = _row(kind, text)
        found = {name: _at(row, path) for name, path in places.items()}
    metrics: dict[str, float] = {}
    for name, value in found.items():
        at = f"`{name}` is {value!r} at `{places[name]}`"
        try:
            metrics[name] = float(str(value)) * float(wanted["scale"].get(name, 1.0))  # not of a switch, nor a list
        except ValueError:
            raise ValueError(f"{at}, which is no number") from None
        if not 0 <= metrics[name] < math.inf:
            raise ValueError(f"{at}, which is no measurement")
    if metrics.get("error_rate", 0.0) > 1:
        raise ValueError(f"`error_rate` is {metrics['error_rate']:g}, but a share is at most 1: `scale` it")
    count = planned["spec"].get("requests") or 1
    failed = round(metrics.get("error_rate", 0.0) * count)
    if not any(metrics.values()):
        return ParsedLoad(metrics, 0, count, ["all its results are 0"], [], False)
    return ParsedLoad(metrics, count - failed, failed, [], [], False)


_ALL: tuple[Callable[[str, Planned], ParsedLoad], ...] = (
    *(_builtin, _sglang, _vllm, _aiperf),
    *(_guidellm, _llama_bench, _script),
)
_PARSERS = {each.__name__.lstrip("_"): each for each in _ALL}


def _row(kind: str, text: str) -> Any:
    """The document, or its last line."""
    if kind == "json":
        return json.loads(text)
    rows: list[Any] = [line for line in text.split("\n") if line.strip()]
    if kind == "csv":
        try:
            rows = list(csv.DictReader(rows, restkey=""))
        except csv.Error as error:
            raise ValueError(error) from None
    if not rows:
        raise ValueError("there is no line of results in it")
    return rows[-1] if kind == "csv" else json.loads(rows[-1])


def _at(found: Any, path: str) -> Any:
    """What is at a dotted path; a key that has dots itself wins, and a number is a place in a list."""
    if isinstance(found, Mapping) and path in found:
        return found[path]
    head, dot, rest = path.partition(".")
    try:
        below = found[int(head)] if isinstance(found, list) else found[head]
    except (LookupError, TypeError, ValueError):
        known = ", ".join(list(found)[:12]) if isinstance(found, Mapping) else type(found).__name__
        raise ValueError(f"there is no `{head}`; there is {known}") from None
    return _at(below, rest) if dot else below


def _match(pattern: str, text: str) -> str:
    matches = re.findall(pattern, text)
    if not matches:
        raise ValueError(f"nothing matches `{pattern}`")
    return str(matches[-1])


def _request(
    first: float | None,
    gaps: Iterable[float],
    prompt: int | None,
    output: int,
    error: str,
    *,
    start: float = 0.0,
    waited: float = 0.0,
    assumed: bool = False,
) -> dict[str, Any]:
    """One request in the builtin client's form. `first` and `gaps` in seconds; `start` since the window's; `assumed`:
    the count of its tokens is not the server's."""
    ok = not error and first is not None
    chunks = [start + at for at in accumulate([first, *gaps])] if ok and first is not None else []
    return {
        "intended": start - waited,
        "first": chunks[0] if chunks else None,
        "end": chunks[-1] if chunks else start,
        "ok": ok,
        "error": None if ok else error or "no text",
        "prompt_tokens": prompt,
        "output_tokens": output,
        "usage": True,
        "assumed": assumed,
        "chunks": chunks,
    }


def _parsed(
    requests: Sequence[Mapping[str, Any]],
    duration: float,
    notes: list[str],
    planned: Planned,
    start_unix: float | None = None,
    accept_length: float | None = None,
) -> ParsedLoad:
    window = {"start_unix": start_unix, "duration_s": duration, "fixed": False}
    raw = {"schema": LOAD_SCHEMA, "window": window, "requests": requests, "spec": planned["spec"]}
    parsed = parse_builtin(raw)
    if not all(request.get("gaps", True) for request in requests):  # one gap from the first to the last token
        for name in ("itl_p50_ms", "itl_p90_ms", "itl_p99_ms"):
            parsed.metrics.pop(name, None)
    if accept_length:
        parsed.metrics["accept_length"] = float(accept_length)
    parsed.notes.extend(notes)
    return parsed


def _spread(name: str, values: Iterable[float]) -> dict[str, float]:
    ordered = sorted(values)
    found = {f"{name}_p{part}_ms": percentile(ordered, part / 100) for part in (50, 90, 99)}
    return {f"{name}_mean_ms": math.fsum(ordered) / len(ordered), **found}
