"""What the kernel knows of a job's end and no log of it tells: what its OOM killer ended, and faults of GPUs.

Linux admin-guide/cgroup-v2 (memory.events) and cgroup-v1/memory (memory.oom_control) for the counters,
ABI/testing/dev-kmsg for the records, mm/oom_kill.c for their words.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_GROUPS = Path("/sys/fs/cgroup")
_KMSG = Path("/dev/kmsg")
_RECORD_BYTES = 16384  # more than the kernel writes into one; a smaller buffer is refused
_LINES, _LINE = 10, 400  # what is kept of the kernel's log: lines, and characters of each
_ANSWER_S = 10.0
_KILLED = re.compile(r"[Kk]ill(?:ed)? process (\d+)")
_CHOSEN = re.compile(r"oom-kill:.*task_memcg=([^,]+),task=.*,pid=(\d+)")


class Witness:
    """Sees what the kernel does from now on. To be made in the job's own control group, before the job's process."""

    def __init__(self) -> None:
        self._since = time.time()
        self._group, self._counter = _own_group()
        self._before = _oom_kills(self._counter)
        self._kmsg = _open_log()

    def tell(self, pids: set[int], container: Mapping[str, Any] | None, env: Mapping[str, str]) -> dict[str, Any]:
        """`oom_kills`: processes of the job's group that the OOM killer ended (None: not known), and `log`: lines of
        the kernel that say so of the job's processes (`pids`, or whatever was in its group), or tell a GPU's fault."""
        now = _oom_kills(self._counter)
        kills = None if now is None or self._before is None else now - self._before
        if container:  # in a group of its own, which is gone with it
            kills = _container_kills(container, self._since, env)
        return {"oom_kills": kills, "log": self._lines(set(pids))[:_LINES]}

    def _lines(self, ours: set[int]) -> list[str]:
        kept = []
        for line in _records(self._kmsg):
            chosen, killed = _CHOSEN.search(line), _KILLED.search(line)
            if chosen and chosen[1] == self._group:
                ours.add(int(chosen[2]))
            if "NVRM: Xid" in line or (killed and int(killed[1]) in ours):
                kept.append(line[:_LINE])
        return kept


def _own_group() -> tuple[str | None, Path | None]:
    """This process's control group of memory (None for a root, which names nobody), and the file that counts there.

    In a container the group may be called as the host calls it, while the file system begins with that group.
    """
    with contextlib.suppress(OSError):
        for line in reversed(Path("/proc/self/cgroup").read_text().splitlines()):
            _, controllers, place = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root, name = (_GROUPS / "memory", "memory.oom_control") if controllers else (_GROUPS, "memory.events")
            for file in (root / place.lstrip("/") / name, root / name):
                if _oom_kills(file) is not None:
                    return place if place != "/" else None, file
    return None, None


def _oom_kills(counter: Path | None) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in counter.read_text().splitlines() if counter else ():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


def _container_kills(container: Mapping[str, Any], since: float, env: Mapping[str, str]) -> int | None:
    """What Docker has noted. It may note a kill after the end, so that none is not a proof; Podman notes none."""
    if "podman" in container["client"]:
        return None
    argv = [container["client"], "events", "--since", f"{since:.3f}", "--until", f"{time.time():.3f}"]
    argv += ["--filter", f"container={container['name']}", "--filter", "event=oom", "--format", "{{.Action}}"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(argv, env=dict(env), capture_output=True, timeout=_ANSWER_S, check=True).stdout
        return len(said.splitlines()) or None
    return None


def _open_log() -> int | None:
    """The kernel's log behind its last record; None where it may not be read, or is something else (a container's)."""
    with contextlib.suppress(OSError):
        log = os.open(_KMSG, os.O_RDONLY | os.O_NONBLOCK)
        if stat.S_ISCHR(os.fstat(log).st_mode):
            os.lseek(log, 0, os.SEEK_END)
            return log
        os.close(log)
    return None


def _records(log: int | None) -> Iterator[str]:
    """The messages since then: `priority,number,microseconds,flags;message`, and lines of key=value after it."""
    while log is not None:
        try:
            record = os.read(log, _RECORD_BYTES)
        except BrokenPipeError:  # records were overwritten before we read them
            continue
        except OSError:  # EAGAIN: there is no more
            return
        if not record:
            return
        yield record.decode(errors="replace").partition(";")[2].partition("\n")[0]
