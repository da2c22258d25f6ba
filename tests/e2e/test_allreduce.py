"""The all-reduce that preparation tries, for real: two ranks with torch, on processors, on a host and in an image."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.containers import Engine
from tests.engines.vllm_cpu import vllm_cpu

from gpurun import smoke

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["host", "docker"])
def test_two_ranks_on_processors(tmp_path: Path, where: str, request: pytest.FixtureRequest) -> None:
    try:
        engine = vllm_cpu()
    except RuntimeError as error:
        pytest.skip(str(error))
    python = str(engine.program.with_name("python"))
    question = {"python": python, "env": {}, "ranks": 2, "backend": "gloo", "import_s": 120, "limit_s": 60}
    question |= {"same": ["boot"], "remember": str(tmp_path / "remembered")}
    env = dict(os.environ)
    if where == "docker":
        docker = request.getfixturevalue("docker")
        assert isinstance(docker, Engine)
        mounts = [f"{engine.folder}:{engine.folder}:ro"]
        question["container"] = {"runtime": "docker", "image": docker.image, "mounts": mounts, "shm_size": "1g"}
        env |= docker.env
    program = smoke.program((ROOT / "roles/engine/files/allreduce.py").read_text(), question)
    for cached in (False, True):
        command = [sys.executable, "-I", "-"]
        said = subprocess.run(command, input=program, env=env, capture_output=True, text=True, check=True)
        found = json.loads(said.stdout)
        assert (found["status"], found["cached"]) == ("ok", cached), found
        assert "GB/s" in found["message"]
