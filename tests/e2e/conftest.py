"""Where the tests of whole campaigns run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.program import Place


@pytest.fixture(scope="session")
def root_mounts() -> None:
    """Skips where this process may not mount file systems; in CI, where it must, that is a failure."""
    if os.geteuid() != 0:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("mounting a small file system needs root")


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
