"""A small campaign's plan and samples, with numbers that were written down by hand. Used by several tests."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from gpurun.manifest import Controller, Manifest
from gpurun.samples import Sample
from gpurun.store import RunStore

FAILURE = {
    "class": "bad_flag",
    "phase": "start",
    "proof": "error: --parallel: -7 is not a valid number of slots",
    "advice": "give `server.flags.parallel` a positive number",
    "expected": True,
}
# Output tok/s by round.
NUMBERS: dict[str, list[float | None]] = {
    "baseline": [81.9, 82.4, 81.2, 82.0, 81.7],
    "one-thread": [52.1, 52.6, 51.9, 52.3, 52.4],
    "flash-attn": [82.0, 82.1, 81.4, 81.9, 81.9],
    "ngram": [90.1, 96.9, 88.2, 93.0, 79.5],
    "too-many": [None] * 5,
}


def plan(
    numbers: Mapping[str, Sequence[float | None]] = NUMBERS,
    points: Sequence[int] = (4,),
    hosts: Sequence[str] = ("localhost",),
    warmup: int = 4,
    rounds: int = 5,
) -> dict[str, Any]:
    """As plan.py writes it, as far as judging needs it."""
    samples = [
        {
            "round": number,
            "host": host,
            "case": f"{variant}-chat-{point}",
            "variant": variant,
            "benchmark": "chat",
            "axes": {"benchmarks.chat.load.concurrency": point},
            "label": f"chat@{point}",
            "expect": "bad_flag" if variant == "too-many" else None,
            "load": {"tool": "builtin", "spec": {"requests": 32, "warmup": warmup, "load": {"concurrency": point}}},
        }
        for number in range(1, rounds + 1)
        for point in points
        for variant in numbers
        for host in hosts
    ]
    metrics = {
        "output_tok_per_s": {"better": "higher", "threshold": 0.02},
        "ttft_p99_ms": {"better": "lower", "threshold": 0.05},
    }
    compare = {"primary": "output_tok_per_s", "metrics": metrics}
    return {"schema": "gpurun.plan/1", "rounds": rounds, "compare": compare, "samples": samples}


def samples(
    numbers: Mapping[str, Sequence[float | None]] = NUMBERS,
    points: Sequence[int] = (4,),
    hosts: Sequence[str] = ("localhost",),
    factor: float = 1.0,
) -> list[Sample]:
    """One sample for each number, a failed one for each None. TTFT falls as throughput rises."""
    found = []
    for variant, series in numbers.items():
        for index, value in enumerate(series):
            for point in points:
                for host in hosts:
                    fields: dict[str, Any] = {"run": "20261130-1204-a1f3", "variant": variant, "benchmark": "chat"}
                    fields |= {"case": f"{variant}-chat-{point}", "round": index + 1, "host": host}
                    fields |= {"axes": {"benchmarks.chat.load.concurrency": point}, "engine": {"version": "0.9.0"}}
                    if value is None:
                        fields |= {"status": "failed", "failure": FAILURE, "files": ["server.log"]}
                    else:
                        rate = value * factor
                        fields |= {
                            "status": "measured",
                            "metrics": {"output_tok_per_s": rate, "ttft_p99_ms": 9e3 / rate},
                        }
                    found.append(Sample.model_validate(fields))
    return found


def run(
    folder: Path,
    numbers: Mapping[str, Sequence[float | None]] = NUMBERS,
    points: Sequence[int] = (4,),
    hosts: Sequence[str] = ("localhost",),
    requests: int = 32,
    sensors: bool = True,
    hostile: str = "",
    secrets: Sequence[str] = (),
    campaign: str = "quickstart",
    run: str = "20261130-1204-a1f3",
) -> RunStore:
    """A whole run in `folder`, as a bench leaves it, with each sample's own files. `hostile` is put wherever text can
    come from outside: a log, an answer, the campaign, a host's facts."""
    document = {**plan(numbers, points, hosts, rounds=len(numbers["baseline"])), "order": "rotated"}
    server = {"engine": "llamacpp", "flags": {"threads": 4, "note": hostile or "none"}}
    document["cases"] = [
        {"variant": name, "settings": {"server": {**server, "flags": {**server["flags"], "threads": index + 1}}}}
        for index, name in enumerate(numbers)
    ]
    facts = {"host": {"cpus": 32, "cpu_model": f"EPYC 9554{hostile}", "memory_bytes": 2**38, "kernel": "6.1"}}
    facts["gpus"] = [{"name": "RTX PRO 6000", "memory_total_mib": 97887}] * 8
    manifest = Manifest(
        run=run,
        campaign=campaign,
        status="done",
        started_at="2026-11-30T12:04:31Z",
        ended_at="2026-11-30T12:31:02Z",
        controller=Controller(host="desk", pid=4711),
        command=["gpurun", "bench", "-c", "campaign.yml"],
        hosts=dict.fromkeys(hosts, facts),
        engines={"llamacpp": "0.9.0"},
    )
    variants = {name: {"description": f"Why {name}? {hostile}"} for name in numbers if name != "baseline"}
    text = {"name": campaign, "description": f"Which settings matter? {hostile}", "variants": variants}
    store = RunStore.create(folder, yaml.safe_dump(text, sort_keys=False), manifest, secrets)
    store.write_plan(document)
    noise = random.Random(7)
    for sample in samples(numbers, points, hosts):
        (point,) = sample.axes.values()
        sample = _loaded(sample, point)
        files = {"server.log": f"load_model: ready {hostile}\n".encode()}
        if sample.failure is not None:
            failure = sample.failure.model_copy(update={"proof": f"{sample.failure.proof} {hostile}".strip()})
            sample = sample.model_copy(update={"failure": failure, "taints": [hostile] if hostile else []})
        else:
            files["raw.json"] = _raw(sample, requests, noise)
            files |= {"telemetry.csv": _sensors(sample, noise)} if sensors else {}
        store.write_sample(sample, files)
    return store


def _loaded(sample: Sample, point: int) -> Sample:
    """More at once: more throughput, and longer waits."""
    if not sample.metrics:
        return sample
    rate = sample.metrics["output_tok_per_s"] * point / (1 + point / 24)
    known = {"output_tok_per_s": rate}
    for name, value in (("ttft", 90.0 + 11 * point), ("tpot", 1e3 * point / rate), ("e2e", 2e3 + 90 * point)):
        known |= {f"{name}_{part}_ms": value * scale for part, scale in (("p50", 1.0), ("p90", 1.3), ("p99", 1.9))}
    return sample.model_copy(update={"metrics": known})


def _raw(sample: Sample, requests: int, noise: random.Random) -> bytes:
    first, whole = (sample.metrics[name] / 1e3 for name in ("ttft_p50_ms", "e2e_p50_ms"))
    found = []
    for _ in range(requests):
        spread = noise.lognormvariate(0, 0.35)
        found.append({"ok": True, "intended": 0.0, "first": first * spread, "end": whole * spread})
    return json.dumps({"schema": "gpurun.load/1", "requests": found}).encode()


def _sensors(sample: Sample, noise: random.Random) -> bytes:
    lines = ["unix_s,cpu_percent,gpu0_power_w,gpu0_sm_mhz,gpu0_temperature_c,gpu1_power_w,gpu0_slowed_by,strangers"]
    warm = 48 + 6 * sample.round
    watts = [540 + noise.gauss(0, 9) for _ in range(5)]
    lines += [f"{second},7.5,{power:.1f},{2600 - 9 * warm},{warm},{power:.1f},4," for second, power in enumerate(watts)]
    return "\n".join(lines).encode()
