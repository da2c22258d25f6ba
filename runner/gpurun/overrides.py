"""Dotted paths: `--set a.b.c=value` and the axes of a matrix address parts of a campaign by them.

A name may hold dots itself (`server.flags.compilation-config.mode`, a benchmark `chat.long`). A path is therefore read
along the campaign: a key that exists wins, the longest first. In a mapping with free keys (`flags`, `env`,
`matrix.axes`) what does not exist yet is one key, dots and all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpurun.config import keys_at
from gpurun.errors import ConfigError, Mark, Problem
from gpurun.load import Document, load_value
from gpurun.tree import KeyPath, Node


def split_path(text: str, *layers: Node) -> KeyPath:
    """The keys that a dotted path stands for, read along `layers` of the campaign and along its format."""
    parts: list[str] = text.split(".")
    path: KeyPath = ()
    while parts:
        below = [node for layer in layers if (node := layer.at(*path)) is not None and node.value is not None]
        sizes = range(len(parts), 0, -1)
        size = next((n for n in sizes if any(".".join(parts[:n]) in node.items() for node in below)), None)
        if size is None:
            free = keys_at(path) is None and keys_at((*path, "")) is None  # nor do its values have keys of their own
            size = len(parts) if free and all(isinstance(node.value, dict) for node in below) else 1
        path, parts = (*path, ".".join(parts[:size])), parts[size:]
    return path


def apply_overrides(document: Document, overrides: Sequence[str]) -> Document:
    """The document with each `key=value` set; complaints about such a value then point into the option."""
    root, problems = document.root, list(document.problems)
    for option in overrides:
        name, equals, text = option.partition("=")
        mark = Mark("--set", 1, len("--set ") + 1, max(1, len(name)), f"--set {option}")
        if not equals or not name or "" in name.split("."):
            problems.append(Problem("`--set` wants `key.path=value`", replace(mark, length=max(1, len(option)))))
            continue
        path = split_path(name, root)
        try:
            given = load_value(text, "--set", f"--set {name}=", path)
            root = root.put(path, replace(given.root, key=mark))
        except ConfigError as error:
            problems += error.problems
        except ValueError as error:
            problems.append(Problem(f"`{error}` is not a mapping, so `{name}` cannot be set", mark))
        else:
            problems += given.problems
    return replace(document, root=root, problems=tuple(problems))
