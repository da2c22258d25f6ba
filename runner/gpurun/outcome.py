"""What became of a sample: the class, phase and proof of its failure, or its metrics and what marks them. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpurun import counters, diagnose, foreign, parsers, telemetry, validity
from gpurun.engines import load_engine
from gpurun.errors import GpurunError
from gpurun.loads import AFTER, BEFORE
from gpurun.parsers import ParsedLoad
from gpurun.samples import Failure, FailureClass, Phase

_FAILED = ("failed", "exited")


@dataclass(frozen=True)
class Measurement:
    """The numbers of a sample, and sentences on what may have changed them, each beginning with its name."""

    metrics: dict[str, float]
    taints: list[str]


def own_files(files: Mapping[str, bytes], load: Mapping[str, Any] | None) -> dict[str, bytes]:
    """The files of a sample: of its server's telemetry, only what belongs to its own load."""
    own = dict(files)
    if "telemetry.csv" in own:
        times = [float((load or {}).get(key) or 0.0) for key in ("started_at", "ended_at")]
        own["telemetry.csv"] = telemetry.cut(own["telemetry.csv"].decode(errors="replace"), *times).encode()
    return own


def outcome(
    planned: Mapping[str, Any],
    server: Mapping[str, Any],
    load: Mapping[str, Any] | None,
    files: Mapping[str, bytes],
    of_baseline: bytes | None = None,
) -> Failure | Measurement:
    """Why the sample has no number, or what was measured. `of_baseline`: what the baseline answered to the questions
    that every server is asked, if it was already."""
    log = files.get("server.log", b"").decode(errors="replace")
    engine = str(planned["server"]["engine"]["name"])
    for job in (server, load or {}):
        if job.get("status") == "absent":  # `gpurun stop` from elsewhere leaves nothing of it
            job = {"reason": "stopped", "message": "it was stopped, and its files removed, while it was needed"}
        if job.get("reason") in ("stopped", "lock_lost", "rebooted"):
            return _explain(log, engine, job, "serving" if load else None)
    if server.get("status") in _FAILED and not server.get("ready_at"):
        return _explain(log, engine, server, None)
    if load is None or load.get("reason") == "server_died" or server.get("status") in _FAILED:
        return _explain(log, engine, server, "serving")
    late, raw = load.get("reason") == "time_limit", planned["load"].get("raw", "raw.json")
    if not late and (load.get("exit_code") != 0 or raw not in files):
        said = files.get("client.log", b"").decode(errors="replace").strip().splitlines()
        proof = said[-1] if said else str(load.get("message") or f"exit code {load.get('exit_code')}")
        return _of_the_load("client_error", proof, "see client.log in the sample's directory")
    if late:
        problem: str | None = f"the load did not end within {planned['load']['timeout_s']:g} s{_reached(load)}"
        advice = _ADVICE_LATE
    else:
        try:
            parsed = foreign.parse(planned["load"], files[raw].decode(errors="replace"))
        except GpurunError as error:  # the middle of a file of more than 64 MiB stays on the host
            return _of_the_load("client_error", error.message, f"see {raw} in the sample's directory")
        problem, advice = parsers.invalid(parsed, planned["load"]["error_rate"]), _ADVICE_INVALID
        if problem is None:
            found = _weigh(planned, parsed, files, of_baseline)
            if isinstance(found, Measurement):
                return found
            problem = found
    # A server may outlive its engine, and answer with errors or not at all.
    if diagnose.classify(log, engine=engine).klass not in ("none", "unknown"):
        return _explain(log, engine, server, "serving")
    return _of_the_load("invalid_measurement", str(problem), advice)


def _weigh(
    planned: Mapping[str, Any], parsed: ParsedLoad, files: Mapping[str, bytes], of_baseline: bytes | None
) -> Measurement | str:
    """The measurement, or which check says that it is none."""
    known = load_engine(str(planned["server"]["engine"]["name"])).metrics
    before, after = (files.get(name, b"").decode(errors="replace") if known else "" for name in (BEFORE, AFTER))
    names, gauges = (known.names, known.gauges) if known else ({}, {})
    gained = counters.change(counters.read(before, names), counters.read(after, names))
    findings = [*validity.checks(planned["load"], parsed, gained)]
    findings += validity.sanity(files.get("answers.json"), of_baseline)
    if fatal := [finding for finding in findings if finding.weight == "fails"]:
        return "; ".join(map(str, fatal))
    seen = telemetry.rows(files.get("telemetry.csv", b"").decode(errors="replace"))
    metrics = {**validity.accept_length(gained, counters.read(after, gauges, statistics.fmean)), **parsed.metrics}
    metrics |= telemetry.metrics(seen, parsed.window, parsed.metrics.get("output_tokens", 0.0))
    taints = [*parsed.problems, *parsed.notes, *map(str, findings)]
    return Measurement(metrics, [*taints, *(f"{name}: {text}" for name, text in telemetry.taints(seen))])


def _reached(load: Mapping[str, Any]) -> str:
    """How far a load came, as its client last said."""
    news = (load.get("progress") or {}).get("progress_file") or {}
    what = "warm-up requests" if news.get("warming") else "requests"
    return f": {news['done']} of {news['total']} {what} had ended" if news.get("total") else ""


_ADVICE_LATE = (
    "was the host busy with something else (`gpurun doctor`)? Else raise `timeouts.sample`, or ask for fewer requests"
)
_ADVICE_INVALID = "see raw.json and server.log in the sample's directory; no number is given for a load that went wrong"


def _explain(log: str, engine: str, job: Mapping[str, Any], phase: Phase | None) -> Failure:
    kernel = job.get("kernel") or {}
    found = diagnose.classify(
        log,
        engine=engine,
        exit_code=job.get("exit_code"),
        signal=job.get("signal"),
        reason=job.get("reason"),
        message=str(job.get("message") or ""),
        phase=phase,
        evidence=diagnose.Evidence(kernel.get("oom_kills"), tuple(kernel.get("log") or ())),
    )
    advice = found.advice or "see server.log in the sample's directory"
    if job.get("reason") == "start_hang":  # how it hung (which GPUs were busy meanwhile) stands in no log
        advice = f"{job.get('message')}. {advice}"
    unknown = found.klass in ("none", "unknown")
    klass: Any = ("engine_dead" if phase == "serving" else "unknown") if unknown else found.klass
    proof = found.proof or str(job.get("message") or "")
    return Failure(klass=klass, phase=found.phase or phase or "start", proof=proof, advice=advice, line=found.line)


def _of_the_load(klass: FailureClass, proof: str, advice: str) -> Failure:
    return Failure(klass=klass, phase="serving", proof=proof, advice=advice)
