"""The options of an engine's command line in one version: data, read from the engine itself, never typed.

`data/catalogues/` holds those of some versions (tests/engines/catalogues.py makes them); a host tells its own. How they
are read is in roles/engine/files/engine_options.py. `renames.yml` there tells what became of an option.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache, cached_property
from typing import Any, Literal

from pydantic import BaseModel

from gpurun.data import FOLDER, table
from gpurun.samples import Record
from gpurun.text import numbers

_FOLDER = FOLDER / "catalogues"


class Option(Record):
    """One option. `takes` is how many values: argparse's nargs, or None for exactly one.

    `negative`: its names that say no. `keys`: those that its JSON value may have, where others are refused. `words`:
    what is taken besides a number. `commas`: one value may be several choices. `removed`: it is there to be refused.
    """

    names: list[str]
    negative: list[str] = []
    takes: int | Literal["?", "*", "+"] | None = None
    type: Literal["int", "float", "size", "size_or_auto", "number", "json", "text_or_json"] | None = None
    none: bool = False
    choices: list[Any] | None = None
    commas: bool = False
    words: list[str] = []
    keys: list[str] | None = None
    repeats: bool = False
    required: bool = False
    default: Any = None
    deprecated: str | None = None
    removed: str | None = None
    instead: list[str] = []

    @property
    def name(self) -> str:
        """Its first long name."""
        return next((name for name in self.names if name.startswith("--")), self.names[0])


class Catalogue(BaseModel):
    """All options of one version of an engine."""

    schema_: Literal["gpurun.options/1"] = "gpurun.options/1"
    engine: str
    version: str | None
    options: list[Option]

    @cached_property
    def by_name(self) -> dict[str, Option]:
        """Every spelling -> its option."""
        return {name: option for option in self.options for name in (*option.names, *option.negative)}


class Rename(Record):
    """What became of an option: `new` are its successors; none where it is simply gone. `since`: the first version
    without it that was looked at. `said`: a sentence, where the names alone do not tell it."""

    since: str | None = None
    new: list[str] = []
    said: str | None = None


def parse_catalogue(data: Mapping[str, Any]) -> Catalogue:
    """A catalogue as a file or a host gives it. ValueError (pydantic's) where it is none."""
    return Catalogue.model_validate({key: data.get(key) for key in ("engine", "version", "options")})


@cache
def versions(engine: str) -> tuple[str, ...]:
    """The versions whose options are shipped, oldest first."""
    found = [path.stem.partition("-")[2] for path in _FOLDER.glob(f"{engine}-*.json")]
    return tuple(sorted(found, key=_order))


def nearest_version(engine: str, wanted: str | None) -> str | None:
    """The shipped version that is `wanted`, else the newest that is older, else the oldest; None: there is none."""
    known = versions(engine)
    wanted = wanted and wanted.removeprefix("v")  # as tags have it
    if wanted is None or wanted in known or not known:
        return wanted if wanted in known else known[-1] if known else None
    kind = [version for version in known if _order(version)[0] == _order(wanted)[0]] or list(known)
    return next((version for version in reversed(kind) if _order(version) <= _order(wanted)), kind[0])


@cache
def shipped(engine: str, version: str) -> Catalogue:
    """The catalogue of a version that is among `versions`."""
    return parse_catalogue(json.loads((_FOLDER / f"{engine}-{version}.json").read_text(encoding="utf-8")))


@cache
def renames(engine: str) -> dict[str, Rename]:
    """Options that some version of the engine had and a later one has not -> what became of them."""
    known = table("catalogues/renames").get(engine) or {}
    return {old: Rename.model_validate(about or {}) for old, about in known.items()}


def elsewhere(name: str, engine: str, but: str | None) -> Iterable[str]:
    """The shipped versions that have an option of this name, without `but`."""
    return [version for version in versions(engine) if version != but and name in shipped(engine, version).by_name]


def _order(version: str) -> tuple[str, tuple[int, ...]]:
    return re.split(r"\d", version)[0], numbers(version.partition("+")[0])
