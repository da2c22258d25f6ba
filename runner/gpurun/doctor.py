"""From what was found on this machine and on hosts to findings with a fix. Pure; the rules are in data/doctor.yml."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpurun.data import table
from gpurun.reachability import explain
from gpurun.template import TemplateError, holds, render
from gpurun.text import numbers

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
    """What was found on one host. `trouble` is why it could not be looked at."""

    facts: Mapping[str, Any] | None = None
    left: Sequence[Mapping[str, Any]] = ()
    lock: Mapping[str, Any] | None = None
    trouble: str = ""


def of_here(known: Mapping[str, Any]) -> list[Finding]:
    """The findings about this machine; `known` is what `commands/doctor.py` collects."""
    return list(_judge(HERE, "here", known))


def of_host(host: str, seen: Seen) -> list[Finding]:
    """The findings about a host, or why there are none."""
    found = []
    if seen.trouble or seen.facts is None:
        trouble = explain(seen.trouble or "it was not looked at", host)
        found = [Finding(host, "reach", "fail", trouble.message, trouble.fix or _BY_HAND)]
    return found if seen.facts is None else found + look_at(host, seen.facts, seen)


def look_at(host: str, facts: Mapping[str, Any], seen: Seen | None = None) -> list[Finding]:
    """The findings about a host from its facts, which may be a description that leaves things out."""
    seen = seen or Seen()
    processes = [one for gpu in facts.get("gpus") or () for one in gpu.get("processes") or ()]
    ours = {one.get("pid") for one in seen.left}
    known = {
        **facts,
        "python": version(str((facts["host"].get("python") or {}).get("version"))),
        "strangers": [f"pid {one['pid']} of {one['user']}" for one in processes if one["pid"] not in ours],
        "lock": seen.lock,
        "left": seen.left,
        "skew_s": facts.get("skew_s") or 0.0,
    }
    return list(_judge(host, "host", known))


def version(text: str) -> tuple[int, ...]:
    """`3.11.2` as numbers that compare; what follows the numbers does not count."""
    return numbers(text)[:3]


def _judge(where: str, part: str, known: Mapping[str, Any]) -> Iterator[Finding]:
    for rule in table("doctor")[part]:
        # What rests on facts that are not there is left out.
        with contextlib.suppress(*((TemplateError,) if part == "host" else ())):
            if holds(rule.get("when", "true"), known) and ("gpu" not in rule or known.get("gpus")):
                gpus = known["gpus"] if "gpu" in rule else ()
                bad = [str(gpu["index"]) for gpu in gpus if holds(rule["gpu"], {**known, "gpu": gpu})]
                seen = {**known, "bad": bad}
                warns = bad or holds(rule.get("warn", "false"), seen)
                state: State = "fail" if holds(rule.get("fail", "false"), seen) else "warn" if warns else "ok"
                fix = "" if state == "ok" else render(rule["fix"], seen)
                yield Finding(where, rule["check"], state, render(rule["say"], seen), fix)
