"""From a campaign to its cases: baseline and variants, over the points of the matrix, under each benchmark.

Pure, and before any host is known: templates stay as they are written. Whatever would make the comparison meaningless
(an axis or variant that changes nothing, two that are the same) is found here, with its position.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gpurun.complaints import dotted, fields_at, in_file_order, nearest, translate
from gpurun.config import Benchmark, Campaign, Examined, Server, examine
from gpurun.engines import Engine, load_engine
from gpurun.errors import ConfigError, Problem
from gpurun.load import KeyPath, load_file
from gpurun.overrides import assign, split_path
from gpurun.resolve import Layers, Stack, check_server, check_texts, settings
from gpurun.tree import digest

BASELINE = "baseline"
MAX_CASES = 2000

Point = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Axis:
    """One dimension: `name` as it stands in the file, the keys it addresses, its values."""

    name: str
    path: KeyPath
    values: tuple[Any, ...]


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


def read_campaign(path: Path | str, overrides: Sequence[str] = ()) -> tuple[Campaign, list[Case]]:
    """A campaign file, checked in every way that needs no host. ConfigError with all problems, of form and of sense."""
    return check(examine(load_file(path), overrides))


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


def expand(campaign: Campaign, only: Sequence[str] = ()) -> list[Case]:
    """The cases of a campaign: baseline first, then its variants (`only` these, if given). ConfigError as above."""
    return check(Examined(campaign, (), ()), only)[1]


@dataclass
class _Expansion:
    campaign: Campaign
    examined: Examined
    problems: list[Problem] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.document = self.campaign.document
        self.layers = Layers(self.document)

    def complain(self, problem: Problem, *about: KeyPath) -> None:
        """Add a problem, unless it may follow from another one that is reported already."""
        if not any(self.examined.about(path) for path in about):
            self.problems.append(problem)

    def cases(self, only: Sequence[str]) -> list[Case]:
        for path, problem in check_texts(self.document):
            self.complain(problem, path)
        axes = self.axes()
        server_axes = [axis for axis in axes if axis.path[0] == "server"]
        names = [BASELINE, *self.campaign.variants]
        self.check_selection(only)
        points = len(names) * _product(len(axis.values) for axis in server_axes)
        total = points * sum(
            _product(len(axis.values) for axis in self.benchmark_axes(axes, name)) for name in self.campaign.benchmarks
        )
        if total > MAX_CASES:
            mark = self.document.mark(("matrix", "axes"), key=True)
            self.problems.append(Problem(f"the matrix makes {total} cases; at most {MAX_CASES} are measured", mark))
            return []
        servers = {
            (name, point): resolved
            for name in names
            for point in _points(server_axes)
            if (resolved := self.server(name, point)) is not None
        }
        self.compare_variants(servers, list(_points(server_axes)))
        self.compare_values(axes, servers)
        cases = [
            self.case(name, benchmark, load, (*point, *extra), servers[name, point])
            for name in names
            for point in _points(server_axes)
            if (name, point) in servers
            for benchmark in self.campaign.benchmarks
            for extra, load in self.loads(benchmark, axes)
        ]
        kept = self.without_excluded(cases, axes)
        return [case for case in kept if not only or case.variant in (BASELINE, *only)]

    def check_selection(self, only: Sequence[str]) -> None:
        known = tuple(self.campaign.variants)
        for name in only:
            if name not in (BASELINE, *known):
                self.problems.append(
                    Problem(f"`--variant {name}`: there is no such variant", None, known, nearest(name, known))
                )

    # Axes

    def axes(self) -> list[Axis]:
        found: list[Axis] = []
        for name, values in self.campaign.matrix.axes.items():
            data = [{"server": part} for part in self.layers.servers()] + [self.document.data]
            axis = Axis(name, split_path(name, Campaign, *data), tuple(values))
            place: KeyPath = ("matrix", "axes", name)
            problem = self.unaddressed(axis, data)
            other = next((a for a in found if _overlap(a.path, axis.path)), None)
            if problem is None and other is not None:
                mark = self.document.mark(place, key=True)
                problem = Problem(f"axis `{name}` addresses the same as axis `{other.name}`", mark)
            if problem is not None:
                self.complain(problem, place, axis.path)
            elif not self.wrong_values(axis):
                found.append(axis)
        return found

    def unaddressed(self, axis: Axis, data: Sequence[Any]) -> Problem | None:
        mark = self.document.mark(("matrix", "axes", axis.name), key=True)
        start = f"axis `{axis.name}` addresses nothing: "
        names = tuple(self.campaign.benchmarks)
        if axis.path[0] not in ("server", "benchmarks"):
            near = f"benchmarks.{axis.name}" if str(axis.path[0]).split(".")[0] in names else None
            near = near or nearest(str(axis.path[0]), ("server", "benchmarks"))
            return Problem(f"{start}an axis varies the server or a benchmark", mark, ("server", "benchmarks"), near)
        if axis.path[0] == "benchmarks" and (len(axis.path) < 2 or axis.path[1] not in names):
            given = str(axis.path[1]) if len(axis.path) > 1 else ""
            return Problem(f"{start}there is no benchmark `{given}`", mark, names, nearest(given, names))
        for depth in range(1, len(axis.path)):
            model = fields_at(Campaign, axis.path[:depth])
            key = str(axis.path[depth])
            if model is not None and key not in model.model_fields:
                allowed = tuple(model.model_fields)
                message = f"{start}no key `{key}` in `{dotted(axis.path[:depth])}`"
                return Problem(message, mark, allowed, nearest(key, allowed))
            if any(not isinstance(_at(layer, axis.path[:depth]), (Mapping, type(None))) for layer in data):
                return Problem(f"{start}`{dotted(axis.path[:depth])}` is not a mapping", mark)
        if fields_at(Campaign, axis.path) is Server or len(axis.path) == (2 if axis.path[0] == "benchmarks" else 1):
            return Problem(f"{start}it names a whole `{axis.path[0]}`", mark, hint="name one key inside it")
        return None

    def wrong_values(self, axis: Axis) -> bool:
        """Check each value where the axis puts it; the complaint points at the value."""
        before = len(self.problems)
        for number, value in enumerate(axis.values):
            place: KeyPath = ("matrix", "axes", axis.name, number)
            root, start = (Server, 1) if axis.path[0] == "server" else (Benchmark, 2)
            data: dict[str, Any] = {}
            if root is Benchmark:
                data = _copy(_at(self.document.data, axis.path[:2]))
            assign(data, axis.path[start:], value)
            try:
                root.model_validate(data)
            except ValidationError as error:
                for path, problem in translate(error, root, self.document):
                    inside = path[: len(axis.path) - start] == axis.path[start:]
                    at = (*place, *path[len(axis.path) - start :]) if inside else place
                    mark = self.document.mark(at)
                    self.complain(Problem(problem.message, mark, problem.allowed, problem.nearest, problem.hint), place)
            if value in axis.values[:number] and any(_same(value, v) for v in axis.values[:number]):
                self.complain(Problem(f"axis `{axis.name}` has this value twice", self.document.mark(place)), place)
        return len(self.problems) > before

    def benchmark_axes(self, axes: Sequence[Axis], benchmark: str) -> list[Axis]:
        return [axis for axis in axes if axis.path[:2] == ("benchmarks", benchmark)]

    # Servers and loads at a point

    def server(self, variant: str, point: Point) -> tuple[Server, Engine, Stack] | None:
        """The resolved server of a variant at a point; None where something about it is wrong."""
        stack = self.layers.stack(variant, [(axis, value) for axis, value in self.at(point)])
        server, problems = check_server(stack, self.document)
        for path, problem in problems:
            self.complain(problem, path, *([("variants", variant)] if variant != BASELINE else []))
        if server is None or server.engine is None:
            return None
        return server, load_engine(server.engine.partition("==")[0]), stack

    def at(self, point: Point) -> Iterator[tuple[Axis, Any]]:
        for name, value in point:
            data = [{"server": part} for part in self.layers.servers()]
            yield Axis(name, split_path(name, Campaign, *data), ()), value

    def loads(self, benchmark: str, axes: Sequence[Axis]) -> Iterator[tuple[Point, Benchmark]]:
        for point in _points(self.benchmark_axes(axes, benchmark)):
            data = _copy(self.document.data["benchmarks"][benchmark])
            for name, value in point:
                path = split_path(name, Campaign, self.document.data)
                assign(data, path[2:], value)
            try:
                yield point, Benchmark.model_validate(data)
            except ValidationError as error:  # two axes that are right alone but not together
                for _path, problem in translate(error, Benchmark, self.document):
                    mark = self.document.mark(("matrix", "axes", point[-1][0] if point else ""), key=True)
                    self.problems.append(Problem(problem.message, mark, problem.allowed, problem.nearest, problem.hint))

    # What would compare nothing

    def compare_variants(self, servers: Mapping[tuple[str, Point], Any], points: Sequence[Point]) -> None:
        seen: dict[str, str] = {}
        for name in [BASELINE, *self.campaign.variants]:
            if any((name, point) not in servers for point in points):
                continue
            print_ = digest([settings(*servers[name, point][:2]) for point in points])
            first = seen.setdefault(print_, name)
            if first == name:
                continue
            place: KeyPath = ("variants", name)
            mark = self.document.mark(place, key=True)
            if first == BASELINE:
                self.complain(Problem(f"variant `{name}` changes nothing: it is the same as the baseline", mark), place)
            else:
                problem = Problem(f"variants `{first}` and `{name}` resolve to the same settings", mark)
                self.complain(problem, place, ("variants", first))

    def compare_values(self, axes: Sequence[Axis], servers: Mapping[tuple[str, Point], Any]) -> None:
        for axis in axes:
            place: KeyPath = ("matrix", "axes", axis.name)
            if axis.path[0] == "server":
                prints = [self.server_print(BASELINE, ((axis.name, value),)) for value in axis.values]
                names = [BASELINE, *self.campaign.variants]
                unchanged = len(axis.values) == 1 and all(
                    self.server_print(name, ()) == self.server_print(name, ((axis.name, axis.values[0]),))
                    for name in names
                )
            else:
                benchmark = str(axis.path[1])
                loads = [load for _, load in self.loads(benchmark, [axis])]
                prints = [digest(load.model_dump()) for load in loads]
                same = self.campaign.benchmarks[benchmark].model_dump()
                unchanged = len(prints) == 1 and prints[0] == digest(same)
            if unchanged and prints[0]:
                mark = self.document.mark(place, key=True)
                message = f"axis `{axis.name}` changes nothing: its only value is what stands there already"
                self.complain(Problem(message, mark), place, axis.path)
            for number, found in enumerate(prints):
                if found and found in prints[:number]:
                    mark = self.document.mark((*place, number))
                    first = axis.values[prints.index(found)]
                    self.complain(
                        Problem(f"axis `{axis.name}`: this value and {first!r} give the same settings", mark), place
                    )

    def server_print(self, variant: str, point: Point) -> str:
        stack = self.layers.stack(variant, list(self.at(point)))
        server, _problems = check_server(stack, self.document)
        if server is None or server.engine is None:
            return ""
        return digest(settings(server, load_engine(server.engine.partition("==")[0])))

    # Cases

    def case(self, variant: str, benchmark: str, load: Benchmark, point: Point, resolved: Any) -> Case:
        server, engine, stack = resolved
        axes = dict(point)
        content = digest([settings(server, engine), benchmark, load.model_dump(), sorted(axes.items())])
        words = [variant, benchmark, *(_short(value) for _, value in point)]
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(words)).strip("-.")[:60]
        named = [(name.rpartition(".")[2], _short(value)) for name, value in point]
        label = ",".join(value if len(named) == 1 else f"{key}={value}" for key, value in named)
        declared = None if variant == BASELINE else self.campaign.variants[variant].expect
        return Case(
            id=f"{slug}-{content[:8]}",
            variant=variant,
            benchmark=benchmark,
            label=f"{benchmark}@{label}" if label else benchmark,
            axes=axes,
            server=server,
            engine=engine,
            load=load,
            merged=stack.merged(),
            stack=stack,
            expect=declared,
        )

    def without_excluded(self, cases: list[Case], axes: Sequence[Axis]) -> list[Case]:
        allowed: dict[str, Sequence[Any]] = {
            "variant": [BASELINE, *self.campaign.variants],
            "benchmark": list(self.campaign.benchmarks),
            **{axis.name: axis.values for axis in axes},
        }
        kept = list(cases)
        for number, point in enumerate(self.campaign.matrix.exclude):
            place: KeyPath = ("matrix", "exclude", number)
            good = True
            for key, value in point.items():
                if key not in allowed:
                    mark = self.document.mark((*place, key), key=True)
                    names = tuple(allowed)
                    self.complain(
                        Problem(f"`exclude` cannot name `{key}`", mark, names, nearest(key, names)),
                        *[(*place, key), ("matrix", "axes", key)],
                    )
                    good = False
                elif not any(_same(value, known) for known in allowed[key]):
                    shown = tuple(str(known) for known in allowed[key])
                    mark = self.document.mark((*place, key))
                    near = nearest(str(value), shown)
                    self.complain(Problem(f"`{key}` is never {value!r}", mark, shown, near), (*place, key))
                    good = False
            if good:
                left = [case for case in kept if not _excluded(case, point)]
                if len(left) == len(kept) and kept:
                    self.complain(Problem("this excludes nothing", self.document.mark(place)), place)
                kept = left
        if cases and not kept:
            mark = self.document.mark(("matrix", "exclude"), key=True)
            self.complain(Problem("every case is excluded", mark), ("matrix",))
        measured = {(case.benchmark, repr(case.axes)) for case in kept if case.variant == BASELINE}
        lost = [case for case in kept if (case.benchmark, repr(case.axes)) not in measured]
        if lost:
            mark = self.document.mark(("matrix", "exclude"), key=True)
            message = f"the baseline is excluded at `{lost[0].label}`, where `{lost[0].variant}` is still measured"
            self.complain(Problem(message, mark, hint="exclude that point without naming a variant"), ("matrix",))
        return kept


def _points(axes: Sequence[Axis]) -> Iterator[Point]:
    return itertools.product(*([(axis.name, value) for value in axis.values] for axis in axes))


def _product(numbers: Iterator[int]) -> int:
    total = 1
    for number in numbers:
        total *= number
    return total


def _overlap(a: KeyPath, b: KeyPath) -> bool:
    return a[: len(b)] == b or b[: len(a)] == a


def _same(a: Any, b: Any) -> bool:
    """Equal as YAML has it: true is not 1."""
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def _excluded(case: Case, point: Mapping[str, Any]) -> bool:
    at: dict[str, Any] = {"variant": case.variant, "benchmark": case.benchmark, **case.axes}
    return all(key in at and _same(at[key], value) for key, value in point.items())


def _at(data: Any, path: Sequence[str | int]) -> Any:
    for part in path:
        data = data.get(part) if isinstance(data, Mapping) else None
    return data


def _copy(value: Any) -> Any:
    return {key: _copy(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def _short(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "none"}[value]
    if isinstance(value, (Mapping, list)):
        return digest(value)[:6]
    return str(value)
