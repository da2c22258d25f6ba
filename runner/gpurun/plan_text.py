"""The plan as text for people: `gpurun plan`. Commands are quoted for reading; what runs is the list."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from gpurun import estimate as assumed
from gpurun.cases import BASELINE
from gpurun.config import Server
from gpurun.fields import PORT_TOKEN
from gpurun.plan import Plan, PlannedSample


def render_plan(plan: Plan) -> str:
    """Settings, differences, exact commands, order, number of starts and time, without a trailing newline."""
    commands: dict[str, list[str]] = {}
    for host in plan.hosts:
        commands.setdefault(_commands(plan, host), []).append(host)
    parts = [_head(plan), _settings(plan)]
    parts += [f"commands on {', '.join(hosts)}\n{text}" for text, hosts in commands.items()]
    parts += [_order(plan), _total(plan)]
    return "\n\n".join(part for part in parts if part)


def span(seconds: float) -> str:
    """A time for people: `45 s`, `3 min`, `2 h 5 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"


def _head(plan: Plan) -> str:
    variants = len({case.variant for case in plan.cases} - {BASELINE})
    lines = [
        f"campaign {plan.campaign}: baseline and {_count(variants, 'variant')}, {_count(len(plan.cases), 'case')}, "
        f"{_count(plan.rounds, 'round')}, on {', '.join(plan.hosts) or 'no host'}",
        f"judged by {plan.compare['primary']}; engines: "
        + ", ".join(f"{name} {version}" for name, version in plan.engines.items()),
    ]
    if plan.secrets:
        lines.append(f"secrets, from the environment: {', '.join(plan.secrets)}")
    return "\n".join([*lines, *(f"note: {note}" for note in plan.notes)])


def _settings(plan: Plan) -> str:
    """The baseline's merged settings, then what each variant changes, at the first point of the matrix."""
    first: dict[str, Mapping[str, Any]] = {}
    for case in plan.cases:
        server = case.settings["server"]
        first.setdefault(case.variant, {key: server[key] for key in Server.model_fields if key in server})
    if BASELINE not in first:
        return ""
    text = yaml.safe_dump(
        dict(first[BASELINE]), sort_keys=False, allow_unicode=True, default_flow_style=None, width=110
    )
    blocks = ["baseline\n" + "\n".join(f"  {line}" for line in text.rstrip().split("\n"))]
    expects = {case.variant: case.expect for case in plan.cases}
    for variant, server in first.items():
        if variant == BASELINE:
            continue
        title = variant if expects[variant] is None else f"{variant} (expected to fail: {expects[variant]})"
        changes = list(_changes(first[BASELINE], server))
        blocks.append("\n".join([title, *(f"  {change}" for change in changes)]))
    return "\n\n".join(blocks)


def _changes(old: Mapping[str, Any], new: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for key in [*old, *(key for key in new if key not in old)]:
        name = f"{path}{key}"
        if key in old and key in new and isinstance(old[key], Mapping) and isinstance(new[key], Mapping):
            yield from _changes(old[key], new[key], f"{name}.")
        elif key not in new:
            yield f"{name}: {_plain(old[key])} -> removed"
        elif key not in old:
            yield f"{name}: {_plain(new[key])} (new)"
        elif old[key] != new[key]:
            yield f"{name}: {_plain(old[key])} -> {_plain(new[key])}"


def _plain(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def _commands(plan: Plan, host: str) -> str:
    """Every server with its loads, as started in the first round, in the order of the file."""
    samples = [sample for sample in plan.samples if sample.host == host and sample.round == 1]
    known = {case.case: number for number, case in enumerate(plan.cases)}
    samples.sort(key=lambda sample: known[sample.case])
    lines: list[str] = []
    seen: set[str] = set()
    for sample in samples:
        if sample.server.job not in seen:
            seen.add(sample.server.job)
            lines += ["", f"  server {sample.variant}{_server_point(sample)}", *_command(sample)]
        lines += [f"    load {sample.label}: {_load(sample.load.spec)}", f"      {_quoted(sample.load.argv, sample)}"]
    return "\n".join(lines)


def _load(spec: Mapping[str, Any]) -> str:
    how = spec["load"]
    pace = f"{how['concurrency']} at once" if "concurrency" in how else f"{how['request_rate']:g} a second"
    ends = [_count(spec["requests"], "request")] if spec["requests"] else []
    ends += [span(spec["duration_s"])] if spec["duration_s"] else []
    data = spec["data"]
    prompt = f"{data['prompt_tokens']} tokens in" if "prompt_tokens" in data else data["path"]
    warmup = f", {spec['warmup']} before to warm up" if spec["warmup"] else ""
    return f"{pace}, {' or '.join(ends)}{warmup}; {prompt}, {data['output_tokens']} out"


def _server_point(sample: PlannedSample) -> str:
    point = [f"{name} = {_plain(value)}" for name, value in sample.axes.items() if name.startswith("server.")]
    return f" at {', '.join(point)}" if point else ""


def _command(sample: PlannedSample) -> list[str]:
    server = sample.server
    env = [f"    {name}={shlex.quote(value)}" for name, value in server.env.items()]
    secrets = [f"    {name}=(secret)" for name in server.secrets]
    return [*env, *secrets, f"    {_quoted(server.argv, sample)}"]


def _quoted(argv: list[str], sample: PlannedSample) -> str:
    port = "PORT" if sample.server.port is None else str(sample.server.port)
    return shlex.join(argv).replace(PORT_TOKEN, port)


def _order(plan: Plan) -> str:
    lines = [f"order ({plan.order}{f', seed {plan.seed}' if plan.order == 'random' else ''})"]
    for host in plan.hosts:
        for number in range(1, plan.rounds + 1):
            names = []
            for sample in plan.samples:
                if sample.host == host and sample.round == number:
                    names.append(f"{'+ ' if sample.start else ''}{sample.variant} {sample.label}")
            prefix = f"{host} " if len(plan.hosts) > 1 else ""
            lines.append(f"  {prefix}round {number}: {', '.join(names)}")
    return "\n".join([*lines, "  + starts a server"])


def _total(plan: Plan) -> str:
    guess = plan.estimate
    basis = (
        "from what was measured before"
        if guess.measured
        else (f"assumed: {assumed.ASSUMED_STREAM_TOK_PER_S:g} tok/s a stream; a measured run makes it better")
    )
    return (
        f"{_count(guess.samples, 'sample')}, {_count(guess.starts, 'server start')}, about {span(guess.total_s)} "
        f"without installation ({basis})"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
