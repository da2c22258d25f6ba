"""What hardware rules out, from its architecture and links alone: data/rules.yml, held against a server before a start.

Pure. Conditions and messages are templates of the campaign's own kind (template.py); what is not known is none.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion
from pydantic import Field

from gpurun.data import table
from gpurun.findings import Finding, Severity, Subject
from gpurun.samples import FailureClass, Record, klass
from gpurun.template import TemplateError, holds, render


class Rule(Record):
    """One rule of the table; `engines` maps each engine that it is about to a specifier of its versions (PEP 440)."""

    name: str
    severity: Severity
    klass: FailureClass = klass(default="preflight_refused")
    engines: dict[str, str]
    flags: list[str] = Field(default_factory=list)
    when: str
    message: str
    advice: str
    source: str


class Unknown(dict[str, Any]):
    """A mapping in which what is not there is None."""

    def __missing__(self, key: str) -> None:
        return None


def names() -> tuple[str, ...]:
    """The names of all rules, for `--force`."""
    return tuple(rule.name for rule in _rules())


def check(subject: Subject) -> Iterator[Finding]:
    """What the rules say about a server. A rule about versions holds where the version is not known, too."""
    known: dict[str, Any] | None = None
    for rule in _rules():
        if subject.engine not in rule.engines or not _within(subject.version, rule.engines[subject.engine]):
            continue
        known = _known(subject) if known is None else known
        with contextlib.suppress(TemplateError):  # a flag's value is of no kind that the rule knows: it does not hold
            if holds(rule.when, known):
                message, advice = (" ".join(render(text, known).split()) for text in (rule.message, rule.advice))
                own: dict[str, Any] = {"source": rule.source, "flags": tuple(rule.flags)}
                yield Finding(
                    rule=rule.name, severity=rule.severity, klass=rule.klass, message=message, advice=advice, **own
                )


def visible_gpus(facts: Mapping[str, Any], env: Mapping[str, str]) -> list[Mapping[str, Any]]:
    """The GPUs of a host that a process with this environment sees, by index or UUID in CUDA_VISIBLE_DEVICES."""
    gpus: Sequence[Mapping[str, Any]] = facts.get("gpus") or []
    wanted = env.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return list(gpus)
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    return [
        gpu
        for name in names
        for number, gpu in enumerate(gpus)
        if name == str(gpu.get("index", number)) or (gpu.get("uuid") or "").startswith(name)
    ]


def parallel_sizes(engine: str, flags: Mapping[str, Any]) -> dict[str, int]:
    """`tp`, `pp`, `dp` and `ep` as the flags say them, else 1, and `world`, the GPUs that this takes."""
    named = table("rules")["sizes"].get(engine, {})
    sizes = {key: _number(flags.get(named.get(key, ""))) or 1 for key in ("tp", "pp", "dp", "ep")}
    inner = bool(flags.get(named.get("inner", "")))
    return {**sizes, "world": sizes["tp"] * sizes["pp"] * (1 if inner else sizes["dp"])}


def _known(subject: Subject) -> dict[str, Any]:
    """The names that data/rules.yml explains, for one server."""
    gpus = visible_gpus(subject.facts, subject.env)
    oldest = min(gpus, key=_sm, default=Unknown())
    model = Unknown(_mapping(subject.model.get("config")))
    model = Unknown({**model, **_mapping(model["text_config"])})
    sizes = parallel_sizes(subject.engine, subject.flags)
    built = table("rules")["cuda"].get(subject.engine, {}) if subject.version else {}
    cuda = next((cuda for of, cuda in built.items() if _within(subject.version, of)), None)
    driver = re.match(r"\d+", str((subject.facts.get("driver") or {}).get("version") or ""))
    quantized = _mapping(model["quantization_config"])
    block = quantized.get("weight_block_size")
    words = (
        subject.flags.get("quantization"),
        *(quantized.get(key) for key in ("quant_method", "quant_algo", "format")),
    )
    return {
        "engine": subject.engine,
        "version": subject.version,
        "flags": Unknown(subject.flags),
        "env": Unknown(subject.env),
        "baseline": None if subject.baseline is None else Unknown(subject.baseline.flags),
        "gpus": gpus,
        "sm": _sm(oldest),
        "card": oldest.get("name"),
        "nvlink": _all_linked(gpus, subject.facts),
        "model": model,
        "quant": " ".join(word.lower() for word in words if isinstance(word, str)),
        "experts": model["n_routed_experts"] or model["num_experts"] or model["num_local_experts"],
        "moe_size": model["moe_intermediate_size"],
        "block": block[0] if isinstance(block, list) and block else None,
        "driver": driver and int(driver[0]),
        "cuda": cuda,
        "driver_min": table("rules")["drivers"].get(cuda),
        **sizes,
    }


def _mapping(value: Any) -> Mapping[str, Any]:
    """A part of a config.json, which may be anything."""
    return value if isinstance(value, Mapping) else {}


def _sm(gpu: Mapping[str, Any]) -> int:
    """Compute capability as one number, 8.9 as 89, as engines name it; 0 where it is not known."""
    major, _, minor = str(gpu.get("compute_capability") or "").partition(".")
    return int(major) * 10 + int(minor or 0) if major.isdigit() else 0


def _all_linked(gpus: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> bool:
    """Whether NVLink joins every pair of these GPUs."""
    links = (facts.get("topology") or {}).get("links") or {}
    names = [f"GPU{gpu.get('index', number)}" for number, gpu in enumerate(gpus)]
    pairs = [(one, other) for one in names for other in names if one != other]
    return bool(pairs) and all(str(links.get(one, {}).get(other, "")).startswith("NV") for one, other in pairs)


def _number(value: Any) -> int:
    return int(value) if str(value).isdecimal() else 0


def _within(version: str | None, wanted: str) -> bool:
    if not wanted or version is None:
        return True
    try:
        return SpecifierSet(wanted).contains(version, prereleases=True)
    except InvalidVersion:
        return True


@cache
def _rules() -> tuple[Rule, ...]:
    return tuple(Rule.model_validate(rule) for rule in table("rules")["rules"])
