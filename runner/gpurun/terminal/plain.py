"""One line per change of state, for logs: no colours, no cursor movement, a heartbeat while nothing changes."""

from __future__ import annotations

import time
from typing import TextIO

from gpurun.events import Event
from gpurun.terminal.progress import Progress

_HEARTBEAT_S = 60.0


class PlainObserver:
    """Writes to `stream` (stderr): `12:04:31  round 2/5  fp8-kv  chat@64  serving (ready after 1.4 s)`."""

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
