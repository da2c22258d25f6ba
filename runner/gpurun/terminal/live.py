"""One live block at the bottom of a terminal: overall progress, and what each host does now."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from gpurun.events import Event, HostLost, Notice, RunFinished, RunStarted, SampleFinished
from gpurun.terminal.plain import describe, where_text
from gpurun.terminal.progress import Progress
from gpurun.terminal.text import about, duration, escape, in_ascii

_MOST_HOSTS = 12
_MIN_REDRAW_S = 0.1
_BAR = 16  # characters


class LiveObserver:
    """Redraws on `console` (stderr) as events come. Failures and notices stay on the screen, above the block."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress()
        self._live: Live | None = None
        self._drawn = 0.0

    def on_event(self, event: Event, now: float) -> None:
        """Keep what matters, redraw the rest."""
        self._progress.on_event(event, now)
        if isinstance(event, RunStarted) and self._live is None:
            self._keep(event, now)
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        elif isinstance(event, (HostLost, Notice, RunFinished)) or _unexpected(event):
            self._keep(event, now)
        if now - self._drawn >= _MIN_REDRAW_S:
            self.tick(now)

    def tick(self, now: float) -> None:
        """Redraw, so that the clocks go on."""
        if self._live is not None:
            self._drawn = now
            self._live.update(self._block(now), refresh=True)

    def close(self) -> None:
        """Take the block away and give the cursor back."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _keep(self, event: Event, now: float) -> None:
        line = describe(event, self._progress, now)
        if line is not None:
            text = self._line(line, "red" if isinstance(event, (HostLost, SampleFinished)) else "", wraps=True)
            self._console.print(text)

    def _block(self, now: float) -> RenderableType:
        progress = self._progress
        left = progress.left(now)
        round_now = max((a.where.round for a in progress.active.values() if a.where), default=0)
        filled = _BAR * progress.done // max(1, progress.samples)
        parts = [
            f"round {round_now}/{progress.rounds}" if round_now else "getting ready",
            f"[{'#' * filled}{'.' * (_BAR - filled)}] {progress.done}/{progress.samples}",
            duration(progress.elapsed(now)) + (f", {about(left)} left" if left is not None else ""),
            f"last {escape(progress.last_number)}" if progress.last_number else "",
        ]
        lines = [self._line("  ".join(part for part in parts if part), "bold")]
        active = list(progress.active.items())
        for host, activity in active[:_MOST_HOSTS]:
            place = where_text(activity.where, progress) if activity.where else escape(host)
            lines.append(self._line(f"  {place}  {activity.text(now)}" if place else f"  {activity.text(now)}"))
        if len(active) > _MOST_HOSTS:
            lines.append(self._line(f"  and {len(active) - _MOST_HOSTS} more hosts"))
        return Group(*lines)

    def _line(self, text: str, style: str = "", *, wraps: bool = False) -> Text:
        readable = text if self._console.encoding.lower().startswith("utf") else in_ascii(text)
        return Text(readable, style=style, no_wrap=not wraps, overflow="fold" if wraps else "ellipsis")


def _unexpected(event: Event) -> bool:
    if not isinstance(event, SampleFinished) or event.sample.status != "failed":
        return False
    return event.sample.failure is None or not event.sample.failure.expected
