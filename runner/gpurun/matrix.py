"""The axes of a campaign: what they address, whether their values fit, which points they span, what is left out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpurun.complaints import Complaints, dotted, nearest
from gpurun.config import Benchmark, Server, keys_at, split_path
from gpurun.resolve import layers
from gpurun.samples import BASELINE
from gpurun.tree import KeyPath, Node, node_of


@dataclass(frozen=True)
class Axis:
    """One dimension: `name` as it stands in the file, the keys it addresses, its values where they stand."""

    name: str
    path: KeyPath
    node: Node

    @property
    def values(self) -> list[Node]:
        values: list[Node] = self.node.value
        return values

    @property
    def benchmark(self) -> str | None:
        """The benchmark that it varies; None where it varies the server."""
        return None if self.path[0] == "server" else str(self.path[1])


Point = tuple[tuple[Axis, int], ...]
"""A value of each axis, by its number: values may be lists or maps."""


def points(axes: Sequence[Axis]) -> Iterator[Point]:
    """Every combination of the axes' values, the last axis fastest."""
    return itertools.product(*([(axis, number) for number in range(len(axis.values))] for axis in axes))


def same(a: Any, b: Any) -> bool:
    """Equal as YAML has it: true is not 1."""
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


def benchmark_at(root: Node, name: str, point: Point, complaints: Complaints) -> Benchmark | None:
    """A benchmark with the values of a point put into it; None, with complaints, where they do not go together."""
    if complaints.about(("benchmarks", name)):
        return None
    node = root.items("benchmarks")[name]
    for axis, number in point:
        node = node.put(axis.path[2:], axis.values[number], take_over=True)
    return complaints.read(Benchmark, node, ("benchmarks", name))


def read_axes(root: Node, complaints: Complaints) -> list[Axis]:
    """The axes that address something and whose values fit there; the others are complained about."""
    data = [root, *(node_of({}, root.place).put(("server",), layer) for layer in layers(root))]
    found: list[Axis] = []
    for name, node in root.items("matrix", "axes").items():
        axis = Axis(name, split_path(name, *data), node)
        if complaints.about(axis.path):
            continue
        other = next((a for a in found if a.path[: len(axis.path)] == axis.path[: len(a.path)]), None)
        wrong = _unaddressed(axis, root, data)
        if wrong is None and other is not None:
            wrong = {"message": f"axis `{name}` addresses the same as axis `{other.name}`"}
        if wrong is not None:
            complaints.add(node=node, key=True, **wrong)
        elif _fits(axis, root, complaints):
            found.append(axis)
    return found


def _unaddressed(axis: Axis, root: Node, data: Sequence[Node]) -> dict[str, Any] | None:
    """What to complain about an axis that varies nothing."""
    start = f"axis `{axis.name}` addresses nothing: "
    first, names = str(axis.path[0]), tuple(root.items("benchmarks"))
    if first not in ("server", "benchmarks"):
        both = ("server", "benchmarks")
        near = f"benchmarks.{axis.name}" if first.split(".")[0] in names else nearest(first, both)
        return {"message": f"{start}an axis varies the server or a benchmark", "allowed": both, "nearest": near}
    if len(axis.path) < (2 if first == "server" else 3):
        return {"message": f"{start}it names a whole `{first}`", "hint": "name one key inside it"}
    if axis.benchmark is not None and axis.benchmark not in names:
        return {"message": f"{start}there is no benchmark `{axis.benchmark}`", "allowed": names, "word": axis.benchmark}
    for depth in range(1, len(axis.path)):
        above, key = axis.path[:depth], str(axis.path[depth])
        known = keys_at(above)
        if known is not None and key not in known:
            return {"message": f"{start}no key `{key}` in `{dotted(above)}`", "allowed": tuple(known), "word": key}
        if any(not isinstance(node.value, (dict, type(None))) for layer in data if (node := layer.at(*above))):
            return {"message": f"{start}`{dotted(above)}` is not a mapping"}
    return None


def _fits(axis: Axis, root: Node, complaints: Complaints) -> bool:
    """Whether each value fits where the axis puts it, and is there once."""
    before = len(complaints.problems)
    for number, value in enumerate(axis.values):
        if axis.benchmark is None:
            server = node_of({}, value.place).put(axis.path[1:], value, take_over=True)
            complaints.read(Server, server, ("server",))
        else:
            benchmark_at(root, axis.benchmark, ((axis, number),), complaints)
        if any(same(value.plain, earlier.plain) for earlier in axis.values[:number]):
            complaints.add(f"axis `{axis.name}` has this value twice", value)
    return len(complaints.problems) == before


def read_exclude(root: Node, axes: Sequence[Axis], complaints: Complaints) -> list[Node]:
    """The points to leave out that can exist; the others are complained about."""
    exclude = root.at("matrix", "exclude")
    allowed: dict[str, list[Any]] = {
        "variant": [BASELINE, *root.items("variants")],
        "benchmark": list(root.items("benchmarks")),
        **{axis.name: [value.plain for value in axis.values] for axis in axes},
    }
    found = []
    for point in exclude.value if exclude else []:
        before = len(complaints.problems)
        for key, value in point.items().items():
            if key not in (*allowed, *root.items("matrix", "axes")) and not complaints.about(("matrix", "axes", key)):
                message = f"`exclude` cannot name `{key}`"
                complaints.add(message, point, (key,), key=True, allowed=tuple(allowed), word=key)
            elif key in allowed and not any(same(value.plain, known) for known in allowed[key]):
                shown, word = tuple(str(known) for known in allowed[key]), str(value.plain)
                complaints.add(f"`{key}` is never {value.plain!r}", value, allowed=shown, word=word)
        if point.items() and len(complaints.problems) == before:
            found.append(point)
    return found
