"""What can go wrong, as objects that say what happened, where, and what to do next.

GpurunError              anything a user can cause or cure; carries the exit code
├── ConfigError          the campaign or the command line is wrong; all complaints at once; nothing was touched (2)
├── NoSuchRunError       what was named is not one run; nothing was touched (2)
├── HostError            a host failed or cannot be reached (3)
├── NotReadyError        this machine lacks something (4)
└── InterruptedRunError  stopped on request, after cleaning up (130 or 143)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

# What data that nobody has checked does to whoever works with it.
ODD_DATA = (
    *(ValueError, TypeError, LookupError, AttributeError),
    *(ArithmeticError, RecursionError, MemoryError),
)


_NOT_SHOWN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # tabs, and what a terminal would act upon
_WIDEST, _BEFORE = 160, 100  # characters of a source line, and those before what is wrong
_MOST_SAID = 600


class ExitCode(IntEnum):
    """The exit codes of the command line (a contract, see docs/reference)."""

    DONE = 0
    CASE_FAILED = 1
    CONFIG = 2
    HOST_FAILED = 3
    NOT_READY = 4
    NOTHING_MEASURED = 5
    REGRESSION = 6
    BUG = 70
    INTERRUPTED = 130
    TERMINATED = 143


@dataclass(frozen=True)
class Mark:
    """A place in a file, counted from 1; `text` is that source line, `length` what the caret underlines of it."""

    file: str
    line: int
    column: int
    length: int = 1
    text: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def excerpt(self) -> tuple[str, int]:
        """The source line as a screen can show it, of a long one the part around the place, and where in it that is."""
        text = _NOT_SHOWN.sub(" ", self.text)
        begin = max(0, self.column - 1 - _BEFORE) if len(text) > _WIDEST else 0
        end = begin + _WIDEST
        dots = ["…" if cut else "" for cut in (begin > 0, end < len(text))]
        return dots[0] + text[begin:end] + dots[1], self.column - 1 - begin + len(dots[0])


@dataclass(frozen=True)
class Problem:
    """One complaint about a file or an option.

    `allowed` lists the names that would have been accepted there; `nearest` is the one most likely meant.
    """

    message: str
    mark: Mark | None = None
    allowed: tuple[str, ...] = ()
    nearest: str | None = None
    hint: str | None = None

    @property
    def where(self) -> str | None:
        """Its place, as `file:line:column`."""
        return None if self.mark is None else str(self.mark)

    def render(self) -> str:
        """Plain text, several lines, without a trailing newline; understandable without colour."""
        lines = [f"error: {_brief(self.message)}"]
        if self.mark is not None:
            gutter = " " * len(str(self.mark.line))
            text, caret = self.mark.excerpt()
            note = f" expected one of: {', '.join(self.allowed)}" if self.allowed else ""
            lines += [
                f"{gutter}--> {self.mark}",
                f"{gutter} |",
                f"{self.mark.line} | {text}",
                f"{gutter} | {' ' * caret}{'^' * max(1, min(self.mark.length, len(text) - caret))}{note}",
            ]
        elif self.allowed:
            lines.append(f"  expected one of: {', '.join(self.allowed)}")
        if self.nearest is not None:
            lines.append(f"hint: did you mean `{self.nearest}`?")
        if self.hint is not None:
            lines.append(f"hint: {_brief(self.hint)}")
        return "\n".join(lines)


def _brief(text: str) -> str:
    """Without the middle of a value that nobody would read."""
    return text if len(text) < _MOST_SAID else f"{text[:_WIDEST]} … {text[-_WIDEST:]}"


class GpurunError(Exception):
    """Something that a user can cause or cure. `where` is a path, a host or a log line; `hint` is the next step.

    `result` is the result document of a run that ended with this error, as far as it came.
    """

    exit_code = ExitCode.CASE_FAILED

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        hint: str | None = None,
        result: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.where, self.hint, self.result = message, where, hint, result

    def render(self) -> str:
        """Plain text for stderr: what, where, what next."""
        lines = [f"error: {self.message}"]
        if self.where is not None:
            lines.append(f"  --> {self.where}")
        if self.hint is not None:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)

    def document(self) -> dict[str, object]:
        """The same for `--json`."""
        return {"code": int(self.exit_code), "message": self.message, "hint": self.hint, "where": self.where}


class ConfigError(GpurunError):
    """The campaign file or an option is wrong. Raised before anything is touched, with every problem found."""

    exit_code = ExitCode.CONFIG

    def __init__(self, problems: Sequence[Problem] | str, *, hint: str | None = None) -> None:
        if isinstance(problems, str):
            problems = [Problem(problems, hint=hint)]
        self.problems = list(problems)
        first = self.problems[0]
        super().__init__(first.message, where=first.where, hint=first.hint)

    def render(self) -> str:
        """Every problem, in file order, with an empty line between them."""
        return "\n\n".join(problem.render() for problem in self.problems)

    def document(self) -> dict[str, object]:
        """The first problem in the common form, and all of them as a list."""
        told = [
            {key: getattr(each, key) for key in ("message", "allowed", "nearest", "hint")} for each in self.problems
        ]
        where = [str(each.mark) if each.mark else None for each in self.problems]
        return {**super().document(), "problems": [{**one, "where": at} for one, at in zip(told, where, strict=True)]}


class NoSuchRunError(GpurunError):
    """A reference to a run is none, or could be several: a mistake in the call, nothing was touched."""

    exit_code = ExitCode.CONFIG


class HostError(GpurunError):
    """A host failed or cannot be reached."""

    exit_code = ExitCode.HOST_FAILED


class NotReadyError(GpurunError):
    """This machine lacks something that gpurun needs."""

    exit_code = ExitCode.NOT_READY


class InterruptedRunError(GpurunError):
    """Stopped on request (Ctrl-C: 130, SIGTERM: 143)."""

    exit_code = ExitCode.INTERRUPTED

    def __init__(self, message: str, *, terminated: bool = False, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        if terminated:
            self.exit_code = ExitCode.TERMINATED
