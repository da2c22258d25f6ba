"""A campaign with a real vLLM, over ssh, on a booted host: what it refuses and what kills it is told for what it is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.program import ROOT, Place, Program, eventually
from tests.engines.vllm_cpu import CONTEXT, vllm_cpu
from tests.hosts import HostFleet, TestHost

pytestmark = [pytest.mark.hosts, pytest.mark.slow, pytest.mark.timeout(900)]
START_S = 180.0  # vLLM's imports alone take half a minute on two busy cores
OUTPUT_TOKENS = 32
# Ends the server's engine as the kernel would, and tells its pid; the API server goes on for a moment.
KILL_ENGINE = """
import os, signal, sys
from pathlib import Path
started = next(Path("/root/.gpurun/jobs").glob(f"{sys.argv[1]}/r1-killed-*/started.json"))
import json
children = {}
for stat in Path("/proc").glob("[0-9]*/stat"):
    pid, rest = int(stat.parent.name), stat.read_text().rpartition(")")[2].split()
    children.setdefault(int(rest[1]), []).append(pid)
server = json.loads(started.read_text())["pid"]
engine = next(pid for pid in children[server] if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes())
os.kill(engine, signal.SIGKILL)
print(engine)
"""


@dataclass
class Served:
    """The campaign after its end, and the host that it ran on."""

    host: TestHost
    place: Place
    program: Program
    code: int
    document: dict[str, Any]

    def sample(self, variant: str) -> dict[str, Any]:
        found: dict[str, Any] = next(one for one in self.document["samples"] if one["variant"] == variant)
        return found

    def file(self, variant: str, name: str) -> str:
        """What was brought home of a variant's sample."""
        stored = self.place.stored(self.program.run)
        return next(stored.glob(f"samples/1/{variant}-*/{self.host.name}/{name}")).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def served(bootable: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    engine = vllm_cpu()
    folder = tmp_path_factory.mktemp("vllm")
    cache = folder / "uv-cache"
    tool = ROOT / "roles/load_tool/files/requirements.txt"
    warm = [str(Path(sys.executable).with_name("uv")), "--cache-dir", str(cache), "pip", "install", "--quiet"]
    subprocess.run([*warm, "--python", "/usr/bin/python3", "--target", str(folder / "tool"), "-r", tool], check=True)
    place = Place(folder / "here", folder / "no home")
    place.campaign(
        server={
            "engine": "vllm",
            "binary": str(engine.program),
            "model": {"path": str(engine.model), "name": "tiny"},
            "flags": {"enforce-eager": True},  # the hosts have no compiler
            "env": {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"},
        },
        variants={
            "killed": {"server": {"flags": {"max-num-seqs": 16}}},
            "too-long": {"server": {"flags": {"max-model-len": 100 * CONTEXT}}, "expect": "bad_flag"},
            "one-at-a-time": {"server": {"flags": {"max-num-seqs": 1}}},
        },
        benchmarks={
            "chat": {
                "load": {"concurrency": 2, "duration": "10s", "warmup": 2},
                "data": {"prompt_tokens": 32, "output_tokens": OUTPUT_TOKENS},
            }
        },
        order="fixed",
        timeouts={"start": f"{START_S:g}s", "sample": "60s", "stop": "20s"},
    )
    with HostFleet(1, bind=engine.bind, uv_cache=cache) as fleet:
        host = fleet[0]
        try:
            program = place.start("bench", "-c", "campaign.yml", "-i", str(fleet.inventory_path), "--json")
            program.wait_for("killed  chat  measuring", 2 * START_S)
            progress = f"/root/.gpurun/jobs/{program.run}/r1-killed-*/progress.json"
            eventually(lambda: '"done": 0,' not in _shown(host, progress), 30)
            host.exec(["python3", "-c", KILL_ENGINE, program.run])
            code = program.finish(3 * START_S)
            yield Served(host, place, program, code, json.loads(program.stdout))
        finally:
            place.end()


def _shown(host: TestHost, pattern: str) -> str:
    """The text of the files that match, on the host; as if nothing was done yet while there are none."""
    return host.exec(["sh", "-c", f"cat {pattern}"], check=False).stdout or '"done": 0,'


def test_a_campaign_goes_on_after_a_death(served: Served) -> None:
    assert served.code == 1, served.program.stderr  # the death was not expected
    status = {one["variant"]: one["status"] for one in served.document["samples"]}
    assert status == {"baseline": "measured", "killed": "failed", "too-long": "failed", "one-at-a-time": "measured"}


def test_what_vllm_serves_is_measured_with_its_own_counts(served: Served) -> None:
    metrics = served.sample("baseline")["metrics"]
    assert metrics["error_rate"] == 0
    assert metrics["output_tok_per_s"] > 0
    raw = json.loads(served.file("baseline", "raw.json"))
    assert raw["lengths"] == "tokens"  # vLLM was asked how many tokens a word has
    assert all(request["usage"] for request in raw["requests"])
    assert {request["output_tokens"] for request in raw["requests"]} == {OUTPUT_TOKENS}  # the end of text is ignored


def test_effective_settings_are_brought_home(served: Served) -> None:
    effective = json.loads(served.file("baseline", "effective.json"))
    assert effective["data"][0]["max_model_len"] == CONTEXT


def test_what_vllm_refuses_is_told_with_its_own_line(served: Served) -> None:
    failure = served.sample("too-long")["failure"]
    assert (failure["class"], failure["phase"], failure["expected"]) == ("bad_flag", "start", True)
    assert f"max_model_len ({100 * CONTEXT}) is greater than the derived" in failure["proof"]


def test_a_death_under_load_is_the_engines_and_no_measurement(served: Served) -> None:
    sample = served.sample("killed")
    failure = sample["failure"]
    assert (failure["class"], failure["phase"], failure["expected"]) == ("engine_dead", "serving", False)
    assert failure["proof"] in served.file("killed", "server.log")
    assert sample["metrics"] == {}


def test_vllm_ends_with_0_after_its_engine_died_and_that_is_a_failure(served: Served) -> None:
    ended = json.loads(_shown(served.host, f"/root/.gpurun/jobs/{served.program.run}/r1-killed-*/ended.json"))
    assert (ended["exit_code"], ended["reason"], ended["left"]) == (0, "exited", [])


def test_nothing_of_it_is_left_on_the_host(served: Served) -> None:
    """vLLM's workers outlive the engine that started them, and change their names."""
    processes = served.host.exec(["ps", "-e", "-o", "args="]).stdout
    assert not [line for line in processes.splitlines() if "VLLM" in line or "vllm" in line or ".gpurun" in line]
    assert "gpurun" not in served.host.exec(["systemctl", "list-units", "--all", "--plain", "--no-legend"]).stdout
    served.host.exec(["test", "!", "-e", "/root/.gpurun/lock.json"])
