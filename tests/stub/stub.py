"""A small OpenAI-compatible streaming server for tests, which misbehaves on request. Standard library only.

    python tests/stub/stub.py [--port N] [--tokens-delay S] [--behaviour NAME]    prints its port, ends by SIGTERM

In tests: `with Stub(behaviour="drop") as stub: ... stub.url, stub.requests`. Behaviours:

    ok        answers as asked                      crlf      the same with CRLF, comments and one byte a packet
    stall     sends the head, then nothing          drop      closes the connection after the second token
    error500  HTTP 500 with an error text           event     an error event after the second token
    no_usage  no usage in the last event            close     no framing: the end of the connection ends the body
    cut       ends the body well, but without [DONE] and without a finish reason
    hang_up   closes each connection after an answer that promised to keep it
    late      the same, but only when the next request on it has waited for 50 ms
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import threading
from typing import Any

_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 500: "Internal Server Error"}


class Stub:
    """The server, in a thread of its own. `requests` holds (path, decoded body) of each POST, in order of arrival."""

    def __init__(self, behaviour: str = "ok", delay_s: float = 0.0, tokenize: str = "words", host: str = "127.0.0.1"):
        """`delay_s` before each token; `tokenize`: "words" (llama.cpp's form), "count" (vLLM's) or "" (404)."""
        self.behaviour, self.delay_s, self.tokenize, self.host = behaviour, delay_s, tokenize, host
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.connections = 0
        self.port = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def __enter__(self) -> Stub:
        self._thread.start()
        if not self._ready.wait(10):
            raise RuntimeError("the stub did not start within 10 s")
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def completions(self) -> list[dict[str, Any]]:
        """The bodies of the generation requests so far."""
        return [body for path, body in self.requests if path.endswith("/completions")]

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._serving: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._serve, self.host, self.port)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await asyncio.sleep(0)  # for the transports to close their sockets

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            kept = False
            while await self._answer(reader, writer, kept):
                kept = True
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client went away, or the test is over
        finally:
            writer.transport.abort()
            self._serving.discard(task)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bool = False) -> bool:
        """One request and its answer; whether the connection stays open."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        method, path, _ = head.split(" ", 2)
        length = next((int(line[15:]) for line in head.lower().split("\r\n") if line.startswith("content-length:")), 0)
        body = json.loads(await reader.readexactly(length) or b"{}")
        if kept and self.behaviour == "late":
            await asyncio.sleep(0.05)
            return False
        if method == "POST":
            self.requests.append((path, body))
        if path.endswith("/completions") and self.behaviour == "error500":
            return self._plain(writer, 500, {"error": {"message": "the model is on fire", "code": 500}})
        if path.endswith("/completions"):
            return await self._stream(writer, body, chat="chat" in path)
        words = len((body.get("prompt") or body.get("content") or "").split())
        if path.endswith("/tokenize") and self.tokenize:
            count = words + 1  # one for a begin-of-sequence token
            return self._plain(writer, 200, {"count": count} if self.tokenize == "count" else {"tokens": [1] * count})
        if path.endswith("/models"):
            return self._plain(writer, 200, {"object": "list", "data": [{"id": "stub", "object": "model"}]})
        return self._plain(writer, *self.page(path))

    def page(self, path: str) -> tuple[int, Any]:
        """Status and document (a text as it is, else JSON) of any other address."""
        return (200 if path == "/health" else 404), {}

    def _plain(self, writer: asyncio.StreamWriter, status: int, document: Any) -> bool:
        text = (document if isinstance(document, str) else json.dumps(document)).encode()
        head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text)
        return True

    async def _stream(self, writer: asyncio.StreamWriter, body: dict[str, Any], chat: bool) -> bool:
        kind, tokens = self.behaviour, int(body.get("max_tokens") or 16)
        framing = "Connection: close" if kind == "close" else "Transfer-Encoding: chunked"
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{framing}\r\n\r\n".encode())
        if kind == "stall":
            await asyncio.sleep(3600)
        if chat:
            await self._event(writer, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        for number in range(1, tokens + 1):
            await asyncio.sleep(self.delay_s)
            text = {"delta": {"content": " word"}} if chat else {"text": " word"}
            finish = "length" if number == tokens and kind != "cut" else None
            await self._event(writer, {"choices": [{"index": 0, **text, "finish_reason": finish}]})
            if number == 2 and kind == "drop":
                writer.transport.abort()
                return False
            if number == 2 and kind == "event":
                await self._event(writer, {"error": {"message": "out of memory", "code": 500}})
                tokens = 0
                break
        prompt = body.get("prompt") or body["messages"][0]["content"]
        words = len(prompt.split())
        usage = {"prompt_tokens": words, "completion_tokens": tokens, "total_tokens": words + tokens}
        if kind not in ("no_usage", "event", "cut") and (body.get("stream_options") or {}).get("include_usage"):
            await self._event(writer, {"choices": [], "usage": usage})
        if kind != "cut":
            await self._event(writer, "[DONE]")
        if kind != "close":
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return kind not in ("close", "hang_up")

    async def _event(self, writer: asyncio.StreamWriter, event: Any) -> None:
        text = event if isinstance(event, str) else json.dumps({"id": "1", "model": "stub", **event})
        data = f"data: {text}\n\n"
        if self.behaviour == "crlf":
            data = f": keep-alive\r\n\r\nevent: message\r\ndata: {text}\r\n\r\n"
        pieces = list(data) if self.behaviour == "crlf" else [data]
        for piece in pieces:
            writer.write((piece if self.behaviour == "close" else f"{len(piece):x}\r\n{piece}\r\n").encode())
            await writer.drain()
            if len(pieces) > 1:
                await asyncio.sleep(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--behaviour", default="ok")
    parser.add_argument("--tokens-delay", type=float, default=0.0, help="seconds before each token")
    options = parser.parse_args()
    stub = Stub(options.behaviour, options.tokens_delay)
    stub.port = options.port
    with stub:
        print(stub.port, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
