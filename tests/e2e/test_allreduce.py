"""The all-reduce that preparation tries, for real: two ranks with torch, on processors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.engines.vllm_cpu import vllm_cpu

from gpurun import smoke

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_two_ranks_on_processors(tmp_path: Path) -> None:
    try:
        engine = vllm_cpu()
    except RuntimeError as error:
        pytest.skip(str(error))
    python = str(engine.program.with_name("python"))
    question = {"python": python, "env": {}, "ranks": 2, "backend": "gloo", "import_s": 120, "limit_s": 60}
    question |= {"same": ["boot"], "remember": str(tmp_path / "remembered")}
    program = smoke.program((ROOT / "roles/engine/files/allreduce.py").read_text(), question)
    for cached in (False, True):
        said = subprocess.run([sys.executable, "-I", "-"], input=program, capture_output=True, text=True, check=True)
        found = json.loads(said.stdout)
        assert (found["status"], found["cached"]) == ("ok", cached), found
        assert "GB/s" in found["message"]
