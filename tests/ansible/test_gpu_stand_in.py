"""The nvidia-smi stand-in, read by the facts module's collector: both sides of the format in one run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils import gpurun_smi

STAND_IN = Path(__file__).parents[1] / "fixtures" / "nvidia"


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Installs a description; returns the program."""

    def install(name: str) -> str:
        description = tmp_path / "gpus.json"
        description.write_text((STAND_IN / f"{name}.json").read_text())
        monkeypatch.setenv("GPURUN_FAKE_GPUS", str(description))
        program = tmp_path / "nvidia-smi"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{STAND_IN / "nvidia_smi.py"}" "$@"\n')
        program.chmod(0o755)
        return str(program)

    return install


def test_eight_pcie_gpus(smi: Any) -> None:
    facts: Any = gpurun_smi.collect(smi("8x-rtxpro6000"), 20)
    assert facts["gpu_error"] is None
    assert (facts["driver"]["version"], facts["driver"]["cuda_version"]) == ("595.58.03", "13.2")
    assert [gpu["index"] for gpu in facts["gpus"]] == list(range(8))
    first = facts["gpus"][0]
    assert (first["memory_total_mib"], first["compute_capability"], first["numa_node"]) == (97887, "12.0", 0)
    assert (first["power"]["limit_w"], first["ecc"]["enabled"], first["persistence"]) == (600.0, True, True)
    assert facts["topology"]["nvlink"] is False
    assert facts["topology"]["numa_nodes"] == {"0": [0, 1, 2, 3], "1": [4, 5, 6, 7]}
    assert facts["topology"]["p2p"]["GPU0"] == {f"GPU{n}": "OK" for n in range(1, 8)}
    assert (first["pcie"]["card_width"], first["iommu"]) == (16, None)  # there is no such device here


def test_nvlink_and_unified_memory(smi: Any) -> None:
    h100: Any = gpurun_smi.collect(smi("8x-h100-nvlink"), 20)
    assert h100["topology"]["links"]["GPU0"]["GPU7"] == "NV18" and h100["topology"]["nvlink"] is True
    spark: Any = gpurun_smi.collect(smi("1x-gb10-unified"), 20)
    assert (spark["gpus"][0]["memory_total_mib"], spark["gpus"][0]["unified_memory"]) == (None, True)
    assert spark["gpus"][0]["pci_bus_id"] == "000f:01:00.0"


@pytest.mark.parametrize(
    ("name", "kind"),
    [("mismatch", "driver_mismatch"), ("no-devices", "no_devices"), ("no-driver", "no_driver"), ("lost", "gpu_lost")],
)
def test_sick_drivers(smi: Any, name: str, kind: str) -> None:
    facts: Any = gpurun_smi.collect(smi(name), 20)
    assert (facts["gpus"], facts["topology"], facts["gpu_error"]["kind"]) == ([], None, kind)


def test_hung_nvidia_smi_is_bounded_and_left_without_processes(smi: Any, tmp_path: Path) -> None:
    program = smi("hung")
    facts: Any = gpurun_smi.collect(program, 0.5)
    assert facts["gpu_error"]["kind"] == "hung" and facts["gpus"] == []
    running = [path for path in Path("/proc").glob("[0-9]*") if _environment(path).get("GPURUN_FAKE_GPUS", "")]
    mine = [path for path in running if str(tmp_path) in _environment(path)["GPURUN_FAKE_GPUS"]]
    assert [path.name for path in mine if path.name != str(os.getpid())] == []


@pytest.mark.alone  # other tests' processes hold the stand-in's memory as well
def test_memory_follows_live_processes(smi: Any) -> None:
    program = smi("1x-rtx4090")
    environment = {**os.environ, "FAKE_GPU_MEMORY_MIB": "0:2000"}
    # The child inherits the variable: it must not be counted twice.
    command = [sys.executable, "-c", "import subprocess as s; print(flush=True); s.run(['sleep', '60'])"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline()
            gpu: Any = gpurun_smi.collect(program, 20)["gpus"][0]
            assert gpu["memory_used_mib"] == 2000
            assert [(p["pid"], p["memory_mib"]) for p in gpu["processes"]] == [(holder.pid, 2000)]
            assert gpu["processes"][0]["user"]
        finally:
            os.killpg(holder.pid, 9)
    assert gpurun_smi.collect(program, 20)["gpus"][0]["memory_used_mib"] == 0


def test_program_that_cannot_be_run(tmp_path: Path) -> None:
    facts: Any = gpurun_smi.collect(str(tmp_path / "nvidia-smi"), 5)
    assert facts["gpu_error"]["kind"] == "unknown" and "cannot run" in facts["gpu_error"]["message"]


def _environment(process: Path) -> dict[str, str]:
    try:
        entries = (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return {
        key.decode(errors="replace"): value.decode(errors="replace")
        for key, _, value in (e.partition(b"=") for e in entries)
    }
