"""Rows of a host's telemetry: energy, what marks a sample; and the thread that writes them, with the GPU stand-in."""

from __future__ import annotations

import csv
import json
import os
import sys
from pathlib import Path

import pytest
from ansible.module_utils.gpurun_telemetry import Telemetry, host_row
from tests.jobs import eventually

from gpurun.telemetry import cut, metrics, passing, rows, taints

STAND_IN = Path(__file__).parents[1] / "fixtures" / "nvidia" / "nvidia_smi.py"
HOST = ["unix_s", "cpu_percent", "steal_percent", "memory_used_mib", "swapped_pages"]
GPU = ["power_w", "sm_mhz", "memory_mhz", "temperature_c", "busy_percent", "memory_mib", "slowed_by"]
COLUMNS = [*HOST, *(f"gpu0_{name}" for name in GPU), "strangers"]
QUIET = {"cpu_percent": "50.0", "steal_percent": "0.0", "memory_used_mib": "900", "swapped_pages": "0"}
BUSY = {"gpu0_power_w": "300.00", "gpu0_sm_mhz": "1980", "gpu0_busy_percent": "98", "gpu0_memory_mib": "70000"}


def text(count: int = 12, **changes: list[str]) -> str:
    lines = [",".join(COLUMNS)]
    for number in range(count):
        row = {**QUIET, **BUSY, "gpu0_slowed_by": "4", "unix_s": f"{1000 + number}.0"}
        row |= {name: values[number % len(values)] for name, values in changes.items()}
        lines.append(",".join(row.get(name, "") for name in COLUMNS))
    return "\n".join([*lines, ""])


def test_energy_is_mean_power_times_time() -> None:
    seen = rows(text(gpu0_power_w=["200.0", "400.0"]))
    found = metrics(seen, (1000.0, 1010.0), 6000)
    assert found["gpu_power_w"] == pytest.approx(300)
    assert found["energy_j_per_tok"] == pytest.approx(300 * 10 / 6000)
    assert (found["gpu_busy_percent"], found["gpu_memory_mib"], found["host_cpu_percent"]) == (98, 70000, 50)
    assert "energy_j_per_tok" not in metrics(seen, None, 6000)
    assert "gpu_power_w" not in metrics(rows(text(gpu0_power_w=[""])), (1000.0, 1010.0), 6000)
    assert metrics([], (0.0, 1.0), 5) == {}


def test_a_sample_gets_the_rows_of_its_own_time() -> None:
    seen = rows(cut(text(30), 1010.0, 1013.5))
    assert [row["unix_s"] for row in seen] == [f"{at}.0" for at in (1010, 1011, 1012, 1013, 1014)]
    assert cut("", 0, 1).strip() == ""
    assert rows(cut(text(3) + "1003.0,50", 0, 2000)) == rows(text(3))  # the last row was being written


SLOW = "throttle: GPU 0 was slowed by"
FALLING = ["1980"] * 4 + ["1900"] * 4 + ["1700"] * 4


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),
        ({"gpu0_slowed_by": ["4", "32"]}, [f"{SLOW} its temperature (by the driver) for 6 of 12 s"]),
        ({"gpu0_slowed_by": ["8"]}, [f"{SLOW} a hardware slowdown for 12 of 12 s"]),
        ({"gpu0_sm_mhz": FALLING}, ["clocks: the clock of GPU 0 fell from 1980 to 1700 MHz"]),
        ({"strangers": ["", "7 a", "7 a; 8 b"]}, ["strangers: others computed on the GPUs: 7 a, 8 b"]),
        ({"swapped_pages": ["100"]}, ["swap: the host swapped 5 MiB"]),
        ({"steal_percent": ["0.0", "20.0"]}, ["steal: the hypervisor took 10 % of the processors' time"]),
    ],
)
def test_what_marks_a_sample(changes: dict[str, list[str]], said: list[str]) -> None:
    marks = [f"{name}: {sentence}" for name, sentence in taints(rows(text(**changes)))]
    assert marks == said
    assert passing([*marks, "preemptions: the server put 3 requests back"]) == marks


def test_shares_are_of_all_processors() -> None:
    before = {"all": 1000.0, "idle": 500.0, "steal": 0.0, "swapped": 5.0}
    now = {"all": 1200.0, "idle": 550.0, "steal": 20.0, "swapped": 9.0, "memory_mib": 812.3}
    assert host_row(before, now) == ["75.0", "10.0", "812", "4"]
    assert host_row({}, {}) == ["", "", "", ""]


@pytest.mark.parametrize("driver", ["595.58.03", "525.60.13"])  # the older one knows another name for the mask
def test_rows_come_from_host_and_gpus_until_it_is_stopped(tmp_path: Path, driver: str) -> None:
    claim = {"pid": os.getpid(), "name": "python", "memory_mib": 500}
    gpu = {"name": "H", "bus_id": "0", "compute_cap": "9.0", "memory_total_mib": 80000, "power": [312.5] + [700] * 4}
    own = {**gpu, "throttle": ["sw_power_cap", "sw_thermal_slowdown"], "processes": [claim]}
    (tmp_path / "gpus.json").write_text(json.dumps({"driver": driver, "gpus": [own, gpu]}))
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\nGPURUN_FAKE_GPUS="{tmp_path}/gpus.json" exec {sys.executable} {STAND_IN} "$@"\n')
    program.chmod(0o755)
    telemetry, path = Telemetry(tmp_path, str(program), lambda: set()), tmp_path / "telemetry.csv"
    telemetry.start()
    try:
        eventually(lambda: path.exists() and f",{os.getpid()} " in path.read_text(), 30)
    finally:
        telemetry.stop()
        telemetry.join(10)
    assert not telemetry.is_alive() and all(child.poll() is not None for child in telemetry._children)
    seen = list(csv.DictReader(path.read_text().splitlines()))
    assert list(seen[0]) == [*HOST, *(f"gpu{index}_{name}" for index in (0, 1) for name in GPU), "strangers"]
    last = seen[-1]
    assert (last["gpu0_power_w"], last["gpu0_slowed_by"], last["gpu0_memory_mib"]) == ("312.50", "36", "500")
    assert last["strangers"].startswith(f"{os.getpid()} ")
