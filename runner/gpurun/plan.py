"""From cases and facts to the plan: which sample comes when on which host, each complete in itself.

Pure. A round is one pass over all cases with the baseline in it, so that a drift of the machine meets all variants
alike; between rounds the order changes, so that none is always first. Cases that share a server are neighbours.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from pydantic import Field

from gpurun.cases import Case
from gpurun.config import Campaign
from gpurun.errors import ConfigError, Problem
from gpurun.findings import Finding
from gpurun.launch import BIND, BIND_FOR_OTHERS, Launch, home_of, launch, load_host
from gpurun.loads import load_spec, plan_load, read_scripts, tool_needs
from gpurun.preflight import check_forced, look
from gpurun.rules import parallel_sizes
from gpurun.samples import AGAIN, BASELINE, REPEATED, Record, sample_id
from gpurun.tools import load_tool
from gpurun.tree import digest

_T = TypeVar("_T")
ASSUMED_STREAM_TOK_PER_S = 30.0  # of one stream, whatever the concurrency
ASSUMED_PROMPT_TOK_PER_S = 1000.0
ASSUMED_STOP_S = 2.0
ASSUMED_STEP_S = 1.5  # orchestration of a sample
_SLACK_S = 120.0  # added to a server's life for what happens between its samples
Launches = Mapping[tuple[str, str], Launch]  # by host and case


class PlannedSample(Record):
    """One case in one round on one host. `start` and `stop` mark the first and last sample on one server; the keys of
    `server` and `load`, which are what the roles get, are in docs/design.md."""

    id: str
    round: int
    repeat: int
    host: str
    case: str
    variant: str
    benchmark: str
    axes: dict[str, Any]
    label: str
    content: str
    expect: str | None
    server: dict[str, Any]
    load: dict[str, Any]
    start: bool
    stop: bool
    refused: dict[str, Any] | None = None  # rule, class, proof and advice: why it is not tried


class Estimate(Record):
    """Seconds until a run ends (hosts work side by side), and what makes them; counts are over all hosts and rounds."""

    total_s: float
    start_s: float
    load_s: float
    samples: int
    starts: int


class Plan(Record):
    """The whole plan (`plan.json`). `cases` are for people, `needs` (by host) the arguments of the preparing roles."""

    schema_: Literal["gpurun.plan/1"] = Field(default="gpurun.plan/1", alias="schema")
    run: str
    campaign: str
    hosts: list[str]
    rounds: int
    order: str
    seed: int
    compare: dict[str, Any]
    engines: dict[str, str]
    secrets: list[str]
    cases: list[dict[str, Any]]
    needs: dict[str, dict[str, list[dict[str, Any]]]]
    estimate: Estimate
    notes: list[str]
    findings: list[Finding]
    forced: list[str]
    samples: list[PlannedSample]
    scripts: dict[str, str] = Field({})  # SHA-256 -> text of the benchmark scripts, which samples name by it


def build(
    campaign: Campaign,
    cases: Sequence[Case],
    facts: Mapping[str, Mapping[str, Any]],
    run_id: str,
    forced: Sequence[str] = (),
    lost: Mapping[str, tuple[str, str]] = MappingProxyType({}),
) -> Plan:
    """The plan of a run. `facts` maps each host to what the facts module found there (`host`, `gpus`).

    `forced`: the rules that do not count. `lost`: why other hosts tell nothing of themselves, and how to proceed; what
    they should measure is planned as on the first host, and refused. ConfigError where a template does not fit a host,
    or there is no such rule.
    """
    check_forced(forced)
    elsewhere = load_hosts(facts)
    problems: list[Problem] = []
    launches: dict[tuple[str, str], Launch] = {}
    for host, known in facts.items():
        for case in cases:
            try:
                launches[host, case.id] = launch(case, host, known)
            except ConfigError as error:
                problems += error.problems
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    found, refused = look(campaign, cases, launches, facts, forced)
    scripts = read_scripts(campaign.document.name, cases)
    samples: list[PlannedSample] = []
    for number in range(1, campaign.rounds + 1):
        for host, known in facts.items():
            groups: dict[tuple[str, str], list[Case]] = {}  # cases that share a server
            for case in cases:
                groups.setdefault((case.variant, launches[host, case.id].key), []).append(case)
            dead = [group for group in groups.values() if (host, group[0].id) in refused]
            alive = [group for group in groups.values() if (host, group[0].id) not in refused]
            for group in [*(_ordered(alive, campaign, number, host) if alive else ()), *dead]:
                one, why = launches[host, group[0].id], refused.get((host, group[0].id))
                samples += _samples(campaign, group, one, host, known, run_id, number, scripts, why)
    like = [sample for sample in samples if sample.host == next(iter(facts))]
    samples += [_lost(sample, host, *why) for host, why in lost.items() for sample in like]
    tried = {host: [launches[host, case.id] for case in cases if (host, case.id) not in refused] for host in facts}
    needs = {host: _needs(tried[host], [] if host in elsewhere else cases) for host in facts}
    return Plan(
        run=run_id,
        campaign=campaign.name,
        hosts=[*facts, *lost],
        rounds=campaign.rounds,
        order=campaign.order,
        seed=campaign.seed,
        compare=campaign.compare.model_dump(),
        engines=_engines(launches),
        secrets=sorted({secret for case in cases for secret in case.server.secrets or []}),
        cases=[{**_identity(case), "settings": _settings(case)} for case in cases],
        needs={**needs, **{other: _needs([], cases) for other in elsewhere.values()}},
        estimate=estimate(samples, {case.variant: case.engine.start_s for case in cases}),
        notes=[
            *([REPEATED.format(campaign.repeats)] if campaign.repeats > 1 else []),
            *_load_notes(elsewhere),
            *_notes(cases, facts, launches),
            *_tool_notes(cases),
        ],
        findings=found,
        forced=list(forced),
        samples=samples,
        scripts={hashlib.sha256(text.encode()).hexdigest(): text for text in scripts.values()},
    )


def load_hosts(facts: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Server host -> the other host that sends its load; nothing for those that do it themselves. ConfigError where one
    would be measured meanwhile, or cannot reach the server's host."""
    found = {host: str(other["host"]) for host, known in facts.items() if (other := load_host(host, known))}
    for host, name in found.items():
        if name in facts:
            message = f"`{name}` cannot send the load of `{host}`: it is measured itself"
            raise ConfigError(message, hint="`load_hosts` should name hosts that serve nothing in this run")
    return found


