"""The small server of the tests, which writes down when it began to answer and when it died, by this host's clock.

`answering UNIX_TIME` once a request to /health would be answered; `dying UNIX_TIME` right before it ends itself,
`--die-after` seconds after the first generation that asks for a stream, the way that `--way` says.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.e2e.server import Server


class DatedServer(Server):
    """Dies on time."""

    def __init__(self, delay_s: float, die_after_s: float | None, way: str) -> None:
        super().__init__(delay_s=delay_s)
        self.die_after_s, self.way = die_after_s, way
        self.began = False

    async def _stream(self, writer: asyncio.StreamWriter, body: dict[str, Any], chat: bool) -> bool:
        if body.get("stream") and self.die_after_s is not None and not self.began:
            self.began = True
            threading.Timer(self.die_after_s, self.die).start()
        return await super()._stream(writer, body, chat)

    def die(self) -> None:
        """Say when, and end at once."""
        print("dying", time.time(), flush=True)
        if self.way == "signal":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--start-delay", type=float, default=0.0)
    parser.add_argument("--token-delay", type=float, default=0.0)
    parser.add_argument("--die-after", type=float)
    parser.add_argument("--way", choices=["exit", "signal"], default="exit")
    options = parser.parse_args()
    time.sleep(options.start_delay)
    server = DatedServer(options.token_delay, options.die_after, options.way)
    server.port = options.port
    with server:
        print("answering", time.time(), flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
