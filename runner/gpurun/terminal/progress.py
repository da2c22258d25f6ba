"""Where a run stands, derived from its events: shared by the live line and the plain lines."""

from __future__ import annotations

from dataclasses import dataclass

from gpurun.events import (
    Event,
    HostLost,
    RunStarted,
    SampleFinished,
    SampleProgress,
    SampleStage,
    StageStarted,
    Where,
)
from gpurun.terminal.text import duration, escape, number, shorten


@dataclass
class Activity:
    """What a host does now, since when (unix seconds)."""

    stage: str
    since: float
    where: Where | None = None
    detail: str = ""

    def text(self, now: float) -> str:
        """Such as `measuring 12 s: 40 of 320 requests`."""
        detail = f": {shorten(self.detail, 80)}" if self.detail else ""
        return f"{self.stage} {duration(now - self.since)}{detail}"


class Progress:
    """Counts samples, remembers what each host does, and estimates the time left."""

    def __init__(self) -> None:
        self.rounds = self.samples = self.done = self.failed = 0
        self.hosts: tuple[str, ...] = ()
        self.active: dict[str, Activity] = {}
        self.started: float | None = None
        self.last_number = ""
        self._estimate_s: float | None = None
        self._first_sample: float | None = None
        self._last_finish: float | None = None

    def on_event(self, event: Event, now: float) -> None:
        """Take note of an event."""
        if isinstance(event, RunStarted):
            self.rounds, self.samples, self.hosts = event.rounds, event.samples, event.hosts
            self.started, self._estimate_s = now, event.estimate_s
        elif isinstance(event, StageStarted):
            if event.host is None:
                self.active.clear()
            self.active[event.host or ""] = Activity(event.stage, now, detail=event.detail)
        elif isinstance(event, SampleStage):
            self.active.pop("", None)
            self._first_sample = self._first_sample or now
            self.active[event.where.host] = Activity(event.stage, now, event.where)
        elif isinstance(event, SampleProgress):
            activity = self.active.get(event.where.host)
            if activity is not None:
                activity.detail = _counted(event)
        elif isinstance(event, SampleFinished):
            self.active.pop(event.where.host, None)
            self.done += 1
            self.failed += event.sample.status == "failed"
            self.last_number = event.number or self.last_number
            self._first_sample = self._first_sample or now
            self._last_finish = now
        elif isinstance(event, HostLost):
            self.active.pop(event.host, None)

    def elapsed(self, now: float) -> float:
        """Seconds since the run began."""
        return 0.0 if self.started is None else now - self.started

    def left(self, now: float) -> float | None:
        """Seconds that remain: the plan's estimate at first, then more and more what the finished samples took."""
        if self._first_sample is None or self.started is None or not self.samples:
            return None if self._estimate_s is None or self.started is None else self._estimate_s
        rest = self.samples - self.done
        if self.done == 0 or self._last_finish is None:
            return None if self._estimate_s is None else max(0.0, self._estimate_s - (now - self._first_sample))
        each = (self._last_finish - self._first_sample) / self.done
        if self._estimate_s is not None:  # the plan counts as much as two finished samples
            each = (each * self.done + 2 * self._estimate_s / self.samples) / (self.done + 2)
        return max(0.0, each * rest - (now - self._last_finish))


def _counted(event: SampleProgress) -> str:
    if event.done is None:
        return escape(event.detail)
    counted = number(event.done) if event.done >= 1000 else f"{event.done:g}"
    total = (
        f" of {number(event.total) if event.total >= 1000 else f'{event.total:g}'}" if event.total is not None else ""
    )
    return f"{counted}{total} {event.unit}"
