"""Each server of a plan: does it fit, and what did somebody set in place of what the engine would choose itself? Pure.

What is known of a model is in the host's facts, under `models`, by name or path: the description of its files, or what
was measured on such a host (`available_gib`, `total_gib`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from gpurun.engines import load_engine
from gpurun.errors import ODD_DATA
from gpurun.findings import Finding, Severity, Subject
from gpurun.fit.cards import gpus_of
from gpurun.fit.flags import Settings, read_flags
from gpurun.fit.question import Fit, Question, beside_gib
from gpurun.fit.sizes import Sizes, knowledge, sizes_of
from gpurun.fit.verdict import BUDGETS, advice, override, predict, sentence, shortfall, smallest_change
from gpurun.rules import visible_gpus

NAMES = ("fit", "override")  # for `--force`
# An estimate refuses a server only if it is out by more than this share of the memory; a measured value always does.
_DOUBT = 0.05
_fit = partial(Finding, rule="fit")
_SURE = ("sglang", "vllm", "trtllm")  # llama.cpp maps its weights, and may run from a file


def question_of(
    engine: str,
    version: str | None,
    argv: Sequence[str],
    gpus: Sequence[Mapping[str, Any]],
    model: Mapping[str, Any],
    host_gib: float | None = None,
    models: Mapping[str, Any] | None = None,
) -> Question | None:
    """What is to be asked about a server; None where nothing is known about its engine's memory, or a flag is wrong.

    `models` are all that the host knows, by path or name: a draft model may be among them.
    """
    if engine not in BUDGETS:
        return None
    settings, cards = _settings(engine, argv), gpus_of(gpus)
    if settings.problems or (cards is None and engine != "llamacpp"):
        return None
    return Question(
        engine,
        version or load_engine(engine).default_version,
        settings.values,
        cards,
        _sizes(model),
        _sizes((models or {}).get(_draft(settings.values) or "") or {}),
        available_gib=model.get("available_gib"),
        total_gib=model.get("total_gib"),
        host_gib=host_gib if cards is None else None,
    )


def check(subject: Subject) -> Iterator[Finding]:
    """What the calculator says about a server: refused, warned of, or how many tokens it has room for."""
    memory = subject.facts.get("host", {}).get("memory_bytes")
    gpus = visible_gpus(subject.facts, subject.env)
    models = subject.facts.get("models") or {}
    question = question_of(
        subject.engine, subject.version, subject.argv, gpus, subject.model, memory / 2**30 if memory else None, models
    )
    if question is None:
        problems = _settings(subject.engine, subject.argv).problems if subject.engine in BUDGETS else []
        yield from (_unknown(problem.message) for problem in problems[:1])
        return
    if subject.baseline is not None and question.available_gib is not None:
        base = question_of(subject.engine, subject.version, subject.baseline.argv, gpus, {}, None, models)
        if base is not None and base.split != question.split:  # measured with another division of the weights
            question = replace(question, available_gib=None)
        elif base is not None:  # what it takes beside the baseline's, of which it was measured
            more = beside_gib(question) - beside_gib(base)
            question = replace(question, available_gib=(question.available_gib or 0) - more)
    found = predict(question)
    if found is None:
        yield _unknown("a flag has a value that it cannot be worked out from")
        return
    own = override(question, found)
    flags = ("mem_fraction_static",) if own else ()
    told: dict[str, Any] = {"source": f"data/fit/{subject.engine}.yml", "flags": flags}
    if found.fits is None and question.sizes is None and subject.engine in _SURE:
        name = subject.model.get("path") or subject.model.get("name")
        message = f"nothing is known of `{name}`: whether it fits is not predicted"
        if name:
            yield _fit(severity="note", message=message, advice="look at hosts that have it, or ask `gpurun fit`")
    if found.fits is None and question.sizes is not None:
        look = "look at what the engine itself reports"
        yield _fit(severity="note", message=sentence(question, found), advice=look, **told)
    if found.fits is False:
        severity: Severity = "refuse" if _certain(question, found) else "warn"
        change = advice(smallest_change(question))
        message = own or f"does not fit: {shortfall(found)}"
        yield _fit(severity=severity, klass="fit", message=message, advice=change, **told)
        return
    if own:
        cure = "leave it out, unless it is what this variant tests"
        yield Finding(rule="override", severity="note", message=own, advice=cure, **told)
    room = min((one for one in (found.kv_tokens, found.context) if one is not None), default=None)
    if room is not None and room < max(subject.lengths, default=0):
        yield _too_long(subject, question, found, room, told)
    elif found.fits:
        said = sentence(question, found, max(subject.lengths, default=None))
        yield _fit(severity="note", message=said, advice=_basis(question, found), **told)


def _too_long(subject: Subject, question: Question, found: Fit, room: int, told: Mapping[str, Any]) -> Finding:
    """Requests that a server which starts has no room for. It is refused where it has none for any, and that does not
    hang on an estimate that may be a little off."""
    longest, shortest = max(subject.lengths), min(subject.lengths)
    if room == found.context:  # a model's own may be stretched in more ways than gpurun knows
        refused = bool(question.values.get("context")) and room < shortest
    else:
        refused = room < shortest * (1 if question.available_gib is not None else 1 - 4 * _DOUBT)
    flag = next(name for name, (setting, _) in question.data["flags"].items() if setting == "context")
    slots = 1 if question.engine != "llamacpp" or question.get("unified") else question.get("max_running") or 1
    cure = f"raise --{flag} to {longest * slots}{f' ({slots} slots divide it)' if slots > 1 else ''}"
    return _fit(
        severity="refuse" if refused else "warn",
        klass="fit",
        message=f"a request of {longest:,} tokens does not fit: the server has room for {room:,}",
        advice=f"{cure}, or ask for less in `data`",
        **told,
    )


def _certain(question: Question, found: Fit) -> bool:
    if question.available_gib is not None:
        return True
    if question.engine not in _SURE:
        return False
    if (found.rest_gib or 0) <= 0:
        return -(found.rest_gib or 0) > _DOUBT * (found.total_gib or 0)
    return (found.kv_tokens or 0) < (1 - 4 * _DOUBT) * (found.context or 0)


def _basis(question: Question, found: Fit) -> str:
    """What a prediction rests on."""
    how = "measured" if question.available_gib is not None else "estimated"
    parts = [
        f"{found.available_gib:.1f} GiB free after the weights ({how}), {found.rest_gib:.1f} of them for the cache"
    ]
    parts += [f"{found.weights_gib:.1f} GiB of weights"] if found.weights_gib is not None else []
    if _draft(question.values) and question.draft is None:
        parts.append(f"the weights of the draft `{_draft(question.values)}` are not counted: they are not known")
    return ", ".join([*parts, *found.notes])


def _draft(values: Mapping[str, Any]) -> str | None:
    """The draft model that flags name."""
    return values.get("draft_model") or (values.get("draft_config") or {}).get("model")


def _unknown(why: str) -> Finding:
    message = f"what fits is not predicted: {why}"
    return _fit(severity="warn", message=message, advice="correct it, unless it is meant")


def _settings(engine: str, argv: Sequence[str]) -> Settings:
    return read_flags(argv, load_engine(engine).flags, knowledge(engine)["flags"])


def _sizes(model: Mapping[str, Any]) -> Sizes | None:
    if not model.get("config") or not model.get("tensors"):
        return None
    try:
        return sizes_of(model, str(model.get("name") or ""))
    except ODD_DATA:  # of a kind not seen yet
        return None
