"""What an engine's arithmetic says and means: a sentence, the smallest change with which it fits, how far off it is."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from gpurun.errors import ODD_DATA
from gpurun.fit.others import llamacpp, trtllm, vllm
from gpurun.fit.question import Answer, Fit, Question, changed
from gpurun.fit.sglang import sglang
from gpurun.fit.sizes import knowledge

BUDGETS: dict[str, Callable[[Question], Answer]] = {each.__name__: each for each in (sglang, vllm, llamacpp, trtllm)}
"""The engines of which gpurun knows how they divide the memory."""
_MOST_FRACTION = 0.95  # above it there is no room for what comes while serving
_MOST_GPUS = 64
CLOSE = 0.10  # a larger gap between predicted and reported tokens is worth a look


def fit(question: Question) -> Fit:
    """The arithmetic of the question's engine. KeyError where it has none (see `BUDGETS`)."""
    return BUDGETS[question.engine](question).done()


def predict(question: Question) -> Fit | None:
    """The same; None where a value of a flag or of the model is of no use for arithmetic."""
    try:
        return fit(question)
    except ODD_DATA:
        return None


def sentence(question: Question, found: Fit, length: int | None = None) -> str:
    """Whether it fits, in one sentence; where not, with the smallest change that would make it fit.

    `length`: tokens of one request, prompt and answer.
    """
    if found.fits is None:
        why = [] if question.sizes or question.available_gib else ["that takes a model, or --available-gib"]
        why += [] if found.rest_gib is None else [f"{found.rest_gib:.1f} GiB are left for the KV cache"]
        return "; ".join(["cannot tell whether it fits", *why, *found.notes])
    if not found.fits:
        return f"does not fit: {shortfall(found)}; {advice(smallest_change(question))}"
    if found.kv_tokens is None:
        return f"fits: leaves {found.rest_gib:+.2f} GiB for the KV cache"
    told = f"fits with {found.kv_tokens:,} tokens"
    most = found.running_requests or math.inf
    if length:
        told += f", {min(found.kv_tokens // length, most):,} requests of {length:,} tokens"
    elif found.context:
        requests = min(found.kv_tokens / found.context, most)
        told += f", {requests:.1f} requests of the longest context ({found.context:,} tokens)"
    return told


def shortfall(found: Fit) -> str:
    """By how much it does not fit."""
    if found.engine != "llamacpp" and (found.rest_gib or 0) > 0 and found.kv_tokens is not None:
        return f"room for {found.kv_tokens:,} tokens, and one request may have {found.context or 0:,}"
    return f"leaves {found.rest_gib:.1f} GiB"


def advice(change: str | None) -> str:
    """What to do where it does not fit, by `smallest_change`."""
    return (
        f"the smallest change with which it fits: {change}"
        if change
        else "no single change that gpurun knows would make it fit"
    )


def smallest_change(question: Question) -> str | None:
    """The first of the changes, from the least to the largest, with which it fits."""
    return next((words for words, other in _changes(question) if fit(other).fits), None)


def _changes(question: Question) -> Iterator[tuple[str, Question]]:
    data, found = question.data, fit(question)
    flags = {setting: flag for flag, (setting, _) in reversed(data["flags"].items())}
    if question.engine in ("sglang", "vllm") and question.values.get("fraction") is not None:
        other = changed(question, fraction=None)
        yield f"leave out --{flags['fraction']} (then {fit(other).fraction:g})", other
    if found.min_mem_fraction_static is not None:
        for step in range(3):  # it is rounded: the first of these that fits
            least = (math.floor(found.min_mem_fraction_static * 1000) + step) / 1000
            if 0 < least <= _MOST_FRACTION:
                yield f"--{flags['fraction']} {least:g} or more", changed(question, fraction=least)
    if question.engine in ("vllm", "llamacpp") and question.sizes is not None and found.kv_bytes_per_token:
        tokens = found.kv_tokens or 0
        if question.engine == "llamacpp":
            tokens = int((found.available_gib or 0) * 2**30 / found.kv_bytes_per_token)
        if tokens >= 1024:
            yield f"--{flags['context']} {tokens // 256 * 256}", changed(question, context=tokens // 256 * 256)
    if question.engine == "vllm" and (found.fraction or 1) < _MOST_FRACTION:
        yield f"--{flags['fraction']} {_MOST_FRACTION:g}", changed(question, fraction=_MOST_FRACTION)
    if question.available_gib is not None or question.gpus is None or "tp" not in flags:
        return
    if "kv_dtype" in flags and question.get("kv_dtype", "auto") == "auto" and (found.rest_gib or 0) > 0:
        yield f"--{flags['kv_dtype']} fp8_e4m3", changed(question, kv_dtype="fp8_e4m3")
    tp = question.split.tp
    while (tp := tp * 2) * question.split.pp <= _MOST_GPUS:
        other = changed(question, tp=tp)
        more = "" if other.needs_gpus <= question.gpus.count else f", on {other.needs_gpus} such GPUs"
        if question.sizes is None or question.sizes.heads % tp == 0:
            yield (
                f"--{flags['tp']} {tp}{more}",
                replace(other, gpus=replace(question.gpus, count=max(question.gpus.count, tp))),
            )


def override(question: Question, found: Fit) -> str | None:
    """A setting in place of what the engine would choose itself, and what that leaves."""
    default = found.default_mem_fraction_static
    given = question.values.get("fraction")
    if given is None or default is None or abs(given - default) < 0.0005:
        return None
    leaves = "" if found.rest_gib is None else f": leaves {found.rest_gib:.1f} GiB"
    return f"mem-fraction-static {given:g}, SGLang would choose {default:.2g}{leaves}"


def reported(engine: str, log: str) -> dict[str, float]:
    """What the engine's log says of the same quantities, by its data file's patterns; of several ranks the least."""
    data = knowledge(engine)
    found: dict[str, float] = {}
    for name, pattern in data["reported"].items():
        numbers = [
            math.prod(float(one.replace(",", "")) for one in m.groups() if one) for m in re.finditer(pattern, log)
        ]
        if numbers and name in data.get("mib", ()):  # a part for each device
            found[name] = round(sum(numbers) / 1024, 3)
        elif numbers:
            found[name] = max(numbers) if name == "weights_gib" else min(numbers)
    return found


def compared(prediction: Mapping[str, Any], said: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Quantity -> predicted, reported, and the error as a share of what was reported."""
    both = {name: (float(prediction[name]), value) for name, value in said.items() if prediction.get(name) is not None}
    return {
        name: {"predicted": mine, "reported": theirs, "error": round(mine / theirs - 1, 4) if theirs else 0.0}
        for name, (mine, theirs) in both.items()
    }
