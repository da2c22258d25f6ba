"""From cases and facts to the plan: which sample comes when on which host, each complete in itself.

Pure. A round is one pass over all cases with the baseline in it, so that a drift of the machine meets all variants
alike; between rounds the order changes, so that none is always first. Cases that share a server are neighbours.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from gpurun.cases import BASELINE, Case
from gpurun.config import Campaign
from gpurun.errors import ConfigError, Problem
from gpurun.estimate import Estimate, estimate
from gpurun.launch import TOOL_VERSION, Launch, LaunchError, launch, load_spec
from gpurun.samples import Sample
from gpurun.tree import digest

PLAN_SCHEMA: Literal["gpurun.plan/1"] = "gpurun.plan/1"
_T = TypeVar("_T")
_SLACK_S = 120.0  # added to a server's life for what happens between its samples


class Part(BaseModel):
    """Base of the plan's parts: unknown keys are an error, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class PlannedServer(Part):
    """A server job. `key` is the hash of its settings; times in seconds."""

    key: str
    job: str
    engine: dict[str, Any]
    model: dict[str, Any]
    argv: list[str]
    env: dict[str, str]
    secrets: list[str]
    port: int | None
    cwd: str | None
    ready: dict[str, Any]
    effective: dict[str, Any] | None
    metrics_path: str | None
    start_s: float
    life_s: float
    stop_s: float


class PlannedLoad(Part):
    """A load job. `error_rate` is the share of failed requests above which there is no number."""

    job: str
    tool: str
    version: str
    argv: list[str]
    cwd: str
    spec: dict[str, Any]
    timeout_s: float
    error_rate: float


class PlannedSample(Part):
    """One case in one round on one host. `start` and `stop` mark the first and last sample on one server."""

    id: str
    round: int
    host: str
    case: str
    variant: str
    benchmark: str
    axes: dict[str, Any]
    label: str
    content: str
    expect: str | None
    server: PlannedServer
    load: PlannedLoad
    start: bool
    stop: bool


class PlannedCase(Part):
    """A case as people see it: its merged settings."""

    case: str
    variant: str
    benchmark: str
    axes: dict[str, Any]
    label: str
    expect: str | None
    settings: dict[str, Any]


class Needs(Part):
    """What a host must have before it measures; the keys are those of the roles `engine` and `model`."""

    engines: list[dict[str, Any]]
    models: list[dict[str, Any]]
    tools: list[dict[str, Any]]


class Plan(Part):
    """The whole plan (`plan.json`)."""

    schema_: Literal["gpurun.plan/1"] = Field(default=PLAN_SCHEMA, alias="schema")
    run: str
    campaign: str
    hosts: list[str]
    rounds: int
    order: str
    seed: int
    compare: dict[str, Any]
    engines: dict[str, str]
    secrets: list[str]
    cases: list[PlannedCase]
    needs: dict[str, Needs]
    estimate: Estimate
    notes: list[str]
    samples: list[PlannedSample]


def build(
    campaign: Campaign,
    cases: Sequence[Case],
    facts: Mapping[str, Mapping[str, Any]],
    run_id: str,
    measured: Sequence[Sample] = (),
) -> Plan:
    """The plan of a run. `facts` maps each host to what the facts module found there (`host`, `gpus`).

    `measured`: samples of an earlier run of the campaign, which make the estimate a better one. ConfigError where a
    template does not fit a host.
    """
    problems: list[Problem] = []
    launches: dict[tuple[str, str], Launch] = {}
    for host, known in facts.items():
        for case in cases:
            try:
                launches[host, case.id] = launch(case, host, known)
            except LaunchError as error:
                problems.append(error.problem)
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    ordered: list[PlannedSample] = []
    for number in range(1, campaign.rounds + 1):
        for host, known in facts.items():
            groups = _servers(cases, {case.id: launches[host, case.id] for case in cases})
            for group in _ordered(groups, campaign, number, host):
                home = str(known.get("host", {}).get("home") or "~/.gpurun")
                ordered += _samples(campaign, group, launches, host, home, run_id, number)
    return Plan(
        run=run_id,
        campaign=campaign.name,
        hosts=list(facts),
        rounds=campaign.rounds,
        order=campaign.order,
        seed=campaign.seed,
        compare=campaign.compare.model_dump(),
        engines=_engines(launches.values()),
        secrets=sorted({secret for case in cases for secret in case.server.secrets or []}),
        cases=[
            PlannedCase(
                case=case.id,
                variant=case.variant,
                benchmark=case.benchmark,
                axes=dict(case.axes),
                label=case.label,
                expect=case.expect,
                settings={"server": dict(case.merged), "benchmark": case.load.model_dump(exclude_none=True)},
            )
            for case in cases
        ],
        needs={host: _needs([launches[host, case.id] for case in cases]) for host in facts},
        estimate=estimate([sample.model_dump() for sample in ordered], _start_guesses(cases), measured),
        notes=_notes(cases, facts, launches),
        samples=ordered,
    )


