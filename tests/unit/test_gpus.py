"""What nvidia-smi prints about memory, in all its moods, and that nobody waits for one that hangs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from ansible.module_utils import gpurun_gpus as gpus


@pytest.fixture
def smi(tmp_path: Path) -> Path:
    return tmp_path / "nvidia-smi"


def says(smi: Path, listed: str, held: str = "", code: int = 0) -> str:
    """A program that answers so."""
    for name, text in (("listed", listed), ("held", held)):
        smi.with_name(name).write_text(f"{text}\n")
    smi.write_text(
        f'#!/bin/sh\ncd {smi.parent}\ncase "$*" in *compute-apps*) exec cat held;; esac\ncat listed\nexit {code}\n'
    )
    smi.chmod(0o755)
    return str(smi)


def test_gpus_and_who_holds_them(smi: Path) -> None:
    said = says(smi, "0, GPU-a, 4, 0\n1, GPU-b, 20004, 100", "GPU-b, 4711, 20000\nGPU-b, 4712, [N/A]\nGPU-gone, 1, 5")
    reading = gpus.look(said, 10)
    assert reading.gpus == [gpus.Gpu(0, "GPU-a", 4, 0), gpus.Gpu(1, "GPU-b", 20004, 100)]
    assert reading.holders == [gpus.Holder(1, 4711, 20000), gpus.Holder(1, 4712, None)]


@pytest.mark.parametrize("odd", ["[N/A]", "[Not Supported]", "ERR!", "[Unknown Error]", ""])
def test_what_cannot_be_read_is_none(smi: Path, odd: str) -> None:
    reading = gpus.look(says(smi, f"0, GPU-a, {odd}, {odd}", f"GPU-a, {odd}, 7\nGPU-a, 12, {odd}"), 10)
    assert reading.gpus == [gpus.Gpu(0, "GPU-a", None, None)]
    assert reading.holders == [gpus.Holder(0, 12, None)]


@pytest.mark.parametrize(
    ("visible", "indices"),
    [(None, [0, 1]), ("", [0, 1]), ("1", [1]), ("1, 0", [0, 1]), ("GPU-b", [1]), ("MIG-x", [0, 1]), ("7", [0, 1])],
)
def test_visible_gpus(smi: Path, visible: str | None, indices: list[int]) -> None:
    reading = gpus.look(says(smi, "0, GPU-a1, 4, 0\n1, GPU-b1, 4, 0", "GPU-a1, 5, 6"), 10, visible)
    assert sorted(gpu.index for gpu in reading.gpus) == indices
    assert [holder.pid for holder in reading.holders] == ([5] if 0 in indices else [])


@pytest.mark.parametrize(
    ("listed", "code"), [("No devices were found", 6), ("NVIDIA-SMI has failed", 9), ("lists no GPU", 0)]
)
def test_no_gpus_is_told_in_its_own_words(smi: Path, listed: str, code: int) -> None:
    with pytest.raises(gpus.NoGpusError, match=listed):
        gpus.look(says(smi, listed, code=code), 10)


def test_one_that_hangs_is_left_behind(smi: Path) -> None:
    smi.write_text("#!/bin/sh\ntrap '' TERM\nexec sleep 60\n")
    smi.chmod(0o755)
    began = time.monotonic()
    with pytest.raises(gpus.HungError, match=r"no answer within 0\.3 s"):
        gpus.look(str(smi), 0.3)
    assert time.monotonic() - began < 3


def test_no_program(tmp_path: Path) -> None:
    with pytest.raises(gpus.NoGpusError, match="cannot run"):
        gpus.look(str(tmp_path / "nowhere"), 1)
