"""A server's own counters, as its Prometheus page tells them before and after a load. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{.*\})? ([-+0-9.eEnaINF]+)(?: \d+)?$", re.MULTILINE)


def read(page: str, names: Mapping[str, str]) -> dict[str, float]:
    """Our name -> value, summed over labels (ranks, models, finish reasons), for those of `names` that are there."""
    sums: dict[str, float] = {}
    for name, value in _LINE.findall(page):
        sums[name] = sums.get(name, 0.0) + float(value)
    return {ours: sums[theirs] for ours, theirs in names.items() if theirs in sums}


def change(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What each counter gained in between. Gauges are among them: a reader takes what counts only."""
    return {name: value - before[name] for name, value in after.items() if name in before}