def _servers(cases: Sequence[Case], launches: Mapping[str, Launch]) -> list[list[Case]]:
    """Cases in groups that share a server, in the order of the file."""
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.variant, _key(case, launches[case.id])), []).append(case)
    return list(groups.values())


def _ordered(groups: list[list[Case]], campaign: Campaign, number: int, host: str) -> list[list[Case]]:
    """The order of one round: servers, and the loads on each, begin elsewhere in every round."""
    if campaign.order == "fixed":
        return groups
    if campaign.order == "random":
        dice = random.Random(f"{campaign.seed}/{number}/{host}")  # noqa: S311 (an order, not a secret)
        groups = [dice.sample(group, len(group)) for group in groups]
        return dice.sample(groups, len(groups))
    # Steps as wide as the rounds allow spread each variant over the whole round, not over neighbouring places.
    return [
        _rotated(group, number - 1) for group in _rotated(groups, (number - 1) * max(1, len(groups) // campaign.rounds))
    ]


def _rotated(items: list[_T], places: int) -> list[_T]:
    first = places % len(items)
    return items[first:] + items[:first]


def _samples(
    campaign: Campaign,
    group: Sequence[Case],
    launches: Mapping[tuple[str, str], Launch],
    host: str,
    home: str,
    run_id: str,
    number: int,
) -> list[PlannedSample]:
    limits = campaign.timeouts
    found = launches[host, group[0].id]
    key = _key(group[0], found)
    engine, settings = group[0].engine, group[0].server
    server = PlannedServer(
        key=key,
        job=f"r{number}-{_slug(group[0].variant)}-{key}",
        engine=found.engine,
        model=found.model,
        argv=found.argv,
        env=found.env,
        secrets=list(settings.secrets or []),
        port=settings.port,
        cwd=settings.cwd,
        ready=found.ready,
        effective=engine.effective.model_dump() if engine.effective else None,
        metrics_path=engine.metrics.path if engine.metrics else None,
        start_s=limits.start,
        life_s=limits.start + len(group) * limits.sample + limits.stop + _SLACK_S,
        stop_s=limits.stop,
    )
    tool = f"{home}/tools/builtin-{TOOL_VERSION}"
    samples = []
    for place, case in enumerate(group):
        job = f"r{number}-{case.id}"
        folder = f"{home}/jobs/{run_id}/{job}"
        spec = load_spec(case, found.model["name"], settings.port, limits.sample, f"{folder}/progress.json")
        measured = {name: value for name, value in spec.items() if name not in ("base_url", "progress", "timeout_s")}
        samples.append(
            PlannedSample(
                id=f"{number}/{case.id}/{host}",
                round=number,
                host=host,
                case=case.id,
                variant=case.variant,
                benchmark=case.benchmark,
                axes=dict(case.axes),
                label=case.label,
                content=digest([found.content(), settings.secrets, measured, "builtin", TOOL_VERSION]),
                expect=case.expect,
                server=server,
                load=PlannedLoad(
                    job=job,
                    tool="builtin",
                    version=TOOL_VERSION,
                    argv=[f"{tool}/bin/python", "-m", "loadgen", f"{folder}/spec.json", f"{folder}/raw.json"],
                    cwd=tool,
                    spec=spec,
                    timeout_s=limits.sample,
                    error_rate=case.load.limits.error_rate,
                ),
                start=place == 0,
                stop=place == len(group) - 1,
            )
        )
    return samples


def _key(case: Case, found: Launch) -> str:
    server = case.server
    return digest([found.content(), found.ready, server.secrets, server.port, server.cwd])[:8]


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", text)[:40]


def _engines(launches: Any) -> dict[str, str]:
    """Engine -> version, or the program that is used instead; several are listed."""
    found: dict[str, list[str]] = {}
    for one in launches:
        what = str(one.engine.get("binary") or one.engine["version"] or "as given")
        if what not in found.setdefault(one.engine["name"], []):
            found[one.engine["name"]].append(what)
    return {name: ", ".join(what) for name, what in found.items()}


def _needs(launches: Sequence[Launch]) -> Needs:
    engines = {digest(one.install): one.install for one in launches if one.install is not None}
    models = {digest(one.model): one.model for one in launches if one.model["kind"] is not None}
    return Needs(
        engines=list(engines.values()),
        models=list(models.values()),
        tools=[{"name": "builtin", "version": TOOL_VERSION}],
    )


def _start_guesses(cases: Sequence[Case]) -> dict[str, float]:
    return {case.variant: case.engine.start_s for case in cases}


def _notes(cases: Sequence[Case], facts: Mapping[str, Any], launches: Mapping[tuple[str, str], Launch]) -> list[str]:
    """Variants that differ in the file and are the same on a host, once templates are filled in."""
    notes = []
    for host in facts:
        first: dict[tuple[Any, ...], str] = {}
        for case in cases:
            point = (case.benchmark, digest(dict(case.axes)), digest(launches[host, case.id].content()))
            other = first.setdefault(point, case.variant)
            if other != case.variant:
                same = "the baseline" if other == BASELINE else f"`{other}`"
                notes.append(f"on {host}, `{case.variant}` is the same as {same} once its templates are filled in")
    return list(dict.fromkeys(notes))
