"""Who watches a run: a live block at the bottom of a terminal, or a line for each change of state in a log."""

from __future__ import annotations

import time
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gpurun.events import Event, HostLost, Notice, RunFinished, RunStarted, SampleFinished, StageStarted
from gpurun.terminal.progress import HostRow, Progress
from gpurun.text import about, duration, escape

_HEARTBEAT_S = 60.0
_MIN_REDRAW_S = 0.1
_BAR = 16  # characters


class PlainObserver:
    """Writes to `stream` (stderr): `12:04:31  round 2/5  fp8-kv  chat@64  serving (ready after 1.4 s)`; no colours, no
    cursor movement, a heartbeat while nothing changes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._progress = Progress()
        self._last_line = 0.0

    def on_event(self, event: Event, now: float) -> None:
        """A line, where the event changes something that a reader of the log wants to know."""
        line = self._progress.on_event(event, now)
        if line is not None:
            self._write(line, now)

    def tick(self, now: float) -> None:
        """After a minute without a line: what each host is doing, how far it is, how long it will take."""
        if self._progress.started is not None and now - self._last_line >= _HEARTBEAT_S:
            first, *others = self._progress.activities(now) or ["waiting"]
            for line in (f"{first}  {self._progress.standing(now)}", *others):
                self._write(line.rstrip(), now)

    def close(self) -> None:
        """Nothing to put back."""
        self._progress.started = None

    def _write(self, text: str, now: float) -> None:
        self._last_line = now
        self._stream.write(f"{time.strftime('%H:%M:%S', time.localtime(now))}  {text}\n")
        self._stream.flush()


class LiveObserver:
    """Redraws on `console` (stderr) as events come. Failures and notices stay on the screen, above the block."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress()
        self._live: Live | None = None
        self._drawn = 0.0

    def on_event(self, event: Event, now: float) -> None:
        """Keep what matters, redraw the rest."""
        line = self._progress.on_event(event, now)
        failure = event.sample.failure if isinstance(event, SampleFinished) else None
        bad = isinstance(event, HostLost) or (failure is not None and not failure.expected)
        if line is not None and (bad or isinstance(event, (RunStarted, Notice, RunFinished))):
            self._console.print(Text(line, "red" if bad else ""))
        if isinstance(event, (RunStarted, StageStarted)) and self._live is None:  # preflight comes before the run
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        if now - self._drawn >= _MIN_REDRAW_S:
            self.tick(now)

    def tick(self, now: float) -> None:
        """Redraw, so that the clocks go on."""
        if self._live is not None:
            self._drawn = now
            self._live.update(self.block(now), refresh=True)

    def block(self, now: float) -> Group:
        """The overall line, and the table of hosts; lines are cut at the width, never wrapped."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False, header_style="dim", expand=True)
        for name in HostRow._fields:
            table.add_column(name, no_wrap=True, overflow="ellipsis", ratio=1 if name == "progress" else None)
        for row in self._progress.rows(now):
            table.add_row(*row)
        return Group(Text(self._overall(now), no_wrap=True, overflow="ellipsis"), table)

    def close(self) -> None:
        """Take the block away and give the cursor back."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _overall(self, now: float) -> str:
        """Such as `round 2/5  [####............] 6/25  1 min 05 s, about 4 min left  last 81.5 tok/s`."""
        progress, left = self._progress, self._progress.left(now)
        if not progress.samples:
            return "getting ready"
        filled = _BAR * progress.done // max(1, progress.samples)
        parts = [
            f"round {progress.round}/{progress.rounds}" if progress.round else "getting ready",
            f"[{'#' * filled}{'.' * (_BAR - filled)}] {progress.done}/{progress.samples}",
            duration(progress.elapsed(now)) + (f", {about(left)} left" if left is not None else ""),
            f"last {escape(progress.last_number)}" if progress.last_number else "",
        ]
        return "  ".join(part for part in parts if part)
