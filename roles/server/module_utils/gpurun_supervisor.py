"""The supervisor of one job: starts it, waits for its end, ends its whole tree, writes down how it ended.

Runs on the host as a process of its own, `python <home>/bin/jobs-<hash> JOBDIR`, started by the module gpurun_job. It
outlives that and the controller, but not the time limit. What to run comes through JOBDIR/spec.fifo: never from a file
or argv, because it holds secrets. What it tells is files in JOBDIR, each whole or absent:

    supervisor.json  who we are              started.json  the process that we started
    ready.json       phases of the start     tree.json     everything that descends from it, as last seen
    ended.json       exit code or signal, reason, what could not be ended, and what the kernel says
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.gpurun_kernel import Witness
from ansible.module_utils.gpurun_processes import Process, belonging, descendants, look, send

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SPEC_S = 30.0  # for the spec to arrive
_LOOK_S = 5.0  # between two looks at who descends from us, for the record
_LEFTOVER_S = 0.3  # grace of what an exited child leaves behind: nobody waits for its answer any more
_SYSTEMD_S = 5.0  # for systemd to say whether the host goes down
_KILL_S = 20.0  # until a killed process that is still there counts as stuck in the kernel
_GPUS_S = 10.0  # between two looks at the GPUs of a start that shows no other sign of life
_RESERVED = 32768  # more than a message of 1000 characters takes, each escaped as JSON does it, and the kernel's lines
_OPEN_FILES = 65536
_WAKE = signal.SIGUSR1
_ASKED = {signal.SIGTERM, signal.SIGINT}
_WAITED = {signal.SIGCHLD, _WAKE, *_ASKED}
_OF_A_SHELL = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)  # ignored after `nohup` or `&`
_BLOCKED = {*_WAITED, signal.SIGHUP}


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Write a JSON file, whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(state))
    part.replace(path)


def reserve(path: Path) -> None:
    """Take the room for a state file that must still be written when the disk is full."""
    path.with_name(path.name + ".reserved").write_text(" " * _RESERVED)


def write_reserved(path: Path, state: dict[str, Any]) -> None:
    """Like write_state, in the room taken by reserve: trailing spaces stay, JSON does not mind."""
    kept = path.with_name(path.name + ".reserved")
    with kept.open("r+b") as file:
        file.write(json.dumps(state).encode()[:_RESERVED])
    kept.replace(path)


def receive_spec(fifo: Path) -> dict[str, Any]:
    """Read the spec from its FIFO, with a time limit: the one who started us may have been killed before writing."""
    pipe = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    parts: list[bytes] = []
    poll, end = select.poll(), time.monotonic() + _SPEC_S
    poll.register(pipe, select.POLLIN)
    try:
        while poll.poll(max(0.0, end - time.monotonic()) * 1000):
            part = os.read(pipe, 65536)
            if not part:
                return dict(json.loads(b"".join(parts)))
            parts.append(part)
    finally:
        os.close(pipe)
    raise TimeoutError(f"no spec came through {fifo} within {_SPEC_S:g} s")


class Job:
    """One child and everything that descends from it."""

    def __init__(self, directory: Path, spec: dict[str, Any]) -> None:
        self.directory, self.spec = directory, spec
        self.home = Path(spec["env"]["GPURUN_HOME"])
        self.run, _, self.name = spec["env"]["GPURUN_JOB"].partition("/")
        self.child = 0
        self.status: int | None = None
        self.ended_at: float | None = None
        self.message = ""
        self.telemetry: Any = None
        self.witness = Witness()
        self.seen: set[int] = set()  # processes that were ours at some time
        self.recorded: set[tuple[int, str]] = set()

    def start(self) -> None:
        """Start the child. Raises OSError (no such program, no such folder, no memory)."""
        libc, parent = ctypes.CDLL(None, use_errno=True), os.getpid()
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

        def prepare() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)
            for number in _OF_A_SHELL:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, set())

        _allow_open_files()
        log = os.open(self.directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            # Its output goes to the file without passing through us: a flood or a full disk is the child's own affair.
            # Kept, because a Popen that is forgotten collects its child, and the exit code with it.
            self._popen = subprocess.Popen(
                self.spec["argv"],
                env=self.spec["env"],
                cwd=self.spec["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=prepare,  # safe: no thread exists yet
            )
            self.child = self._popen.pid
        finally:
            os.close(log)

    def reap(self) -> None:
        """Collect dead children, our own and the orphans that came to us."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                self.seen.add(pid)
                if pid == self.child:
                    self.status, self.ended_at = status, time.time()

    def living(self) -> list[Process]:
        """What is left of the tree. Orphans are our children, as we are a subreaper; the marks are a second look, and
        the only one at what runs in a container."""
        tree = descendants(os.getpid())
        if not tree or self.spec.get("container"):
            marked = belonging(self.home, self.run, self.name)
            tree = list({process.pid: process for process in [*tree, *marked]}.values())
        self.seen.update(process.pid for process in tree)
        self._record(tree)
        return tree

    def _record(self, tree: list[Process]) -> None:
        """For when we are killed: an orphan may show neither marks nor a log. Written only when somebody has come."""
        now = {(process.pid, process.born) for process in tree}
        if now - self.recorded:
            with contextlib.suppress(OSError):  # a full disk, or the other thread was faster: at the next look
                write_state(self.directory / "tree.json", {"processes": sorted(now)})
                self.recorded |= now

    def watch(self) -> str:
        """Wait until the child exits, a limit passes, or an end is asked for; returns which, as a reason."""
        began = time.monotonic()
        judge = Start(self, began) if self.spec.get("ready") else None
        next_look = began + _LOOK_S
        while True:
            self.reap()
            if self.status is not None:
                # A stop of the whole control group reaches the child and us in any order.
                told = signal.sigtimedwait(_ASKED, 0)
                return self.asked(told.si_pid) if told is not None else "exited"
            left_s = began + self.spec["life_s"] - time.monotonic()
            if left_s <= 0:
                self.message = f"not done within its limit of {self.spec['life_s']:g} s"
                return "time_limit"
            if time.monotonic() >= next_look:
                self.living()
                next_look = time.monotonic() + _LOOK_S
            left_s = min(left_s, _LOOK_S)
            if judge is not None:
                reason, wait_s = judge.look()
                if reason:
                    return reason
                left_s = min(left_s, wait_s)
                if self.telemetry is None and judge.readiness.done:
                    self._look_on()
            told = signal.sigtimedwait(_WAITED, left_s)
            if told is not None and told.si_signo in _ASKED:
                return self.asked(told.si_pid)

    def _look_on(self) -> None:
        """From now on, as a start is judged by the processor time of the whole tree, and this takes some."""
        from ansible.module_utils.gpurun_telemetry import Telemetry

        self.living()  # what the start has left running is recorded at once
        spec, pids = self.spec, lambda: {process.pid for process in self.living()}
        self.telemetry = Telemetry(self.directory, spec.get("nvidia_smi"), pids, spec.get("visible"))
        self.telemetry.start()

    def asked(self, by: int) -> str:
        """Who asks for an end (process `by`) may leave a reason; else the host goes down, or it was a plain stop."""
        with contextlib.suppress(OSError, ValueError):
            request = json.loads((self.directory / "stop.json").read_text())
            self.message = str(request["message"])
            return str(request["reason"])
        if by == 1 and _goes_down():
            self.message = "the host was shut down or rebooted in the middle of it"
            return "rebooted"
        self.message = "stopped on request"
        return "stopped"

    def end(self, grace_s: float) -> list[Process]:
        """SIGTERM to the whole tree, `grace_s` to comply, then SIGKILL until nobody is left. Returns who stays.

        A container's client hands the signal on, to the container's first process, as its engine's own stop does.
        """
        container, child = self.spec.get("container"), look(self.child) if self.status is None else None
        for process in [child] if container and child else self.living():
            _send(process, signal.SIGTERM)
        pause, until = 0.01, time.monotonic() + grace_s
        while self.living() and time.monotonic() < until:
            told = signal.sigtimedwait(_WAITED, pause)
            self.reap()
            if told is not None and told.si_signo in _ASKED:
                break  # asked again: no more grace
            pause = min(pause * 2, 0.2)
        if container:
            self._remove_container(container)
        pause, until = 0.01, time.monotonic() + _KILL_S
        while True:
            left = self.living()
            if not left or time.monotonic() > until:
                self.reap()
                return left
            for process in left:
                _send(process, signal.SIGKILL)
            signal.sigtimedwait({signal.SIGCHLD}, pause)
            self.reap()
            pause = min(pause * 2, 0.2)

    def _remove_container(self, container: dict[str, Any]) -> None:
        """Also where all of it has ended: its client may have been killed before it was created."""
        argv = [container["client"], "rm", "--force", "--volumes", container["name"]]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(argv, env=self.spec["env"], capture_output=True, timeout=_KILL_S, check=False)


