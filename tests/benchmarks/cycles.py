"""Does anything stay behind? `python -m tests.benchmarks.cycles [N] [--seed S]`, as root, in a checkout. N is 200.

Each cycle starts a short campaign on a booted host (half of them without systemd), kills one thing at a random moment
(the server, its supervisor, the load client, gpurun, its playbook, its ssh connections, the network), and then runs
`gpurun stop`, at once or after the campaign has come to its own end. Afterwards nothing of ours may be left: processes,
listening ports, units, mounts, temporary files, a held host; and each sample that was reported as measured is whole on
the disk. Every tenth cycle resumes its run, which must end well and leave those samples as they are. Failures are
printed with the seed of their cycle, which `--only SEED --kind KIND` repeats. Ctrl-C ends after the cycles in progress.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

from tests.e2e.fleet import BIND, Desk, inventory_of, server, warm_cache
from tests.e2e.program import RUN_ID, Program, eventually
from tests.hosts import HostFleet, TestHost
from tests.hosts.machine import Kind

LIMIT_S = 300.0
ON_HOST = {"server": "e2e/server.py", "supervisor": ".gpurun/bin/jobs-", "client": "loadgen"}
TARGETS = (*ON_HOST, "gpurun", "playbook", "connection", "network")
MOMENTS = ("", r"run \d{8}-", "starting", "serving", "measuring", "  measured")  # lines of gpurun's
LOOK = r"""
import glob, json, os, subprocess
def read(path):
    try:
        return open(path, "rb").read()
    except OSError:
        return b""
found = {"process": [], "call": [], "port": [], "unit": [], "mount": [], "file": []}
for pid in filter(str.isdigit, os.listdir("/proc")):
    words = read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace")
    if int(pid) != os.getpid() and words:
        if words.rstrip().endswith(("python3", "&& sleep 0")):  # Ansible's, whose module comes on standard input
            found["call"].append(f"{pid} {words}")
        elif ".gpurun" in words or b"GPURUN_" in read(f"/proc/{pid}/environ"):
            found["process"].append(f"{pid} {words}")
        elif "python" in words.split()[0]:
            found["call"].append(f"{pid} {words}")
