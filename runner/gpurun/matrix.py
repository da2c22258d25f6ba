"""The axes of a campaign: what they address, whether their values fit, which points they span, what is left out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ValidationError

from gpurun.complaints import dotted, fields_at, nearest, translate
from gpurun.config import Benchmark, Campaign, Server
from gpurun.errors import Problem
from gpurun.load import Document, KeyPath
from gpurun.overrides import assign, split_path
from gpurun.resolve import Layers

Complain = Callable[..., None]
"""Takes a problem and the paths that it is about."""


@dataclass(frozen=True, eq=False)
class Axis:
    """One dimension: `name` as it stands in the file, the keys it addresses, its values."""

    name: str
    path: KeyPath
    values: tuple[Any, ...]

    @property
    def place(self) -> KeyPath:
        return ("matrix", "axes", self.name)

    @property
    def of_server(self) -> bool:
        return self.path[0] == "server"


Point = tuple[tuple[Axis, int], ...]
"""A value of each axis, by its number: values may be lists or maps."""


def points(axes: Sequence[Axis]) -> Iterator[Point]:
    """Every combination of the axes' values, the last axis fastest."""
    return itertools.product(*([(axis, number) for number in range(len(axis.values))] for axis in axes))


def values_at(point: Point) -> dict[str, Any]:
    """Axis name -> its value at a point."""
    return {axis.name: axis.values[number] for axis, number in point}


def benchmark_at(document: Document, name: str, point: Point) -> Benchmark:
    """A benchmark with the values of a point put into it. ValidationError where they do not fit."""
    data: dict[str, Any] = deepcopy(document.data["benchmarks"][name])
    for axis, number in point:
        assign(data, axis.path[2:], axis.values[number])
    return Benchmark.model_validate(data)


def same(a: Any, b: Any) -> bool:
    """Equal as YAML has it: true is not 1."""
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


def read_axes(campaign: Campaign, complain: Complain) -> list[Axis]:
    """The axes that address something and whose values fit there; the others are complained about."""
    document = campaign.document
    data = [{"server": part} for part in Layers(document).servers()] + [document.data]
    found: list[Axis] = []
    for name, values in campaign.matrix.axes.items():
        axis = Axis(name, split_path(name, Campaign, *data), tuple(values))
        problem = _unaddressed(axis, campaign, data)
        other = next((a for a in found if a.path[: len(axis.path)] == axis.path[: len(a.path)]), None)
        if problem is None and other is not None:
            message = f"axis `{name}` addresses the same as axis `{other.name}`"
            problem = Problem(message, document.mark(axis.place, key=True))
        if problem is not None:
            complain(problem, axis.place, axis.path)
        elif _fit(axis, document, complain):
            found.append(axis)
    return found


def _unaddressed(axis: Axis, campaign: Campaign, data: Sequence[Any]) -> Problem | None:
    mark = campaign.document.mark(axis.place, key=True)
    start = f"axis `{axis.name}` addresses nothing: "
    first, names = str(axis.path[0]), tuple(campaign.benchmarks)
    if first not in ("server", "benchmarks"):
        near = f"benchmarks.{axis.name}" if first.split(".")[0] in names else nearest(first, ("server", "benchmarks"))
        return Problem(f"{start}an axis varies the server or a benchmark", mark, ("server", "benchmarks"), near)
    if len(axis.path) < (2 if axis.of_server else 3):
        return Problem(f"{start}it names a whole `{first}`", mark, hint="name one key inside it")
    if not axis.of_server and axis.path[1] not in names:
        given = str(axis.path[1])
        return Problem(f"{start}there is no benchmark `{given}`", mark, names, nearest(given, names))
    for depth in range(1, len(axis.path)):
        above, key = axis.path[:depth], str(axis.path[depth])
        model = fields_at(Campaign, above)
        if model is not None and key not in model.model_fields:
            allowed = tuple(model.model_fields)
            return Problem(f"{start}no key `{key}` in `{dotted(above)}`", mark, allowed, nearest(key, allowed))
        if any(not isinstance(_at(layer, above), (Mapping, type(None))) for layer in data):
            return Problem(f"{start}`{dotted(above)}` is not a mapping", mark)
    return None


def _fit(axis: Axis, document: Document, complain: Complain) -> bool:
    """Whether each value fits where the axis puts it; complaints point at the value."""
    good = True
    start = 1 if axis.of_server else 2
    root: type[BaseModel] = Server if axis.of_server else Benchmark
    for number, value in enumerate(axis.values):
        place: KeyPath = (*axis.place, number)
        data: dict[str, Any] = {} if axis.of_server else deepcopy(document.data["benchmarks"][axis.path[1]])
        assign(data, axis.path[start:], value)
        try:
            root.model_validate(data)
        except ValidationError as error:
            good = False
            for path, problem in translate(error, root, document):
                inside = path[len(axis.path) - start :] if path[: len(axis.path) - start] == axis.path[start:] else ()
                complain(replace(problem, mark=document.mark((*place, *inside))), place)
        if any(same(value, earlier) for earlier in axis.values[:number]):
            good = False
            complain(Problem(f"axis `{axis.name}` has this value twice", document.mark(place)), place)
    return good


def check_exclude(campaign: Campaign, axes: Sequence[Axis], complain: Complain) -> list[tuple[KeyPath, dict[str, Any]]]:
    """The points to leave out that can exist, with their places; the others are complained about."""
    document, found = campaign.document, []
    allowed: dict[str, Sequence[Any]] = {
        "variant": ["baseline", *campaign.variants],
        "benchmark": list(campaign.benchmarks),
        **{axis.name: axis.values for axis in axes},
    }
    for number, point in enumerate(campaign.matrix.exclude):
        place: KeyPath = ("matrix", "exclude", number)
        good = bool(point)
        for key, value in point.items():
            if key not in allowed:
                mark, names = document.mark((*place, key), key=True), tuple(allowed)
                problem = Problem(f"`exclude` cannot name `{key}`", mark, names, nearest(key, names))
            elif not any(same(value, known) for known in allowed[key]):
                shown = tuple(str(known) for known in allowed[key])
                mark = document.mark((*place, key))
                problem = Problem(f"`{key}` is never {value!r}", mark, shown, nearest(str(value), shown))
            else:
                continue
            good = False
            complain(problem, (*place, key), ("matrix", "axes", key))
        if good:
            found.append((place, point))
    return found


def _at(data: Any, path: KeyPath) -> Any:
    for part in path:
        data = data.get(part) if isinstance(data, Mapping) else None
    return data