class Start:
    """The start of a server: its readiness, its time limit, and whether it still gets on."""

    def __init__(self, job: Job, began: float) -> None:
        # Imported late: it costs more time than everything before, and the child is already on its way.
        from ansible.module_utils.gpurun_gpus import Watch
        from ansible.module_utils.gpurun_readiness import Progress, Readiness

        spec = job.spec
        self.gpus = Watch(spec.get("nvidia_smi"), min(_GPUS_S, spec["hang_s"] / 4))
        self.job, self.limit_s, self.until = job, spec["start_s"], began + spec["start_s"]
        self.progress = Progress(spec["hang_s"])
        self.next_look = began
        self.readiness = Readiness(spec["ready"], spec["address"], spec["port"], self._pids, self._changed)
        self.readiness.blind = bool(spec.get("container")) and os.geteuid() != 0
        self.readiness.start()

    def _pids(self) -> set[int]:
        return {process.pid for process in self.job.living()}

    def _changed(self) -> None:
        with contextlib.suppress(OSError):
            if self.readiness.answers is not None and "ready_at" in self.readiness.phases:
                write_state(self.job.directory / "answers.json", {"answers": self.readiness.answers})
            write_state(self.job.directory / "ready.json", dict(self.readiness.phases))
        os.kill(os.getpid(), _WAKE)

    def look(self) -> tuple[str | None, float]:
        """A reason to give up, or None; and the seconds after which to look again at the latest."""
        now = time.monotonic()
        if self.readiness.verdict:
            reason, self.job.message = self.readiness.verdict
            return reason, 0.0
        if self.readiness.done:
            return None, float("inf")
        if now >= self.until:
            last = f"; the last answer to {self.readiness.last_answer}" if self.readiness.last_answer else ""
            self.job.message = f"not ready within {self.limit_s:g} s{last}"
            return "start_timeout", 0.0
        if now >= self.next_look:
            self.next_look = now + self.progress.every_s
            still_s = self.progress.still_s(*_movement(self.job), self.gpus.used_bytes)
            if still_s >= self.gpus.every_s:  # rarely, and only when there is no other sign of life
                self.gpus.ask()
            if still_s >= self.progress.hang_s:
                busy = f"; {self.gpus.busy}" if self.gpus.busy else ""
                self.job.message = f"no log, memory, reads or processor time for {still_s:.0f} s{busy}"
                return "start_hang", 0.0
        return None, min(self.until, self.next_look) - now


