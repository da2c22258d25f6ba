"""A run on a host with GPUs: what a stranger holds, and what does not come back, is a failure with a name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.program import Place

STAND_IN = Path(__file__).parents[1] / "fixtures" / "nvidia" / "nvidia_smi.py"


class Gpus:
    """Two GPUs of this machine, by the stand-in on PATH."""

    def __init__(self, place: Place) -> None:
        self.file = place.folder / "gpus.json"
        program = place.folder / "bin" / "nvidia-smi"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nGPURUN_FAKE_GPUS="{self.file}" exec "{sys.executable}" "{STAND_IN}" "$@"\n')
        program.chmod(0o755)
        self.env = {"PATH": f"{program.parent}:{os.environ['PATH']}"}
        self.hold(0, 0)
        inventory = place.folder / "inventory.yml"
        document = yaml.safe_load(inventory.read_text())
        document["gpu_hosts"]["hosts"]["here"]["server_drain_s"] = 1
        inventory.write_text(yaml.safe_dump(document))

    def hold(self, *used_mib: int) -> None:
        """That much memory is in use, and no process is seen to hold it."""
        common = {"name": "NVIDIA H200", "architecture": "Hopper", "compute_cap": "9.0", "memory_total_mib": 143771}
        gpus = [{"bus_id": f"00000000:0{n + 1}:00.0", "used_mib": mib} for n, mib in enumerate(used_mib)]
        part = self.file.with_suffix(".new")
        part.write_text(json.dumps({"defaults": common, "gpus": gpus}))
        part.replace(self.file)


@pytest.fixture
def gpus(place: Place) -> Iterator[Gpus]:
    yield Gpus(place)


def failures(place: Place, run: str) -> list[dict[str, Any] | None]:
    samples = sorted(place.samples(run), key=lambda sample: (sample["round"], sample["variant"]))
    return [sample["failure"] for sample in samples]


def test_stranger_on_a_gpu_costs_samples_and_is_named(place: Place, gpus: Gpus) -> None:
    place.campaign()
    holding = {**os.environ, "FAKE_GPU_MEMORY_MIB": "1:20000"}
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=holding)
    try:
        bench = place.bench(env=gpus.env)
        assert bench.finish(180) == 5  # nothing was measured
        assert "is measured again, the first time is kept: gpu_busy" in bench.stderr  # it might have passed
        (failure,) = failures(place, bench.run)
        assert failure is not None and (failure["class"], failure["phase"]) == ("gpu_busy", "start")
        assert f"(pid {stranger.pid}, user root, 20000 MiB)" in failure["proof"] and "GPU 1" in failure["proof"]
        assert stranger.poll() is None
    finally:
        stranger.communicate(b"\n")
    again = place.bench("--resume", bench.run, env=gpus.env)
    assert again.finish(180) == 0
    assert failures(place, bench.run).count(None) == 1
    place.nothing_left()


def test_memory_that_stays_ends_the_run_on_that_host_alone(place: Place, gpus: Gpus) -> None:
    """Two rounds of two servers: after the first server, memory stays."""
    place.campaign(variants={"other": {"server": {"env": {"OTHER": "1"}}}}, rounds=2)
    bench = place.bench(env=gpus.env)
    bench.wait_for("(serving|measuring)")
    gpus.hold(0, 9000)
    assert bench.finish(180) == 3
    first, *others = failures(place, bench.run)
    measured = [sample for sample in place.samples(bench.run) if sample["status"] == "measured"]
    assert len(measured) == 1 and len(others) == 3
    lost = [failure for failure in (first, *others) if failure is not None]
    assert {(failure["class"], failure["phase"]) for failure in lost} == {("gpu_busy", "stop")}
    assert all("9000 MiB of GPU 1" in failure["proof"] and "--resume" in failure["advice"] for failure in lost)
    assert "9000 MiB of GPU 1 is still in use" in bench.stderr
    place.nothing_left()
    gpus.hold(0, 0)
    again = place.bench("--resume", bench.run, env=gpus.env)
    assert again.finish(180) == 0
    assert failures(place, bench.run).count(None) == 4  # beside what was set aside
