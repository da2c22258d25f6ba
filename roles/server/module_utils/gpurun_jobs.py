"""A job as its directory on the host tells it: where it stands, why it ended, how far it is.

<home>/jobs/<run>/<job>/   job.json (what was asked), log, and what the supervisor writes (see gpurun_supervisor)
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from pathlib import Path
from typing import Any, Callable

from ansible.module_utils.gpurun_processes import Process, belonging, boot_id, descendants, is_alive, look

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,159}")
_POLL_S = 0.03
_FIRST_SIGN_S = 15.0  # for a supervisor to say who it is, on a host that is busy
_TAIL_BYTES = 65536
_COUNTED_BYTES = 64 << 20
_PROGRESS_BYTES = 65536
_DAMAGED = (OSError, ValueError, RecursionError)  # what reading a file of JSON may raise

State = dict[str, Any]


class JobError(Exception):
    """What the caller did wrong, or the host cannot do; a sentence for people."""


def expand_home(home: str) -> Path:
    """The absolute home folder of gpurun on this host. A relative one counts from the login user's home."""
    return (Path.home() / Path(home).expanduser()).resolve()


def check_name(word: str, what: str) -> str:
    """A run or job name that is safe as a folder and in a unit's name. Raises JobError."""
    if not _NAME.fullmatch(word):
        raise JobError(f"{what} {word!r} is not a name: letters, digits, '.', '_' and '-', at most 160, no '.' first")
    return word


def read_state(path: Path) -> State | None:
    """A state file, or None where it is not there."""
    try:
        return dict(json.loads(path.read_text()))
    except _DAMAGED:
        return None


class Job:
    """One job of one run. Looking at it changes nothing."""

    def __init__(self, home: Path, run: str, name: str) -> None:
        self.home, self.run, self.name = home, check_name(run, "run"), check_name(name, "job")
        self.directory = home / "jobs" / run / name

    def read(self, name: str) -> State | None:
        """One of its state files."""
        return read_state(self.directory / f"{name}.json")

    @property
    def asked(self) -> State | None:
        """What was asked for when it was created; None if it never was."""
        return self.read("job")

    def supervisor(self) -> Process | None:
        """Its living supervisor."""
        state = self.read("supervisor")
        process = look(state["pid"]) if state else None
        return process if process is not None and state and process.born == state["born"] else None

    def is_over(self) -> bool:
        """Whether it has ended, or its supervisor is gone. Two small reads: this is what waiting polls."""
        if (self.directory / "ended.json").exists():
            return True
        known = self.read("supervisor")  # read once: it may appear at any moment
        if known is None:
            return bool(time.time() - (self.asked or {}).get("created_at", 0) > _FIRST_SIGN_S)
        return not is_alive(known["pid"], known["born"])

    def is_ready(self) -> bool:
        """Whether the supervisor has seen it ready."""
        return "ready_at" in (self.read("ready") or {})

    def report(self) -> State:
        """Everything about it, as the module returns it. See the contract in docs/design.md, "Jobs"."""
        asked = self.asked
        if asked is None:
            return {"status": "absent", "reason": None, "dir": str(self.directory), "message": "there is no such job"}
        over = self.is_over()  # before ended.json is read: it is written before the supervisor is gone
        ended, started = self.read("ended") or {}, self.read("started") or {}
        phases = self.read("ready") or {}
        state: State = {
            "status": "starting" if asked["kind"] == "server" else "running",
            "reason": None,
            "message": "",
            "dir": str(self.directory),
            "port": asked.get("port"),
            "reset": asked.get("reset"),
            "unit": asked.get("unit"),
            "pid": started.get("pid"),
            "started_at": started.get("started_at"),
            "ready_at": phases.get("ready_at"),
            "phases": phases,
            "ended_at": ended.get("ended_at"),
            "exit_code": ended.get("exit_code"),
            "signal": ended.get("signal"),
            "holder": ended.get("holder"),
            "left": ended.get("left", []),
            "kernel": ended.get("kernel"),
            "gpu_memory_left": (self.read("drained") or {}).get("gpu_memory_left"),
            "progress": self.progress(),
        }
        if over:
            state.update(_verdict(asked, ended, state) if ended else self._lost(state))
        elif "ready_at" in phases:
            state["status"] = "ready"
        state["message"] = state["message"] or f"{state['status']}, {_last_line(state)}"
        return state

    def _lost(self, state: State) -> State:
        if state["pid"] is None:
            with contextlib.suppress(OSError):
                said = (self.directory / "supervisor.log").read_text(errors="replace").strip()[-500:]
                return {"status": "failed", "reason": "spawn", "message": f"the supervisor did not start: {said}"}
        born = str((self.read("supervisor") or {}).get("born", ""))
        if not born.startswith(f"{boot_id()}:"):
            message = "the host went down, and came up again without this job"
            return {"status": "failed", "reason": "rebooted", "message": message}
        message = "the supervisor of this job was killed, and the job with it"
        return {"status": "failed", "reason": "exited", "message": message}

    def progress(self) -> State:
        """How far it is: the log's size and last line, memory and processor time of the tree, a client's own word."""
        size, lines, last = _log_facts(self.directory / "log")
        supervisor = self.supervisor()
        tree = descendants(supervisor.pid) if supervisor else []
        tree += self.strays() if (self.asked or {}).get("container") else []
        own = None
        with contextlib.suppress(*_DAMAGED), (self.directory / "progress.json").open("rb") as file:
            own = json.loads(file.read(_PROGRESS_BYTES))
        return {
            "log_bytes": size,
            "log_lines": lines,
            "last_line": last,
            "rss_bytes": sum(process.rss_bytes for process in tree),
            "cpu_s": round(sum(process.cpu_s for process in tree), 2),
            "progress_file": own,
        }

    def wait(self, seconds: float, enough: Callable[[], bool]) -> None:
        """Until it is over, or `enough` says so, or the time has passed."""
        until = time.monotonic() + seconds
        while not self.is_over() and not enough() and time.monotonic() < until:
            time.sleep(_POLL_S)

    def strays(self) -> list[Process]:
        """Processes of it that are left, whether or not a supervisor is."""
        return belonging(self.home, self.run, self.name)


