"""How soon are readiness and crashes noticed? `python -m tests.benchmarks.noticing [--rounds 5]`, as root.

A campaign on a booted host with systemd and one without, side by side: servers that take uneven times to start, and
some that die in the middle of a load, by exit and by signal. The server's own log says when that was; it is compared
with when the controller knew. The hosts share this machine's clock, and its cores: note the load average.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from tests.e2e.fleet import BIND, THERE, Desk, inventory_of, warm_cache
from tests.hosts import HostFleet

VARIANTS = {
    "baseline": ["--start-delay", "0.3"],
    "slow": ["--start-delay", "2.17"],
    "exits": ["--start-delay", "0.61", "--die-after", "1.13"],
    "killed": ["--start-delay", "1.39", "--die-after", "0.71", "--way", "signal"],
}
BARS_S = {"ready": 0.3, "crash": 1.0}
LIMIT_S = 1200.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="noticing-") as name:
        cache = warm_cache(Path(name) / "uv")
        with (
            HostFleet(1, bind=BIND, uv_cache=cache) as booted,
            HostFleet(1, kind="plain", bind=BIND, uv_cache=cache) as plain,
        ):
            inventory = inventory_of(booted)
            there = inventory_of(plain)["gpu_hosts"]
            inventory["gpu_hosts"]["hosts"]["plain1"] = {**there["hosts"]["plain1"], **there["vars"]}
            desk = Desk(Path(name) / "desk", inventory)
            try:
                desk.campaign(**campaign(options.rounds))
                program = desk.bench("--fail-on", "never")
                program.finish(LIMIT_S)
                run = desk.folder / "results" / "fleet" / program.run
                report(delays(run))
            finally:
                desk.end()


def campaign(rounds: int) -> dict[str, Any]:
    """A load of three seconds, if it is not cut short."""

    def of(name: str) -> dict[str, Any]:
        argv = ["/usr/bin/python3", f"{THERE}/benchmarks/dated_server.py", "--port", "{{ port }}"]
        return {"engine": "command", "argv": [*argv, "--token-delay", "0.1", *VARIANTS[name]]}

    load = {"load": {"concurrency": 1, "requests": 2, "warmup": 0}, "data": {"prompt_tokens": 8, "output_tokens": 15}}
    return {
        "server": of("baseline"),
        "variants": {name: {"server": of(name)} for name in VARIANTS if name != "baseline"},
        "benchmarks": {"chat": load},
        "rounds": rounds,
    }


def delays(run: Path) -> dict[tuple[str, str], list[float]]:
    """(what, host) -> how long after the fact the controller knew, in seconds."""
    known: dict[tuple[str, int, str, str], float] = {}  # host, round, variant, stage -> when
    for event in map(json.loads, (run / "events.jsonl").read_text().splitlines()):
        if event["event"] == "SampleStage":
            where = event["where"]
            known.setdefault((where["host"], where["round"], where["variant"], event["stage"]), event["time"])
    found: dict[tuple[str, str], list[float]] = {}
    for stored in run.glob("samples/*/*/*/sample.json"):
        sample, log = json.loads(stored.read_text()), stored.with_name("server.log").read_text(errors="replace")
        facts = dict(line.split() for line in log.splitlines() if line.startswith(("answering ", "dying ")))
        for what, fact, stage in (("ready", "answering", "serving"), ("crash", "dying", "collecting")):
            at = known.get((sample["host"], sample["round"], sample["variant"], stage))
            if fact in facts and at:
                found.setdefault((what, sample["host"]), []).append(at - float(facts[fact]))
    return found


def report(found: dict[tuple[str, str], list[float]]) -> None:
    """The table, beside the bars."""
    print(f"load average {os.getloadavg()[0]:.1f}")
    print(f"{'':8} {'host':8} {'n':>4} {'median':>9} {'max':>9} {'bar':>7}")
    for (what, host), seconds in sorted(found.items()):
        middle, most = statistics.median(seconds), max(seconds)
        print(f"{what:8} {host:8} {len(seconds):4} {middle:7.3f} s {most:7.3f} s {BARS_S[what]:5.1f} s")


if __name__ == "__main__":
    main()
