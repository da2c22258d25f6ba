"""One server log read against the table of signatures: which match, and in which phase the server was. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

from gpurun.samples import Phase
from gpurun.serverlog import ServerLog
from gpurun.signatures import Matcher, Signature, frame_patterns, harmless, markers, matchers

ORDER: tuple[Phase, ...] = get_args(Phase)
# A message and its wrapped continuation; longer than any message of a signature.
_WINDOW = 700
# A needle that is found this often without a match (a word of every request, say) is not looked for any further.
_TRIES = 2000
_HARD_WRAP_LIMIT = 256 * 1024
_TELLING = re.compile(r"(?i)error|exception|fatal|fail|cannot|unable|abort|killed|denied|refused|timed? ?out|not found")


@dataclass(frozen=True)
class Hit:
    """A match: where it stands (line from 0), what the pattern's groups found, and whether its logger called it a
    warning or less."""

    line: int
    signature: Signature
    found: dict[str, str | None]
    text: str
    quiet: bool


class Reading:
    """One log, read once. `ready` is the last line (from 0) that says that the server is ready, or None."""

    def __init__(self, log: ServerLog, engine: str | None, phase: Phase | None) -> None:
        self.log = log
        self.engine = engine or _engine_of(log.raw)
        self.given_phase = phase
        ready = markers().ready
        texts = ready.get(self.engine or "") or ready["vllm"] + ready["llamacpp"] + ready["sglang"]
        last = max(log.raw.rfind(text) for text in texts)
        self.ready = log.raw.count("\n", 0, last) if last >= 0 else None

    @cached_property
    def begun(self) -> dict[Phase, int]:
        """The first line of each phase that the log names."""
        first = {
            phase: min((at for text in texts if (at := self.log.raw.find(text)) >= 0), default=-1)
            for phase, texts in markers().phases.items()
        }
        lines = {phase: self.log.raw.count("\n", 0, at) for phase, at in first.items() if at >= 0}
        if self.ready is not None:
            lines["serving"] = self.ready
        elif self.engine == "sglang":  # requests before the ready line are SGLang's own warm-up
            lines.pop("serving", None)
        return lines

    def marked(self, line: int) -> Phase | None:
        """The phase by the log's own words; "start" before the first that it names; None if it names none."""
        past = [phase for phase, at in self.begun.items() if at <= line]
        if past:
            return max(past, key=ORDER.index)
        return "start" if self.begun.keys() - {"serving"} else None

    def phase(self, hit: Hit) -> Phase:
        """Where the server was when this happened."""
        if hit.signature.phase:
            return hit.signature.phase
        marked = self.marked(hit.line)
        if framed := self.framed(hit.line):
            return "warmup" if framed == "serving" and marked == "warmup" else framed
        pools = "private pools" in hit.text and "apture" not in hit.text
        return marked or self.given_phase or ("serving" if pools else None) or hit.signature.usual or "start"

    def framed(self, line: int) -> Phase | None:
        """The phase by the stack."""
        frames = self.log.frames(line)
        patterns = frame_patterns()
        for first in ("serving", "graphs"):
            if any(patterns[first].search(frame) for frame in frames):
                return first
        for frame in reversed(frames):
            for phase, pattern in patterns.items():
                if pattern.search(frame):
                    return phase
        near = " ".join(self.log.lines[max(0, line - 2) : line + 1])
        return "graphs" if "cuda_graph" in near and self.marked(line) in (None, "graphs") else None

    @cached_property
    def hits(self) -> list[Hit]:
        """Every signature's first match since the server was last ready, by line."""
        after = self.log.starts[self.ready] if self.ready is not None else 0
        found: dict[tuple[str, bool], Hit] = {}

        def keep(hit: Hit) -> None:
            key = (hit.signature.id, hit.quiet)
            if key not in found or hit.line < found[key].line:
                found[key] = hit

        for matcher in matchers():
            for hit in self._search(matcher, after):
                keep(hit)
                if not hit.quiet:
                    break
        if not any(hit.signature.rank == "root" for hit in found.values()) and len(self.log.text) < _HARD_WRAP_LIMIT:
            for hit in self._hard_wrapped(after):
                keep(hit)
        rank = {matcher.signature.id: index for index, matcher in reversed(list(enumerate(matchers())))}
        return sorted(found.values(), key=lambda hit: (hit.line, rank[hit.signature.id]))

    def _search(self, matcher: Matcher, after: int) -> Iterator[Hit]:
        text, flat, at = self.log.text, self.log.flat, after
        for _ in range(_TRIES):
            at = flat.find(matcher.needle, at)
            if at < 0:
                return
            line = self.log.line_at(at)
            begin = self.log.starts[max(0, line - 2)]
            for match in matcher.regex.finditer(text, begin, at + len(matcher.needle) + _WINDOW):
                if match.start() <= at < match.end():
                    if hit := self._accept(matcher, match, self.log.line_at(match.start())):
                        yield hit
                    break
            at += len(matcher.needle)

    def _hard_wrapped(self, after: int) -> Iterator[Hit]:
        """Matches in messages that a terminal broke in the middle of a word: the log read without its line feeds."""
        joined = self.log.text.replace("\n", "")
        starts = [start - line for line, start in enumerate(self.log.starts)]
        for matcher in matchers():
            at = joined.find(matcher.needle)
            if at < 0 or matcher.signature.rank == "wrapper":
                continue
            for match in matcher.regex.finditer(joined, max(0, at - 300), at + len(matcher.needle) + 300):
                if match.start() <= at < match.end():
                    line = bisect_right(starts, match.start()) - 1
                    if self.log.starts[line] >= after and (hit := self._accept(matcher, match, line)):
                        yield hit
                    break

    def _accept(self, matcher: Matcher, match: re.Match[str], line: int) -> Hit | None:
        signature, lines = matcher.signature, self.log.lines
        if harmless().search(lines[line]) or (signature.unless and re.search(signature.unless, self.log.text)):
            return None
        if signature.proof == "exception":
            line = self.log.exception_after(line)
        elif self.log.is_source(line):
            return None
        if signature.exception and not self.log.is_error(line):
            return None
        if signature.frames:
            context = [*self.log.frames(line), *lines[max(0, line - 3) : line + 12]]
            if not re.search(signature.frames, "\n".join(context)):
                return None
        return Hit(line, signature, match.groupdict(), " ".join(lines[line : line + 6]), self.log.quiet(line))

    def survived(self, hit: Hit) -> bool:
        """Whether the server went on through two more phases and something else stopped it there."""
        phase = hit.signature.phase or self.framed(hit.line) or self.marked(hit.line)
        later = [
            at
            for name, at in self.begun.items()
            if phase and ORDER.index(name) >= ORDER.index(phase) + 2 and at > hit.line
        ]
        return bool(later) and any(
            other.line > min(later) and not other.quiet for other in self.hits if other is not hit
        )

    @cached_property
    def stopped(self) -> int | None:
        """The line at which a ready server began an orderly end."""
        if self.ready is None:
            return None
        lines = range(self.ready + 1, len(self.log.lines))
        return next((at for at in lines if any(text in self.log.lines[at] for text in markers().stopping)), None)

    @cached_property
    def exception(self) -> int | None:
        """The line of the first exception that no signature knows and that the server did not survive."""
        wrappers = [one for one in matchers() if one.signature.rank in ("wrapper", "echo")]
        ignored = False
        for line in range((self.ready or -1) + 1, len(self.log.lines)):
            text = self.log.lines[line]
            if text.startswith("Exception ignored in") or "Task exception was never retrieved" in text:
                ignored = True
            elif name := self.log.exception(line):
                known = (
                    name in markers().not_causes
                    or any(one.needle in text for one in wrappers)
                    or harmless().search(text)
                )
                survived = any(at > line for phase, at in self.begun.items() if phase != "serving")
                if not (ignored or known or survived or self.log.quiet(line)):
                    return line
                ignored = False
        return None

    @property
    def last(self) -> int:
        """The last line that says anything."""
        return next((line for line in range(len(self.log.lines) - 1, -1, -1) if self.log.lines[line]), 0)

    def telling(self, count: int = 5) -> tuple[str, ...]:
        """The most telling lines of a log that nothing explains: the last that speak of trouble, else the last."""
        log, found = self.log, list[int]()
        for line in range(len(log.lines) - 1, -1, -1):
            if _TELLING.search(log.searched[line]) and not log.quiet(line) and not log.is_source(line):
                found.append(line)
            if len(found) == count:
                break
        last = range(max(0, self.last - count + 1), self.last + 1)
        return tuple(log.shown(line) for line in (reversed(found) if found else last) if log.lines[line])


def _engine_of(raw: str) -> str | None:
    for engine, texts in markers().engines.items():
        if any(text in raw for text in texts):
            return engine
    return None
