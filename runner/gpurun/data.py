"""The package's own knowledge, which is data: data/*.yml."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parent / "data"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is many times faster; not every PyYAML has it


@cache
def table(name: str) -> Any:
    """A file of the package's data, by its path without `.yml`. Shared by all who ask: nobody changes it."""
    return read(FOLDER / f"{name}.yml")


def read(path: Path) -> Any:
    """A YAML file of ours."""
    return yaml.load(path.read_text(encoding="utf-8"), _LOADER)  # noqa: S506 (is a safe loader)


def names(folder: str) -> tuple[str, ...]:
    """What `folder` has files about, sorted."""
    return tuple(sorted(path.stem for path in (FOLDER / folder).glob("*.yml")))
