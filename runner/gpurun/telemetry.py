"""What a host did while a sample was measured: rows of telemetry.csv -> metrics, and what marks the sample. Pure.

The columns are those of the server's supervisor (roles/server, gpurun_telemetry), one row a second.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterator, Mapping, Sequence

from gpurun.data import table
from gpurun.text import to_number

Row = Mapping[str, str]
_PAGE_MIB = 4 / 1024


def cut(text: str, begin: float, end: float) -> str:
    """The header and the rows from `begin` to `end`, unix seconds: a server's file holds all of its samples."""
    header, *lines = text.splitlines() or [""]
    kept = [line for line in lines if (at := to_number(line.partition(",")[0])) is not None and begin <= at <= end + 1]
    return "\n".join([header, *kept, ""])


def rows(text: str) -> list[Row]:
    """The rows as they stand there, all values as text, empty where unknown; a row that is not whole is left out."""
    return [row for row in csv.DictReader(io.StringIO(text)) if None not in row.values() and None not in row]


def metrics(seen: Sequence[Row], window: tuple[float, float] | None, output_tokens: float) -> dict[str, float]:
    """Power, utilisation and memory of the GPUs, load of the processors; energy per output token of all GPUs together.

    Energy is mean power times the measured time, so it needs that time (`window`, unix seconds) and two rows in it.
    """
    inside = [row for row in seen if window is None or window[0] <= float(row["unix_s"]) <= window[1] + 1]
    found: dict[str, float] = {}
    for name, column in (("host_cpu_percent", "cpu_percent"), ("host_memory_mib", "memory_used_mib")):
        if values := _column(inside, column):
            found[name] = statistics.fmean(values)
    power = [values for gpu in _gpus(seen) if (values := _column(inside, f"{gpu}_power_w"))]
    if power:
        found["gpu_power_w"] = sum(map(statistics.fmean, power))
        if window is not None and output_tokens and min(map(len, power)) > 1:
            found["energy_j_per_tok"] = found["gpu_power_w"] * (window[1] - window[0]) / output_tokens
    for name, column, most in (("gpu_busy_percent", "busy_percent", False), ("gpu_memory_mib", "memory_mib", True)):
        each = [values for gpu in _gpus(seen) if (values := _column(inside, f"{gpu}_{column}"))]
        if each:
            found[name] = sum(map(max, each)) if most else statistics.fmean(map(statistics.fmean, each))
    return found


def taints(seen: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Name and sentence of each thing that may have changed what was measured."""
    limits: Mapping[str, float] = table("telemetry")["limits"]
    for gpu in _gpus(seen):
        title = f"GPU {gpu[3:]}"
        masks = [int(value) for value in _column(seen, f"{gpu}_slowed_by")]
        for bit, cause in table("telemetry")["slowed_by"].items():
            if masks and (slow := sum(bool(mask & bit) for mask in masks)) / len(masks) > limits["slowed_share"]:
                yield "throttle", f"{title} was slowed by {cause} for {slow} of {len(masks)} s"
        busy = [row for row in seen if (to_number(row.get(f"{gpu}_busy_percent")) or 0) >= limits["busy_percent"]]
        clocks, third = _column(busy, f"{gpu}_sm_mhz"), len(busy) // 3
        if third >= 3 and len(clocks) == len(busy):
            first, last = statistics.fmean(clocks[:third]), statistics.fmean(clocks[-third:])
            if last < first * (1 - limits["clock_drop"]):
                yield "clocks", f"the clock of {title} fell from {first:.0f} to {last:.0f} MHz"
    if others := sorted({name for row in seen for name in row.get("strangers", "").split("; ") if name}):
        yield "strangers", f"others computed on the GPUs: {', '.join(others)}"
    swapped = _PAGE_MIB * sum(_column(seen, "swapped_pages"))
    if swapped > limits["swapped_mib"]:
        yield "swap", f"the host swapped {swapped:.0f} MiB"
    steal = _column(seen, "steal_percent")
    if steal and statistics.fmean(steal) > limits["steal_percent"]:
        yield "steal", f"the hypervisor took {statistics.fmean(steal):.0f} % of the processors' time"


def passing(marks: Sequence[str]) -> list[str]:
    """Those of a sample's taints that may be gone when it is measured again."""
    return [mark for mark in marks if mark.partition(":")[0] in table("telemetry")["passing"]]


def _gpus(seen: Sequence[Row]) -> list[str]:
    return [name.removesuffix("_power_w") for name in (seen[0] if seen else ()) if name.endswith("_power_w")]


def _column(seen: Sequence[Row], name: str) -> list[float]:
    return [value for row in seen if (value := to_number(row.get(name))) is not None]
