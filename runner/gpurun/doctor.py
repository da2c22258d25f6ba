"""From what was found on this machine and on hosts to findings with a fix. Pure; the rules are in data/doctor.yml."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpurun.data import table
from gpurun.reachability import explain
from gpurun.template import TemplateError, render

State = Literal["ok", "warn", "fail"]
HERE = "this machine"
_BY_HAND = "try by hand what it says, over ssh"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `where` is a host or HERE; `fix` is empty where all is well."""

    where: str
    check: str
    state: State
    message: str
    fix: str = ""


@dataclass
class Seen:
    """What was found on one host. `skew_s` is by how much its clock is certainly off; `trouble` is why it could not be
    looked at."""

    facts: Mapping[str, Any] | None = None
    left: Sequence[Mapping[str, Any]] = ()
    lock: Mapping[str, Any] | None = None
    skew_s: float = 0.0
    trouble: str = ""


def of_here(known: Mapping[str, Any]) -> list[Finding]:
    """The findings about this machine; `known` is what `commands/doctor.py` collects."""
    return _judge(HERE, "here", known)


def of_host(host: str, seen: Seen) -> list[Finding]:
    """The findings about a host, or why there are none."""
    found = []
    if seen.trouble or seen.facts is None:
        trouble = explain(seen.trouble or "it was not looked at")
        found = [Finding(host, "reach", "fail", trouble.message, trouble.fix or _BY_HAND)]
    return found if seen.facts is None else found + look_at(host, seen.facts, seen)


def look_at(host: str, facts: Mapping[str, Any], seen: Seen | None = None) -> list[Finding]:
    """The findings about a host from its facts, which may be a description that leaves things out."""
    seen = seen or Seen(skew_s=facts.get("skew_s") or 0.0)
    processes = [one for gpu in facts.get("gpus") or () for one in gpu.get("processes") or ()]
    ours = {one.get("pid") for one in seen.left}
    known = {
        **facts,
        "python": version(str((facts["host"].get("python") or {}).get("version"))),
        "strangers": [f"pid {one['pid']} of {one['user']}" for one in processes if one["pid"] not in ours],
        "lock": seen.lock,
        "left": seen.left,
        "skew_s": seen.skew_s,
    }
    return _judge(host, "host", known)


def version(text: str) -> tuple[int, ...]:
    """`3.11.2` as numbers that compare; what follows the numbers does not count."""
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def _judge(where: str, part: str, known: Mapping[str, Any]) -> list[Finding]:
    found = []
    for rule in _rules()[part]:
        # What rests on facts that are not there is left out.
        with contextlib.suppress(*((TemplateError,) if part == "host" else ())):
            found += [one] if (one := _apply(where, rule, known)) is not None else []
    return found


def _apply(where: str, rule: Mapping[str, str], known: Mapping[str, Any]) -> Finding | None:
    def holds(key: str, otherwise: bool, **more: Any) -> bool:
        return render(rule[key], {**known, **more}) == "True" if key in rule else otherwise

    if not holds("when", True) or ("gpu" in rule and not known.get("gpus")):
        return None
    bad = [str(gpu["index"]) for gpu in known["gpus"] if holds("gpu", False, gpu=gpu)] if "gpu" in rule else []
    known = {**known, "bad": bad}
    state: State = "fail" if holds("fail", False) else "warn" if bad or holds("warn", False) else "ok"
    fix = "" if state == "ok" else render(rule["fix"], known)
    return Finding(where, rule["check"], state, render(rule["say"], known), fix)


def _rules() -> dict[str, list[dict[str, str]]]:
    rules = table("doctor")
    assert isinstance(rules, dict)
    return rules
