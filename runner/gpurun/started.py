"""What is kept of a server's start: what was predicted of its memory, what it said, which settings it uses. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpurun import effective
from gpurun.engines import Engine, engine_names, load_engine
from gpurun.findings import known_model
from gpurun.fit.budgets import predict
from gpurun.fit.check import question_of
from gpurun.fit.verdict import CLOSE, compared, reported
from gpurun.rules import visible_gpus
from gpurun.samples import BASELINE, Sample

MODEL, METRICS, SETTINGS = "model.json", "settings.prom", "settings.json"  # of these, only the last is kept
_WORDS = {"kv_tokens": "tokens of KV cache", "weights_gib": "GiB of weights", "rest_gib": "GiB for the KV cache"}
_MOST_ROWS = 12
Settings = Mapping[str, Mapping[str, Any]]  # of one server: `asked` and `resolved`


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
        kept["effective.json"] = effective.without_secrets(kept["effective.json"])
    name = planned["server"]["engine"]["name"]
    if not planned["start"] or name not in engine_names():
        return None, kept
    engine, log = load_engine(name), files.get("server.log", b"").decode(errors="replace")
    argv = planned["server"]["argv"]
    settings = {
        "asked": effective.asked(engine, argv),
        "resolved": effective.resolved(engine, kept.get("effective.json", b""), files.get(METRICS, b""), log),
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
    """Variants whose server came out with the very settings of the baseline's. `settings` by sample id."""
    told = []
    for variant, engine, mine, base in _pairs(planned, settings):
        own = effective.own_flags(mine["asked"], base["asked"])
        if effective.changed_nothing(engine, mine["resolved"], base["resolved"], own):
            told.append(
                f"{variant}: the engine resolved {', '.join(own)} to the baseline's settings: it changed nothing"
            )
    yield from dict.fromkeys(told)


def settings_rows(
    planned: Sequence[Mapping[str, Any]], settings: Mapping[str, Settings]
) -> dict[str, list[effective.Difference]]:
    """Each variant's settings that are not the baseline's, three ways."""
    found = {}
    for variant, engine, mine, base in _pairs(planned, settings):
        own = effective.own_flags(mine["asked"], base["asked"])
        found[variant] = effective.differences(engine, mine["resolved"], base["resolved"], own)
    return found


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
) -> Iterator[tuple[str, Engine, Settings, Settings]]:
    """Each variant's first server on each host, its settings, and those of the baseline's server at the same point."""
    first: dict[tuple[str, str, str], tuple[str, Settings]] = {}
    for item in planned:
        if item.get("start") and settings.get(item["id"], {}).get("resolved"):
            point = json.dumps({key: value for key, value in item["axes"].items() if key.startswith("server.")})
            known = item["server"]["engine"]["name"], settings[item["id"]]
            first.setdefault((item["host"], item["variant"], point), known)
    for (host, variant, point), (name, mine) in first.items():
        base_name, base = first.get((host, BASELINE, point), ("", {}))
        if variant != BASELINE and base_name == name and name in engine_names():
            yield variant, load_engine(name), mine, base


def _short(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value) if not isinstance(value, str) else value
    return text if len(text) <= 60 else f"{text[:57]}..."
