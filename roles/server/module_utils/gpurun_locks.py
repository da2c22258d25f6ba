"""Which run holds this host. One at a time; a holder whose controller is dead loses it.

<home>/lock.json, changed only under a file lock on <home>/lock.guard.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from ansible.module_utils.gpurun_jobs import State, read_state
from ansible.module_utils.gpurun_processes import look, machine_id
from ansible.module_utils.gpurun_stop import purge, stop
from ansible.module_utils.gpurun_supervisor import write_state

_RENEW_S = 5.0
_POLL_S = 0.2


def holder(home: Path) -> State | None:
    """The lock as it stands: run, campaign, controller, since, renewed_at, lease_s, silent_s."""
    return read_state(home / "lock.json")


def renew(home: Path, run: str) -> bool:
    """Prolong the lease; False if this run does not hold the host (any more)."""
    lock = holder(home)
    if not lock or lock["run"] != run:
        return False
    if time.time() - lock["renewed_at"] < _RENEW_S:
        return True
    with _guard(home):
        lock = holder(home)
        if not lock or lock["run"] != run:
            return False
        write_state(home / "lock.json", {**lock, "renewed_at": time.time()})
    return True


def quarantine(home: Path, run: str, why: str) -> None:
    """Let this run start nothing more on this host; the mark goes with the lock."""
    with _guard(home):
        lock = holder(home)
        if lock and lock["run"] == run:
            write_state(home / "lock.json", {**lock, "quarantine": why})


def quarantined(home: Path, run: str) -> str | None:
    """Why this run starts nothing more on this host; None where it may."""
    lock = holder(home)
    return str(lock["quarantine"]) if lock and lock["run"] == run and "quarantine" in lock else None


def hold(home: Path, wanted: State, wait_s: float) -> State:
    """Take or keep the host for `wanted` (run, campaign, controller, lease_s, silent_s), waiting up to `wait_s`.

    Returns {held, changed, holder, ended}. When the host is taken, everything that an earlier controller
    left of this run, and of the run that held it, has been ended, and this run's job directories are gone: a run that
    is resumed starts its jobs anew.
    """
    until = time.monotonic() + wait_s
    while True:
        with _guard(home):
            lock = holder(home)
            if lock is None or is_abandoned(lock) or _succeeds(lock, wanted):
                return _take(home, lock, wanted)
            if lock["run"] == wanted["run"] and _same(lock["controller"], wanted["controller"]):
                write_state(home / "lock.json", {**lock, **wanted, "renewed_at": time.time()})
                return {"held": True, "changed": False, "holder": None, "ended": []}
        if time.monotonic() >= until:
            return {"held": False, "changed": False, "holder": lock, "ended": []}
        time.sleep(_POLL_S)


def _take(home: Path, lock: State | None, wanted: State) -> State:
    runs = {wanted["run"], lock["run"]} if lock else {wanted["run"]}
    # Ours only once all of the old one is ended: should we be killed here, the next one does it again.
    ended = [one for run in sorted(runs) for one in stop(home, run)]
    purge(home, wanted["run"])
    now = time.time()
    write_state(home / "lock.json", {**wanted, "since": now, "renewed_at": now})
    return {"held": True, "changed": True, "holder": None, "ended": ended}


def release(home: Path, run: str) -> bool:
    """Give the host back, whoever holds it with "*"; False if this run does not hold it."""
    if not home.is_dir():
        return False
    with _guard(home):
        lock = holder(home)
        if not lock or run not in ("*", lock["run"]):
            return False
        (home / "lock.json").unlink()
    return True


def is_abandoned(lock: State) -> bool:
    """Whether the holder's controller is dead: its process is gone or, if that cannot be seen, its lease is over.

    A controller without a pid has left on purpose (`gpurun serve`): the lease alone counts.
    """
    controller = lock["controller"]
    if controller.get("machine_id") == machine_id() and controller.get("pid") is not None:
        process = look(int(controller["pid"]))
        if process is None:
            return True
        start = controller.get("pid_start")
        return start is not None and process.born.rpartition(":")[2] != str(start)
    return bool(time.time() > lock["renewed_at"] + lock["lease_s"])


def describe(lock: State) -> str:
    """Who holds the host, in one sentence."""
    controller = lock["controller"]
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(lock["since"]))
    until = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(lock["renewed_at"] + lock["lease_s"]))
    pid = controller.get("pid")
    return (
        f"run {lock['run']} of campaign {lock.get('campaign') or '?'} holds this host since {since}, "
        f"controlled from {controller.get('host') or '?'}, "
        + (f"pid {pid}" if pid else f"left serving, at the latest until {until}")
    )


def _succeeds(lock: State, wanted: State) -> bool:
    """Whether a resumed run asks: from the machine that conducted it, where two of one run are never at work, or once
    nothing has been heard for `silent_s` of a controller that had begun to measure. One that prepares may be silent."""
    old, new = lock["controller"], wanted["controller"]
    if lock["run"] != wanted["run"] or old.get("machine_id") in (None, machine_id()) or _same(old, new):
        return False
    measuring, silent_s = lock["renewed_at"] > lock["since"], lock.get("silent_s")
    silent = measuring and silent_s is not None and time.time() > lock["renewed_at"] + silent_s
    return bool(silent or old["machine_id"] == new.get("machine_id"))


def _same(one: State, other: State) -> bool:
    return all(one.get(key) == other.get(key) for key in ("machine_id", "pid", "pid_start"))


@contextlib.contextmanager
def _guard(home: Path) -> Iterator[None]:
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    guard = os.open(home / "lock.guard", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(guard, fcntl.LOCK_EX)
        yield
    finally:
        os.close(guard)
