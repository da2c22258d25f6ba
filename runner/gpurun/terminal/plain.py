"""One line per change of state, for logs: no colours, no cursor movement, a heartbeat while nothing changes."""

from __future__ import annotations

import time
from typing import TextIO

from gpurun.events import (
    Event,
    HostLost,
    Notice,
    RunFinished,
    RunStarted,
    SampleFinished,
    SampleStage,
    StageStarted,
    Where,
)
from gpurun.terminal.progress import Progress
from gpurun.terminal.text import about, duration, escape, in_ascii, plural, shorten

HEARTBEAT_S = 60.0
_MOST_HOSTS = 8  # a heartbeat of a large fleet must not fill the log


class PlainObserver:
    """Writes to `stream` (stderr): `12:04:31  round 2/5  fp8-kv  chat@64  serving (ready after 1.4 s)`."""

    def __init__(self, stream: TextIO, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._stream = stream
        self._heartbeat_s = heartbeat_s
        self._progress = Progress()
        self._last_line = 0.0

    def on_event(self, event: Event, now: float) -> None:
        """A line, where the event changes something that a reader of the log wants to know."""
        self._progress.on_event(event, now)
        line = describe(event, self._progress, now)
        if line is not None:
            self._write(line, now)

    def tick(self, now: float) -> None:
        """After a minute without a line: what each host is doing, how far it is, how long it will take."""
        if self._progress.started is None or now - self._last_line < self._heartbeat_s:
            return
        active = list(self._progress.active.items())
        for host, activity in active[:_MOST_HOSTS]:
            place = where_text(activity.where, self._progress) if activity.where else host
            self._write(
                "  ".join(part for part in (place, activity.text(now), _standing(self._progress, now)) if part), now
            )
        if len(active) > _MOST_HOSTS:
            self._write(f"and {len(active) - _MOST_HOSTS} more hosts", now)
        if not active:
            self._write(f"waiting  {_standing(self._progress, now)}", now)

    def close(self) -> None:
        """Nothing to put back."""
        self._progress.started = None

    def _write(self, text: str, now: float) -> None:
        self._last_line = now
        line = f"{time.strftime('%H:%M:%S', time.localtime(now))}  {text}\n"
        try:
            self._stream.write(line)
        except UnicodeEncodeError:
            self._stream.write(in_ascii(line.rstrip("\n")) + "\n")
        self._stream.flush()


def where_text(where: Where, progress: Progress) -> str:
    """`round 2/5  fp8-kv  chat@64`, and the host where there are several."""
    parts = [f"round {where.round}/{progress.rounds or '?'}", where.variant, where.label]
    if len(progress.hosts) > 1:
        parts.append(where.host)
    return escape("  ".join(parts))


def describe(event: Event, progress: Progress, now: float) -> str | None:
    """An event as one line without the time; None where it is only progress within a state."""
    if isinstance(event, RunStarted):
        reused = f", {event.reused} kept from before" if event.reused else ""
        length = f", {about(event.estimate_s)}" if event.estimate_s else ""
        counts = ((event.samples, "sample"), (event.rounds, "round"), (len(event.hosts), "host"))
        size = "{} in {} on {}".format(*(plural(count, noun) for count, noun in counts))
        return escape(f"run {event.run}  {event.campaign}: {size}{reused}{length}  -> {event.directory}")
    if isinstance(event, StageStarted):
        return "  ".join(escape(part) for part in (event.stage, event.host or "", event.detail) if part)
    if isinstance(event, SampleStage):
        detail = f" ({escape(event.detail)})" if event.detail else ""
        return f"{where_text(event.where, progress)}  {event.stage}{detail}"
    if isinstance(event, SampleFinished):
        return f"{where_text(event.where, progress)}  {outcome(event)}  ({_standing(progress, now)})"
    if isinstance(event, HostLost):
        others = "; the others go on" if len(progress.hosts) > 1 else ""
        return f"host {escape(event.host)} is lost: {shorten(event.reason, 300)}{others}"
    if isinstance(event, Notice):
        return f"{escape(event.host)}: {escape(event.message)}" if event.host else escape(event.message)
    if isinstance(event, RunFinished):
        return f"{event.status} after {duration(progress.elapsed(now))}"
    return None


def outcome(event: SampleFinished) -> str:
    """`measured 4 812 tok/s`, or the failure with the line that proves it."""
    failure = event.sample.failure
    if event.sample.status == "measured":
        return f"measured {escape(event.number)}".rstrip()
    if failure is None:
        return event.sample.status
    how = "failed as expected" if failure.expected else "✗ failed"
    proof = f": {shorten(failure.proof, 160)}" if failure.proof and not failure.expected else ""
    return f"{how}: {failure.klass} ({failure.phase}){proof}"


def _standing(progress: Progress, now: float) -> str:
    left = progress.left(now)
    time_left = f", {about(left)} left" if left is not None and progress.done < progress.samples else ""
    return f"{progress.done}/{progress.samples} samples{time_left}" if progress.samples else ""
