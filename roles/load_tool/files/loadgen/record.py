"""What the client writes: RAW (`gpurun.load/1`) and the progress file, each complete or not at all."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from loadgen.window import Window
from loadgen.wire import Exchange


def write_atomically(path: str, parts: Any) -> None:
    """Write the texts `parts` to `path`, by way of a file beside it that is then renamed. Raises OSError."""
    beside = Path(f"{path}.{os.getpid()}.tmp")
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.writelines(parts)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


class Progress:
    """Rewrites the progress file about once a second. Tokens of answers still under way are counted by events."""

    def __init__(self, path: str | None, warming: bool = False) -> None:
        self._path, self._warming = path, warming
        self._next = 0.0

    def __call__(self, window: Window, last: bool = False) -> None:
        now = time.monotonic()
        if self._path is None or (now < self._next and not last):
            return
        self._next = now + 0.95
        failed = sum(1 for exchange in window.ended if exchange.stream.error is not None)
        tokens = sum(_tokens(exchange)[1] for exchange in window.ended)
        tokens += sum(len(exchange.stream.times) for exchange in window.active)
        document = {
            "warming": self._warming,
            "done": len(window.ended),
            "total": window.total,
            "failed": failed,
            "failing": bool(window.ended) and window.ended[-1].stream.error is not None,
            "output_tokens": tokens,
            "elapsed_s": round(now - window.start / 1e9, 3),
        }
        try:
            write_atomically(self._path, [json.dumps(document)])
        except OSError:
            self._path = None  # a screen without a progress line is no reason to lose a measurement


def write_raw(path: str, head: dict[str, Any], window: Window | None) -> None:
    """Write RAW: `head` and a record for every request that has ended, in the order of sending. Raises OSError."""

    def parts() -> Any:
        yield json.dumps(head)[:-1] + ', "requests": ['
        if window is not None:
            after = window.stop - window.start if head["window"].get("fixed") else None
            for number, exchange in enumerate(sorted(window.ended, key=lambda each: each.index)):
                yield (",\n" if number else "\n") + json.dumps(
                    _record(exchange, window.start, after), separators=(",", ":")
                )
        yield "\n]}\n"

    write_atomically(path, parts())


def _record(exchange: Exchange, start: int, window_ns: int | None) -> dict[str, Any]:
    stream = exchange.stream
    prompt_tokens, output_tokens, usage = _tokens(exchange)
    chunks = [round((at - start) / 1e9, 6) for at in stream.times]
    record = {
        "intended": round((exchange.intended - start) / 1e9, 6),
        "sent": round((exchange.sent - start) / 1e9, 6),
        "first": chunks[0] if chunks else None,
        "last": chunks[-1] if chunks else None,
        "end": round((exchange.end - start) / 1e9, 6),
        "ok": stream.error is None,
        "error": stream.error,
        "status": exchange.status or None,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "usage": usage,
        "chunks": chunks,
        "finish": stream.finish,
        "timings": stream.timings,
    }
    if window_ns is not None and exchange.end - start > window_ns:
        record["late"] = True
    return record


def output_tokens(exchange: Exchange) -> int:
    """Output tokens of an answer, as it is recorded."""
    return _tokens(exchange)[1]


def _tokens(exchange: Exchange) -> tuple[int | None, int, bool]:
    """Prompt and output tokens by the server's count; without its usage: none, and the number of content events."""
    usage = exchange.stream.usage
    if isinstance(usage, dict) and _is_count(usage.get("completion_tokens")):
        prompt_tokens = usage.get("prompt_tokens")
        return prompt_tokens if _is_count(prompt_tokens) else None, usage["completion_tokens"], True
    return None, len(exchange.stream.times), False


def _is_count(value: object) -> bool:
    """Whether a server's number can be one of tokens: no text, truth value, negative or absurd number is."""
    return type(value) is int and 0 <= value < 1 << 31
