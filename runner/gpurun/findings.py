"""What preflight looks at, a server as it would be started on one host, and what it may find to speak against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gpurun.samples import FailureClass, Record, klass

Severity = Literal["refuse", "warn", "note"]


@dataclass(frozen=True)
class Subject:
    """A server on one host. `flags` have their main spelling, with `_` for `-`, and their templates filled in; those
    that are removed (null) are absent. `facts` is what the facts module found on the host; `baseline` is the same
    host's baseline server, None for the baseline itself."""

    engine: str
    version: str | None  # null: the host's own program, or an image's
    flags: Mapping[str, Any]
    env: Mapping[str, str]
    argv: Sequence[str]
    model: Mapping[str, Any]
    facts: Mapping[str, Any]
    baseline: Subject | None = field(default=None, repr=False)
    flags_from: int = 0  # where in `argv` the flags begin
    lengths: tuple[int, ...] = ()  # tokens of the requests that it is to serve, prompt and answer, by benchmark
    image: str | None = None  # where a container's engine lies


def known_model(model: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of a model on a host (`models` in its facts), by its name there or its path."""
    models = facts.get("models") or {}
    return dict(models.get(model["name"]) or models.get(model["path"]) or {})


class Finding(Record):
    """What speaks against a server before it is started. `klass` is what a refused sample is recorded as; `flags` are
    those that it is about, `where` the place in the campaign of the first of them (file:line:column)."""

    rule: str
    severity: Severity
    klass: FailureClass = klass(default="preflight_refused")
    message: str
    advice: str
    source: str = ""
    flags: tuple[str, ...] = ()
    where: str = ""
    forced: bool = False  # `--force` named it
    variants: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()

    @property
    def verb(self) -> str:
        """What it does, for people."""
        return "forced" if self.forced else {"refuse": "refused", "warn": "warning", "note": "note"}[self.severity]

    @property
    def refuses(self) -> bool:
        """Whether it keeps the server from being started."""
        return self.severity == "refuse" and not self.forced
