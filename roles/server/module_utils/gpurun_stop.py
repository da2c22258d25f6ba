"""Ends jobs on this host, whatever has become of their controller and their supervisors; safe to repeat."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Callable

from ansible.module_utils.gpurun_containers import labelled, remove
from ansible.module_utils.gpurun_jobs import Job, State, jobs_of
from ansible.module_utils.gpurun_processes import Process, belonging, describe, is_alive, job_of, look, send
from ansible.module_utils.gpurun_spawn import description
from ansible.module_utils.gpurun_supervisor import write_state

_POLL_S = 0.03
# For what has lost its supervisor; its main process is dead already. A call of a module removes its folder in /tmp when
# it is interrupted, and not when it is terminated.
_STRAYS = ((0.0, signal.SIGINT), (1.0, signal.SIGTERM), (2.0, signal.SIGKILL))
_KILL_S = 25.0  # a little more than the supervisor gives itself
_DEFAULT_STOP_S = 60.0


def stop(
    home: Path, run: str, name: str | None = None, stop_s: float | None = None, pretend: bool = False
) -> list[State]:
    """End one job, a run's jobs, or every run's ("*"). Returns what was found alive: run, job, pid, command, how.

    `stop_s` is the grace in seconds; by default each job's own. With `pretend`, nothing is signalled.
    """
    jobs = [Job(home, run, name)] if name else jobs_of(home, run)
    supervised = [(job, process) for job in jobs if (process := job.supervisor())]
    found = [_named(job, process, "supervisor") for job, process in supervised]
    if pretend:
        strays = [_stray(home, process) for process in _left(home, run, name)]
        return found or strays or _containers(jobs, home, run, name)
    _end_supervised(supervised, stop_s)
    left = _containers(jobs, home, run, name)
    found += left
    strays = _left(home, run, name)
    found += [_stray(home, process) for process in strays]
    _end_strays(lambda: _left(home, run, name))
    for one in left:
        remove(one["client"], one["command"])
    for job in jobs:
        if job.supervisor() is None:  # one that was killed has left the room that it kept for its last words
            with contextlib.suppress(OSError):
                (job.directory / "ended.json.reserved").unlink()
    known = {(one["run"], one["job"]) for one in found}
    return found + [unit for unit in _end_units(jobs) if (unit["run"], unit["job"]) not in known]


def still_there(home: Path, run: str, name: str | None = None) -> list[State]:
    """What could not be ended: stuck in the kernel, or running as another user."""
    return [_stray(home, process) for process in _left(home, run, name)]


def end_with_reason(job: Job, reason: str, message: str) -> None:
    """Ask a job's supervisor to end it, for a reason that its end shall tell. Returns when it has ended."""
    with contextlib.suppress(OSError):
        write_state(job.directory / "stop.json", {"reason": reason, "message": message})
    stop(job.home, job.run, job.name)


def purge(home: Path, run: str, name: str | None = None) -> list[str]:
    """Remove the directories of jobs that have ended; returns them."""
    gone = []
    for job in [Job(home, run, name)] if name else jobs_of(home, run):
        if job.directory.is_dir() and job.supervisor() is None:
            shutil.rmtree(job.directory, ignore_errors=True)
            gone.append(str(job.directory))
            with contextlib.suppress(OSError):  # not empty: another job of the run is still there
                job.directory.parent.rmdir()
    return gone


def _containers(jobs: list[Job], home: Path, run: str, name: str | None) -> list[State]:
    """Containers that lost their supervisor. Only engines that a job here has used are asked."""
    clients = sorted({known["client"] for job in jobs if (known := (job.asked or {}).get("container"))})
    return [one for client in clients for one in labelled(client, home, run, name)]


def _left(home: Path, run: str, name: str | None) -> list[Process]:
    return belonging(home, None if run == "*" else run, name)


def _named(job: Job, process: Process, how: str) -> State:
    main = look((job.read("started") or {}).get("pid", process.pid))  # the one that people know
    return {"run": job.run, "job": job.name, "how": how, **describe((main or process).pid)}


def _stray(home: Path, process: Process) -> State:
    run, job = job_of(home, process.pid) or (None, None)
    return {"run": run, "job": job, "how": "stray", **describe(process.pid)}


def _end_supervised(supervised: list[tuple[Job, Process]], stop_s: float | None) -> None:
    """Each supervisor ends its own tree. Asked twice, it gives no more grace; if it hangs, it is killed."""
    began = time.monotonic()
    waiting = []
    for job, process in supervised:
        grace_s = stop_s if stop_s is not None else float((job.asked or {}).get("stop_s", _DEFAULT_STOP_S))
        waiting.append((process, [(grace_s + 1, signal.SIGTERM), (grace_s + 1 + _KILL_S, signal.SIGKILL)]))
        send(process, signal.SIGTERM)
    while waiting := [(process, steps) for process, steps in waiting if is_alive(process.pid, process.born)]:
        for process, steps in waiting:
            if steps and time.monotonic() - began >= steps[0][0]:
                send(process, steps.pop(0)[1])
        time.sleep(_POLL_S)


def _end_strays(left: Callable[[], list[Process]]) -> None:
    began, told = time.monotonic(), set()
    while (processes := left()) and (spent_s := time.monotonic() - began) < _KILL_S:
        for process in processes:
            for after_s, number in _STRAYS:
                if spent_s >= after_s and (process.pid, number) not in told:
                    told.add((process.pid, number))
                    with contextlib.suppress(PermissionError):
                        send(process, number)
        time.sleep(_POLL_S)


def _end_units(jobs: list[Job]) -> list[State]:
    """Units of these jobs that systemd still has: what is in their control group ends with them."""
    if not Path("/run/systemd/system").is_dir():
        return []
    ended = []
    for job in jobs:
        unit = (job.asked or {}).get("unit")
        shown = _systemctl("show", f"{unit}.service", "--property=Description,ActiveState").splitlines() if unit else []
        if f"Description={description(job)}" in shown and "ActiveState=inactive" not in shown:
            _systemctl("stop", f"{unit}.service")
            _systemctl("reset-failed", f"{unit}.service")
            ended.append({"run": job.run, "job": job.name, "how": "unit", "pid": None, "command": unit, "user": None})
    return ended


def _systemctl(*words: str) -> str:
    return subprocess.run(["systemctl", *words], capture_output=True, text=True, check=False).stdout
