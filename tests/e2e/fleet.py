"""What campaigns on booted hosts need: the small server there, and a package cache, since they have no internet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from tests.e2e.program import Program
from tests.hosts import HostFleet, TestHost

from gpurun.tools import load_tool

ROOT = Path(__file__).parents[2]
THERE = "/opt/tests"  # where tests/ lies on the hosts
BIND = {str(ROOT / "tests"): THERE}


def builtin_packages() -> list[str]:
    """What the environment of the builtin load tool is made of."""
    tool = load_tool("builtin").install
    assert tool is not None
    return tool.packages


def server(*words: str) -> dict[str, Any]:
    """The `server` part of a campaign: the small server of the tests, as it lies on the hosts."""
    return {"engine": "command", "argv": ["/usr/bin/python3", f"{THERE}/e2e/server.py", "--port", "{{ port }}", *words]}


def warm_cache(folder: Path) -> Path:
    """A cache of uv that has what the load tool needs."""
    uv = str(Path(sys.executable).with_name("uv"))
    environment = folder / "environment"
    subprocess.run([uv, "venv", "-q", "--clear", "--python", sys.executable, str(environment)], check=True)
    install = [uv, "pip", "install", "-q", "--cache-dir", str(folder / "cache"), "--python", str(environment)]
    subprocess.run([*install, *builtin_packages()], check=True)
    return folder / "cache"


class Desk:
    """A folder on this machine from which gpurun works on hosts: this one, or whatever `gpurun` starts."""

    def __init__(
        self, folder: Path, inventory: dict[str, Any], gpurun: Sequence[str] = (sys.executable, "-m", "gpurun")
    ) -> None:
        self.folder, self._gpurun = folder, gpurun
        folder.mkdir(parents=True, exist_ok=True)
        self.use(inventory)
        self.started: list[Program] = []

    def use(self, inventory: dict[str, Any]) -> None:
        """Replace the inventory. Without control sockets of its own: each call of gpurun logs in anew."""
        inventory["gpu_hosts"]["vars"].pop("ansible_control_path_dir", None)
        (self.folder / "inventory.yml").write_text(yaml.safe_dump(inventory))

    def campaign(self, **changes: Any) -> None:
        """Write a small campaign; `changes` replace what stands at the top of it."""
        load = {"load": {"concurrency": 1, "requests": 2}, "data": {"prompt_tokens": 8, "output_tokens": 8}}
        campaign = {
            "version": 1,
            "name": "fleet",
            "server": server(),
            "benchmarks": {"chat": load},
            "rounds": 1,
            "timeouts": {"start": "60s", "sample": "60s", "stop": "5s"},
            **changes,
        }
        (self.folder / "campaign.yml").write_text(yaml.safe_dump(campaign, sort_keys=False))

    def start(self, verb: str, *words: str) -> Program:
        """Start gpurun with the inventory in this folder."""
        env = {**os.environ, "NO_COLOR": "1"}
        env.pop("CI", None)
        argv = [*self._gpurun, verb, *words, "-i", "inventory.yml"]
        self.started.append(Program(argv, self.folder, env))
        return self.started[-1]

    def bench(self, *words: str) -> Program:
        return self.start("bench", "-c", "campaign.yml", *words)

    def run(self, verb: str, *words: str) -> tuple[int, Program]:
        """The same, to its end; returns the exit code."""
        program = self.start(verb, *words)
        return program.finish(120), program

    def samples(self, run: str) -> dict[tuple[str, int, str], dict[str, Any]]:
        """(host, round, variant) -> stored sample, without what was set aside (`HOST~1`) and measured again."""
        paths = (self.folder / "results" / "fleet" / run / "samples").glob("*/*/*/sample.json")
        stored = [json.loads(path.read_text()) for path in paths if "~" not in path.parent.name]
        return {(one["host"], one["round"], one["variant"]): one for one in stored}

    def end(self) -> None:
        """No program of this desk outlives the test; what one of them left on hosts is ended."""
        cut_short = [program for program in self.started if program.process.poll() is None]
        for program in cut_short:
            program.end()
        if cut_short:
            self.run("stop", "--all")


def jobs_of_gpurun(host: TestHost) -> list[str]:
    """Processes of ours on a host, looked up from inside; works while it is cut off."""
    lines = host.inside(["ps", "-eo", "pid,args"]).splitlines()
    return [line for line in lines if ".gpurun" in line or "e2e/server.py" in line]


def inventory_of(fleet: HostFleet, *, user: str = "root", **variables: Any) -> dict[str, Any]:
    """The fleet's inventory as data that a test may change."""
    return json.loads(json.dumps(fleet.inventory(user, **variables)))  # type: ignore[no-any-return]