def _movement(job: Job) -> tuple[int, int, int, float]:
    """Log bytes, memory bytes, bytes read and processor seconds of the whole tree."""
    log_bytes, rss_bytes, read_bytes, cpu_s = 0, 0, 0, 0.0
    with contextlib.suppress(OSError):
        log_bytes = (job.directory / "log").stat().st_size
    for process in job.living():
        rss_bytes += process.rss_bytes
        cpu_s += process.cpu_s
        with contextlib.suppress(OSError, ValueError, IndexError):
            read_bytes += int(Path(f"/proc/{process.pid}/io").read_text().split()[1])
    return log_bytes, rss_bytes, read_bytes, cpu_s


def _allow_open_files() -> None:
    """Many connections need more open files than the usual soft limit of 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _goes_down() -> bool:
    """Whether systemd is ending everything, and not just us. Late in that it answers nobody."""
    asked = ["systemctl", "is-system-running"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(asked, capture_output=True, text=True, timeout=_SYSTEMD_S, check=False).stdout
        return said.strip() not in ("initializing", "starting", "running", "degraded", "maintenance")
    return True


def _send(process: Process, number: int) -> None:
    with contextlib.suppress(PermissionError):  # a child that changed its user: reported as left
        send(process, number)


def _why(error: Exception, cwd: str) -> str:
    if isinstance(error, OSError) and error.filename == cwd:
        return f"its working folder {cwd}: {error.strerror}"
    return str(error)


def _conclusion(job: Job, reason: str, left: list[Process]) -> dict[str, Any]:
    code = None if job.status is None else os.waitstatus_to_exitcode(job.status)
    return {
        "exit_code": code if code is not None and code >= 0 else None,
        "signal": -code if code is not None and code < 0 else None,
        "reason": reason,
        "message": job.message[:1000],
        "ended_at": job.ended_at or time.time(),
        "left": [process.pid for process in left][:50],
        "kernel": job.witness.tell(job.seen, job.spec.get("container"), job.spec["env"]),
    }


def supervise(directory: Path) -> None:
    """The whole life of the job in this directory."""
    me = look(os.getpid())
    write_state(directory / "supervisor.json", {"pid": os.getpid(), "born": me.born if me else ""})
    job = Job(directory, receive_spec(directory / "spec.fifo"))  # until here a signal simply ends us
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    ended = directory / "ended.json"
    try:
        reserve(ended)
        job.start()
        child = look(job.child)
        started = {"pid": job.child, "born": child.born if child else "", "started_at": time.time()}
        write_state(directory / "started.json", started)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        # Also a full disk: a job whose state cannot be told is not left running.
        job.message = f"cannot start {job.spec['argv'][0]}: {_why(error, job.spec['cwd'])}"
        left = job.end(0) if job.child else []
        write_reserved(ended, _conclusion(job, "spawn", left))
        return
    reason = "exited"
    try:
        reason = job.watch()
    except Exception as error:  # whatever it was, the tree is ended and the end is told
        import traceback  # late: every start would pay for it

        traceback.print_exc()
        job.message = f"the supervisor failed: {type(error).__name__}: {error}"
    if job.telemetry is not None:
        job.telemetry.stop()
    left = job.end(_LEFTOVER_S if reason == "exited" else job.spec["stop_s"])
    write_reserved(ended, _conclusion(job, reason, left))


def main() -> None:
    """Entry point of the supervisor process: JOBDIR [--detach]. Under systemd it must stay the process it is."""
    if sys.argv[2:] == ["--detach"] and os.fork():
        os._exit(0)
    os.umask(0o077)
    with contextlib.suppress(OSError):
        os.setsid()
    supervise(Path(sys.argv[1]))
