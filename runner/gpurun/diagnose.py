"""Why a server failed: class, phase, the line that proves it, and what to do. Pure; the knowledge is data.

The order of belief: a root cause in the log, the earliest first; what the kernel says (OOM kills, Xid); a rougher
cause; an exception that nothing explains; an echo of another rank's failure; a wrapper that says only that something
failed; the exit code. What a server survived (it became ready afterwards, or went on through two more phases) is no
cause, and neither are lines that the logger itself calls information or a warning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from gpurun.reading import Hit, Reading
from gpurun.samples import FailureClass, Phase
from gpurun.serverlog import ServerLog, mask
from gpurun.signatures import markers, matchers

_WHATEVER_THE_LOG_SAYS = ("spawn", "not_this_model", "gpu_busy", "quarantined", "lock_lost", "stopped", "rebooted")
# SGLang ends itself with SIGKILL after a child failed, so that the signal alone proves nothing there.
_KILLED_ITSELF = re.compile(r"Received sigquit|SIGQUIT received")
_WAITS_IN_NCCL = re.compile(r"NCCL|nccl|[Ii]nit torch distributed|all.?reduce")
_BY_SIGNAL = {15: "sigterm", 7: "sigbus", 4: "sigill", 2: "sigint"}
_BY_CODE = {2: "usage", 126: "not_found", 127: "not_found"}


@dataclass(frozen=True)
class Evidence:
    """What the host says besides the log. `oom_kills` is the rise of the job's cgroup counter `oom_kill` (None: not
    known); `dmesg` are kernel messages from the job's life time."""

    oom_kills: int | None = None
    dmesg: tuple[str, ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """`klass` is "none" for a healthy log, with all else empty. `line` counts from 1; None: the proof is not in the
    log. `others` are further lines that may tell a person more."""

    klass: FailureClass | Literal["none"]
    phase: Phase | None = None
    line: int | None = None
    proof: str = ""
    advice: str = ""
    engine: str | None = None
    signature: str | None = None
    others: tuple[str, ...] = ()


def classify(
    log: str,
    *,
    engine: str | None = None,
    exit_code: int | None = None,
    signal: int | None = None,
    reason: str | None = None,
    message: str = "",
    phase: Phase | None = None,
    evidence: Evidence | None = None,
) -> Diagnosis:
    """Say why the server that wrote `log` failed, or that it did not.

    `exit_code` and `signal` are those of the server's process, `reason` is the job's own word for its end, `message`
    its sentence about it, `phase` where the job was as far as its starter knows. Without any of these only the log
    decides.
    """
    if signal is None and exit_code is not None and (exit_code < 0 or 128 < exit_code < 160):
        signal = -exit_code if exit_code < 0 else exit_code - 128
    reading = Reading(ServerLog(log), engine, phase)
    failed = bool(exit_code) or signal is not None or reason is not None
    hits = _counting(reading, failed)
    told = (
        _by_starter(reading, reason, message)
        or _root(reading, hits)
        or _by_kernel(reading, evidence)
        or _rough(reading, hits)
    )
    if told is None:
        not_by_kernel = evidence is not None and evidence.oom_kills == 0
        told = _without_cause(reading, hits, failed, not_by_kernel)
        stuck = reason in ("start_timeout", "start_hang", "time_limit", "generation_failed")
        if failed and (told is None or (stuck and told.klass == "unknown")):
            told = _by_end(reading, exit_code, signal, reason, not_by_kernel)
            if message and (reason in ("generation_failed", "server_died") or "; the last answer to " in message):
                told = replace(told, line=None, proof=mask(message))
    return replace(told or Diagnosis("none"), engine=reading.engine)


def _counting(reading: Reading, failed: bool) -> list[Hit]:
    """The matches that may be causes. A server that was ready and that nothing says to be dead has survived whatever
    only a start can die of; what an orderly end writes after its beginning explains nothing."""
    hits = [hit for hit in reading.hits if not hit.quiet]
    if reading.stopped is not None and not failed and not any(hit.line < reading.stopped for hit in hits):
        return []
    if reading.ready is not None and not failed and all(hit.signature.rank != "wrapper" for hit in hits):
        return [hit for hit in hits if hit.signature.klass in markers().of_serving]
    return hits


def _root(reading: Reading, hits: list[Hit]) -> Diagnosis | None:
    roots = (hit for hit in hits if hit.signature.rank == "root" and not reading.survived(hit))
    return next((_diagnosis(reading, hit) for hit in roots), None)


def _rough(reading: Reading, hits: list[Hit]) -> Diagnosis | None:
    """The earliest rough cause; an echo of another rank's failure only where nothing unexplained came before it."""
    for hit in hits:
        alone = reading.exception is None or reading.exception >= hit.line
        if hit.signature.rank == "generic" or (hit.signature.rank == "echo" and alone):
            return _diagnosis(reading, hit)
    return None


def _diagnosis(reading: Reading, hit: Hit) -> Diagnosis:
    phase = reading.phase(hit)
    advice = mask(hit.signature.advise(reading.engine, phase, hit.found), 600)
    klass = _settled(hit.signature.klass, phase)
    others = reading.telling() if klass == "unknown" else ()
    return Diagnosis(klass, phase, hit.line + 1, reading.log.shown(hit.line), advice, None, hit.signature.id, others)


def _settled(klass: FailureClass | Literal["crash"], phase: Phase) -> FailureClass:
    """A crash is the engine's death while it serves; before that nobody knows what it is."""
    if klass != "crash":
        return klass
    return "engine_dead" if phase == "serving" else "unknown"


def _by_name(reading: Reading, name: str, line: int | None = None, phase: Phase | None = None) -> Diagnosis:
    """What `ends` in log_markers.yml says of this way to end. The proof is `line`, or the last line of the log."""
    end = markers().ends[name]
    at = reading.last if line is None else line
    phase = end.phase or phase or reading.framed(at) or reading.marked(at) or reading.given_phase or "start"
    klass = _settled(end.klass, phase)
    number = at + 1 if reading.log.lines[at] else None  # an empty log proves nothing
    return Diagnosis(klass, phase, number, reading.log.shown(at), end.advice, others=reading.telling())


def _by_starter(reading: Reading, reason: str | None, message: str) -> Diagnosis | None:
    """What the one who started the job knows better than the log."""
    if reason == "port_in_use":
        hit = next((hit for hit in reading.hits if hit.signature.klass == "port_in_use"), None)
        return _diagnosis(reading, hit) if hit else _by_name(reading, reason)
    if reason not in _WHATEVER_THE_LOG_SAYS:
        return None
    special = (name for name, end in markers().ends.items() if end.message and name.startswith(f"{reason}_"))
    told = _by_name(reading, next((one for one in special if re.search(markers().ends[one].message, message)), reason))
    return replace(told, line=None, proof=mask(message)) if message else told


def _by_kernel(reading: Reading, evidence: Evidence | None) -> Diagnosis | None:
    """What the kernel says about the end of the job's processes."""
    if evidence is None:
        return None
    kernel = [matcher for matcher in matchers() if matcher.signature.id.startswith("kernel-")]
    for line in evidence.dmesg:
        for matcher in kernel:
            if match := matcher.regex.search(line):
                hit = Hit(reading.last, matcher.signature, match.groupdict(), line, False)
                return replace(_diagnosis(reading, hit), line=None, proof=mask(line))
    if not evidence.oom_kills:
        return None
    proof = f"cgroup memory.events: oom_kill rose by {evidence.oom_kills}"
    return replace(_by_name(reading, "oom_kill"), line=None, proof=proof)


def _without_cause(reading: Reading, hits: list[Hit], failed: bool, not_by_kernel: bool) -> Diagnosis | None:
    """The log names no cause: an exception that nobody knows, a wrapper, at last a warning."""
    wrappers = [hit for hit in hits if hit.signature.rank == "wrapper"]
    failed = failed or bool(wrappers)
    if reading.exception is not None and (failed or reading.ready is None):
        dead = reading.ready is not None or any(hit.signature.klass == "engine_dead" for hit in wrappers)
        return _by_name(reading, "exception", reading.exception, "serving" if dead else None)
    wrappers = sorted(wrappers, key=lambda hit: not hit.signature.killed)
    best = [hit for hit in wrappers if not (hit.signature.killed and not_by_kernel)]
    best += [hit for hit in reading.hits if hit.quiet and failed and hit.signature.rank in ("root", "generic")]
    return _diagnosis(reading, best[0]) if best else None


def _by_end(
    reading: Reading, exit_code: int | None, signal: int | None, reason: str | None, not_by_kernel: bool
) -> Diagnosis:
    """Only the way the process ended is known."""
    serving, name = reading.ready is not None, "other"
    if reason == "start_hang" and _WAITS_IN_NCCL.search(" ".join(reading.log.lines[-6:])):
        name = "hang_in_nccl"
    elif reason in ("start_hang", "start_timeout", "generation_failed", "server_died"):
        name = reason
    elif reason == "time_limit":
        name = "time_limit" if serving else "time_limit_start"
    elif signal == 9 and not _KILLED_ITSELF.search(reading.log.text):
        name = "killed" if not_by_kernel else "sigkill"
    elif signal in _BY_SIGNAL:
        name = _BY_SIGNAL[signal]
    elif exit_code == 0 and not serving:
        name = "left"
    elif exit_code in _BY_CODE and not serving:
        name = _BY_CODE[exit_code]
    return _by_name(reading, name)
