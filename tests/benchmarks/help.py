"""How long `gpurun --help` takes above a bare interpreter, in one paired run: `python tests/benchmarks/help.py [N]`."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path


def wall(*command: str) -> float:
    """Seconds that a command takes."""
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def main() -> None:
    gpurun = str(Path(sys.executable).with_name("gpurun"))
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    pairs = [(wall(gpurun, "--help"), wall(sys.executable, "-c", "pass")) for _ in range(count)]
    ours, bare = zip(*pairs, strict=True)
    above = statistics.median(a - b for a, b in pairs)
    print(f"gpurun --help {statistics.median(ours):.3f} s, python -c pass {statistics.median(bare):.3f} s,", end=" ")
    print(f"difference {above:.3f} s (medians of {count} pairs)")


if __name__ == "__main__":
    main()
