"""The short all-reduce of engines in images: in a container of theirs, with a real Docker engine and Podman."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.containers import Engine
from tests.unit.test_allreduce import DISTRIBUTED, TORCH

from gpurun import smoke

SOURCE = (Path(__file__).parents[2] / "roles/engine/files/allreduce.py").read_text()


@pytest.fixture
def ask(engine: Engine, tmp_path: Path) -> Any:
    package = tmp_path / "torch/distributed"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text(TORCH)
    (package / "__init__.py").write_text(DISTRIBUTED)

    def ask(kind: str, limit_s: float = 60, **box: Any) -> dict[str, Any]:
        inside = {"runtime": engine.runtime, "image": engine.image, "mounts": [f"{tmp_path}:/source:ro"], **box}
        env = {"PYTHONPATH": "/source", "TORCH": kind}
        question = {"python": "python3", "env": env, "ranks": 2, "backend": "gloo", "import_s": 60, "limit_s": limit_s}
        question |= {"same": ["boot"], "remember": str(tmp_path / "options/remembered"), "container": inside}
        program, env = smoke.program(SOURCE, question), {**os.environ, **engine.env}
        said = subprocess.run([sys.executable, "-"], input=program, env=env, capture_output=True, text=True, check=True)
        found = json.loads(said.stdout)
        assert isinstance(found, dict) and engine.containers() == []
        return found

    return ask


def test_what_passed_in_the_image_is_remembered(ask: Any) -> None:
    first = ask("ok", args=["--entrypoint", "/bin/false"])
    assert (first["status"], first["cached"]) == ("ok", False), first
    assert ask("crash")["cached"] is True  # another engine's options are another question, which the caller asks


def test_a_hang_is_named_and_leaves_no_container(ask: Any) -> None:
    found = ask("hang", limit_s=1)
    assert found["status"] == "hang" and "1 of 2 ranks had not ended after 1 s" in found["message"], found


def test_what_cannot_be_tried_is_told(ask: Any, engine: Engine) -> None:
    assert ask("crash")["status"] == "failed"
    assert ask("ok", mounts=[])["status"] == "unavailable"  # an image without torch
    for box, word in (({"image": "no/such:1"}, "no/such"), ({"args": ["--no-such-option"]}, "no-such-option")):
        found = ask("ok", **box)
        assert found["status"] == "unavailable" and engine.runtime in found["message"], found
        assert word in found["message"], found
    assert ask("ok", runtime="no-docker")["status"] == "unavailable"
