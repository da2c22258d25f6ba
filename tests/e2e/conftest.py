"""Where the tests of whole campaigns run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.awx.job import ExecutionEnvironment, checkout, environment, wheel
from tests.e2e.program import Place


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home that all tests share, so that the load tool is installed once."""
    return tmp_path_factory.mktemp("e2e") / "home with space"


@pytest.fixture
def place(tmp_path: Path, home: Path) -> Iterator[Place]:
    """An empty folder to start gpurun in, and the shared home."""
    here = Place(tmp_path / "a folder", home)
    yield here
    here.end()


@pytest.fixture
def fresh_place(tmp_path: Path) -> Iterator[Place]:
    """The same with a home where nothing is installed."""
    here = Place(tmp_path / "a folder", tmp_path / "fresh home")
    yield here
    here.end()


@pytest.fixture(scope="session")
def gpurun_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, built once."""
    return wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def ee(gpurun_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> ExecutionEnvironment:
    """The packages of the execution environment, and nothing else, for this Python."""
    return environment(tmp_path_factory.mktemp("ee"), gpurun_wheel)


@pytest.fixture(scope="session")
def newer_ee(bootable: None, gpurun_wheel: Path) -> Iterator[ExecutionEnvironment]:
    """The same in a Debian whose Python takes the newest ansible-core."""
    from tests.hosts import base_tree

    with tempfile.TemporaryDirectory(prefix="ee_", dir="/tmp") as folder:
        yield environment(Path(folder), gpurun_wheel, base_tree(suite="trixie"))


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository as AWX has it."""
    return checkout(tmp_path_factory.mktemp("awx") / "_7__gpurun")
