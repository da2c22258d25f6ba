"""The settings that a server really used, as its engine tells them, against what was asked and the baseline. Pure.

Where an engine tells them is in its data file (`effective`): an address, patterns in its log, a metric whose labels are
settings. All become one flat mapping, dotted name -> value.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gpurun.engines import Engine, split_flags
from gpurun.redact import MASK
from gpurun.tree import flat

_SECRET_KEY = re.compile(r"(^|_)(api_key|password|secret)s?$|(hf|auth|access|bearer)_token$", re.IGNORECASE)
_SECRET_FLAG = re.compile(r"(--(?:admin-)?api-key[= ])\S+")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
_ABSENT = "(absent)"


class Difference(NamedTuple):
    """One setting, three ways; None where there is none. `asked` is what the variant's own flags say."""

    setting: str
    asked: Any
    resolved: Any
    baseline: Any


def without_secrets(content: bytes) -> bytes:
    """An engine's answer without the keys that are in it, by their names."""
    try:
        document = json.loads(content)
    except ValueError:
        return content
    return json.dumps(_masked(document), indent=1).encode()


def resolved(engine: Engine, answer: bytes, metrics: bytes, log: str) -> dict[str, Any]:
    """What the engine says of its settings, flat; empty where it says nothing. What changes by itself is left out."""
    rules = engine.effective
    if rules is None:
        return {}
    found: dict[str, Any] = {}
    for name, pattern in rules.log.items():
        if match := re.search(pattern, log):
            found[name] = match[1]
    if rules.metric:
        line = re.search(rf"^{re.escape(rules.metric)}\{{(.*)\}} ", metrics.decode(errors="replace"), re.MULTILINE)
        found |= dict(_LABEL.findall(line[1])) if line else {}
    with contextlib.suppress(ValueError):
        found |= dict(flat(_masked(json.loads(answer)))) if answer else {}
    dropped = re.compile("|".join(rules.drop) or "$^")
    return {name: value for name, value in sorted(found.items()) if not dropped.search(name)}


def asked(engine: Engine, argv: Sequence[str]) -> dict[str, Any]:
    """The flags of an argv in their main spelling: a value, a list of several, or True."""
    return {
        name: values[0] if len(values) == 1 else values or True
        for name, _, values, _ in split_flags(engine.flags, argv)
        if name and name not in engine.flags.reserved
    }


def differences(
    engine: Engine, mine: Mapping[str, Any], base: Mapping[str, Any], own: Mapping[str, Any]
) -> list[Difference]:
    """Settings in which a server differs from the baseline's, and those where it is not what its flags asked for.

    `mine` and `base` are resolved settings, `own` the flags that the variant sets otherwise than the baseline. What
    only the baseline's engine told is no difference: one that never served tells nothing, or what its log has.
    """
    wanted = {setting: value for flag, value in own.items() if (setting := _setting(engine, flag, mine)) is not None}
    names = [name for name in mine if mine[name] != base.get(name, _ABSENT)]
    names += [name for name, value in wanted.items() if not _same(value, mine[name])]
    return [Difference(name, wanted.get(name), mine.get(name), base.get(name)) for name in dict.fromkeys(names)]


def changed_nothing(engine: Engine, mine: Mapping[str, Any], base: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Whether a variant's server resolved to the baseline's settings, so that the two are one and the same.

    Only where the engine tells of every flag that the variant changes; what it keeps to itself may well have changed.
    """
    told = [_setting(engine, flag, mine) for flag in own]
    return bool(mine) and bool(told) and None not in told and dict(mine) == dict(base)


def own_flags(mine: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that one server has otherwise than another; None for those that it has not."""
    return {flag: mine.get(flag) for flag in {**mine, **base} if mine.get(flag) != base.get(flag)}


def _setting(engine: Engine, flag: str, known: Mapping[str, Any]) -> str | None:
    """The name under which the engine tells of a flag; None where it does not."""
    names = (engine.effective.keys.get(flag) if engine.effective else None, flag, flag.replace("-", "_"))
    return next((name for name in names if name in known), None)


def _same(wanted: Any, told: Any) -> bool:
    if isinstance(told, (int, float)) and not isinstance(told, bool):
        try:
            return float(wanted) == float(told)
        except (TypeError, ValueError):
            return False
    return wanted is None or str(wanted).lower() == str(told).lower()


def _masked(document: Any) -> Any:
    if isinstance(document, Mapping):
        return {
            key: MASK if value and _SECRET_KEY.search(str(key)) and isinstance(value, (str, list)) else _masked(value)
            for key, value in document.items()
        }
    if isinstance(document, list):
        return [_masked(each) for each in document]
    return _SECRET_FLAG.sub(rf"\1{MASK}", document) if isinstance(document, str) else document
