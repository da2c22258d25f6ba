"""A server's own counters, as its Prometheus page tells them before and after a load. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{.*\})? ([-+0-9.eEnaINF]+)(?: \d+)?$", re.MULTILINE)


def read(page: str, names: Mapping[str, str], over: Callable[[Iterable[float]], float] = sum) -> dict[str, float]:
    """Our name -> value, for those of `names` that are there; a sum `over` labels (ranks, models, finish reasons)."""
    found: dict[str, list[float]] = {}
    for name, value in _LINE.findall(page):
        found.setdefault(name, []).append(float(value))
    return {ours: over(found[theirs]) for ours, theirs in names.items() if theirs in found}


def change(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What each counter gained in between."""
    return {name: value - before[name] for name, value in after.items() if name in before}
