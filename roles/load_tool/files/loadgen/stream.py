"""From the body of a streamed answer to what it says: content events with their times, usage, finish, errors. Pure."""

from __future__ import annotations

import json
from array import array
from typing import Any

_decode = json.JSONDecoder().decode


class Stream:
    """Reads server-sent events out of body fragments, however these are cut.

    `times` holds the arrival (ns) of each content event: one that carries text (`text`, `content`, `reasoning_content`
    or `reasoning`) or a piece of a tool call. An event with only a role, a finish reason or usage is none, so the first
    content event is the first token that a reader could see.
    """

    __slots__ = ("_data", "_other", "_rest", "done", "error", "finish", "times", "timings", "usage")

    def __init__(self) -> None:
        self.times = array("q")
        self.usage: dict[str, Any] | None = None
        self.timings: dict[str, Any] | None = None
        self.finish: str | None = None
        self.error: str | None = None
        self.done = False  # [DONE] was seen
        self._rest = b""  # a line that is not complete yet
        self._data: list[bytes] = []  # the data lines of an event that is not complete yet
        self._other = b""  # the beginning of what was no event, for the error text

    def feed(self, at: int, fragment: bytes) -> None:
        """Take a fragment that arrived at `at` (ns)."""
        lines = (self._rest + fragment if self._rest else fragment).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[5:])
            elif line in (b"", b"\r"):
                if self._data:
                    self._event(at)
            elif line.startswith(b"error:"):  # older llama.cpp servers
                self._data.append(b'{"error":' + line[6:] + b"}")
            elif not line.startswith(b":") and len(self._other) < 2000:
                self._other += line + b"\n"

    def end(self, at: int, status: int, broken: str | None = None) -> None:
        """The answer has ended (`broken`: why it did not end well). Afterwards an `error` of None means success."""
        self.feed(at, b"\n\n")  # an event that only lacks its empty line is still one
        said = self._other[:2000].decode("utf-8", "replace").strip()
        if status not in (0, 200):
            self.error = f"HTTP {status}: {said or self.error or 'no text'}"
        elif self.error is None and broken:
            self.error = broken
        elif self.error is None and not self.done and self.finish is None:
            self.error = "the stream ended without [DONE] and without a finish reason" + (f": {said}" if said else "")

    def _event(self, at: int) -> None:
        text = b"\n".join(self._data).strip().decode("utf-8", "replace")
        self._data.clear()
        if text == "[DONE]":
            self.done = True
            return
        try:
            event = _decode(text)
            if event.get("error") or event.get("object") == "error":
                self._fail(event.get("error") or event)
            self.usage = event.get("usage") or self.usage
            self.timings = event.get("timings") or self.timings
            for choice in event.get("choices") or ():
                self.finish = choice.get("finish_reason") or self.finish
                part = choice.get("delta") or choice
                if (
                    part.get("content")
                    or part.get("text")
                    or part.get("reasoning_content")
                    or part.get("reasoning")
                    or part.get("tool_calls")
                ):
                    self.times.append(at)
                break
        except (ValueError, AttributeError, TypeError, RecursionError):
            self._fail(f"an event that is not understood: {text[:500]}")

    def _fail(self, what: Any) -> None:
        if isinstance(what, dict):
            what = what.get("message") or json.dumps(what)
        self.error = self.error or f"the server reported in the stream: {str(what)[:2000]}"