def jobs_of(home: Path, run: str) -> list[Job]:
    """Every job of a run, or of every run with "*", whatever state it is in."""
    runs = [home / "jobs" / check_name(run, "run")] if run != "*" else sorted((home / "jobs").glob("*"))
    folders = [folder for one in runs for folder in sorted(one.glob("*")) if folder.is_dir()]
    return [Job(home, folder.parent.name, folder.name) for folder in folders]


def _verdict(asked: State, ended: State, state: State) -> State:
    reason, message = ended["reason"], ended.get("message") or ""
    how = f"signal {ended['signal']}" if ended.get("signal") else f"exit code {ended.get('exit_code')}"
    if reason == "exited":
        if asked["kind"] == "client" and ended.get("exit_code") == 0:
            return {"status": "exited", "message": "done"}
        when = (
            ""
            if asked["kind"] == "client"
            else ", after it was ready"
            if state["ready_at"]
            else ", before it was ready"
        )
        message = message or f"ended by itself with {how}{when}; {_last_line(state)}"
    return {"status": "exited" if reason == "stopped" else "failed", "reason": reason, "message": message}


def _last_line(state: State) -> str:
    last = state["progress"]["last_line"]
    return f"last line of its log: {last}" if last else "its log is empty"


def _log_facts(path: Path) -> tuple[int, int | None, str]:
    """Bytes, lines (None where counting would take long) and the last line that is not empty."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            tail = file.read()
            lines: int | None = None
            if size <= _COUNTED_BYTES:
                file.seek(0)
                lines = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
    except OSError:
        return 0, 0, ""
    kept = [line for line in tail.splitlines() if line.strip()]
    return size, lines, kept[-1].decode(errors="replace")[:500] if kept else ""
