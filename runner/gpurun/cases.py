"""From a campaign to its cases: baseline and variants, over the points of the matrix, under each benchmark.

Pure, and before any host is known: templates stay as they are written. Whatever would make the comparison meaningless
(an axis or variant that changes nothing, two that are the same) is found here, with its position.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gpurun.complaints import in_file_order, nearest, translate
from gpurun.config import Benchmark, Campaign, Examined, Server, examine
from gpurun.engines import Engine, load_engine
from gpurun.errors import ConfigError, Problem
from gpurun.load import KeyPath, load_file
from gpurun.matrix import Axis, Point, benchmark_at, check_exclude, points, read_axes, same, values_at
from gpurun.resolve import Layers, Stack, check_server, check_texts, settings
from gpurun.tree import digest

BASELINE = "baseline"
MAX_CASES = 2000


@dataclass(frozen=True)
class Case:
    """One variant at one point of the axes under one benchmark.

    `id` is a slug and a hash of the resolved content, so it stays when the file is reordered. `server` is complete;
    `merged` is the same as data for people, with the engine's defaults; `stack` knows where each part comes from.
    """

    id: str
    variant: str
    benchmark: str
    label: str
    axes: Mapping[str, Any]
    server: Server
    engine: Engine
    load: Benchmark
    merged: Mapping[str, Any]
    stack: Stack = field(repr=False)
    expect: str | None = None


def read_campaign(
    path: Path | str, overrides: Sequence[str] = (), only: Sequence[str] = ()
) -> tuple[Campaign, list[Case]]:
    """A campaign file, checked in every way that needs no host. ConfigError with all problems, of form and of sense."""
    return check(examine(load_file(path), overrides), only)


def expand(campaign: Campaign, only: Sequence[str] = ()) -> list[Case]:
    """The cases of a campaign: the baseline's, then its variants' (only these, if given). ConfigError as in `check`."""
    return check(Examined(campaign, (), ()), only)[1]


def check(examined: Examined, only: Sequence[str] = ()) -> tuple[Campaign, list[Case]]:
    """The campaign and its cases. ConfigError with the problems of form and of sense together."""
    if examined.campaign is None:
        raise ConfigError(examined.problems)
    expansion = _Expansion(examined.campaign, examined)
    cases = expansion.cases(only)
    problems = [*examined.problems, *expansion.problems]
    if problems:
        raise ConfigError(in_file_order(problems))
    return examined.campaign, cases


@dataclass
class _Expansion:
    campaign: Campaign
    examined: Examined
    problems: list[Problem] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.document = self.campaign.document
        self.variants = [BASELINE, *self.campaign.variants]

    def complain(self, problem: Problem, *about: KeyPath) -> None:
        """Add a problem, unless it may follow from another one that is reported already."""
        if not any(self.examined.about(path) for path in about):
            self.problems.append(problem)

    def cases(self, only: Sequence[str]) -> list[Case]:
        for name in only:
            if name not in self.variants:
                known = tuple(self.campaign.variants)
                self.complain(Problem(f"there is no variant `{name}`", None, known, nearest(name, known)))
        for path, problem in check_texts(self.document):
            self.complain(problem, path)
        axes = read_axes(self.campaign, self.complain)
        server_axes = [axis for axis in axes if axis.of_server]
        loads = {name: [a for a in axes if a.path[:2] == ("benchmarks", name)] for name in self.campaign.benchmarks}
        total = len(self.variants) * _size(server_axes) * sum(_size(own) for own in loads.values())
        if total > MAX_CASES:
            mark = self.document.mark(("matrix", "axes"), key=True)
            self.complain(Problem(f"the matrix makes {total} cases; at most {MAX_CASES} are measured", mark))
            return []
        stacks = {
            (name, point): Layers(self.document).stack(name, [(axis, axis.values[n]) for axis, n in point])
            for name in self.variants
            for point in points(server_axes)
        }
        servers = {key: server for key, stack in stacks.items() if (server := self.server(key[0], stack)) is not None}
        prints = {key: digest(settings(*server)) for key, server in servers.items()}
        self.compare_variants(prints, list(points(server_axes)))
        for axis in axes:
            self.compare_values(axis)
        cases = [
            self.case(name, benchmark, load, (*point, *extra), servers[name, point], stacks[name, point])
            for name, point in servers
            for benchmark, own in loads.items()
            for extra, load in self.loads(benchmark, own)
        ]
        kept = self.without_excluded(cases, axes)
        return [case for case in kept if not only or case.variant in (BASELINE, *only)]

    def server(self, variant: str, stack: Stack) -> tuple[Server, Engine] | None:
        """The resolved server; None where it cannot even be put together."""
        server, problems = check_server(stack)
        for path, problem in problems:
            self.complain(problem, path, *([] if variant == BASELINE else [("variants", variant)]))
        return None if server is None else (server, load_engine(str(server.engine).partition("==")[0]))

    def loads(self, benchmark: str, axes: Sequence[Axis]) -> Iterator[tuple[Point, Benchmark]]:
        for point in points(axes):
            try:
                yield point, benchmark_at(self.document, benchmark, point)
            except ValidationError as error:  # values that are right alone but not together
                for _, problem in translate(error, Benchmark, self.document):
                    self.complain(replace(problem, mark=self.document.mark(point[-1][0].place, key=True)))

    def compare_variants(self, prints: Mapping[tuple[str, Point], str], at: Sequence[Point]) -> None:
        seen: dict[tuple[str, ...], str] = {}
        for name in self.variants:
            if any((name, point) not in prints for point in at):
                continue
            first = seen.setdefault(tuple(prints[name, point] for point in at), name)
            if first != name:
                message = f"variants `{first}` and `{name}` resolve to the same settings"
                if first == BASELINE:
                    message = f"variant `{name}` changes nothing: it is the same as the baseline"
                place: KeyPath = ("variants", name)
                self.complain(Problem(message, self.document.mark(place, key=True)), place, ("variants", first))

    def compare_values(self, axis: Axis) -> None:
        """An axis must change something, and each of its values something else."""
        if axis.of_server:
            prints = [self.server_print(BASELINE, axis, value) for value in axis.values]
            changes = any(
                self.server_print(name) != self.server_print(name, axis, axis.values[0]) for name in self.variants
            )
        else:
            name = str(axis.path[1])
            prints = [digest(load.model_dump()) for _, load in self.loads(name, [axis])]
            changes = digest(self.campaign.benchmarks[name].model_dump()) not in prints[:1]
        if len(prints) == 1 and prints[0] and not changes:
            message = f"axis `{axis.name}` changes nothing: its only value is what stands there already"
            self.complain(Problem(message, self.document.mark(axis.place, key=True)), axis.place, axis.path)
        for number, found in enumerate(prints):
            if found and found in prints[:number]:
                first, place = axis.values[prints.index(found)], (*axis.place, number)
                message = f"axis `{axis.name}`: this value and {first!r} give the same settings"
                self.complain(Problem(message, self.document.mark(place)), place)

    def server_print(self, variant: str, axis: Axis | None = None, value: Any = None) -> str:
        server, _ = check_server(Layers(self.document).stack(variant, [] if axis is None else [(axis, value)]))
        return "" if server is None else digest(settings(server, load_engine(str(server.engine).partition("==")[0])))

    def case(
        self,
        variant: str,
        benchmark: str,
        load: Benchmark,
        point: Point,
        resolved: tuple[Server, Engine],
        stack: Stack,
    ) -> Case:
        axes = values_at(point)
        content = digest([settings(*resolved), benchmark, load.model_dump(), axes])
        words = [variant, benchmark, *(_short(value) for value in axes.values())]
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(words)).strip("-.")[:60]
        named = [(name.rpartition(".")[2], _short(value)) for name, value in axes.items()]
        label = ",".join(value if len(named) == 1 else f"{key}={value}" for key, value in named)
        return Case(
            id=f"{slug}-{content[:8]}",
            variant=variant,
            benchmark=benchmark,
            label=f"{benchmark}@{label}" if label else benchmark,
            axes=axes,
            server=resolved[0],
            engine=resolved[1],
            load=load,
            merged=stack.merged(),
            stack=stack,
            expect=None if variant == BASELINE else self.campaign.variants[variant].expect,
        )

    def without_excluded(self, cases: list[Case], axes: Sequence[Axis]) -> list[Case]:
        kept = cases
        mark = self.document.mark(("matrix", "exclude"), key=True)
        for place, point in check_exclude(self.campaign, axes, self.complain):
            left = [case for case in kept if not _matches(case, point)]
            if len(left) == len(kept) and kept:
                self.complain(Problem("this excludes nothing", self.document.mark(place)), place)
            kept = left
        if cases and not kept:
            self.complain(Problem("every case is excluded", mark), ("matrix",))
        measured = {(case.benchmark, repr(case.axes)) for case in kept if case.variant == BASELINE}
        for case in kept:
            if (case.benchmark, repr(case.axes)) not in measured:
                message = f"the baseline is excluded at `{case.label}`, where `{case.variant}` is still measured"
                hint = "exclude that point without naming a variant"
                self.complain(Problem(message, mark, hint=hint), ("matrix",), ("server",), ("baseline",))
                break
        return kept


def _size(axes: Sequence[Axis]) -> int:
    return math.prod(len(axis.values) for axis in axes)


def _matches(case: Case, point: Mapping[str, Any]) -> bool:
    at: dict[str, Any] = {"variant": case.variant, "benchmark": case.benchmark, **case.axes}
    return all(key in at and same(at[key], value) for key, value in point.items())


def _short(value: Any) -> str:
    if isinstance(value, (Mapping, list)):
        return digest(value)[:6]
    return (
        {True: "true", False: "false", None: "none"}[value]
        if value is None or value is True or value is False
        else str(value)
    )
