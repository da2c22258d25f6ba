"""The execution environment: its definition renders, and what it holds is what the package asks for, no more."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomllib
import yaml
from tests.awx.job import ExecutionEnvironment
from tests.e2e.program import ROOT

DEFINITION = ROOT / "awx" / "execution-environment.yml"
PACKAGE: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_its_pins_are_those_of_the_package() -> None:
    known = yaml.safe_load(DEFINITION.read_text())["dependencies"]
    for name in ("ansible_core", "ansible_runner"):
        assert known[name]["package_pip"] in PACKAGE["dependencies"]


@pytest.mark.slow
def test_the_image_can_be_built_from_it(tmp_path: Path, gpurun_wheel: Path) -> None:
    """As far as without a container registry: ansible-builder checks the definition and makes the build context."""
    shutil.copy(DEFINITION, tmp_path)
    (tmp_path / "dist").mkdir()
    shutil.copy(gpurun_wheel, tmp_path / "dist")
    builder = str(Path(sys.executable).with_name("ansible-builder"))
    argv = [builder, "create", "-f", DEFINITION.name, "-c", "context", "--output-filename", "Containerfile"]
    subprocess.run(argv, cwd=tmp_path, check=True, capture_output=True)
    text = (tmp_path / "context" / "Containerfile").read_text()
    (wheel,) = (tmp_path / "context" / "_build" / "wheels").iterdir()
    assert wheel.name == f"gpurun-{PACKAGE['version']}-py3-none-any.whl"
    assert "COPY _build/wheels/ /tmp/wheels/" in text.partition("AS final")[2]
    assert "openssh-clients" in (tmp_path / "context" / "_build" / "bindep.txt").read_text()
    assert "[store]" in text and "pip check" in text


@pytest.mark.slow
def test_it_holds_what_jobs_need_and_nothing_of_the_tests(ee: ExecutionEnvironment) -> None:
    uv = [str(ee.path / "bin" / "uv"), "pip"]
    subprocess.run([*uv, "check", "--python", str(ee.path)], check=True, capture_output=True)
    listed = subprocess.run(
        [*uv, "list", "-q", "--format=json", "--python", str(ee.path)], check=True, capture_output=True
    )
    names = {one["name"].lower().replace("_", "-") for one in json.loads(listed.stdout)}
    wanted = {
        re.split(r"[>=<\[ ]", one)[0] for one in (*PACKAGE["dependencies"], *PACKAGE["optional-dependencies"]["store"])
    }
    assert wanted | {"gpurun"} <= names
    tests = {re.split(r"[>=<\[ ]", one)[0].lower() for one in PACKAGE["optional-dependencies"]["test"]}
    assert not (tests - wanted - {"gpurun", "httptools", "packaging", "numpy"}) & names
