"""How the start of a server is judged: is it ready, does it get on, is it the one that we started?

Runs inside the supervisor, on the host, so that readiness is noticed and dated there, whatever the connection to the
controller does meanwhile.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from typing import Any, Callable

from ansible.module_utils.gpurun_ports import holder, holds, listeners

_PAUSE_S = 0.05  # between two looks; readiness must be noticed within 0.3 s
_HEALTH_S = 30.0  # some engines answer health by a generation of their own, which may take 20 s
_ATTEMPTS = 3  # generations that may be refused once health is good
_BODY_BYTES = 1 << 20


class Readiness(threading.Thread):
    """Asks a starting server until it is ready or proves to be the wrong one.

    A thread, so that an endpoint which accepts and never answers delays neither the notice of a death nor a time limit.
    `phases` dates what was reached (unix seconds); `verdict` is (reason, message) once the start has failed. `changed`
    is called after each.
    """

    def __init__(
        self, ready: dict[str, Any], address: str, port: int, pids: Callable[[], set[int]], changed: Callable[[], None]
    ) -> None:
        super().__init__(daemon=True, name="readiness")
        self.ready, self.address, self.port = ready, address, port
        self.pids, self.changed = pids, changed
        self.blind = False  # our processes are in a container, as other users: whose the port is cannot be seen
        self.phases: dict[str, float] = {}
        self.verdict: tuple[str, str] | None = None
        self.answers: list[Any] | None = None
        self.last_answer = ""  # what was asked last, and what came

    @property
    def done(self) -> bool:
        """Whether there is nothing left to ask."""
        return self.verdict is not None or "ready_at" in self.phases

    def run(self) -> None:
        """Health, ownership of the port, model, one generation: in this order, each as often as it takes."""
        try:
            while not self._healthy():
                time.sleep(_PAUSE_S)
            self._reach("health_at")
            self.verdict = self._stranger()
            while not self.verdict and not self._right_model():
                time.sleep(_PAUSE_S)
            if not self.verdict:
                self._reach("model_at")
                self._generate()
            if not self.verdict:
                self._put_questions()
                self._reach("ready_at")
        except Exception as error:  # whatever an answer holds, the start ends with a sentence and not without an end
            self.verdict = ("generation_failed", f"asking the server failed: {type(error).__name__}: {error}")
        self.changed()

    def _reach(self, phase: str) -> None:
        self.phases[phase] = time.time()
        if phase != "ready_at":
            self.changed()

    def _ask(self, path: str, timeout_s: float, body: object = None) -> tuple[int, bytes]:
        """Status and start of the answer; status 0 while nobody answers. Raises TimeoutError when it takes too long."""
        connection = http.client.HTTPConnection(self.address, self.port, timeout=timeout_s)
        try:
            if body is None:
                connection.request("GET", path)
            else:
                connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            to = f", to {answer.headers['Location']}" if "Location" in answer.headers else ""
            self.last_answer = f"{path}: status {answer.status}{to}"[:300]
            return answer.status, answer.read(_BODY_BYTES)
        except socket.timeout as error:  # only since Python 3.10 the same class as the builtin one
            self.last_answer = f"{path}: nothing within {timeout_s:g} s"
            raise TimeoutError from error
        except ConnectionRefusedError:
            return 0, b""
        except (OSError, http.client.HTTPException) as error:
            self.last_answer = f"{path}: {type(error).__name__}: {error}"[:300]
            return 0, b""
        finally:
            connection.close()

    def _healthy(self) -> bool:
        path = self.ready.get("health")
        if path is None:
            return bool(listeners(self.port))
        with contextlib.suppress(TimeoutError):
            return self._ask(path, _HEALTH_S)[0] == 200
        return False

    def _stranger(self) -> tuple[str, str] | None:
        """Somebody else may have taken the port between our choice and the server's bind."""
        inodes = set(listeners(self.port))
        if not inodes or any(holds(pid, inodes) for pid in self.pids()):
            return None  # no listener in our network namespace: it sits in a container's, and the port is mapped
        who = holder(self.port) or {}
        if self.blind and who.get("pid") is None:
            return None
        name = f"{who.get('command')} (pid {who.get('pid')}, user {who.get('user')})"
        return "not_this_model", f"port {self.port} is answered by a process that is not ours: {name}"

    def _right_model(self) -> bool:
        path, wanted = self.ready.get("models"), self.ready.get("model")
        if not path or not wanted:
            return True
        with contextlib.suppress(TimeoutError):
            status, body = self._ask(path, _HEALTH_S)
            if status == 200:
                served = _names(body)
                if wanted not in served:
                    self.verdict = (
                        "not_this_model",
                        f"the server serves {', '.join(served) or 'nothing'}, not {wanted}",
                    )
                return True
        return False

    def _generate(self) -> None:
        generate = self.ready.get("generate")
        if not generate:
            return
        refused, timeout_s = 0, float(generate.get("timeout_s") or 120)
        while True:
            try:
                status, body = self._ask(generate["path"], timeout_s, generate.get("body") or {})
            except TimeoutError:
                message = f"health answers, but one generation did not within {timeout_s:g} s"
                self.verdict = ("start_hang", message)
                return
            if status == 200 and self._answered(body):
                return
            if status not in (429, 503):  # those two say: not yet
                refused += 1
                if refused == _ATTEMPTS:
                    text = body[:200].decode(errors="replace") if status else "the connection broke"
                    message = f"health answers, but {generate['path']} does not generate: status {status}: {text}"
                    self.verdict = ("generation_failed", message)
                    return
            time.sleep(_PAUSE_S * 5)

    def _put_questions(self) -> None:
        """Ask what shows whether it talks sense, before any load: one that does not answer is judged by its load."""
        ask = self.ready.get("ask")
        if not ask:
            return
        self.answers = []
        for body in ask["bodies"]:
            try:
                status, answer = self._ask(ask["path"], float(ask["timeout_s"]), body)
                self.answers.append(json.loads(answer) if status == 200 else None)
            except (TimeoutError, ValueError, RecursionError):
                self.answers.append(None)

    def _answered(self, body: bytes) -> bool:
        key = self.ready.get("answer")
        if not key:
            return True
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            return False
        return isinstance(answer, dict) and bool(answer.get(key))


