"""The event loop: sends requests when they are due and takes their answers. Used for the warm-up and for the window."""

from __future__ import annotations

import os
import random
import select
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Callable

from loadgen.stream import Stream
from loadgen.wire import Connection, Exchange

_monotonic = time.monotonic_ns
_TICK_NS = 250_000_000  # how often deadlines and progress are looked at
_SLICE = 32  # fragments decoded at a time when nothing is ready: about 0.2 ms
_BACKLOG = 1 << 17  # more undecoded fragments than this are decoded at once, to bound memory (some 60 MB)
_RETRY_COSTS_NS = 10_000_000  # what a connection that is closed between two requests never takes


class Pool:
    """Connections to one address and the epoll that watches them; kept from the warm-up to the window."""

    def __init__(self, family: int, address: Any) -> None:
        self._family, self._address = family, address
        self.epoll = select.epoll()
        self.open: dict[int, Connection] = {}
        self.idle: list[Connection] = []
        self.backlog: deque[tuple[Exchange, int, bytes | None]] = deque()
        self.late_ns = 0
        self.keeps = True  # whether the server keeps connections open, as it promises

    def connect(self) -> Connection:
        connection = Connection(self._family, self._address, self.backlog.append)
        self.open[connection.fd] = connection
        self.epoll.register(connection.fd, select.EPOLLIN)
        return connection

    def fill(self, count: int) -> None:
        """Open connections until `count` are idle."""
        self.idle.extend(self.connect() for _ in range(count - len(self.idle)))

    def drop(self, connection: Connection) -> None:
        self.late_ns = max(self.late_ns, connection.late_ns)
        if self.open.pop(connection.fd, None) is not None:
            self.epoll.unregister(connection.fd)
            connection.socket.close()
        if connection in self.idle:
            self.idle.remove(connection)

    def longest_late_ns(self) -> int:
        """The longest time that received bytes waited for this process, ns: what a clock read after it would add."""
        return max([self.late_ns, *(connection.late_ns for connection in self.open.values())])


