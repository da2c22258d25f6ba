"""An engine's flags that its memory depends on, from an argv: what each sets, typed (data/fit/<engine>.yml)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpurun.complaints import nearest
from gpurun.engines import FlagRules, split_flags
from gpurun.errors import Problem
from gpurun.fit.sizes import knowledge

_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG]?)")
_ABOVE_0 = ("tp", "pp", "dp", "ep", "attn_dp", "page", "max_running", "context")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}  # vLLM's: 16k, 16K


@dataclass
class Settings:
    """What flags say: `values` by our name, `given` flag of each as it was written, `words` that belong to no flag."""

    values: dict[str, Any] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)  # flags that say nothing about memory
    problems: list[Problem] = field(default_factory=list)


def read_flags(argv: Sequence[str], rules: FlagRules, known: Mapping[str, Sequence[str]]) -> Settings:
    """The settings in an argv. `known`: the engine's flags, by their long name -> [what it sets, type].

    A flag that is not known takes the words up to the next flag.
    """
    found = Settings()
    for name, written, values, joined in split_flags(rules, argv):
        setting, kind = known.get(name, ("", ""))
        if not written:
            found.words += values
        elif not setting:
            found.others.append(written)
        elif kind == "switch":
            found.values[setting] = True
            found.words += values[1:] if joined else values
            if joined:
                found.problems.append(Problem(f"`{written}` takes no value", hint=f"write `{written}` alone"))
        elif not values:
            found.problems.append(Problem(f"`{written}` needs a value"))
        else:
            found.words += values[1:]
            try:
                typed = _typed(values[0], kind)
                if setting in _ABOVE_0 and typed is not None and typed < (0 if kind == "length" else 1):
                    raise ValueError(f"{'no number below' if kind == 'length' else 'a number above'} 0 is wanted")
                found.values[setting], found.given[setting] = typed, written
            except ValueError as error:
                allowed = tuple(knowledge("models")["dtypes"]) if kind == "dtype" else ()
                near = nearest(values[0], allowed) if allowed else None
                found.problems.append(Problem(f"`{written} {values[0]}`: {error}", None, allowed, near))
    return found


def _typed(text: str, kind: str) -> Any:
    if kind == "text":
        return text
    if kind == "dtype":
        if text not in knowledge("models")["dtypes"]:
            raise ValueError("gpurun knows no such type of a cache")
        return text
    if kind == "json":
        value = json.loads(text) if text.startswith("{") else None
        if not isinstance(value, dict):
            raise ValueError("one JSON object is wanted")
        return value
    if kind == "count":
        if text in ("-1", "auto"):
            return None
        match = _COUNT.fullmatch(text)
        if match is None:
            raise ValueError("a number is wanted, such as 16384 or 16k")
        return int(float(match[1]) * _UNITS[match[2]])
    try:
        value = int(text) if kind in ("int", "length") else float(text)
    except ValueError:
        raise ValueError("a whole number is wanted" if kind in ("int", "length") else "a number is wanted") from None
    if kind == "number" and not 0 < value < math.inf:
        raise ValueError("a number above 0 is wanted")
    if kind == "fraction" and not 0 < value < 1 + 1e-9:
        raise ValueError("a fraction between 0 and 1 is wanted")
    return value
