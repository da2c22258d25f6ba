"""Is anything lost, or measured twice? `python -m tests.benchmarks.killed [N] [--seed S]`, as root, in a checkout.

A campaign of eight samples runs on a booted host, once undisturbed. Then N times (30) again, and at a random moment one
thing is killed: gpurun, the server, the load client, or the connection (with the network, for some seconds, half of the
time). The run is resumed until it says that it is done, with what failed by our killing. In the end its samples must be
those of the undisturbed run, all measured; what was told as measured must be whole on the disk, and stay as it is in
the resume, byte for byte; and none may have been measured again that had a clean measurement.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.benchmarks.cycles import LIMIT_S, Cycles, whole
from tests.e2e.fleet import BIND, server, warm_cache
from tests.e2e.program import eventually
from tests.hosts import HostFleet

from gpurun import telemetry

TARGETS = ("gpurun", "server", "client", "connection")
CAMPAIGN: Mapping[str, Any] = {
    "server": server("--token-delay", "0.02"),
    "variants": {"slower": {"server": server("--token-delay", "0.03")}},
    "matrix": {"axes": {"benchmarks.chat.load.concurrency": [1, 2]}},
    "rounds": 2,
}
MOST_RESUMES = 3


class Killed(Cycles):
    """Runs on one host that are killed and resumed."""

    def reference(self) -> None:
        """An undisturbed run, the second of two: the first installs what campaigns need."""
        self.desk.campaign(**CAMPAIGN)
        for _ in range(2):
            program = self.desk.bench()
            if program.finish(LIMIT_S) != 0:
                raise SystemExit(program.stderr)
        self.lines = len(program.lines)
        self.wanted = set(whole(self.stored(program.run)))
        self.before = self.look()

    def stored(self, run: str) -> Path:
        return self.desk.folder / "results" / "fleet" / run

    def trial(self, target: str, chance: random.Random) -> list[str]:
        """One run that is killed and resumed; what is wrong after it."""
        program = self.desk.bench()
        run = self.stored(program.run)
        line, later_s = chance.randrange(2, self.lines - 1), chance.uniform(0, 1)
        eventually(lambda: len(program.lines) >= line or program.process.poll() is not None, LIMIT_S)
        time.sleep(later_s)  # the random moment: after any of the lines that it prints
        target = "network" if target == "connection" and chance.random() < 0.5 else target
        self.hit = program.process.poll() is None and self.kill(target, program, chance)
        self.told = f"{target} {later_s:.1f} s after line {line}" + ("" if self.hit else ", missed")
        code = program.finish(LIMIT_S)
        kept, resumes = whole(run), 0
        first, reported = len(kept), sum("  measured " in each for each in program.lines)
        problems = [f"{reported} were reported as measured, {first} are whole"] if first < reported else []
        while code != 0 and resumes < MOST_RESUMES:
            resumes += 1
            code, program = self.desk.run("bench", "-c", "campaign.yml", "--resume", run.name, "--retry-failed")
            now = whole(run)
            problems += [f"{name} has changed by --resume" for name, text in kept.items() if now.get(name) != text]
            kept = now
        self.told += f", {first} samples were home, {resumes} resumes"
        if code != 0:
            problems.append(f"exit code {code} after {resumes} resumes: {program.stderr}")
        if set(kept) != self.wanted:
            problems.append(f"coverage: missing {self.wanted - set(kept)}, more {set(kept) - self.wanted}")
        for path in run.glob("samples/*/*/*~*/sample.json"):
            aside = json.loads(path.read_text())
            if aside["status"] == "measured" and not telemetry.passing(aside["taints"]):
                problems.append(f"measured twice: {path.parent.relative_to(run)}")
        return problems + self.left("process", "port", "unit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, nargs="?", default=30)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance, table, failed, missed = random.Random(options.seed), Counter[str](), 0, 0
    with tempfile.TemporaryDirectory(prefix="killed-") as name:
        (Path(name) / "tmp").mkdir()
        os.environ["TMPDIR"] = str(Path(name) / "tmp")  # gpurun's own temporary files are told from others'
        with HostFleet(1, kind="plain", bind=BIND, uv_cache=warm_cache(Path(name) / "uv")) as fleet:
            killed = Killed(fleet, Path(name) / "desk")
            try:
                killed.reference()
                print(f"undisturbed: {len(killed.wanted)} samples, {killed.lines} lines", flush=True)
                for number in range(options.count):
                    target = TARGETS[number % len(TARGETS)]
                    problems = killed.trial(target, chance)
                    failed += bool(problems)
                    missed += not killed.hit
                    table[target] += killed.hit and not problems
                    print(f"{number + 1:2} {killed.told}: {'WRONG' if problems else 'whole'}", flush=True)
                    print("".join(f"    {problem[-1500:]}\n" for problem in problems), end="", flush=True)
            finally:
                killed.desk.end()
    told = ", ".join(f"{target} {table[target]} whole" for target in TARGETS)
    print(f"{options.count - missed} kills, {missed} missed, {failed} wrong: {told}; load {os.getloadavg()[0]:.1f}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
