"""Where a run stands, and what is said about it: shared by the live block and the plain lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gpurun import events
from gpurun.text import about, duration, escape, number, plural, shorten

_LOST = "✗ lost"
_MOST_HOSTS = 8  # a large fleet must not fill the screen, or the log


@dataclass
class _Activity:
    """What a host does now, since when (unix seconds)."""

    place: str
    stage: str
    since: float
    detail: str = ""
    sample: str = ""


class HostRow(NamedTuple):
    """What the live table says of a host, each text ready to be shown."""

    host: str
    state: str
    sample: str
    last: str
    progress: str


class Progress:
    """Counts samples, remembers what each host does, and estimates the time left."""

    def __init__(self) -> None:
        self.round = self.rounds = self.samples = self.done = 0
        self.started: float | None = None
        self.last_number = ""
        self._last: dict[str, str] = {}  # by host: its last number, or why there is none
        self._hosts: tuple[str, ...] = ()
        self._active: dict[str, _Activity] = {}
        self._estimate_s: float | None = None
        self._first_sample: float | None = None
        self._last_finish = 0.0

    def on_event(self, event: events.Event, now: float) -> str | None:
        """Take note of an event. Returns it as one line; None where it is only progress within a state."""
        line = self._note(event, now)
        return None if line is None else escape(line)

    def _note(self, event: events.Event, now: float) -> str | None:
        match event:
            case events.RunStarted():
                self.rounds, self.samples, self._hosts = event.rounds, event.samples, event.hosts
                self.started, self._estimate_s = now, event.estimate_s
                counts = ((event.samples, "sample"), (event.rounds, "round"), (len(event.hosts), "host"))
                size = "{} in {} on {}".format(*(plural(count, noun) for count, noun in counts))
                kept = f", {event.reused} kept from before" if event.reused else ""
                length = f", {about(event.estimate_s)}" if event.estimate_s else ""
                return f"run {event.run}  {event.campaign}: {size}{kept}{length}  -> {event.directory}"
            case events.StageStarted(stage, host, detail):
                if host is None:
                    self._active.clear()
                self._active[host or ""] = _Activity(host or "", stage, now, detail)
                return "  ".join(part for part in (stage, host, detail) if part)
            case events.SampleStage(where, stage, detail):
                self._active.pop("", None)
                self.round, self._first_sample = where.round, self._first_sample or now
                sample = f"{where.variant} {where.label}"
                self._active[where.host] = _Activity(self._place(where), stage, now, sample=sample)
                return f"{self._place(where)}  {stage}" + (f" ({detail})" if detail else "")
            case events.SampleProgress(where, done, total, unit, detail):
                if where.host in self._active:
                    counted = " of ".join(_count(value) for value in (done, total) if value is not None)
                    self._active[where.host].detail = f"{counted} {unit}" if counted else detail
                return None
            case events.SampleFinished(where):
                self._active.pop(where.host, None)
                self.done += 1
                self.samples = max(self.samples, self.done)  # what is tainted is measured again
                self.last_number = event.number or self.last_number
                failure = event.sample.failure
                self._last[where.host] = f"✗ {failure.klass}" if failure else event.number
                self._first_sample, self._last_finish = self._first_sample or now, now
                return f"{self._place(where)}  {_outcome(event)}  ({self.standing(now)})"
            case events.HostLost(host, reason):
                self._active.pop(host, None)
                self._last[host] = _LOST
                others = "; the others go on" if len(self._hosts) > 1 else ""
                return f"host {host} drops out: {shorten(reason, 300)}{others}"
            case events.Notice(message, host):
                return f"{host}: {message}" if host else message
            case events.RunFinished(status):
                return f"{status} after {duration(self.elapsed(now))}"

    def _place(self, where: events.Where) -> str:
        number = f"round {where.round}/{self.rounds}  " if self.rounds else ""  # `serve` has none
        place = f"{number}{where.variant}  {where.label}"
        return f"{place}  {where.host}" if len(self._hosts) > 1 else place

    def activities(self, now: float) -> list[str]:
        """A line for each host, such as `round 2/5  fp8-kv  chat@64  measuring 12 s: 40 of 320 requests`."""
        lines = []
        for host in list(self._active.values())[:_MOST_HOSTS]:
            line = f"{host.place}  {host.stage} {duration(now - host.since)}".strip()
            lines.append(escape(line) + (f": {shorten(host.detail, 80)}" if host.detail else ""))
        more = len(self._active) - _MOST_HOSTS
        return [*lines, f"and {plural(more, 'more host')}"] if more > 0 else lines

    def rows(self, now: float) -> list[HostRow]:
        """A row for each host, each in its place; of a large fleet a few that are at work, and how many more."""
        names = list(dict.fromkeys((*self._hosts, *self._active)))
        if len(names) > _MOST_HOSTS:
            names.sort(key=lambda name: name not in self._active)
        rows = []
        for name in names[:_MOST_HOSTS]:
            doing, last = self._active.get(name), self._last.get(name, "")
            idle = "out" if last == _LOST else "waiting" if self.samples else ""
            state = f"{doing.stage} {duration(now - doing.since)}" if doing else idle
            told = (name, state, doing.sample if doing else "", last, shorten(doing.detail, 120) if doing else "")
            rows.append(HostRow(*map(escape, told)))
        more = len(names) - _MOST_HOSTS
        return [*rows, HostRow(f"and {plural(more, 'more host')}", "", "", "", "")] if more > 0 else rows

    def standing(self, now: float) -> str:
        """Such as `3/25 samples, about 75 s left`."""
        left = self.left(now)
        time_left = f", {about(left)} left" if left is not None and self.done < self.samples else ""
        return f"{self.done}/{self.samples} samples{time_left}" if self.samples else ""

    def elapsed(self, now: float) -> float:
        """Seconds since the run began."""
        return 0.0 if self.started is None else now - self.started

    def left(self, now: float) -> float | None:
        """Seconds that remain: the plan's estimate at first, then more and more what the finished samples took.

        A sample that takes longer than it should does not use up the time of those that have not begun.
        """
        at_once = max(1, len(self._hosts))
        if not self.done or self._first_sample is None:
            since = 0.0 if self._first_sample is None else now - self._first_sample
            if self._estimate_s is None:
                return None
            return max(0.0, self._estimate_s - min(since, self._estimate_s * at_once / max(1, self.samples)))
        each = (self._last_finish - self._first_sample) / self.done
        if self._estimate_s is not None and self.samples:  # the plan counts as much as two finished samples
            each = (each * self.done + 2 * self._estimate_s / self.samples) / (self.done + 2)
        return max(0.0, each * (self.samples - self.done) - min(now - self._last_finish, each * at_once))


def _outcome(event: events.SampleFinished) -> str:
    """`measured 4 812 tok/s`, or the failure with the line that proves it."""
    failure = event.sample.failure
    if failure is None:
        return f"{event.sample.status} {event.number}".rstrip()
    if failure.expected:
        return f"failed as expected: {failure.klass} ({failure.phase})"
    proof = f": {shorten(failure.proof, 160)}" if failure.proof else ""
    return f"✗ failed: {failure.klass} ({failure.phase}){proof}"


def _count(value: float) -> str:
    return number(value) if value >= 1000 else f"{value:g}"