def _names(body: bytes) -> list[str]:
    """Model names in a list as OpenAI's API gives it."""
    try:
        models = json.loads(body)["data"]
        return [str(model["id"]) for model in models]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


class Progress:
    """Notices a start that does nothing any more: no new log, no memory (of the GPUs neither), no reads, hardly any
    processor for `hang_s`.

    A start that spins (a hung collective does) still moves by this measure; the start's time limit ends that one.
    """

    _CPU_SHARE = 0.05  # of one core: a waiting server with its timers stays below
    _BYTES = 8 << 20

    def __init__(self, hang_s: float) -> None:
        self.hang_s = hang_s
        self.every_s = min(5.0, max(0.2, hang_s / 20))
        self._mark = (-1, 0, 0)
        self._gpu_bytes: int | None = None
        self._cpu_s = 0.0
        self._seen_at = self._moved_at = time.monotonic()

    def still_s(
        self, log_bytes: int, rss_bytes: int, read_bytes: int, cpu_s: float, gpu_bytes: int | None = None
    ) -> float:
        """Seconds without any movement, given the state now; `gpu_bytes` where the GPUs' memory is known."""
        now = time.monotonic()
        busy = cpu_s - self._cpu_s > self._CPU_SHARE * (now - self._seen_at)
        self._cpu_s, self._seen_at = cpu_s, now
        if gpu_bytes is not None:
            busy = busy or (self._gpu_bytes is not None and abs(gpu_bytes - self._gpu_bytes) > self._BYTES)
            self._gpu_bytes = gpu_bytes
        log, rss, read = self._mark
        if busy or log_bytes != log or max(abs(rss_bytes - rss), abs(read_bytes - read)) > self._BYTES:
            self._mark, self._moved_at = (log_bytes, rss_bytes, read_bytes), now
        return now - self._moved_at
