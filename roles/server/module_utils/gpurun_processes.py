"""Processes as /proc shows them: who is alive, who descends from whom, which belong to a job of ours.

A process is always named by its id and the moment of its birth, so that a recycled id is never taken for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import signal
from pathlib import Path
from typing import NamedTuple

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Process(NamedTuple):
    """A living process. `born` is an opaque word, equal only for the same process; `cpu_s` includes reaped children."""

    pid: int
    parent: int
    born: str
    cpu_s: float
    rss_bytes: int


def boot_id() -> str:
    """A word that changes with each boot of the kernel; empty where the kernel does not tell."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


_BOOT = boot_id()


def machine_id() -> str:
    """Names the set of processes that this one can see: a boot of a kernel, and a pid namespace on it.

    Not /etc/machine-id: cloned images and containers share that one, and a process id means something else in each.
    """
    try:
        return f"{_BOOT}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return _BOOT


def look(pid: int) -> Process | None:
    """The process, or None where there is none or only its zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()  # the name before may hold spaces and parentheses
    if fields[0] in b"ZXx":
        return None
    return Process(
        pid=pid,
        parent=int(fields[1]),
        born=f"{_BOOT}:{int(fields[19])}",
        cpu_s=sum(int(ticks) for ticks in fields[11:15]) / _TICKS_PER_S,
        rss_bytes=int(fields[21]) * _PAGE_BYTES,
    )


def is_alive(pid: int, born: str) -> bool:
    """Whether that very process is still there."""
    process = look(pid)
    return process is not None and process.born == born


def everybody() -> list[Process]:
    """All living processes that this one can see."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - no Path for each entry
    return [process for process in map(look, pids) if process is not None]


def descendants(root: int) -> list[Process]:
    """Children, grandchildren and so on of `root`, without itself. Complete where `root` is a subreaper."""
    children: dict[int, list[Process]] = {}
    for process in everybody():
        children.setdefault(process.parent, []).append(process)
    found, ask = [], [root]
    while ask:
        below = children.get(ask.pop(), [])
        found += below
        ask += [process.pid for process in below]
    return found


def belonging(home: Path, run: str | None = None, job: str | None = None) -> list[Process]:
    """Processes of a job, of a run, or of every run under this home, wherever they went. Never this process itself.

    Installations and downloads of a run are found like its jobs, under names of their own. All are known by GPURUN_HOME
    and GPURUN_JOB in the environment they were started with, or by the job's log as their
    standard output or error: engines that write their own process titles overwrite the memory of that environment. What
    has neither is known where the supervisor saw it before that was killed.
    """
    recorded = _recorded(home, run, job)
    below = f"{run}/{job}" if run and job else f"{run}/" if run else ""
    logs = f"{home}/jobs/{below}" + ("/" if job else "")
    found = []
    for process in everybody():
        ours = (process.pid, process.born) in recorded
        if process.pid != os.getpid() and (
            ours or _marked(process.pid, home, below, bool(job)) or _logs(process.pid, logs)
        ):
            found.append(process)
    return found


def _recorded(home: Path, run: str | None, job: str | None) -> dict[tuple[int, str], tuple[str, str]]:
    """What supervisors have seen descend from them: process id and birth -> run and job."""
    found = {}
    for file in (home / "jobs").glob(f"{run or '*'}/{job or '*'}/tree.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            for pid, born in json.loads(file.read_text())["processes"]:
                found[pid, born] = (file.parts[-3], file.parts[-2])
    return found


def _marked(pid: int, home: Path, below: str, whole: bool) -> bool:
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False  # gone, or somebody else's
    mark = f"GPURUN_JOB={below}".encode()
    if mark not in environ if whole else not any(entry.startswith(mark) for entry in environ):
        return False
    # Ansible sets the home of installations as it was written, with a `~`.
    homes = [entry[12:].decode(errors="replace") for entry in environ if entry.startswith(b"GPURUN_HOME=")]
    return any((Path.home() / Path(told).expanduser()).resolve() == home for told in homes)


def _logs(pid: int, folder: str) -> bool:
    for number in (1, 2):
        with contextlib.suppress(OSError):
            if str(Path(f"/proc/{pid}/fd/{number}").readlink()).startswith(folder):
                return True
    return False


def job_of(home: Path, pid: int) -> tuple[str, str] | None:
    """Run and job that a process belongs to, by its environment, its log, or what its supervisor has seen."""
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if entry.startswith(b"GPURUN_JOB="):
                run, _, job = entry[11:].decode(errors="replace").partition("/")
                return run, job
    for number in (1, 2):
        with contextlib.suppress(OSError, ValueError):
            parts = Path(f"/proc/{pid}/fd/{number}").readlink().relative_to(home / "jobs").parts
            return parts[0], parts[1]
    process = look(pid)
    return _recorded(home, None, None).get((pid, process.born)) if process else None


def handle(process: Process) -> int | None:
    """A pidfd of that very process, readable once it has ended; None if it is gone. Close it.

    Raises OSError or AttributeError where the kernel (before 5.3) or Python has none.
    """
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    # The handle holds on to whoever has the id now; its birth tells whether that is the one we mean.
    if is_alive(process.pid, process.born):
        return pidfd
    os.close(pidfd)
    return None


def send(process: Process, number: int) -> bool:
    """Signal that very process; False if it is gone. Raises PermissionError if it is not ours to signal."""
    try:
        pidfd = handle(process)
    except (OSError, AttributeError):  # without a handle, the moment between looking and signalling remains
        return is_alive(process.pid, process.born) and _kill(process.pid, number)
    if pidfd is None:
        return False
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True


def _kill(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def describe(pid: int) -> dict[str, object]:
    """pid, user and command of a process, as far as it can be read; for people."""
    facts: dict[str, object] = {"pid": pid, "user": None, "command": None}
    with contextlib.suppress(OSError):
        facts["user"] = user_name(Path(f"/proc/{pid}").stat().st_uid)
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        facts["command"] = b" ".join(words).decode(errors="replace")[:200]
    return facts


def user_name(uid: int) -> str:
    """The login name of a user id, or the number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
