"""What gpurun itself costs per sample: `python tests/benchmarks/orchestration.py RESULTS/CAMPAIGN/RUN...`.

Wall time of a sample less its server's start and its load, and where the rest goes, from a run's own records.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

STAGES = ("starting", "measuring", "collecting", "stopping")


def samples(run: Path) -> list[dict[str, float | None]]:
    """The timing of every sample, in seconds."""
    return [json.loads(path.read_text())["timing"] for path in sorted(run.glob("samples/*/*/*/sample.json"))]


def costs(run: Path) -> list[float]:
    """What is left of each sample's wall time without its server's start and its load, in seconds."""
    timings = [timing for timing in samples(run) if timing["wall_s"] is not None]
    return [(t["wall_s"] or 0) - (t["server_start_s"] or 0) - (t["load_s"] or 0) for t in timings]


def stages(run: Path) -> dict[str, list[float]]:
    """How long each stage took, by the stage's name, from events.jsonl."""
    found: dict[str, list[float]] = {stage: [] for stage in STAGES}
    last: dict[str, tuple[str, float]] = {}
    for line in (run / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] not in ("SampleStage", "SampleFinished") or event.get("stage") == "serving":
            continue
        host = event["where"]["host"]
        if host in last:
            name, since = last.pop(host)
            found[name].append(event["time"] - since)
        if event["event"] == "SampleStage":
            last[host] = (event["stage"], event["time"])
    return found


def main() -> None:
    for name in sys.argv[1:]:
        run = Path(name)
        timings = [t for t in samples(run) if t["wall_s"] is not None]
        rest = costs(run)
        print(
            f"{run.name}: {len(rest)} samples, orchestration per sample: median {statistics.median(rest):.2f} s,",
            end=" ",
        )
        print(f"min {min(rest):.2f}, max {max(rest):.2f}")
        starts = statistics.mean(t["server_start_s"] or 0 for t in timings)
        loads = statistics.mean(t["load_s"] or 0 for t in timings)
        print(f"  mean server start {starts:.2f} s, mean load {loads:.2f} s; mean of the stages, as seen from outside:")
        for stage, seconds in stages(run).items():
            if seconds:
                print(f"    {stage:<11} {statistics.mean(seconds):.2f} s")


if __name__ == "__main__":
    main()
