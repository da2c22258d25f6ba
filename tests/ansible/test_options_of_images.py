"""Engines in images are asked for their options there: with a real Docker engine and Podman, and nothing left of it."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
from tests.containers import Engine

_FILE = Path(__file__).parents[2] / "roles/engine/files/engine_options.py"
_SPEC = importlib.util.spec_from_file_location("engine_options", _FILE)
assert _SPEC is not None and _SPEC.loader is not None
reader: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(reader)

PACKAGE = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--tp-size", type=int)
"""


@pytest.fixture
def engine(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    for name, value in engine.env.items():
        monkeypatch.setenv(name, value)
    return engine


@pytest.fixture
def question(engine: Engine, tmp_path: Path) -> dict[str, Any]:
    """Asks for the options of an engine in Python, which lies in a folder that is mounted."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "engine.py").write_text(PACKAGE)
    inside = {"runtime": engine.runtime, "image": engine.image, "mounts": [f"{source}:/source:ro"]}
    inside["args"] = ["--env", "PYTHONPATH=/source", "--entrypoint", "/bin/false"]
    asked = {"name": "e", "version": None, "python": "python3", "binary": None, "launcher": None, "help": []}
    parser = "from engine import parser\nversion = '1.2'\n"
    return asked | {"parser": parser, "container": inside, "cache": str(tmp_path / "options/e.json")}


def read(question: dict[str, Any]) -> dict[str, Any]:
    (answer,) = reader.read([question], _FILE.read_text())
    assert isinstance(answer, dict)
    return answer


def test_one_in_python_tells_them_once(
    engine: Engine, question: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = read(question)
    assert (first.get("version"), first.get("options")) == ("1.2", [{"names": ["--tp-size"], "type": "int"}]), first
    assert engine.containers() == []
    monkeypatch.setattr(reader, "in_container", lambda *_: pytest.fail("asked again"))
    assert read(question) == first


def test_another_one_tells_them_by_its_help(engine: Engine, question: dict[str, Any], tmp_path: Path) -> None:
    program = tmp_path / "source" / "serve"
    program.write_text('#!/bin/sh\necho "-a, --alpha N   a number, $*"\n')
    program.chmod(0o755)
    question["container"]["args"][-1] = "/source/serve"
    told = read({**question, "parser": None, "python": None, "help": ["serve", "--help"]})
    assert told["options"] == [{"names": ["-a", "--alpha"], "type": "number"}]
    assert engine.containers() == []


def test_one_that_hangs_is_ended_with_its_container(
    engine: Engine, question: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "LIMIT_S", 3)
    question["container"]["args"][-1] = "sleep"
    told = read({**question, "parser": None, "python": None, "help": ["99"]})
    assert "gave no answer within 3 s" in told["error"]
    assert engine.containers() == []


def test_an_image_that_is_not_there_is_told(question: dict[str, Any]) -> None:
    question["container"]["image"] = "no/such:1"
    assert "ended with" in read(question)["error"] and not os.path.exists(question["cache"])
