"""What people see. The only package that imports rich; results go to stdout, everything else to stderr."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from typing import Literal, TextIO

from rich.console import Console, RenderableType

from gpurun.events import Observer
from gpurun.terminal.observers import LiveObserver, PlainObserver
from gpurun.text import tolerate

Color = Literal["auto", "always", "never"]
_NARROWEST, _WIDEST = 80, 200


class Terminal:
    """The two streams, and what may be done with each.

    Colours: as `color` says; on "auto" NO_COLOR switches them off, FORCE_COLOR on, and otherwise a terminal has them.
    `progress` None means a live block where stderr is a terminal and CI is not set, plain lines elsewhere; False means
    plain lines.
    """

    def __init__(
        self,
        color: Color = "auto",
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        progress: bool | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._stdout, self._stderr = stdout or sys.stdout, stderr or sys.stderr
        tolerate(self._stdout)
        tolerate(self._stderr)
        width = 100  # where nobody looks
        if self._stdout.isatty() or environ.get("COLUMNS"):
            width = min(_WIDEST, max(_NARROWEST, shutil.get_terminal_size((width, 24)).columns))
        self._out = _console(self._stdout, wants_color(color, self._stdout, environ), width)
        self._err = _console(self._stderr, wants_color(color, self._stderr, environ), None)
        wanted = not environ.get("CI") if progress is None else progress  # some CI has terminals, and keeps their log
        self.live = wanted and _is_terminal(self._stderr, environ)

    def observer(self) -> Observer:
        """A watcher for a run, as this terminal can show it."""
        return LiveObserver(self._err) if self.live else PlainObserver(self._stderr)

    def show(self, result: RenderableType) -> None:
        """Print a result to stdout."""
        self._stdout.write(_rendered(self._out, result))
        self._stdout.flush()

    def message(self, text: str) -> None:
        """Print one message to stderr."""
        print(text, file=self._stderr, flush=True)


def plain_text(result: RenderableType, width: int = 100) -> str:
    """A result as it is printed without colours."""
    return _rendered(_console(sys.stdout, False, width), result)


def wants_color(color: Color, stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether to colour a stream. NO_COLOR wins over FORCE_COLOR, as in Python itself; both count when not empty."""
    if color != "auto":
        return color == "always"
    return not environ.get("NO_COLOR") and (bool(environ.get("FORCE_COLOR")) or _is_terminal(stream, environ))


def _is_terminal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    return stream.isatty() and environ.get("TERM") != "dumb"


def _rendered(console: Console, result: RenderableType) -> str:
    """What a console would print, without spaces at the ends of lines."""
    with console.capture() as captured:
        console.print(result, crop=False)
    return re.sub(r" +(?=\n|$)", "", captured.get())


def _console(stream: TextIO, color: bool, width: int | None) -> Console:
    return Console(
        file=stream,
        width=width,
        force_terminal=color or None,
        color_system="standard" if color else None,
        no_color=not color,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
