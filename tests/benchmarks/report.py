#!/usr/bin/env python3
"""How long `gpurun report` takes and how large its page is.

    python tests/benchmarks/report.py

Bars: 5 variants x 4 loads x 5 rounds in 2 s and 2 MB, start of the program included; 10,000 samples in 10 s and 20 MB.
Measure on a machine that does nothing else; the processor's time, told beside it, is about the same on a busy one.
Exits with 1 where a bar is missed.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.unit import stored

SIZES = (  # variants, loads, rounds, hosts; seconds, bytes
    ("5 variants, 4 loads, 5 rounds", 5, 4, 5, 1, 2.0, 2e6),
    ("10 000 samples", 25, 4, 20, 5, 10.0, 20e6),
)


def run(folder: Path, variants: int, loads: int, rounds: int, hosts: int) -> Path:
    """A stored run of that size, with requests and telemetry of every sample."""
    noise = random.Random(7)
    names = ["baseline", *(f"variant-{number}" for number in range(1, variants))]
    numbers = {name: [80 * noise.lognormvariate(0, 0.02) for _ in range(rounds)] for name in names}
    points, machines = [4**number for number in range(loads)], [f"gpu-{number}" for number in range(hosts)]
    with mock.patch.object(os, "fsync"):  # making it up need not survive a power cut
        return stored.run(folder, numbers, points, machines, requests=64).directory


def _worked() -> float:
    """Seconds of the processor that ended children have taken."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    missed = False
    for name, variants, loads, rounds, hosts, most_s, most_bytes in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            directory = run(Path(folder), variants, loads, rounds, hosts)
            times, worked = [], -_worked()
            for _ in range(3):
                began = time.monotonic()
                subprocess.run(
                    [sys.executable, "-m", "gpurun", "report", str(directory)], check=True, capture_output=True
                )
                times.append(time.monotonic() - began)
            worked += _worked()
            size = (directory / "report.html").stat().st_size
        best = min(times)
        missed |= best > most_s or size > most_bytes
        told = ", ".join(f"{seconds:.2f}" for seconds in times)
        told += f" s (bar {most_s:g}), {worked / 3:.2f} s of a processor"
        print(f"{name}: {told}, {size / 1e6:.2f} MB (bar {most_bytes / 1e6:g})", flush=True)
    sys.exit(int(missed))


if __name__ == "__main__":
    main()
