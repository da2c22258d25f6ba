"""Facts of hosts from a file, which a person may have written by hand: what they must have, and what may be missing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gpurun.errors import ConfigError, Problem

_Amount = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
# What templates reach into, for a description that leaves it out.
_GPU: dict[str, Any] = {"mig": {"enabled": None, "devices": []}}


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow")


class _Gpu(_Part):
    name: str
    index: Annotated[int, Field(strict=True, ge=0)] = 0
    uuid: str | None = None
    memory_total_mib: _Amount | None = None
    compute_capability: Annotated[str, Field(pattern=r"^\d+\.\d+$")] | None = None
    mig: dict[str, Any] = {}
    processes: list[dict[str, Any]] = []


class _Host(_Part):
    cpus: _Amount | None = None
    memory_bytes: _Amount | None = None
    home: str | None = None
    commands: dict[str, str | None] | None = None  # null: it is not there


class _Model(_Part):
    available_gib: _Amount | None = None
    total_gib: _Amount | None = None
    config: dict[str, Any] | None = None
    tensors: list[list[Any]] | None = None

    @model_validator(mode="after")
    def _is_part(self) -> _Model:
        if self.available_gib and self.total_gib and self.available_gib > self.total_gib:
            raise ValueError("`available_gib` is more than `total_gib`: available is what the weights leave")
        return self


class _Facts(_Part):
    host: _Host
    gpus: list[_Gpu] | None = None
    models: dict[str, _Model] | None = None
    driver: dict[str, Any] | None = None
    topology: dict[str, Any] | None = None
    load: dict[str, Any] | None = None


def read_facts(path: str) -> dict[str, dict[str, Any]]:
    """Facts by host name from JSON, such as a run's manifest has under `hosts`. ConfigError with host and key."""
    try:
        facts = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or error
        hint = "`gpurun plan -i INVENTORY --save-facts FILE` writes such a file"
        raise ConfigError(f"cannot read facts from `{path}`: {why}", hint=hint) from None
    if isinstance(facts, dict) and "hosts" in facts:
        facts = facts["hosts"]
    if not isinstance(facts, dict) or not facts:
        hint = "it is a mapping of host names to what the facts module found, or a run's manifest.json"
        raise ConfigError(f"`{path}` holds no facts of hosts", hint=hint)
    problems = [problem for host, known in facts.items() for problem in _problems(path, host, known)]
    if problems:
        raise ConfigError(problems)
    return {host: _filled(known) for host, known in facts.items()}


def _problems(path: str, host: str, known: Any) -> list[Problem]:
    try:
        _Facts.model_validate(known)
    except ValidationError as error:
        return [
            Problem(f"`{path}`, host `{host}`: {_place(one['loc'])}{one['msg'].removeprefix('Value error, ')}")
            for one in error.errors(include_url=False)
        ]
    return []


def _place(keys: tuple[str | int, ...]) -> str:
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).lstrip(".")
    return f"`{text}`: " if text else ""


def _filled(known: Mapping[str, Any]) -> dict[str, Any]:
    gpus = [{"index": number, **_GPU, **gpu} for number, gpu in enumerate(known.get("gpus") or [])]
    return {**known, "gpus": gpus}