class Window:
    """One series of requests: closed loop with `concurrency`, or open loop with `arrivals` (ns after the start).

    It ends when `total` requests have ended, or, with `duration_ns`, when the time is over and what was sent by then
    has ended. Set `stopping` (a signal handler does, and writes to `wake_fd`) to end at once.
    """

    def __init__(
        self,
        pool: Pool,
        requests: Iterator[bytes],
        *,
        total: int | None,
        duration_ns: int | None = None,
        concurrency: int | None = None,
        arrivals: Iterator[int] | None = None,
        timeout_ns: int,
        wake_fd: int = -1,
        on_tick: Callable[[Window], None] | None = None,
    ) -> None:
        self.pool = pool
        self.total = total
        self.stopping = False
        self.aborted: str | None = None
        self.ended: list[Exchange] = []
        self.active: dict[Exchange, None] = {}  # in the order of sending
        self.start = 0
        self.stop = 0  # when the window was over
        self.max_lag_ns = 0
        self.retries = 0
        self._requests = requests
        self._duration = duration_ns
        self._limit = concurrency
        self._arrivals = arrivals
        self._timeout = timeout_ns
        self._wake_fd = wake_fd
        self._on_tick = on_tick
        self._sent = 0
        self._failures = 0  # in a row
        self._freed_at = 0  # when the last answer ended
        self._skew = 0
        self._most_failures = max(50, 2 * (concurrency or 0))
        self._vacant = 0  # places of a closed loop whose request failed and that were not given to another yet
        self._due: int | None = None  # the next intended start of an open loop

    def run(self) -> None:
        """Send and receive until the end. Answers' bodies may still lie in the pool's backlog: see `decode`."""
        self.start = self._freed_at = now = _monotonic()
        if self._arrivals is None:
            self._vacant = self._limit or 1
        else:
            self._due = self.start + next(self._arrivals)
        next_tick = now + _TICK_NS
        epoll, connections, backlog = self.pool.epoll, self.pool.open, self.pool.backlog
        while not self.stopping:
            now = _monotonic()
            if self._due is not None:
                self._send_due(now)
            elif self._arrivals is None and self._vacant:
                vacant, self._vacant = self._vacant, 0
                for _ in range(vacant):
                    self._next(_monotonic())
            if now >= next_tick:
                next_tick = now + _TICK_NS
                self._tick(now)
            if not self.active and self._over(now):
                break
            if len(backlog) > _BACKLOG:
                self.decode(4 * _SLICE)
            ready = epoll.poll(0) if backlog else self._wait(next_tick)
            if not ready:
                self.decode(_SLICE)
                continue
            self._skew = time.time_ns() - _monotonic()
            for fd, event in ready:
                connection = connections.get(fd)
                if connection is not None:
                    self._handle(connection, event)
                elif fd == self._wake_fd:
                    os.read(fd, 64)
        self.stop = max([self._freed_at, self.start + 1] if self._duration is None else [self.start + self._duration])
        if self.stopping:
            self.stop = min(self.stop, _monotonic())

    def decode(self, most: int | None = None) -> None:
        """Decode `most` fragments of the backlog, the oldest first; without, all."""
        backlog = self.pool.backlog
        for _ in range(len(backlog) if most is None else min(most, len(backlog))):
            exchange, at, fragment = backlog.popleft()
            if fragment is None:
                exchange.stream.end(at, exchange.status, exchange.broken)
            else:
                exchange.stream.feed(at, fragment)

    def _over(self, now: int) -> bool:
        """No more requests are to be sent."""
        if self.total is not None and self._sent >= self.total:
            return True
        return self.aborted is not None or (self._duration is not None and now - self.start >= self._duration)

    def _wait(self, next_tick: int) -> list[tuple[int, int]]:
        epoll = self.pool.epoll
        if self._due is None or (self._limit is not None and len(self.active) >= self._limit):
            return epoll.poll(max(0.0, (next_tick - _monotonic()) / 1e9))
        # epoll waits in whole milliseconds; select, on the epoll's own descriptor, in microseconds.
        wait = max(0, min(next_tick, self._due) - _monotonic()) / 1e9
        return epoll.poll(0) if select.select([epoll.fileno()], (), (), wait)[0] else []

    def _send_due(self, now: int) -> None:
        while self._due is not None and self._due <= now and (self._limit is None or len(self.active) < self._limit):
            if self._over(now):
                self._due = None
                return
            self._next(self._due)
            following = next(self._arrivals, None) if self._arrivals is not None else None
            self._due = None if following is None else self.start + following
            now = _monotonic()

    def _next(self, intended: int) -> None:
        """Send the next request, unless the window is over."""
        if self._over(_monotonic()):
            return
        exchange = Exchange(self._sent, intended, next(self._requests), Stream())
        self._sent += 1
        self._send(exchange, self.pool.idle.pop() if self.pool.idle else self.pool.connect())

    def _send(self, exchange: Exchange, connection: Connection) -> None:
        exchange.connection = connection
        connection.exchange = exchange
        connection.unsent = exchange.request
        self.active[exchange] = None
        if not exchange.retried:
            exchange.sent = now = _monotonic()
            could = exchange.intended
            if self._arrivals is None:
                exchange.intended = now  # a closed loop has no timetable: it is never late but only slow
            elif self._limit is not None:
                could = max(could, self._freed_at)
            self.max_lag_ns = max(self.max_lag_ns, now - could)
        try:
            if not connection.send():
                self.pool.epoll.modify(connection.fd, select.EPOLLIN | select.EPOLLOUT)
            # The kernel may have put the woken server on this very CPU, where it would wait until we sleep: some ms
            # when many requests go out at once (TTFT at 32 streams: 0.4 ms too high without this, 0.04 with it).
            os.sched_yield()
        except OSError as error:
            self._broke(connection, f"the request could not be sent: {error}")

    def _handle(self, connection: Connection, event: int) -> None:
        try:
            if event & select.EPOLLOUT and connection.send():
                self.pool.epoll.modify(connection.fd, select.EPOLLIN)
            if event & ~select.EPOLLOUT:
                alive = connection.receive(self._skew)
                if connection.done:
                    self._finish(connection, alive)
                elif not alive:
                    self._broke(connection, "the server closed the connection before the answer was complete")
        except (OSError, ValueError) as error:
            self._broke(connection, str(error))

    def _finish(self, connection: Connection, alive: bool) -> None:
        exchange = connection.exchange
        assert exchange is not None
        self.pool.backlog.append((exchange, exchange.end, None))
        connection.exchange, connection.done, connection.used = None, False, True
        if alive and connection.reusable and self.pool.keeps:
            self.pool.idle.append(connection)
        else:
            self.pool.drop(connection)
        self._failures = 0 if exchange.status == 200 else self._failures + 1
        self._end(exchange)
        if self._failures >= self._most_failures and self.aborted is None:
            self.aborted = f"gave up: {self._failures} requests in a row failed: HTTP {exchange.status}"
        if self._arrivals is None and not self.stopping:
            self._next(exchange.end)

    def _broke(self, connection: Connection, why: str) -> None:
        exchange = connection.exchange
        self.pool.drop(connection)
        if exchange is None:
            return  # an idle connection that the server closed
        self.active.pop(exchange, None)
        if connection.used and not exchange.status and not exchange.retried and not self.stopping:
            # The server closed a kept connection just when we wrote: it never saw the request. Once more, on a new one.
            # Servers that close without a word after each answer are seen at once; only what cost time is counted.
            # It is not asked to keep one again: what is not seen in time ends in the time to the first token.
            exchange.retried, self.pool.keeps = True, False
            self.retries += _monotonic() - exchange.sent > _RETRY_COSTS_NS
            self._send(exchange, self.pool.connect())
            return
        exchange.end = _monotonic()
        exchange.broken = why
        self.pool.backlog.append((exchange, exchange.end, None))
        self._failures += 1
        self._end(exchange)
        if self._failures >= self._most_failures and self.aborted is None:
            self.aborted = f"gave up: {self._failures} requests in a row failed: {why}"
        self._vacant += 1  # not sent from here: with a dead server that would recurse

    def _end(self, exchange: Exchange) -> None:
        self.active.pop(exchange, None)
        exchange.connection = None
        exchange.request = b""
        self.ended.append(exchange)
        self._freed_at = max(self._freed_at, exchange.end)

    def _tick(self, now: int) -> None:
        while self.active:
            oldest = next(iter(self.active))
            if now - oldest.sent < self._timeout or oldest.connection is None:
                break
            oldest.retried = True  # not once more
            self._broke(oldest.connection, f"no complete answer within {self._timeout / 1e9:g} s")
        if self._on_tick is not None:
            self._on_tick(self)


def arrivals(rate: float, kind: str, seed: int) -> Iterator[int]:
    """Intended starts, ns after the window's start; kind "poisson" (independent gaps, from the seed) or "constant"."""
    rng = random.Random(f"arrivals {seed}")  # noqa: S311
    at = 0.0
    for index in range(1 << 62):
        yield int((at if kind == "poisson" else index / rate) * 1e9)
        at += rng.expovariate(rate)
