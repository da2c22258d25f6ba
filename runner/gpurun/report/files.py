"""What the report reads from the samples' own files: how long requests took, and what sensors said.

A run may have thousands of samples: then every so many-th is read, and the report says so.
"""

from __future__ import annotations

import csv
import json
import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpurun.assess import Assessment
from gpurun.compare import group, measured
from gpurun.parsers import LOAD_SCHEMA, percentile
from gpurun.samples import Sample
from gpurun.store import RunStore
from gpurun.text import to_number

_MOST_FILES = 400
_MOST_BYTES = 8 << 20  # of one file
_NO_SENSORS = ("time", "unix_s", "strangers", "slowed_by")
_OF_A_GPU = re.compile(r"gpu\d+_")


@dataclass(frozen=True)
class Series:
    """Points for a chart, and from how many samples' files they were read, of how many that have one."""

    points: Sequence[dict[str, Any]]
    read: int
    of: int


def latencies(store: RunStore, report: Assessment) -> Series:
    """The distribution of each latency: per variant and point, at most 51 percentiles over all requests read."""
    found: dict[tuple[str, str, str], list[float]] = {}
    labels = {case.id: case.label for case in report.cases}

    def read(sample: Sample, content: bytes) -> None:
        raw = json.loads(content)
        if raw.get("schema") == LOAD_SCHEMA:
            for request in raw["requests"]:
                if request["ok"] and request["first"] is not None:
                    for metric, end in (("TTFT", "first"), ("E2E", "end")):
                        key = (sample.variant, labels[sample.case], metric)
                        found.setdefault(key, []).append(1e3 * (request[end] - request["intended"]))

    count, of = _each(store, measured(report.samples), "raw.json", read)
    points = []
    for (variant, label, metric), numbers in found.items():
        ordered = sorted(numbers)
        steps = min(50, len(ordered) - 1) or 1
        known = {"variant": variant, "label": label, "metric": metric}
        shares = [i / steps for i in range(steps + 1)]
        points += [{**known, "ms": _short(percentile(ordered, share)), "share": _short(share)} for share in shares]
    return Series(points, count, of)


def telemetry(store: RunStore, report: Assessment) -> Series:
    """What each sensor said on average during each sample, all GPUs of a host together; theirs first."""
    points: list[dict[str, Any]] = []

    def read(sample: Sample, content: bytes) -> None:
        found: dict[str, list[float]] = {}
        for row in csv.DictReader(content.decode(errors="replace").splitlines()):
            for name, text in row.items():
                value = None if _OF_A_GPU.sub("", str(name)) in _NO_SENSORS else to_number(text)
                if value is not None:
                    found.setdefault(_OF_A_GPU.sub("GPU ", name), []).append(value)
        for name, numbers in sorted(found.items(), key=lambda one: not one[0].startswith("GPU")):
            told = {"variant": sample.variant, "host": sample.host, "round": sample.round, "name": name}
            points.append({**told, "value": _short(statistics.fmean(numbers))})

    count, of = _each(store, report.samples, "telemetry.csv", read)
    return Series(points, count, of)


def _each(
    store: RunStore, samples: Sequence[Sample], name: str, read: Callable[[Sample, bytes], None]
) -> tuple[int, int]:
    """Read that file of the samples that have it, or of every so many-th; how many were read, of how many."""
    having = [sample for sample in samples if name in sample.files]
    step = math.ceil(len(having) / _MOST_FILES) or 1
    chosen = [one for mine in group(having, lambda sample: sample.case).values() for one in mine[::step]]
    done = 0
    for sample in chosen:
        try:
            with store.file(sample, name).open("rb") as file:
                content = file.read(_MOST_BYTES + 1)
            if len(content) <= _MOST_BYTES:
                read(sample, content)
                done += 1
        except (OSError, ValueError, KeyError, TypeError, AttributeError, csv.Error):
            continue  # damaged or cut short: the sample's own numbers were taken when it was whole
    return done, len(having)


def _short(value: float) -> float:
    """Five digits: a chart shows no more, and the page stays small."""
    return float(f"{value:.5g}")