for table in ("tcp", "tcp6"):
    rows = [line.split() for line in read(f"/proc/net/{table}").decode().splitlines()[1:]]
    found["port"] += sorted({int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"})
mounts = [line.split()[4] for line in read("/proc/self/mountinfo").decode().splitlines()]
found["mount"] = [mount for mount in mounts if not mount.startswith("/run/user/")]
for place in ("/tmp", "/var/tmp", "/dev/shm", "/root/.ansible"):
    for folder, _, names in os.walk(place):
        found["file"] += [folder] * (folder != place) + [f"{folder}/{name}" for name in names]
home = os.path.expanduser("~/.gpurun")
found["file"] += [path for path in glob.glob(home + "/*") + glob.glob(home + "/bin/*")]
for pattern in ("*.fifo", "*.part", "*.reserved"):
    found["file"] += glob.glob(f"{home}/jobs/*/*/{pattern}")
if os.path.isdir("/run/systemd/system"):
    argv = ["systemctl", "list-units", "--all", "--plain", "--no-legend", "gpurun-*"]
    found["unit"] = subprocess.run(argv, capture_output=True, text=True).stdout.splitlines()
print(json.dumps(found))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, nargs="?", default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, metavar="SEED", help="repeat the cycle with this seed")
    parser.add_argument("--kind", choices=get_args(Kind), help="only on this kind of host")
    options = parser.parse_args()
    kinds = [options.kind] if options.kind else list(get_args(Kind))
    failed, hits = 0, Counter[str]()
    enough = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: enough.set())  # after the cycles in progress
    with tempfile.TemporaryDirectory(prefix="cycles-") as name, ThreadPoolExecutor(len(kinds)) as pool:
        (Path(name) / "tmp").mkdir()
        os.environ["TMPDIR"] = str(Path(name) / "tmp")  # gpurun's own temporary files are told from others'
        cache = warm_cache(Path(name) / "uv")

        def on(kind: Kind) -> tuple[int, Counter[str]]:
            first = options.seed * 100_000 + kinds.index(kind) * 10_000
            seeds = [options.only] if options.only else range(first, first + options.count // len(kinds))
            with HostFleet(1, kind=kind, bind=BIND, uv_cache=cache) as fleet:
                return Cycles(fleet, Path(name) / kind).all(seeds, enough)

        for bad, hit in pool.map(on, kinds):
            failed, hits = failed + bad, hits + hit
    print(f"{sum(hits.values())} cycles, {failed} with something left; {dict(hits)}; load {os.getloadavg()[0]:.1f}")
    sys.exit(1 if failed else 0)


class Cycles:
    """Cycles on one host."""

    def __init__(self, fleet: HostFleet, folder: Path) -> None:
        self.host: TestHost = fleet[0]
        self.desk = Desk(folder, inventory_of(fleet))

    def all(self, seeds: Iterable[int], enough: threading.Event) -> tuple[int, Counter[str]]:
        """Run a cycle for each seed, or enough; how many went wrong, and how many there were of each kind."""
        self.desk.campaign()
        code, program = self.desk.run("bench", "-c", "campaign.yml")  # installs what campaigns need
        assert code == 0, program.stderr
        self.before = self.look()
        failed, hits = 0, Counter[str]()
        for number, seed in enumerate(seeds, 1):
            if enough.is_set():
                break
            chance, began = random.Random(seed), time.monotonic()
            self.told = ""
            try:
                problems = self.cycle(chance, resume=number % 10 == 0)
            except Exception:
                problems = traceback.format_exc().splitlines()[-12:]
                self.desk.run("stop", "--all")
            failed += bool(problems)
            if problems:
                self.before = self.look()  # it is told once
            hits[self.told.split(",")[0]] += 1
            spent_s = time.monotonic() - began
            print(f"{self.host.kind:8} seed {seed}: {self.told}: {'LEFT' if problems else 'clean'} ({spent_s:.0f} s)")
            print("".join(f"    {problem[-1500:]}\n" for problem in problems), end="", flush=True)
        self.desk.end()
        return failed, hits

    def cycle(self, chance: random.Random, *, resume: bool) -> list[str]:
        """One cycle; what is wrong after it."""
        target, moment, patient = chance.choice(TARGETS), chance.choice(MOMENTS), chance.random() < 0.3
        self.desk.campaign(server=server("--token-delay", f"{chance.uniform(0, 0.2):.3f}"), rounds=2)
        program = self.desk.bench()
        self.told = f"{target}, {moment.strip() or 'early'}{', patient' if patient else ''}"
        with contextlib.suppress(AssertionError):  # it may have ended before
            if moment:
                program.wait_for(moment, LIMIT_S)
            time.sleep(chance.uniform(0, 1.5))  # the random moment
            self.told += "" if self.kill(target, program, chance) else ", missed"
        if patient:
            program.finish(LIMIT_S)
        named = RUN_ID.search(program.stderr)
        code, stopped = self.desk.run("stop", named.group() if named else "--all")
        problems = [] if code == 0 else [f"gpurun stop: {code} {stopped.stderr}"]
        problems += self.left("process", "port", "unit")  # calls of a gpurun that has not ended yet may still come
        program.finish(LIMIT_S)
        problems += self.left("call", "process", "port", "unit", "mount", "file")
        problems += [f"on this machine: {one}" for one in left_here({program, stopped})]
        if named:
            run = self.desk.folder / "results" / "fleet" / named.group()
            problems += check_samples(run, program)
            if resume and run.exists() and not problems:
                problems += self.resumed(run)
        return problems

    def kill(self, target: str, program: Program, chance: random.Random) -> bool:
        """Kill one thing; whether there was one."""
        if target == "network":
            self.host.cut()
            time.sleep(chance.uniform(1, 8))
            self.host.heal()
            return True
        if target in ON_HOST:

            def killed() -> str:
                ended = program.process.poll() is not None
                return self.kill_there(ON_HOST[target], chance) or ("ended" if ended else "")

            return bool(eventually(killed) == "killed")
        if target == "gpurun":
            program.process.kill()
            return True
        word = "ssh" if target == "connection" else "ansible-playbook"
        pids = [pid for pid, words in processes_here(program) if word in words.split(" -", 1)[0] or f"{word}:" in words]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(pids)

    def kill_there(self, word: str, chance: random.Random) -> str:
        """Kill one of the host's processes with `word` in their commands: "killed", or nothing where none is there."""
        there = [one.split()[0] for one in self.look()["process"] if word in one and "systemd-run" not in one]
        if not there:
            return ""
        return self.host.inside(["sh", "-c", f"kill -9 {chance.choice(there)} && echo killed"], check=False).strip()

    def look(self) -> dict[str, list[Any]]:
        """What there is on the host that might be ours."""
        found: dict[str, list[Any]] = json.loads(self.host.inside(["env", "-i", "HOME=/root", "python3", "-c", LOOK]))
        return found

    def left(self, *kinds: str) -> list[str]:
        """What there is on the host that was not there before."""
        now = self.look()
        return [f"{kind} {one}" for kind in kinds for one in now[kind] if one not in self.before[kind]]

    def resumed(self, run: Path) -> list[str]:
        """Resume the run, with what failed by our killing: it ends well, and what was measured stays as it is."""
        kept = whole(run)
        code, program = self.desk.run("bench", "-c", "campaign.yml", "--resume", run.name, "--retry-failed")
        self.told += ", resumed"
        after = whole(run)
        problems = [] if code == 0 and len(after) == 2 else [f"resume: {code}, {len(after)} of 2: {program.stderr}"]
        problems += [f"{name} has changed by --resume" for name, text in kept.items() if after.get(name) != text]
        return problems + self.left(*self.before)


def processes_here(program: Program) -> list[tuple[int, str]]:
    """Processes of this machine that bear the mark of a gpurun: its private directory. Its own is not among them."""
    mark, found = f"gpurun-{program.process.pid}-", []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if mark in words or mark.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append((int(pid), words))
    return found


def left_here(programs: set[Program]) -> list[str]:
    """What ended gpurun calls have left on this machine: processes, after a moment to die; private directories."""
    problems = []
    for program in programs:
        with contextlib.suppress(AssertionError):
            eventually(lambda program=program: not processes_here(program), 3)  # type: ignore[misc]
        problems += [f"process {pid} {words}" for pid, words in processes_here(program)]
        problems += map(str, Path(os.environ["TMPDIR"]).glob(f"gpurun-{program.process.pid}-*"))
    return problems


def whole(run: Path) -> Mapping[str, str]:
    """The measured samples of a run that have all that they should have: folder -> record."""
    found = {}
    for path in run.glob("samples/*/*/*/sample.json"):
        sample = json.loads(path.read_text())
        names = {entry.name for entry in path.parent.iterdir()}
        if sample["status"] == "measured" and sample["metrics"] and {*sample["files"], "raw.json"} <= names:
            json.loads((path.parent / "raw.json").read_text())
            found[str(path.parent.relative_to(run))] = path.read_text()
    return found


def check_samples(run: Path, program: Program) -> list[str]:
    """As many whole samples as were reported as measured; no half-written files."""
    reported, there = sum("  measured " in line for line in program.lines), len(whole(run)) if run.exists() else 0
    problems = [f"{reported} samples were reported as measured, {there} are whole"] if there < reported else []
    return problems + [f"half-written: {path}" for path in run.rglob(".*")]


if __name__ == "__main__":
    main()
