"""What a fleet over ssh costs: `python -m tests.benchmarks.fleet [--hosts 4] [--rounds 5]`, as root, in a checkout.

The same campaign of four variants, whose samples mostly wait (fixed token delays), on one booted host alone, on all of
them, and on all of them by hand (fleet.sh: a shell script over multiplexed ssh). Prints the walls, their ratios, and
what gpurun itself costs per sample. Everything is installed before, by a first short run. The hosts share the cores of
this machine: note the load average that is shown.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.orchestration import costs, stages
from tests.e2e.fleet import BIND, Desk, inventory_of, server, warm_cache
from tests.hosts import HostFleet

VARIANTS = ("baseline", "two", "three", "four")
LIMIT_S = 1800.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--load-s", type=float, default=5.0, help="seconds that a sample's load takes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpurun-fleet-") as name:
        cache = warm_cache(Path(name) / "uv")
        with HostFleet(options.hosts, bind=BIND, uv_cache=cache) as fleet:
            desk = Desk(Path(name) / "desk", inventory_of(fleet))
            try:
                measure(fleet, desk, options.rounds, options.load_s)
            finally:
                desk.end()


def measure(fleet: HostFleet, desk: Desk, rounds: int, load_s: float) -> None:
    """All runs, and the table."""
    desk.campaign()
    bench(desk, "installation")
    desk.campaign(**campaign(rounds, load_s))
    one, of_one = bench(desk, "one host", "--limit", fleet[0].name)
    many, of_many = bench(desk, f"{len(fleet)} hosts")
    by_hand = shell(fleet, desk, of_many, rounds)
    print(f"{'':24} {'wall':>8} {'per sample, median of what gpurun costs':>42}")
    for label, wall_s, run in ((fleet[0].name, one, of_one), (f"{len(fleet)} hosts", many, of_many)):
        rest = costs(run)
        print(f"{label:24} {wall_s:6.1f} s {statistics.median(rest):6.2f} s ({min(rest):.2f}..{max(rest):.2f})")
        print(" " * 26 + ", ".join(f"{k} {statistics.median(v):.2f} s" for k, v in stages(run).items() if v))
    print(f"{f'{len(fleet)} hosts by hand':24} {by_hand:6.1f} s")
    print(f"{len(fleet)} hosts to one: {many / one:.2f}; to the script: {many / by_hand:.2f}")


def campaign(rounds: int, load_s: float) -> dict[str, Any]:
    """Four equal variants. A load of two requests one after the other, 25 tokens each; no warm-up."""
    delay = f"{load_s / 50:g}"
    load = {"load": {"concurrency": 1, "requests": 2, "warmup": 0}, "data": {"prompt_tokens": 8, "output_tokens": 25}}
    return {
        "server": server("--token-delay", delay, "--variant", "baseline"),
        "variants": {
            name: {"server": server("--token-delay", delay, "--variant", name)}
            for name in VARIANTS
            if name != "baseline"
        },
        "benchmarks": {"chat": load},
        "rounds": rounds,
    }


def bench(desk: Desk, label: str, *words: str) -> tuple[float, Path]:
    """The wall time of a whole `gpurun bench`, and its results."""
    began = time.monotonic()
    program = desk.bench(*words)
    code = program.finish(LIMIT_S)
    wall_s = time.monotonic() - began
    print(f"{label}: {wall_s:.1f} s, load average {os.getloadavg()[0]:.1f}", flush=True)
    if code != 0:
        raise SystemExit(f"gpurun bench ended with {code}:\n{program.stderr}")
    return wall_s, desk.folder / "results" / "fleet" / program.run


def shell(fleet: HostFleet, desk: Desk, run: Path, rounds: int) -> float:
    """The wall time of the same by fleet.sh, with the commands and the spec of the plan of `run`."""
    sample = json.loads((run / "plan.json").read_text())["samples"][0]
    port, folder = 8123, desk.folder
    spec = json.dumps(sample["load"]["spec"]).replace("@GPURUN_PORT@", str(port))
    (folder / "spec.json").write_text(json.dumps({**json.loads(spec), "progress": None}))
    (folder / "hosts").write_text("".join(f"{host.name} {host.address}\n" for host in fleet.hosts))
    (folder / "ssh_config").write_text(
        f"User root\nIdentityFile {fleet.key}\nIdentitiesOnly yes\nUserKnownHostsFile {fleet.known_hosts}\n"
        f"ControlMaster auto\nControlPersist 60\nControlPath {fleet.folder}/%C\n"
    )
    words = [word for word in sample["load"]["argv"] if not word.endswith(".json")]
    where = sample["load"]["cwd"]
    client = (f"cd {shlex.quote(where)} && " if where else "") + shlex.join(words)
    argv = sample["server"]["argv"]
    command = shlex.join(argv[: argv.index("--port")] + argv[argv.index("--port") + 2 : argv.index("--variant")])
    script = Path(__file__).with_suffix(".sh")
    began = time.monotonic()
    subprocess.run([script, folder, str(rounds), str(port), client, command, *VARIANTS], check=True, timeout=LIMIT_S)
    wall_s = time.monotonic() - began
    print(f"by hand: {wall_s:.1f} s, load average {os.getloadavg()[0]:.1f}", flush=True)
    found = list((folder / "by-hand").glob("*/*/*/raw.json"))
    whole = [path for path in found if all(one["ok"] for one in json.loads(path.read_text() or "{}")["requests"])]
    if len(whole) != rounds * len(VARIANTS) * len(fleet):
        raise SystemExit(f"the script has measured {len(whole)} of {rounds * len(VARIANTS) * len(fleet)} samples")
    return wall_s


if __name__ == "__main__":
    main()
