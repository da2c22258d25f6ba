"""The private directory of a call: gone at its end, and where it was killed, at the end of the next."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gpurun.playbooks import Controller


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_what_a_killed_call_left_goes_with_the_next_and_that_of_a_living_one_stays(temporary: Path) -> None:
    code = "from gpurun.playbooks import Controller; import os; Controller(); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code], env={"TMPDIR": str(temporary)}, check=False)
    (forgotten,) = temporary.iterdir()
    foreign = temporary / "gpurun-1-foreign"
    foreign.mkdir()
    with Controller() as living:
        with Controller():
            assert forgotten.is_dir()
        assert sorted(temporary.iterdir()) == sorted([living.directory, foreign])
    assert list(temporary.iterdir()) == [foreign]
