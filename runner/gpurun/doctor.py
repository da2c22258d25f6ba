"""From what was found on this machine and on hosts to findings with a fix. Pure; the rules are in data/doctor.yml."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from gpurun.reachability import explain
from gpurun.template import render

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
    if seen.facts is None:
        return found
    processes = [one for gpu in seen.facts["gpus"] for one in gpu["processes"]]
    ours = {one.get("pid") for one in seen.left}
    known = {
        **seen.facts,
        "python": version(seen.facts["host"]["python"]["version"]),
        "strangers": [f"pid {one['pid']} of {one['user']}" for one in processes if one["pid"] not in ours],
        "lock": seen.lock,
        "left": seen.left,
        "skew_s": seen.skew_s,
    }
    return found + _judge(host, "host", known)


def version(text: str) -> tuple[int, ...]:
    """`3.11.2` as numbers that compare; what follows the numbers does not count."""
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def _judge(where: str, part: str, known: Mapping[str, Any]) -> list[Finding]:
    def holds(rule: Mapping[str, str], key: str, otherwise: bool) -> bool:
        return render(rule[key], known) == "True" if key in rule else otherwise

    found = []
    for rule in _rules()[part]:
        if holds(rule, "when", True):
            state: State = "fail" if holds(rule, "fail", False) else "warn" if holds(rule, "warn", False) else "ok"
            fix = "" if state == "ok" else render(rule["fix"], known)
            found.append(Finding(where, rule["check"], state, render(rule["say"], known), fix))
    return found


@cache
def _rules() -> dict[str, list[dict[str, str]]]:
    rules = yaml.safe_load((Path(__file__).parent / "data" / "doctor.yml").read_text(encoding="utf-8"))
    assert isinstance(rules, dict)
    return rules
