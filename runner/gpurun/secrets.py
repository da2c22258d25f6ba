"""Secrets: their values are in the environment of this process, or in files that it names, and go nowhere else."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

PREFIX, _FILE = "GPURUN_SECRET_", "_FILE"


def values(name: str, environment: Mapping[str, str]) -> list[str]:
    """What there is of a secret, first what counts: GPURUN_SECRET_NAME, the content of the file that
    GPURUN_SECRET_NAME_FILE names, NAME."""
    file, kept = environment.get(f"{PREFIX}{name}{_FILE}"), ""
    with contextlib.suppress(OSError):
        kept = Path(file).read_text(encoding="utf-8").strip() if file else ""
    return list(filter(None, (environment.get(f"{PREFIX}{name}"), kept, environment.get(name))))


def value(name: str, environment: Mapping[str, str]) -> str:
    """The value of a secret; empty where there is none."""
    return next(iter(values(name, environment)), "")


def handed_over(environment: Mapping[str, str]) -> set[str]:
    """The names of the secrets that whoever started this process has put there for gpurun."""
    return {name.removeprefix(PREFIX).removesuffix(_FILE) for name in environment if name.startswith(PREFIX)}
