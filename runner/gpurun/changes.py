"""In which settings a variant differs from the baseline, and which of these it does not say it tests. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from gpurun.complaints import Complaints
from gpurun.findings import Finding
from gpurun.text import setting
from gpurun.tree import Node

_ONE_BY_ONE = ("flags", "env", "container", "ready")  # sections whose keys are settings of their own
Change = tuple[str, Any, Any]
"""Dotted path below `server`, value before, value after; None where there is none."""


def differences(old: Mapping[str, Any], new: Mapping[str, Any], path: str = "") -> Iterator[Change]:
    """The settings in which two servers differ."""
    for key in dict.fromkeys((*old, *new)):
        before, after = old.get(key), new.get(key)
        if not path and key in _ONE_BY_ONE:
            yield from differences(before or {}, after or {}, f"{key}.")
        elif before != after:
            yield f"{path}{key}", before, after


def check_tests(root: Node, variant: str, changes: Sequence[Change], complaints: Complaints) -> None:
    """Complain about what a variant says it tests and does not change."""
    said = root.at("variants", variant, "tests")
    for node in said.value if said is not None else ():
        if not any(_covers(node.value, name) for name, _, _ in changes):
            allowed = tuple(name for name, _, _ in changes)
            complaints.add(f"`{variant}` does not change `{node.value}`", node, allowed=allowed, word=node.value)


def untold(variant: str, tests: Sequence[str] | None, changes: Sequence[Change]) -> Finding | None:
    """What a variant changes beyond what it says it tests; of one that says nothing, all where it is more than one."""
    others = [one for one in changes if not any(_covers(pattern, one[0]) for pattern in tests or ())]
    told = ", ".join(f"{name} ({setting(before)} -> {setting(after)})" for name, before, after in others)
    if tests is not None and others:
        message = f"differs from the baseline also in {told}, which it does not say it tests"
        advice = "take it out, or add it to `tests`: else nobody knows which change made the difference"
        return Finding(rule="also-changes", severity="warn", message=message, advice=advice, variants=(variant,))
    if tests is None and len(others) > 1:
        message, advice = f"changes {len(others)} settings at once: {told}", "`tests` says which of them it is about"
        return Finding(rule="several-changes", severity="note", message=message, advice=advice, variants=(variant,))
    return None


def _covers(pattern: str, name: str) -> bool:
    """Whether `tests` names a setting: by its path, with or without `server.`, by its last part, or by a pattern."""
    plain = pattern.removeprefix("server.")
    return fnmatchcase(name, plain) or fnmatchcase(name.partition(".")[2], plain)
