"""The plan as text for people: `gpurun plan`. Commands are quoted for reading; what runs is the list."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jinja2
import yaml

from gpurun.config import Server
from gpurun.findings import Finding
from gpurun.load import PORT_TOKEN
from gpurun.plan import ASSUMED_STREAM_TOK_PER_S, Plan, PlannedSample
from gpurun.samples import BASELINE
from gpurun.tree import digest

_TEMPLATE = Path(__file__).resolve().parent / "data" / "plan.txt.j2"


def render_plan(plan: Plan) -> str:
    """Settings, differences, exact commands, order, number of starts and time, without a trailing newline."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)  # noqa: S701
    environment.filters |= {"span": span, "quoted": _quoted, "shell": shlex.quote}
    settings = {case["variant"]: case["settings"]["server"] for case in reversed(plan.cases)}
    baseline = {key: settings[BASELINE][key] for key in Server.model_fields if key in settings[BASELINE]}
    expects = {case["variant"]: case["expect"] for case in plan.cases}
    everyone = len(expects)

    def common(each: Finding) -> bool:
        """Whether it is about no variant, or about all of them, so that it is said once."""
        return not each.variants or len(each.variants) == everyone > 1

    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        plan=plan,
        count=_count,
        assumed_tok_per_s=ASSUMED_STREAM_TOK_PER_S,
        baseline=yaml.safe_dump(
            baseline, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110
        ).rstrip(),
        changes={name: list(_changes(baseline, settings[name])) for name in expects if name != BASELINE},
        expects=expects,
        found=lambda variant: [
            each
            for each in plan.findings
            if (variant in each.variants and not common(each) if variant else common(each))
        ],
        on=lambda each: "" if set(each.hosts) >= set(plan.hosts) or not each.hosts else f" on {', '.join(each.hosts)}",
        commands=_commands(plan),
        server_point=lambda s: [f"{name} = {_yaml(v)}" for name, v in s.axes.items() if name.startswith("server.")],
        order=lambda host, number: [
            f"{'+ ' if sample.start else ''}{sample.variant} {sample.label}"
            for sample in plan.samples
            if (sample.host, sample.round, sample.repeat) == (host, number, 1) and sample.refused is None
        ],
    ).rstrip("\n")


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


def _changes(old: Mapping[str, Any], new: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for key in dict.fromkeys((*old, *new)):
        name, before, after = f"{path}{key}", old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from _changes(before, after, f"{name}.")
        elif key not in old:
            yield f"{name}: {_yaml(after)} (new)"
        elif before != after:
            yield f"{name}: {_yaml(before)} -> {_yaml(after) if key in new else 'removed'}"


def _yaml(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def _quoted(argv: list[str], port: int | None) -> str:
    return shlex.join(argv).replace(PORT_TOKEN, "PORT" if port is None else str(port))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
