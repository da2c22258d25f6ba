"""What tests of jobs share: the host-side modules and servers to start with them."""

from __future__ import annotations

import atexit
import functools
import runpy
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible.module_utils import gpurun_locks as locks
from ansible.module_utils import gpurun_ports as ports
from ansible.module_utils import gpurun_processes as processes
from ansible.module_utils.gpurun_jobs import Job
from ansible.module_utils.gpurun_spawn import create
from ansible.module_utils.gpurun_stop import purge, stop
from ansible.module_utils.gpurun_wait import await_end, await_ready

# An OpenAI-like server in a few lines. Its behaviour is given by words in its argv.
SERVER = r"""
import http.server, json, os, signal, sys, time
words = sys.argv[2:]
if "deaf" in words:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "brood" in words and os.fork() == 0:          # a grandchild that leaves session and parent, and ignores SIGTERM
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork():
        os._exit(0)
    print("brood", os.getpid(), flush=True)
    time.sleep(600)
if "hidden" in words and os.fork() == 0:         # a grandchild without a mark, or the log as its output
    os.setsid()
    if os.fork():
        os._exit(0)
    with open("hidden", "w") as file:
        file.write(str(os.getpid()))
    void = os.open(os.devnull, os.O_WRONLY)
    os.dup2(void, 1), os.dup2(void, 2)
    os.execve("/bin/sleep", ["sleep", "600"], {})
if "crash" in words:
    sys.exit("no kernel image is available for execution on the device")
if "quiet-exit" in words:
    sys.exit(0)
if "abort" in words:
    os.abort()
if "silent" in words:
    time.sleep(600)
if "flood" in words:
    for _ in range(400):
        sys.stdout.write("x" * 65535 + "\n")
print("loading", os.environ.get("TOKEN_SHA", ""), flush=True)

class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def reply(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def do_GET(self):
        if self.path == "/health" and "hanging-health" in words:
            print("asked now", flush=True)
            time.sleep(1.5)
            os._exit(3)
        if self.path == "/health" and "moved" in words:
            self.send_response(302)
            self.send_header("Location", "http://elsewhere/login")
            self.end_headers()
        elif self.path == "/health" and "no-http" in words:
            self.wfile.write(b"220 mail ready")
        elif self.path == "/health":
            self.reply(503 if "slow" in words else 200, {})
        else:
            self.reply(200, {"data": [{"id": "other" if "other-model" in words else "m"}]})
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if "mute" in words:
            time.sleep(600)
        if "greedy" in words:
            print(len(b"x" * (1 << 30)))
        if "deep" in words:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"[" * 100000)
        elif "broken" in words:
            self.reply(500, {"error": "CUDA error: an illegal memory access was encountered"})
        else:
            print("answered", time.time(), flush=True)
            self.reply(200, {"choices": [{"text": "hi"}]})

server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print("listening", time.time(), flush=True)
server.serve_forever()
"""

READY = {
    "health": "/health",
    "models": "/v1/models",
    "model": "m",
    "generate": {"path": "/v1/completions", "body": {"model": "m", "prompt": "x", "max_tokens": 1}, "timeout_s": 1},
    "answer": "choices",
}


def server_argv(*words: str) -> list[str]:
    """The little server, on the job's port."""
    return [sys.executable, "-u", "-c", SERVER, "@GPURUN_PORT@", *words]


@functools.cache
def program() -> str:
    """The role's code as it lies on a host."""
    role = Path(__file__).resolve().parents[1] / "roles" / "server"
    place = tempfile.mkdtemp(prefix="gpurun-tests-")
    atexit.register(shutil.rmtree, place)
    code = {path.name: path.read_text() for path in (role / "module_utils").glob("gpurun_*.py")}
    runpy.run_path(str(role / "files" / "on_host.py"))["unpack"](Path(place), code)
    return place


def wanted(argv: list[str], **changes: Any) -> dict[str, Any]:
    """The module's parameters, with short limits."""
    base = {
        "program": program(),
        "argv": argv,
        "env": None,
        "secrets": None,
        "files": None,
        "cwd": None,
        "port": None,
        "port_of": None,
        "address": "127.0.0.1",
        "ready": None,
        "start_s": 20.0,
        "hang_s": 60.0,
        "life_s": 60.0,
        "stop_s": 5.0,
    }
    return {**base, **changes}


def start_server(job: Job, *words: str, **changes: Any) -> Job:
    """Create a server job of the little server."""
    assert create(job, "server", wanted(server_argv(*words), **{"ready": READY, **changes}))
    return job


def start_client(job: Job, *argv: str, **changes: Any) -> Job:
    """Create a client job."""
    assert create(job, "client", wanted(list(argv), **changes))
    return job


def python(code: str) -> tuple[str, ...]:
    """Argv of a Python one-liner."""
    return (sys.executable, "-c", code)


def eventually(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Poll for something that has no event to wait for: the state of other processes. Fails after `seconds`."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := condition():
            return found
        time.sleep(0.01)
    raise AssertionError(f"not within {seconds} s: {condition}")


def log_word(job: Job, word: str) -> str:
    """What follows a word in the job's log, once it is there."""

    def find() -> str | None:
        path = job.directory / "log"
        lines = path.read_text().splitlines() if path.exists() else []
        return next((line.split()[1] for line in lines if line.startswith(word + " ")), None)

    return str(eventually(find))


__all__ = ["Job", "await_end", "await_ready", "create", "locks", "ports", "processes", "purge", "stop"]
