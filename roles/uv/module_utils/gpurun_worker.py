"""Long work on a host in a process of its own, so that each call of a module is short: one heartbeat after another.

A module calls `carry_on` until the work is done. The first call starts a worker, which holds the lock file of its
target; any call, of this run or of another, waits for it. What the worker has to say is in a status file.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

_POLL_S = 0.05
# A failure that nobody was told of is still news for this long; then the work is tried again.
_NEWS_S = 60.0


class Trouble(Exception):
    """The work cannot be done. `klass` is one of gpurun's failure classes, `proof` what the machine said."""

    def __init__(self, klass, message, proof="", advice=""):
        super().__init__(message)
        self.klass, self.message, self.proof, self.advice = klass, message, proof, advice

    def document(self):
        """The failure as a module returns it."""
        return {"class": self.klass, "message": self.message, "proof": self.proof, "advice": self.advice}


def carry_on(target, work, wait_s, life_s):
    """Start `work(report)` for `target` unless it is under way, then wait at most `wait_s` seconds for its end.

    Returns {"status": "done", "result": ...} or {"status": "working", "progress": {...}}. Raises the worker's Trouble.
    `report(**progress)` tells those who wait how far it is. The worker ends after `life_s` seconds at the latest.
    """
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    lock, status = target.with_name(target.name + ".lock"), target.with_name(target.name + ".status")
    deadline = time.monotonic() + wait_s
    started = False
    while True:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass  # a worker is at it
        else:
            news = _read(status)
            if news is not None and news["status"] != "working":
                status.unlink()
                if news["status"] == "done":
                    return {"status": "done", "result": news["result"]}
                if started or time.time() - news["at"] < _NEWS_S:
                    failure = news["failure"]
                    raise Trouble(failure["class"], failure["message"], failure["proof"], failure["advice"])
            elif started:
                raise Trouble("interrupted", "the work was ended from outside", json.dumps(news), "start it again")
            _write(status, {"status": "working", "at": time.time(), "progress": {}})
            _fork(handle, status, work, life_s)
            started = True
        finally:
            os.close(handle)
        if time.monotonic() >= deadline:
            news = _read(status) or {"at": time.time(), "progress": {}}
            return {"status": "working", "progress": news.get("progress", {})}
        time.sleep(_POLL_S)


def _fork(handle, status, work, life_s):
    """A worker that has the lock for as long as it lives. The caller's copy of the lock is the caller's to close."""
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fork():
        return
    try:
        os.setsid()
        quiet = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(quiet, descriptor)
        for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
            signal.signal(name, signal.SIG_DFL)
        signal.alarm(max(1, int(life_s)))

        def report(**progress):
            _write(status, {"status": "working", "at": time.time(), "progress": progress})

        try:
            news = {"status": "done", "result": work(report)}
        except Trouble as trouble:
            news = {"status": "failed", "failure": trouble.document()}
        except OSError as error:
            news = {"status": "failed", "failure": from_os_error(error).document()}
        except BaseException:
            bug = Trouble("unknown", "gpurun's own work on the host broke", traceback.format_exc(), "report this")
            news = {"status": "failed", "failure": bug.document()}
        _write(status, {**news, "at": time.time()})
    finally:
        os._exit(0)


def from_os_error(error, where=""):
    """A system's refusal in words."""
    place = where or error.filename or "the disk"
    if error.errno in (28, 122):  # ENOSPC, EDQUOT
        return Trouble("disk_full", f"no space left for {place}", str(error), "free some space, or set `gpurun_home`")
    if error.errno in (1, 13, 30):  # EPERM, EACCES, EROFS
        advice = "let this user write there, or set `gpurun_home` to another folder"
        return Trouble("limits", f"{place} cannot be written or read", str(error), advice)
    return Trouble("unknown", f"{place}: {error.strerror or error}", str(error), "")


def fail(module, trouble):
    """End a module with a failure that says what, why and what next."""
    lines = [trouble.message, trouble.proof, trouble.advice and f"hint: {trouble.advice}"]
    module.fail_json(msg="\n".join(line for line in lines if line), failure=trouble.document())


def _read(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _write(path, document):
    """Atomically; a full disk must not keep a failure from being told, so the file is then written in place."""
    text = json.dumps(document)
    try:
        fresh = path.with_name(path.name + ".new")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    except OSError:
        with path.open("r+", encoding="utf-8") as stream:
            stream.write(text)
            stream.truncate()