def _load_notes(elsewhere: Mapping[str, str]) -> list[str]:
    notes = []
    for other in dict.fromkeys(elsewhere.values()):
        served = [host for host in elsewhere if elsewhere[host] == other]
        notes.append(f"{other} sends the load of {', '.join(served)}, where servers listen on {BIND_FOR_OTHERS}")
        if len(served) > 1:
            notes.append(f"{len(served)} hosts share {other} at the same time: their loads may slow each other down")
    return notes


def _ordered(groups: list[list[Case]], campaign: Campaign, number: int, host: str) -> list[list[Case]]:
    """The order of one round: servers, and the loads on each, begin elsewhere in every round."""
    if campaign.order == "fixed":
        return groups
    if campaign.order == "random":
        dice = random.Random(f"{campaign.seed}/{number}/{host}")  # noqa: S311 (an order, not a secret)
        groups = [dice.sample(group, len(group)) for group in groups]
        return dice.sample(groups, len(groups))
    return [_balanced(group, number, campaign.rounds) for group in _balanced(groups, number, campaign.rounds)]


def _balanced(items: list[_T], number: int, rounds: int) -> list[_T]:
    """In another order each round: over as many rounds as items each has every place once and, with an even number of
    them, follows every other once; then the same backwards (two items: AB BA BA AB, which cancels a steady drift). With
    fewer rounds than items, steps as wide as they allow spread each item over the whole round.

    Source: E. J. Williams, Experimental designs balanced for the estimation of residual effects (1949).
    """
    count, step = len(items), max(1, len(items) // rounds)
    zigzag = [(place + 1) // 2 * (1 if place % 2 else -1) for place in range(count)]
    order = [items[(place + (number - 1) * step) % count] for place in zigzag]
    return order[::-1] if (number - 1) // count % 2 else order


def _samples(
    campaign: Campaign,
    group: Sequence[Case],
    found: Launch,
    host: str,
    facts: Mapping[str, Any],
    run_id: str,
    number: int,
    scripts: Mapping[str, str],
    refused: dict[str, Any] | None,
) -> list[PlannedSample]:
    """The samples of one round on one server."""
    limits = campaign.timeouts
    server = {
        "key": found.key,
        "job": f"r{number}-{re.sub(r'[^A-Za-z0-9.]+', '-', group[0].variant)[:40]}-{found.key}",
        **found.server,
        "gpus": parallel_sizes(found.server["engine"]["name"], found.flags)["world"],
        "start_s": limits.start,
        "life_s": limits.start + campaign.repeats * len(group) * limits.sample + limits.stop + _SLACK_S,
        "stop_s": limits.stop,
    }
    if number > 1 and campaign.order != "random":  # the first round, which the baseline begins, has shown what it says
        server["ready"] = {**server["ready"], "ask": None}
    elsewhere, driver = load_host(host, facts), (facts.get("driver") or {}).get("version")
    home = home_of(facts) if elsewhere is None else elsewhere["home"]
    samples: list[PlannedSample] = []
    address = BIND if elsewhere is None else elsewhere["address"]
    for repeat, case in itertools.product(range(1, campaign.repeats + 1), group):
        job = f"r{number}{f'.{repeat}' if repeat > 1 else ''}-{case.id}"
        job += f"-{digest(host)[:8]}" if elsewhere else ""  # it may do the same for another server's host
        folder, name, port = f"{home}/jobs/{run_id}/{job}", found.server["model"]["name"], found.server["port"]
        spec = load_spec(case, name, port, limits.sample, f"{folder}/progress.json", address, repeat)
        asked = {key: value for key, value in spec.items() if key not in ("base_url", "progress", "timeout_s")}
        tool = plan_load(case, found, host, home, folder, spec, scripts)
        used = [tool["tool"], tool["version"]]
        if tool["tool"] != "builtin":  # its specification is all that a builtin load is; others have more in their argv
            used += [[word.replace(folder, "") for word in tool["argv"]], tool["files"], tool["parse"]]
        place_of = {"job": job, "host": elsewhere and elsewhere["host"], "home": home}
        ends = {"timeout_s": limits.sample, "error_rate": case.load.limits.error_rate}
        samples.append(
            PlannedSample(
                **_identity(case),
                id=sample_id(number, repeat, case.id, host),
                round=number,
                repeat=repeat,
                host=host,
                content=digest([found.content, asked, *used, *(["remote"] if elsewhere else []), driver]),
                server=server,
                load={**place_of, **tool, "spec": spec, **ends},
                start=refused is None and not samples,
                stop=refused is None and len(samples) == campaign.repeats * len(group) - 1,
                refused=refused,
            )
        )
    return samples


def _lost(sample: PlannedSample, host: str, proof: str, advice: str) -> PlannedSample:
    """The same on a host of which nothing is known. It has no content: whatever else was measured there is kept."""
    refused = {"rule": None, "class": "host_unreachable", "proof": proof, "advice": advice}
    name = sample_id(sample.round, sample.repeat, sample.case, host)
    changes = {"id": name, "host": host, "content": "", "start": False, "stop": False, "refused": refused}
    return sample.model_copy(update=changes)


def _identity(case: Case) -> dict[str, Any]:
    keys = ("variant", "benchmark", "axes", "label", "expect")
    return {"case": case.id, **{key: getattr(case, key) for key in keys}}


def _settings(case: Case) -> dict[str, Any]:
    return {"server": case.merged.plain, "benchmark": case.load.model_dump(exclude_none=True)}


def _engines(launches: Launches) -> dict[str, str]:
    """Engine -> version, or the program that is used instead; several are listed."""
    found: dict[str, dict[str, None]] = {}
    for one in launches.values():
        engine = one.server["engine"]
        found.setdefault(engine["name"], {})[str(engine.get("binary") or engine["version"] or "as given")] = None
    return {name: ", ".join(what) for name, what in found.items()}


def _needs(launches: Sequence[Launch], loads: Sequence[Case]) -> dict[str, list[dict[str, Any]]]:
    engines = {digest(one.install): one.install for one in launches if one.install is not None}
    models = {digest(model): model for one in launches if (model := one.server["model"])["kind"] is not None}
    return {"engines": list(engines.values()), "models": list(models.values()), "tools": tool_needs(loads)}


def _tool_notes(cases: Sequence[Case]) -> list[str]:
    """What the tools themselves say of the numbers that they give."""
    names = dict.fromkeys(case.load.tool for case in cases)
    return [f"{name}: {note}" for name in names for note in load_tool(name).notes]


def _notes(cases: Sequence[Case], facts: Mapping[str, Any], launches: Launches) -> list[str]:
    """What a person may not expect: loads that never have as many requests in flight as they say, and variants that
    differ in the file and are the same on a host, once templates are filled in."""
    notes = []
    for case in cases:
        load = case.load.load
        if load.concurrency and load.requests and load.concurrency > load.requests:
            few = f"{load.requests} requests at concurrency {load.concurrency}"
            notes.append(f"`{case.benchmark}` sends {few}: never more than {load.requests} are in flight")
    for host in facts:
        first: dict[str, str] = {}
        for case in cases:
            other = first.setdefault(digest([case.benchmark, case.axes, launches[host, case.id].content]), case.variant)
            if case.variant not in (other, AGAIN):
                same = "the baseline" if other == BASELINE else f"`{other}`"
                notes.append(f"on {host}, `{case.variant}` is the same as {same} once its templates are filled in")
    return list(dict.fromkeys(notes))


def estimate(planned: Sequence[PlannedSample], start_s: Mapping[str, float]) -> Estimate:
    """How long the samples take, by plain assumptions. `start_s` is that of each variant's server."""
    planned = [item for item in planned if item.refused is None]
    loads = [min(assumed_load_s(item.load["spec"]), item.load["timeout_s"]) for item in planned]
    begins = [start_s[item.variant] if item.start else 0.0 for item in planned]
    hosts: dict[str, float] = defaultdict(float)
    for item, load, begin in zip(planned, loads, begins, strict=True):
        hosts[item.host] += load + ASSUMED_STEP_S + begin + (ASSUMED_STOP_S if item.start else 0.0)
    return Estimate(
        total_s=round(max(hosts.values(), default=0.0), 1),
        start_s=round(sum(begins), 1),
        load_s=round(sum(loads), 1),
        samples=len(planned),
        starts=sum(item.start for item in planned),
    )


def assumed_load_s(spec: Mapping[str, Any]) -> float:
    """Seconds of one load, warm-up included, if one stream generates at the assumed rate."""
    data, load = spec["data"], spec["load"]
    one_s = data["output_tokens"] / ASSUMED_STREAM_TOK_PER_S + data.get("prompt_tokens", 0) / ASSUMED_PROMPT_TOK_PER_S
    limit_s, requests, warmup = spec["duration_s"] or float("inf"), spec["requests"] or 10**9, spec["warmup"]
    if "request_rate" in load:
        return float(min(requests / load["request_rate"], limit_s) + one_s + warmup / load["request_rate"])
    return float(min(-(-requests // load["concurrency"]) * one_s, limit_s) - (-warmup // load["concurrency"]) * one_s)
