"""Values that know where they stand in the file, how they merge, and how data is named by its content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpurun.errors import Mark

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Node:
    """A value, or a mapping or list of nodes. `path` leads to it in the file, `key` is where its own key is. Both stay
    when it is merged into something else: what is wrong with a merged value is shown in the line that said it."""

    value: Any
    place: Mark
    path: KeyPath = ()
    key: Mark | None = None

    @property
    def plain(self) -> Any:
        """The value as plain Python data."""
        if isinstance(self.value, dict):
            return {key: node.plain for key, node in self.value.items()}
        return [node.plain for node in self.value] if isinstance(self.value, list) else self.value

    @property
    def source(self) -> str:
        """The value as it is written, as far as that is on one line."""
        return self.place.text[self.place.column - 1 :][: self.place.length]

    def items(self, *path: str | int) -> dict[str, Node]:
        """What the mapping at `path` holds; nothing where there is something else, or nothing."""
        node, rest = self.nearest(path)
        return node.value if isinstance(node.value, dict) and not rest else {}

    def at(self, *path: str | int) -> Node | None:
        """The node at `path` below this one."""
        node, rest = self.nearest(path)
        return None if rest else node

    def nearest(self, path: KeyPath) -> tuple[Node, KeyPath]:
        """The node at `path`, or the nearest above it that exists, and what is left of the path."""
        node = self
        for depth, part in enumerate(path):
            inside = dict(enumerate(node.value)) if isinstance(node.value, list) else node.value
            if not isinstance(inside, dict) or part not in inside:
                return node, path[depth:]
            node = inside[part]
        return node, ()

    def mark(self, path: KeyPath = (), key: bool = False) -> Mark:
        """Where the value at `path` is, or with `key` its key; else the key of the nearest above it that exists."""
        node, rest = self.nearest(path)
        return node.key if node.key is not None and (key or rest) else node.place

    def put(self, path: KeyPath, node: Node, take_over: bool = False) -> Node:
        """The same with another value at `path`; mappings on the way are made, anything else there is a ValueError.

        With `take_over` every mapping on the way stands where the new value does.
        """
        if not path:
            return node
        if not isinstance(self.value, (dict, type(None))):
            raise ValueError(".".join(str(part) for part in self.path))
        below = self.items().get(str(path[0])) or Node(None, node.place, (*self.path, path[0]), node.key)
        result = replace(self, value={**self.items(), str(path[0]): below.put(path[1:], node, take_over)})
        return replace(result, place=node.place, key=node.key, path=node.path) if take_over else result

    def without(self, path: KeyPath) -> Node:
        """The same without the value at `path` in nested mappings."""
        if not path or path[0] not in self.items():
            return self
        rest = {key: node for key, node in self.items().items() if key != path[0]}
        if len(path) > 1:
            rest = {key: node.without(path[1:]) if key == path[0] else node for key, node in self.items().items()}
        return replace(self, value=rest)

    def texts(self) -> Iterator[Node]:
        """Every text in it; keys are not among them."""
        if isinstance(self.value, str):
            yield self
        elif isinstance(self.value, (dict, list)):
            for node in self.value.values() if isinstance(self.value, dict) else self.value:
                yield from node.texts()


def node_of(data: Any, place: Mark) -> Node:
    """Data that is in no file, with the position of what it belongs to."""
    if isinstance(data, dict):
        return Node({key: node_of(value, place) for key, value in data.items()}, place)
    return Node([node_of(value, place) for value in data] if isinstance(data, list) else data, place)


def merge(base: Node, change: Node) -> Node:
    """`change` over `base`: mappings merge, everything else replaces, null removes."""
    merged = dict(base.items())
    for key, node in change.items().items():
        if node.value is None:
            merged.pop(key, None)
        else:
            merged[key] = (
                merge(merged.get(key, node_of({}, node.place)), node) if isinstance(node.value, dict) else node
            )
    return replace(change, value=merged)


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Plain data with `change` applied to each text inside its lists and the values of its maps."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: map_texts(item, change) for key, item in value.items()}
    return [map_texts(item, change) for item in value] if isinstance(value, list) else value


def flat(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Plain data as dotted names and values, also through lists of mappings; a list of single values stays one."""
    if isinstance(data, Mapping) and data:
        for key, value in data.items():
            yield from flat(value, f"{path}.{key}" if path else str(key))
    elif isinstance(data, list) and any(isinstance(each, Mapping) for each in data):
        for number, value in enumerate(data):
            yield from flat(value, f"{path}.{number}")
    else:
        yield path, data


def differences(old: Any, new: Any) -> list[tuple[str, Any, Any]]:
    """Dotted name, value before and value after of what is not the same; None where there is none."""
    before, after = dict(flat(old)), dict(flat(new))
    return [(path, before.get(path), after.get(path)) for path in before | after if before.get(path) != after.get(path)]


def digest(value: Any) -> str:
    """SHA-256 of plain data, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
