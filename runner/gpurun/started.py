"""What is kept of a server's start: what was predicted of its memory, what it said, which settings it uses. Pure.

Where an engine tells its settings is in its data file (`effective`): an address, patterns in its log, a metric whose
labels are settings. All become one flat mapping, dotted name -> value.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gpurun.engines import Engine, engine_names, load_engine, split_flags
from gpurun.findings import known_model
from gpurun.fit.check import question_of
from gpurun.fit.verdict import CLOSE, compared, predict, reported
from gpurun.redact import MASK
from gpurun.rules import visible_gpus
from gpurun.samples import BASELINE, Sample
from gpurun.tree import flat

MODEL, METRICS, SETTINGS = "model.json", "settings.prom", "settings.json"  # of these, only the last is kept
_WORDS = {"kv_tokens": "tokens of KV cache", "weights_gib": "GiB of weights", "rest_gib": "GiB for the KV cache"}
_MOST_ROWS = 12
_SECRET_KEY = re.compile(r"(^|_)(api_key|password|secret)s?$|(hf|auth|access|bearer)_token$", re.IGNORECASE)
_SECRET_FLAG = re.compile(r"(--(?:admin-)?api-key[= ])\S+")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
_ABSENT = "(absent)"
Settings = Mapping[str, Mapping[str, Any]]  # of one server: `asked` and `resolved`


class Difference(NamedTuple):
    """One setting, three ways; None where there is none. `asked` is what the variant's own flags say."""

    setting: str
    asked: Any
    resolved: Any
    baseline: Any


def wanted(planned: Mapping[str, Any], server: Mapping[str, Any]) -> dict[str, Any]:
    """What else to bring from the host of a server that was started for this sample: `model`, its path, and `urls`."""
    if not planned["start"]:
        return {}
    about, name = planned["server"], planned["server"]["engine"]["name"]
    rules = load_engine(name).effective if name in engine_names() else None
    told = rules is not None and rules.metric and about.get("metrics_path") and server.get("status") == "ready"
    urls = {METRICS: f"http://127.0.0.1:{server['port']}{about['metrics_path']}"} if told else {}
    return {"model": about["model"].get("path"), "urls": urls}


def keep(
    planned: Mapping[str, Any], facts: Mapping[str, Any], files: Mapping[str, bytes]
) -> tuple[dict[str, Any] | None, dict[str, bytes]]:
    """The prediction for this start, beside what the engine reported, and the files to keep. `facts`: its host's."""
    kept = {name: content for name, content in files.items() if name not in (MODEL, METRICS)}
    if "effective.json" in kept:
        kept["effective.json"] = without_secrets(kept["effective.json"])
    name = planned["server"]["engine"]["name"]
    if not planned["start"] or name not in engine_names():
        return None, kept
    engine, log = load_engine(name), files.get("server.log", b"").decode(errors="replace")
    argv = planned["server"]["argv"]
    settings = {
        "asked": asked(engine, argv),
        "resolved": resolved(engine, kept.get("effective.json", b""), files.get(METRICS, b""), log),
    }
    kept[SETTINGS] = json.dumps(settings, indent=1, sort_keys=True).encode()
    return _prediction(planned["server"], facts, files.get(MODEL), log), kept


def _prediction(
    server: Mapping[str, Any], facts: Mapping[str, Any], description: bytes | None, log: str
) -> dict[str, Any] | None:
    known = json.loads(description) if description else known_model(server["model"], facts)
    memory = facts.get("host", {}).get("memory_bytes")
    question = question_of(
        server["engine"]["name"],
        server["engine"].get("version"),
        server["argv"],
        visible_gpus(facts, server["env"]),
        known,
        memory / 2**30 if memory else None,
    )
    found = predict(question) if question is not None else None
    if question is None or found is None:
        return None
    told = found.model_dump(exclude_none=True)
    return {"predicted": told, "compared": compared(told, reported(question.engine, log))}


def memory_lines(samples: Sequence[Sample]) -> Iterator[str]:
    """For people: of each variant's last start, what was predicted of its memory and what its engine reported."""
    last = {sample.variant: sample for sample in samples if sample.prediction}
    for variant, sample in last.items():
        gaps = (sample.prediction or {})["compared"]
        for name in [key for key in _WORDS if key in gaps][:1]:
            gap = gaps[name]
            far = ": look at it, the two should agree" if abs(gap["error"]) > CLOSE else ""
            numbers = f"{gap['predicted']:,g} {_WORDS[name]} predicted, {gap['reported']:,g} reported"
            yield f"{variant}: {numbers} ({100 * gap['error']:+.1f} %){far}"


def changed_nothing(planned: Sequence[Mapping[str, Any]], settings: Mapping[str, Settings]) -> Iterator[str]:
    """Variants whose server came out with the very settings of the baseline's. `settings` by sample id.

    Only where the engine tells of every flag that the variant changes; what it keeps to itself may well have changed.
    """
    told = []
    for variant, engine, mine, base, own in _pairs(planned, settings):
        known = {_setting(engine, flag, mine) for flag in own}
        if known and None not in known and mine == base:
            told.append(
                f"{variant}: the engine resolved {', '.join(own)} to the baseline's settings: it changed nothing"
            )
    yield from dict.fromkeys(told)


def settings_rows(
    planned: Sequence[Mapping[str, Any]], settings: Mapping[str, Settings]
) -> dict[str, list[Difference]]:
    """Each variant's settings that are not the baseline's, three ways."""
    return {
        variant: differences(engine, mine, base, own) for variant, engine, mine, base, own in _pairs(planned, settings)
    }


def settings_lines(planned: Sequence[Mapping[str, Any]], settings: Mapping[str, Settings]) -> Iterator[str]:
    """The same for people."""
    for variant, rows in settings_rows(planned, settings).items():
        for row in rows[:_MOST_ROWS]:
            asked = "" if row.asked is None else f"asked {_short(row.asked)}, "
            yield f"{variant}: {row.setting}: {asked}resolved {_short(row.resolved)}, baseline {_short(row.baseline)}"
        if len(rows) > _MOST_ROWS:
            yield f"{variant}: {len(rows) - _MOST_ROWS} more settings differ: see settings.json of its sample"


def _pairs(
    planned: Sequence[Mapping[str, Any]], settings: Mapping[str, Settings]
) -> Iterator[tuple[str, Engine, Mapping[str, Any], Mapping[str, Any], dict[str, Any]]]:
    """Each variant's first server on each host that told most; what it resolved, what the baseline's at the same point
    did, and the flags that the first has otherwise; None for those that it has not."""
    first: dict[tuple[str, str, str], tuple[str, Settings]] = {}
    for item in planned:
        if item.get("start") and settings.get(item["id"], {}).get("resolved"):
            point = json.dumps({key: value for key, value in item["axes"].items() if key.startswith("server.")})
            key, known = (item["host"], item["variant"], point), settings[item["id"]]
            # One that was never ready has told little.
            if key not in first or len(first[key][1]["resolved"]) < len(known["resolved"]):
                first[key] = item["server"]["engine"]["name"], known
    for (host, variant, point), (name, mine) in first.items():
        base_name, base = first.get((host, BASELINE, point), ("", {}))
        if variant != BASELINE and base_name == name and name in engine_names():
            flags, others = mine["asked"], base["asked"]
            own = {flag: flags.get(flag) for flag in {**flags, **others} if flags.get(flag) != others.get(flag)}
            yield variant, load_engine(name), mine["resolved"], base["resolved"], own


def _short(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value) if not isinstance(value, str) else value
    return text if len(text) <= 60 else f"{text[:57]}..."


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
