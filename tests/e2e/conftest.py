"""Where the tests of whole campaigns run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
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
