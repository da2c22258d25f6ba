"""One HTTP/1.1 connection: request bytes out, body fragments with the kernel's arrival times in."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from typing import Any, Callable

from httptools import HttpParserError, HttpResponseParser

from loadgen.spec import Spec

# Python has no name for it before 3.14. The number is Linux's on every architecture that has GPUs worth a benchmark.
_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("qq")
_READ = 65536
_ANCILLARY = socket.CMSG_SPACE(_TIMESPEC.size)
_monotonic = time.monotonic_ns
_realtime = time.time_ns


def resolve(spec: Spec, timeout_s: float = 10) -> tuple[Any, ...]:
    """(family, address) of the first address of the host that accepts a connection. Raises OSError if none does."""
    failure: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(spec.host, spec.port, type=socket.SOCK_STREAM):
        with socket.socket(family, kind, protocol) as probe:
            probe.settimeout(timeout_s)
            try:
                probe.connect(address)
            except OSError as error:
                failure = error
                continue
            return family, address
    raise failure or OSError(f"no address for {spec.host}")


class Requests:
    """Builds the bytes of requests; all but the prompt is put together once."""

    def __init__(self, spec: Spec) -> None:
        body: dict[str, Any] = {
            "model": spec.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
            **spec.extra_body,
        }
        self._chat = spec.api == "chat"
        self._body = json.dumps(body)[:-1]
        host = f"[{spec.host}]" if ":" in spec.host else spec.host
        self._head = (
            f"POST {spec.path} HTTP/1.1\r\nHost: {host}:{spec.port}\r\nUser-Agent: gpurun\r\n"
            "Accept: text/event-stream\r\nContent-Type: application/json\r\nContent-Length: "
        )

    def build(self, prompt: str, output_tokens: int) -> bytes:
        """One request, ready to be sent."""
        text = json.dumps(prompt)
        field = f'"messages": [{{"role": "user", "content": {text}}}]' if self._chat else f'"prompt": {text}'
        body = f'{self._body}, "max_tokens": {output_tokens}, {field}}}'
        return f"{self._head}{len(body)}\r\n\r\n{body}".encode("ascii")  # json.dumps escapes all that is not ASCII


class Exchange:
    """One request and what came of it. Times in ns on the monotonic clock."""

    __slots__ = (
        "broken",
        "connection",
        "end",
        "index",
        "intended",
        "request",
        "retried",
        "sent",
        "status",
        "stream",
    )

    def __init__(self, index: int, intended: int, request: bytes, stream: Any) -> None:
        self.index = index
        self.intended = intended
        self.request = request
        self.stream = stream
        self.sent = 0
        self.end = 0
        self.status = 0
        self.broken: str | None = None  # why there is no complete answer
        self.retried = False
        self.connection: Connection | None = None


class Connection:
    """A non-blocking connection. After `receive`, `done` says that the answer is complete.

    `take` is called with (exchange, arrival in ns, fragment) for every piece of an answer's body.
    """

    def __init__(self, family: int, address: Any, take: Callable[[tuple[Exchange, int, bytes]], None]) -> None:
        """Begins to connect; a failure shows at the first `receive`."""
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):  # a kernel without (gVisor, say): then arrival is when the bytes are read
            self.socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self.socket.connect_ex(address)
        self.fd = self.socket.fileno()
        self.exchange: Exchange | None = None
        self.unsent: bytes | memoryview = b""
        self.used = False  # has carried a whole answer
        self.done = False
        self.reusable = False  # another request may be sent after the answer that is done
        self.late_ns = 0  # the longest that bytes lay in the kernel before they were read
        self._take = take
        self._at = 0
        self._until_eof = True
        self._parser = HttpResponseParser(self)

    def send(self) -> bool:
        """Write what is left to be written; True when all is. Raises OSError."""
        try:
            while self.unsent:
                self.unsent = memoryview(self.unsent)[self.socket.send(self.unsent) :]
        except BlockingIOError:
            return False
        return True

    def receive(self, skew: int) -> bool:
        """Read once and pass on; False at the end of the connection. `skew`: realtime minus monotonic clock, ns.

        Raises OSError, and ValueError when the server does not speak HTTP.
        """
        try:
            data, ancillary, _, _ = self.socket.recvmsg(_READ, _ANCILLARY)
        except BlockingIOError:
            return True
        now = at = _monotonic()
        if ancillary and len(ancillary[0][2]) == _TIMESPEC.size:
            seconds, rest = _TIMESPEC.unpack(ancillary[0][2])
            stamp = seconds * 1_000_000_000 + rest - skew
            # A stamp before the request or after now comes from a realtime clock that was just set: not usable.
            if self.exchange is not None and self.exchange.sent <= stamp < now:
                at = stamp
                if now - at > self.late_ns:
                    self.late_ns = now - at
        self._at = at
        if not data:
            if self.exchange is not None and self.exchange.status and self._until_eof:
                self.on_message_complete()
            return False
        if self.exchange is None:
            return False  # bytes that nobody asked for
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            raise ValueError(f"the answer is not HTTP as expected: {error}; it begins {data[:100]!r}") from None
        return True

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._until_eof = False

    def on_message_begin(self) -> None:
        self._until_eof = True

    def on_headers_complete(self) -> None:
        if self.exchange is not None:
            self.exchange.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self.exchange is not None:
            self._take((self.exchange, self._at, body))

    def on_message_complete(self) -> None:
        if self.exchange is not None:
            self.exchange.end = self._at
            self.done = True
            self.reusable = self._parser.should_keep_alive()  # known only here: the parser forgets it afterwards
