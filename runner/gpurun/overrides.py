"""Dotted paths: `--set a.b.c=value` and the axes of a matrix address parts of a campaign by them.

A name may hold dots itself (`server.flags.compilation-config.mode`, a benchmark `chat.long`). A path is therefore read
along the campaign: a key that exists wins, the longest first. In a mapping with free keys (`flags`, `env`,
`matrix.axes`) what does not exist yet is one key, dots and all.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from gpurun.complaints import kind_at
from gpurun.errors import ConfigError, Mark, Problem
from gpurun.load import Document, KeyPath, load_value


def split_path(text: str, root: type[BaseModel], *layers: Any) -> KeyPath:
    """The keys that a dotted path stands for, read along the data of `layers` and the format that `root` describes."""
    parts = text.split(".")
    path: list[str] = []
    while parts:
        below = [value for layer in layers if isinstance(value := _get(layer, path), dict)]
        sizes = range(len(parts), 0, -1)
        size = next((n for n in sizes if any(".".join(parts[:n]) in mapping for mapping in below)), None)
        if size is None:
            size = len(parts) if _has_free_keys(kind_at(root, tuple(path))) and not _beyond(path, layers) else 1
        path.append(".".join(parts[:size]))
        parts = parts[size:]
    return tuple(path)


def assign(data: dict[str, Any], path: KeyPath, value: Any) -> None:
    """Set the value at `path` in place; mappings on the way are made. KeyError(path) where something else is there."""
    here: Any = data
    for depth, part in enumerate(path[:-1]):
        if here.get(part) is None:
            here[part] = {}
        here = here[part]
        if not isinstance(here, dict):
            raise KeyError(path[: depth + 1])
    here[path[-1]] = value


def apply_overrides(document: Document, root: type[BaseModel], overrides: Sequence[str]) -> Document:
    """The document with each `key=value` set; complaints about such a value then point into the option."""
    data, keys, values, problems = deepcopy(document.data), dict(document.keys), dict(document.values), []
    for option in overrides:
        name, equals, text = option.partition("=")
        line = f"--set {option}"
        mark = Mark("--set", 1, 7, max(1, len(name)), line)
        if not equals or not name or "" in name.split("."):
            problems.append(Problem("`--set` wants `key.path=value`", replace(mark, length=max(1, len(option)))))
            continue
        shift = len(line) - len(text)
        try:
            given = load_value(text, "--set")
        except ConfigError as error:
            problems += [_moved(problem, shift, line) for problem in error.problems]
            continue
        problems += [_moved(problem, shift, line) for problem in given.problems]
        path = split_path(name, root, data)
        try:
            assign(data, path, given.data["value"])
        except KeyError as error:
            held = ".".join(error.args[0])
            problems.append(Problem(f"`{held}` is not a mapping, so `{name}` cannot be set", mark))
            continue
        for known in (keys, values):
            for old in [old for old in known if old[: len(path)] == path]:
                del known[old]
        for depth in range(1, len(path) + 1):
            keys.setdefault(path[:depth], mark)
        values[path] = Mark("--set", 1, shift + 1, max(1, len(text)), line)
        for known, found in ((keys, given.keys), (values, given.values)):
            known.update({(*path, *old[1:]): _shifted(mark, shift, line) for old, mark in found.items() if old[1:]})
    return replace(document, data=data, keys=keys, values=values, problems=(*document.problems, *problems))


def _moved(problem: Problem, shift: int, line: str) -> Problem:
    mark = problem.mark or Mark("--set", 1, 1)
    return replace(problem, mark=_shifted(mark, shift, line))


def _shifted(mark: Mark, shift: int, line: str) -> Mark:
    return replace(mark, line=1, column=mark.column + (shift if mark.line == 1 else 0), text=line)


def _get(data: Any, path: Sequence[str]) -> Any:
    for part in path:
        data = data.get(part) if isinstance(data, dict) else None
    return data


def _beyond(path: Sequence[str], layers: Sequence[Any]) -> bool:
    """Whether the path has come to something that is not a mapping."""
    return any(not isinstance(value, dict) for layer in layers if (value := _get(layer, path)) is not None)


def _has_free_keys(kind: Any) -> bool:
    """Whether `kind` is a mapping of any keys to values that have no keys of their own that the format knows."""
    if get_origin(kind) is not dict:
        return False
    inner = kind_at(kind, ("",))
    return not (isinstance(inner, type) and issubclass(inner, BaseModel)) and get_args(kind)[0] is not None
