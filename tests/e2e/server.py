"""A server for whole campaigns: the streaming stub as a program of its own, which misbehaves as its arguments say.

It tells in its log what it was started with, as one line `started {"argv": [...], "env": {...}}`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.stub.stub import Stub


class Server(Stub):
    """Answers requests that ask for no stream as well: readiness asks for one. `hoard` bytes are taken with the first
    that asks for a stream."""

    hoard = 0

    async def _stream(self, writer: asyncio.StreamWriter, body: dict[str, Any], chat: bool) -> bool:
        if body.get("stream"):
            self.hoarded = b"x" * self.hoard
            return await super()._stream(writer, body, chat)
        return self._plain(writer, 200, {"choices": [{"index": 0, "message": {"content": "word"}, "text": "word"}]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--start-delay", type=float, default=0.0, help="seconds until it listens")
    parser.add_argument("--token-delay", type=float, default=0.0, help="seconds before each token")
    parser.add_argument("--hoard", type=int, default=0, help="MiB of memory that it takes once it is measured")
    parser.add_argument("--crash", help="say this and exit with 1")
    options, _rest = parser.parse_known_args()
    print("started", json.dumps({"argv": sys.argv[1:], "env": dict(os.environ)}), flush=True)
    if options.crash:
        print("crashing", time.time(), flush=True)
        sys.exit(options.crash)
    time.sleep(options.start_delay)
    stub = Server(delay_s=options.token_delay, host=options.host)
    stub.port, stub.hoard = options.port, options.hoard << 20
    with stub:
        print("listening", stub.port, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
