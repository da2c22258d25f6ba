"""The command line: python -m loadgen [--check] SPEC.json [RAW.json]

Exit codes: 0 done; 1 nothing measured (RAW says why); 2 the spec or the call is wrong; 143 and 130 ended by SIGTERM or
SIGINT, after RAW was written with "interrupted": true.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from loadgen import __version__
from loadgen.prompts import Prompts, server_counter
from loadgen.record import Progress, output_tokens, write_raw
from loadgen.spec import Spec, SpecError, read_spec
from loadgen.window import Pool, Window, arrivals
from loadgen.wire import Requests, resolve

_SETTLE_S = 0.02  # for the server to accept new connections, so that it is not at that when the first request comes
_DONE, _NOTHING_MEASURED, _BAD_SPEC = 0, 1, 2


class _Interrupted(BaseException):
    """A signal came while there was no window to stop."""


class _Signals:
    """SIGTERM and SIGINT: stop the window that runs, or raise _Interrupted where none does."""

    def __init__(self) -> None:
        self.number = 0
        self.writing = False  # a signal changes nothing any more: what was measured is being written
        self.window: Window | None = None
        self.wake_fd, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: object) -> None:
        self.number = self.number or number
        if self.window is not None:
            self.window.stopping = True
        elif not self.writing:
            raise _Interrupted

    def run(self, window: Window) -> None:
        """Run the window; a signal ends it early."""
        self.window = window
        if self.number:
            window.stopping = True
        try:
            window.run()
        finally:
            self.window = None


def main(argv: list[str]) -> int:
    check = "--check" in argv
    names = [arg for arg in argv if arg != "--check"]
    if len(names) != (1 if check else 2) or names[0].startswith("-"):
        print("usage: python -m loadgen SPEC.json RAW.json | python -m loadgen --check SPEC.json", file=sys.stderr)
        return _BAD_SPEC
    try:
        spec = read_spec(names[0])
        if check:
            next(Prompts(spec).series())
            return _DONE
        return _Measurement(spec, names[1]).run()
    except SpecError as error:
        print(f"loadgen: {names[0]}: {error}", file=sys.stderr)
        return _BAD_SPEC


class _Measurement:
    def __init__(self, spec: Spec, raw_path: str) -> None:
        self.spec = spec
        self.raw_path = raw_path
        self.window: Window | None = None
        self.signals = _Signals()
        self.head: dict[str, Any] = {
            "schema": "gpurun.load/1",
            "tool": {"name": "builtin", "version": __version__},
            "spec": spec.source,
            "window": {"start_unix": None, "duration_s": 0.0, "fixed": spec.duration_s is not None},
            "client": {"cpu_s": 0.0, "startup_s": None, "max_lag_s": 0.0, "max_read_lag_s": 0.0},
            "warmup": {"requests": 0, "failed": 0, "duration_s": 0.0},
            "lengths": None,
            "interrupted": False,
            "aborted": None,
        }

    def run(self) -> int:
        """Measure and write RAW; returns the exit code. Raises SpecError before anything is sent."""
        try:
            with suppress(_Interrupted):
                self._measure()
        except OSError as error:
            self.head["aborted"] = f"no connection to {self.spec.host}:{self.spec.port}: {error}"
        self.signals.writing = True
        window = self.window
        if window is not None:
            window.decode()
            self.head["aborted"] = self.head["aborted"] or window.aborted
        self.head["interrupted"] = bool(self.signals.number)
        write_raw(self.raw_path, self.head, window)
        if self.signals.number:
            return 128 + self.signals.number
        ended = [] if window is None else window.ended
        measured = any(exchange.stream.error is None for exchange in ended)
        reason = self.head["aborted"]
        if ended and not measured:
            reason = reason or f"all {len(ended)} requests failed; the first: {ended[0].stream.error}"
        if reason:
            print(f"loadgen: {reason}", file=sys.stderr)
        return _DONE if measured else _NOTHING_MEASURED

    def _measure(self) -> None:
        spec = self.spec
        pool = Pool(*resolve(spec))
        pool.epoll.register(self.signals.wake_fd, select.EPOLLIN)
        prompts = self._prompts()
        requests = Requests(spec)

        def bytes_of(series: Iterator[tuple[str, int]]) -> Iterator[bytes]:
            return (requests.build(prompt, tokens) for prompt, tokens in series)

        in_flight = spec.concurrency or spec.max_concurrency
        timeout_ns = int(spec.timeout_s * 1e9)
        _sharpen_timers()
        self.head["client"]["startup_s"] = round(_process_age_s(), 3)
        if spec.warmup:
            warmup = Window(
                pool,
                bytes_of(prompts.series(warmup=spec.warmup)),
                total=spec.warmup,
                concurrency=min(spec.warmup, in_flight or spec.warmup),
                timeout_ns=timeout_ns,
                wake_fd=self.signals.wake_fd,
                on_tick=Progress(spec.progress, warming=True),
            )
            self.signals.run(warmup)
            warmup.decode()
            self.head["warmup"] = {
                "requests": len(warmup.ended),
                "failed": sum(1 for exchange in warmup.ended if exchange.stream.error is not None),
                "duration_s": round((warmup.stop - warmup.start) / 1e9, 6),
                "output_tokens": sum(output_tokens(exchange) for exchange in warmup.ended),
            }
            if self.signals.number:
                return
        progress = Progress(spec.progress)
        self.window = Window(
            pool,
            bytes_of(prompts.series()),
            total=spec.requests,
            duration_ns=None if spec.duration_s is None else int(spec.duration_s * 1e9),
            concurrency=in_flight,
            arrivals=arrivals(spec.request_rate, spec.arrival, spec.data.seed) if spec.request_rate else None,
            timeout_ns=timeout_ns,
            wake_fd=self.signals.wake_fd,
            on_tick=progress,
        )
        if spec.concurrency:
            pool.fill(min(spec.concurrency, spec.requests or spec.concurrency))
            time.sleep(_SETTLE_S)
        gc.collect()
        gc.freeze()
        gc.disable()  # a collection in mid-window would stop the loop for milliseconds; nothing here makes cycles
        cpu, start_unix = time.process_time(), time.time()
        self.signals.run(self.window)
        client = self.head["client"]
        client["cpu_s"] = round(time.process_time() - cpu, 6)
        client["retries"] = self.window.retries
        client["max_lag_s"] = round(self.window.max_lag_ns / 1e9, 6)
        client["max_read_lag_s"] = round(pool.longest_late_ns() / 1e9, 6)
        self.head["window"]["start_unix"] = round(start_unix, 6)
        self.head["window"]["duration_s"] = round((self.window.stop - self.window.start) / 1e9, 6)
        self.window.decode()
        progress(self.window, last=True)

    def _prompts(self) -> Prompts:
        spec = self.spec
        if spec.tokenize and spec.data.kind != "file":
            try:
                prompts = Prompts(spec, server_counter(spec))
                self.head["lengths"] = prompts.lengths
                return prompts
            except OSError as error:
                print(f"loadgen: prompts are measured in words: {error}", file=sys.stderr)
        prompts = Prompts(spec)
        self.head["lengths"] = prompts.lengths
        return prompts


def _process_age_s() -> float:
    """Seconds since this process was started, to the kernel's 10 ms."""
    started = int(Path("/proc/self/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")


def _sharpen_timers() -> None:
    """Let waits end within a microsecond of their time, not 50: open loops send when they say. Best effort."""
    with suppress(OSError):
        Path("/proc/self/timerslack_ns").write_text("1000", encoding="ascii")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
