"""A server's log as text to search: prefixes, colours and control characters gone, line numbers kept.

Pure. Line indices count from 0 here; people count from 1.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate

from gpurun.data import table

_LEVEL = re.compile(
    r"\b(?:(?P<low>DEBUG|INFO|WARN|WARNING)|ERROR|CRITICAL)\b|\[?\b(?P<letter>[IWVEF])(?:\]|\d{3,4}\s)|\s(?P<end>[IWDNE])\s*$"
)
_INFORMATION = re.compile(r"\b(?:INFO|DEBUG)\b|\[I\]|\sI\s+$|^I\d{4}\s")
# Digits of short lines count: `exit code: -3` is not `exit code: -9`.
_SHORT = 100
_ERROR = re.compile(r"\b(?:ERROR|CRITICAL|FATAL|[Ee]rror|fatal)\b|\[E\]|\sE\s|what\(\):")
_NO_DIGITS = dict.fromkeys(range(0x30, 0x3A))
_ANSI = re.compile(r"(?:\x1b|\ufffd|\u241b)?\[[0-9;]{1,12}m|\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-B0-2]|\x1b\][^\x07]*\x07")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f\u200b-\u200f\u2028-\u202e]")
_FRAME = re.compile(r'File "[^"\n]{1,400}", line \d+')
_EXCEPTION = re.compile(
    r"(?:[A-Za-z_][\w]*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Warning|Timeout)\b(?=[:(]|\s*$)"
)
_SOURCE_LINE = re.compile(r"""(?:raise\s|assert\s|return\s|logger\.|f?["'(]|\^+\s*$|~+)""")
# A traceback of a deep model is about sixty frames of three lines each.
_TRACEBACK_LINES = 200


def mask(text: str, limit: int = 300) -> str:
    """One line fit to be shown: control characters and secrets gone, at most `limit` characters."""
    clean = _lines("secrets").sub("***", _CONTROL.sub("", _ANSI.sub("", text)).strip())
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


@dataclass(frozen=True)
class ServerLog:
    """`raw` is the log as written. Everything else is derived, and offsets refer to `text`."""

    raw: str

    @cached_property
    def originals(self) -> list[str]:
        """The lines as written; a line ends at a line feed, so that numbers agree with editors and `sed -n`."""
        return self.raw.split("\n")

    @cached_property
    def lines(self) -> list[str]:
        """The messages: lines without prefixes, colours, carriage returns and outer white space."""
        lines = self.originals
        if any(mark in self.raw for mark in ("\x1b", "[0;", "[1;", "\r", "\x00")):
            lines = [_CONTROL.sub(" ", _ANSI.sub("", line)) for line in lines]
        return [line[_prefix_end(line) :].strip() for line in lines]

    @cached_property
    def searched(self) -> list[str]:
        """`lines` for the search of causes: emptied of what loggers call information, and of repeated lines (long ones
        also if only their digits differ). A server that runs for days writes little else."""
        seen: set[str] = set()
        kept = []
        for original, line in zip(self.originals, self.lines, strict=True):
            prefix = original[: len(original) - len(line)] if line else ""
            same = line if len(line) < _SHORT else line.translate(_NO_DIGITS)
            shape = prefix[-40:].translate(_NO_DIGITS) + same
            kept.append("" if shape in seen or _INFORMATION.search(prefix) else line)
            seen.add(shape)
        return kept

    @cached_property
    def text(self) -> str:
        """`searched` in one text."""
        return "\n".join(self.searched)

    @cached_property
    def flat(self) -> str:
        """The same with blanks for line feeds, to find text where a terminal broke a line; the offsets are the same."""
        return self.text.replace("\n", " ")

    @cached_property
    def starts(self) -> list[int]:
        """Where each line begins in `text`."""
        return [0, *accumulate(len(line) + 1 for line in self.searched)][:-1]

    def line_at(self, offset: int) -> int:
        """The line that holds this offset."""
        return bisect_right(self.starts, offset) - 1

    def quiet(self, line: int) -> bool:
        """Whether the logger itself called this line information or a warning."""
        levels = list(_LEVEL.finditer(self._prefix(line)))
        if not levels:
            return False
        return bool(levels[-1]["low"]) or (levels[-1]["letter"] or levels[-1]["end"] or "E") not in "EF"

    def _prefix(self, line: int) -> str:
        plain = _ANSI.sub("", self.originals[line])
        return plain[: _prefix_end(plain)]

    def is_source(self, line: int) -> bool:
        """Whether this line is source code quoted by a traceback, not something that happened."""
        text, before = self.lines[line], self.lines[line - 1] if line else ""
        quoted = _SOURCE_LINE.match(text) or _FRAME.match(text) or _FRAME.search(before)
        return quoted is not None and not _EXCEPTION.match(text)

    def exception(self, line: int) -> str | None:
        """The exception that this line reports as the end of a traceback, such as `KeyError`."""
        match = _EXCEPTION.match(self.lines[line])
        return match[0].rpartition(".")[2] if match and not match[0].endswith("Warning") else None

    def is_error(self, line: int) -> bool:
        """Whether this line, or one of the two before it, reports an exception or is called an error."""
        return any(
            _EXCEPTION.search(self.lines[at]) or _ERROR.search(f"{self._prefix(at)} {self.lines[at][:24]}")
            for at in range(max(0, line - 2), line + 1)
        )

    def exception_after(self, line: int) -> int:
        """The line of the exception that ends the traceback in which `line` stands; `line` itself if there is none."""
        return next((at for at in range(line, min(line + 12, len(self.lines))) if self.exception(at)), line)

    def frames(self, line: int) -> list[str]:
        """The stack frames that belong to `line`, outermost first: those before it, or, where a logger wrote the
        message first, those after it."""
        found: list[str] = []
        for at in range(line - 1, max(-1, line - _TRACEBACK_LINES), -1):
            if _FRAME.search(self.lines[at]):
                found.insert(0, self.lines[at])
            elif "Traceback (most recent" in self.lines[at] or (not found and line - at > 8):
                break
        if found:
            return found
        for at in range(line + 1, min(len(self.lines), line + _TRACEBACK_LINES)):
            if _FRAME.search(self.lines[at]):
                found.append(self.lines[at])
            elif self.exception(at) or (not found and at - line > 12):
                break
        return found

    def shown(self, line: int) -> str:
        """The line as a person may see it."""
        return mask(self.originals[line])


@cache
def _lines(name: str) -> re.Pattern[str]:
    """A list of data/log_lines.yml as one pattern."""
    return re.compile("|".join(table("log_lines")[name]))


def _prefix_end(line: str) -> int:
    end, prefix = 0, _lines("prefixes")
    while (match := prefix.match(line, end)) and match.end() > end:
        end = match.end()
    return end
