"""Ctrl-C, SIGTERM and a closed terminal as something to look at, instead of an exception in the middle of anything."""

from __future__ import annotations

import signal
from types import FrameType


class Interrupts:
    """While active, counts SIGINT, SIGTERM, SIGHUP. The first asks for a clean stop, a second for one at once."""

    def __init__(self) -> None:
        self.count = 0
        self.terminated = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Interrupts:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # `nohup` ignores it
                self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self.terminated = self.terminated or number != signal.SIGINT
