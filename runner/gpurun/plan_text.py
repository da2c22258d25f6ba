"""The plan as text for people: `gpurun plan`. Commands are quoted for reading; what runs is the list."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable
from typing import Any

import yaml

from gpurun.config import Server
from gpurun.load import PORT_TOKEN
from gpurun.plan import ASSUMED_STREAM_TOK_PER_S, Plan, PlannedSample
from gpurun.samples import BASELINE
from gpurun.text import fill
from gpurun.tree import differences, digest

_READABLE: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "default_flow_style": None, "width": 110}


def render_plan(plan: Plan) -> str:
    """Settings, differences, exact commands, order, number of starts and time, without a trailing newline."""
    settings = {case["variant"]: case["settings"]["server"] for case in reversed(plan.cases)}
    baseline = {key: settings[BASELINE][key] for key in Server.model_fields if key in settings[BASELINE]}
    expects = {case["variant"]: case["expect"] for case in plan.cases}
    return fill(
        "plan.txt.j2",
        plan=plan,
        span=span,
        quoted=_quoted,
        assumed_tok_per_s=ASSUMED_STREAM_TOK_PER_S,
        baseline=yaml.safe_dump(baseline, **_READABLE).rstrip(),
        changes={name: differences(baseline, settings[name]) for name in expects if name != BASELINE},
        expects=expects,
        yaml=_yaml,
        commands=_commands(plan),
    )


def _commands(plan: Plan) -> Iterable[tuple[list[str], list[list[PlannedSample]]]]:
    """Hosts with the same commands, and those: the samples of the first round by server, in the order of the file."""
    place = {case["case"]: number for number, case in enumerate(plan.cases)}
    found: dict[str, tuple[list[str], list[list[PlannedSample]]]] = {}
    for host in plan.hosts:
        mine = (s for s in plan.samples if (s.host, s.round, s.repeat) == (host, 1, 1))
        first = sorted(mine, key=lambda s: place[s.case])
        servers = [list(group) for _, group in itertools.groupby(first, key=lambda s: s.server["job"])]
        found.setdefault(digest([[s.server, s.load] for s in first]), ([], servers))[0].append(host)
    return found.values()


def span(seconds: float) -> str:
    """A time for people: `45 s`, `3 min`, `2 h 5 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"


def _yaml(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def _quoted(argv: list[str], port: int | None) -> str:
    return shlex.join(argv).replace(PORT_TOKEN, "PORT" if port is None else str(port))
