"""Where the tests of whole campaigns run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.awx.job import checkout, environment, newer_python
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
def ee(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of the execution environment, and nothing else, for this Python."""
    return environment(tmp_path_factory.mktemp("ee"), sys.executable)


@pytest.fixture(scope="session")
def newer_ee(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for a Python that takes the newest ansible-core; skips where this machine has none, in CI too."""
    python = newer_python()
    if python is None:
        pytest.skip("no Python 3.12 or newer on this machine")
    return environment(tmp_path_factory.mktemp("newer-ee"), python)


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository as AWX has it."""
    return checkout(tmp_path_factory.mktemp("awx") / "_7__gpurun")
