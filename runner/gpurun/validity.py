"""Is a load that came to its end a measurement? Named checks; each tells its name, a sentence, and how much it weighs.

Pure. What fails is no measurement; what taints stays one, is shown, and may be measured again.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpurun.data import table
from gpurun.parsers import ParsedLoad

_TOKENS_OFF = 0.02  # share by which token counts may differ
_SLACK_TOKENS = 64  # of requests that tools make to see whether the server is there
_TEMPLATE_TOKENS = 64  # that a chat template may add: the same in every prompt, and rightly cached
_CACHED_SHARE = 0.1
_SHORT = 0.95  # of the time that was asked for
_IDLE, _IDLE_FROM_S = 0.7, 0.1  # of the concurrency that was asked for; shorter loads are mostly start
_CPU_SHARE, _CPU_FROM_S = 0.95, 2.0  # of one core; shorter loads are mostly start
_PROMPT_OFF, _PROMPT_TOKENS_OFF = 0.1, 16
_TIMES_OFF = 0.25
_LIKE = 0.3  # share of words that two answers to one prompt have in common


@dataclass(frozen=True)
class Finding:
    """What a check has to say: `fails` means that there is no number."""

    check: str
    text: str
    weight: Literal["fails", "taints"]

    def __str__(self) -> str:
        return f"{self.check}: {self.text}"


def checks(planned: Mapping[str, Any], parsed: ParsedLoad, gained: Mapping[str, float]) -> Iterator[Finding]:
    """Everything that is wrong with a load. `planned` is the sample's `load`, `gained` what the server's counters
    gained meanwhile (by the names of the engine files), empty where they are not known."""
    spec = planned["spec"]
    found, data, how = parsed.metrics, spec["data"], spec["load"]
    asked, duration = spec.get("requests"), found.get("duration_s", 0.0)
    ended = parsed.completed + parsed.failed
    if asked and not spec.get("duration_s") and ended != asked:
        yield Finding("requests", f"{ended} requests ended, {asked} were asked for", "fails")
    if spec.get("duration_s") and 0 < duration < _SHORT * spec["duration_s"]:
        yield Finding("duration", f"it took {duration:.1f} s, asked for were {spec['duration_s']:g} s", "fails")
    output, fixed = found.get("output_tokens"), bool(spec.get("extra_body")) and data["kind"] != "file"
    expected = parsed.completed * data["output_tokens"]
    if fixed and output is not None and _off(output, expected) > _TOKENS_OFF:
        yield Finding("output_tokens", f"{output:.0f} tokens came, {expected} were asked for", "fails")
    elif output and planned.get("parser") in (None, "builtin"):  # other tools may count the text's tokens themselves
        if data["kind"] != "file" and output > expected * (1 + _TOKENS_OFF):
            text = f"{output:.0f} tokens are said to have come, and at most {expected} were asked for"
            yield Finding("output_tokens", text, "fails")
        elif parsed.completed and "ttft_mean_ms" not in found:
            yield Finding("text", f"no answer carried any, and the server counts {output:.0f} tokens", "fails")
    if planned.get("serves", True) and output is not None:
        yield from _against_server(spec, parsed, output, gained)
    yield from _concurrency(how, asked, parsed)
    share = found.get("client_cpu_s", 0.0) / duration if duration >= _CPU_FROM_S else 0.0
    if share > _CPU_SHARE:
        yield Finding("client_cpu", f"the client used {share:.0%} of a core: it may be what was measured", "fails")
    yield from _prompts(data, parsed, gained)
    yield from _invariants(planned, parsed, gained, expected if fixed else None)
    if gained.get("preemptions", 0) > 0:
        why = "its KV cache was too small for the load"
        yield Finding("preemptions", f"the server put {gained['preemptions']:.0f} requests back: {why}", "taints")


def _against_server(
    spec: Mapping[str, Any], parsed: ParsedLoad, output: float, gained: Mapping[str, float]
) -> Iterator[Finding]:
    """The client's count of tokens against the server's own. A warm-up is in the latter; where the tool does not tell
    its tokens, it may have had any number up to what was asked for. So may what failed."""
    counted = gained.get("output_tokens")
    if counted is None:
        return
    if counted < 0:
        yield Finding("server_counters", "the server's counters went back: it was started anew meanwhile", "fails")
        return
    warm = parsed.warmup_tokens
    most = spec.get("warmup", 0) * spec["data"]["output_tokens"] + _SLACK_TOKENS if warm is None else warm
    most += parsed.failed * spec["data"]["output_tokens"]
    least = 0 if warm is None else warm
    if counted < (output + least) * (1 - _TOKENS_OFF) or counted > (output + most) * (1 + _TOKENS_OFF):
        text = f"the server counted {counted:.0f} output tokens, the load tool {output + least:.0f}"
        yield Finding("server_tokens", text, "fails")


def _concurrency(how: Mapping[str, Any], asked: int | None, parsed: ParsedLoad) -> Iterator[Finding]:
    """Mean requests in flight (Little's law) against the number that should always have been. The last requests of a
    load run alone: of n / c waves, one is allowed for that."""
    wanted, e2e, duration = how.get("concurrency"), parsed.metrics.get("e2e_mean_ms"), parsed.metrics.get("duration_s")
    if not wanted or not e2e or not duration or duration < _IDLE_FROM_S or parsed.failed:
        return
    if asked:
        wanted = min(wanted, asked)
        wanted = asked / (math.ceil(asked / wanted) + (asked > wanted))
    reached = e2e / 1e3 * parsed.completed / duration
    if reached < _IDLE * wanted:
        text = f"{reached:.1f} requests were in flight on average, {how['concurrency']} were asked for"
        yield Finding("concurrency", text, "fails")


def _prompts(data: Mapping[str, Any], parsed: ParsedLoad, gained: Mapping[str, float]) -> Iterator[Finding]:
    """Prompts as long as asked for, and new to the server where they are random."""
    asked, got = data.get("prompt_tokens"), parsed.metrics.get("prompt_tokens")
    if data["kind"] == "file" or not asked or not parsed.completed:
        return
    off = got / parsed.completed - asked if got else 0.0
    if off > _TEMPLATE_TOKENS + _PROMPT_OFF * asked or -off > max(_PROMPT_OFF * asked, _PROMPT_TOKENS_OFF):
        text = f"prompts had {asked + off:.0f} tokens, {asked} were asked for"
        yield Finding("prompt_tokens", text, "taints")
    cached = gained.get("cached_tokens", gained.get("cache_hits", 0.0)) / (parsed.completed + parsed.failed)
    if data["kind"] == "synthetic" and cached > _TEMPLATE_TOKENS + _CACHED_SHARE * asked:
        text = f"{cached:.0f} tokens of each prompt came from the server's cache: it had seen them before"
        yield Finding("prefix_cache", text, "fails")


def _invariants(
    planned: Mapping[str, Any], parsed: ParsedLoad, gained: Mapping[str, float], tokens: int | None
) -> Iterator[Finding]:
    """What must be true of any load: times that add up, acceptance between one token a step and a whole draft."""
    found = parsed.metrics
    names = ("ttft_mean_ms", "itl_mean_ms", "tpot_mean_ms", "e2e_mean_ms")
    ttft, itl, tpot, e2e = (found.get(name) for name in names)
    each = itl if itl is not None else tpot
    if planned.get("parser") not in (None, "builtin") and tokens and parsed.completed and ttft and each and e2e:
        total = ttft + each * (tokens / parsed.completed - 1)
        if _off(total, e2e) > _TIMES_OFF:
            text = f"first token and time per token make {total:.0f} ms a request, and it took {e2e:.0f} ms"
            yield Finding("times", text, "fails")
    for prefix in ("ttft", "tpot", "itl", "e2e"):
        low, high = found.get(f"{prefix}_p50_ms"), found.get(f"{prefix}_p99_ms")
        if low is not None and high is not None and low > high * (1 + 1e-9):
            yield Finding("times", f"the median of {prefix} is above its 99th percentile", "fails")
    length, drafts = found.get("accept_length"), gained.get("drafts", 0.0)
    most = 1 + gained.get("draft_tokens", math.inf) / drafts if drafts > 0 else math.inf
    if length is not None and not (1 - 1e-6 <= length <= most * (1 + _TOKENS_OFF)):
        text = f"{length:.2f} tokens a step, where 1 to {most:.2f} are possible"
        yield Finding("accept_length", text, "fails")


def accept_length(gained: Mapping[str, float], gauges: Mapping[str, float]) -> dict[str, float]:
    """Tokens a step, from the server's own figures: 1 + accepted / drafts (vLLM: steps without a draft are left out),
    tokens / verifications (SGLang), or where an older one counts none, its gauge, which is of its last steps only."""
    if (drafts := gained.get("drafts", 0.0)) > 0:
        return {"accept_length": 1 + gained.get("accepted_tokens", 0.0) / drafts}
    if (steps := gained.get("verify_calls", 0.0)) > 0:
        return {"accept_length": gained.get("output_tokens", 0.0) / steps}
    return {"accept_length": gauges["accept_length"]} if gauges.get("accept_length", 0.0) > 0 else {}


def ask(model: str) -> dict[str, Any]:
    """What a server is asked as soon as it is ready, to see whether it talks sense (`ready.ask` of a job)."""
    known = table("sanity")
    asked = [(known["prompt"], known["prompt_tokens"])]
    asked += [(question["ask"], known["answer_tokens"]) for question in known["questions"]]
    common = {"model": model, "temperature": 0}
    bodies = [
        {**common, "max_tokens": tokens, "messages": [{"role": "user", "content": text}]} for text, tokens in asked
    ]
    return {"path": "/v1/chat/completions", "timeout_s": known["timeout_s"], "bodies": bodies}


def sanity(answers: bytes | None, of_baseline: bytes | None) -> Iterator[Finding]:
    """Garbage fails: of the questions that the baseline answers, none is answered. Other words only taint."""
    mine, theirs = _texts(answers), _texts(of_baseline)
    if not mine or len(mine) != len(theirs):
        return
    questions = table("sanity")["questions"]
    patterns = [question["match"] for question in questions]
    known = [number for number, pattern in enumerate(patterns, 1) if re.search(pattern, theirs[number])]
    right = [number for number in known if re.search(patterns[number - 1], mine[number])]
    if len(known) > 1 and not right:
        first = known[0]
        said = f"to {table('sanity')['questions'][first - 1]['ask']!r} it says {mine[first][:60]!r}"
        text = f"it answers none of {len(known)} questions that the baseline answers: {said}"
        yield Finding("output_sanity", text, "fails")
    elif known and mine[0] and theirs[0] and (alike := _alike(mine[0], theirs[0])) < _LIKE:  # one may have been late
        text = f"its answer to a fixed prompt shares {alike:.0%} of the words with the baseline's"
        yield Finding("output_sanity", text, "taints")


def _texts(answers: bytes | None) -> list[str]:
    try:
        listed = json.loads(answers or b"{}").get("answers") or []
        return [str((each or {}).get("choices", [{}])[0].get("message", {}).get("content") or "") for each in listed]
    except (ValueError, AttributeError, LookupError):
        return []


def _alike(one: str, other: str) -> float:
    """Words in common, of all (Jaccard's index)."""
    words: Sequence[set[str]] = [set(re.findall(r"\w+", text.lower())) for text in (one, other)]
    both = words[0] | words[1]
    return len(words[0] & words[1]) / len(both) if both else 1.0


def _off(value: float, expected: float) -> float:
    return abs(value / expected - 1) if expected else 0.0 if not value else math.inf
