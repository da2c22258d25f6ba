"""What a run was and who conducts it: `manifest.json`."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from gpurun import __version__
from gpurun.samples import Record

RunStatus = Literal["running", "done", "failed", "interrupted"]


class Controller(Record):
    """The process that conducts a run. `pid_start` is its start in clock ticks since boot, where the system tells.

    Without `pid` it leaves on purpose, and its servers live on until their time limit.
    """

    host: str
    pid: int | None
    pid_start: int | None = None

    @classmethod
    def this(cls) -> Controller:
        """The present process."""
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> Controller:
        """A process of this machine."""
        return cls(host=socket.gethostname(), pid=pid, pid_start=_pid_start(pid))

    def gone(self) -> bool:
        """Whether that process certainly no longer exists. False on another machine: it cannot be known from here."""
        if self.host != socket.gethostname() or self.pid is None:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return self.pid_start is not None and _pid_start(self.pid) not in (self.pid_start, None)


class Manifest(Record):
    """What a run was (a contract: `manifest.json`). Times are ISO 8601 in UTC.

    `hosts` holds each host's facts, `engines` each engine's version, `command` the command line without secrets,
    `forced` the rules of preflight that did not count, `store` where samples are pushed to, `copy_of` the store that
    this is a copy from.
    """

    schema_: Literal["gpurun.manifest/1"] = Field(default="gpurun.manifest/1", alias="schema")
    run: str
    campaign: str
    status: RunStatus = "running"
    started_at: str
    ended_at: str | None = None
    exit_code: int | None = None
    gpurun: str = __version__
    controller: Controller
    command: list[str] = Field(default_factory=list)
    hosts: dict[str, Any] = Field(default_factory=dict)
    engines: dict[str, Any] = Field(default_factory=dict)
    forced: list[str] = Field(default_factory=list)
    store: str | None = None
    copy_of: str | None = None

    @property
    def status_now(self) -> RunStatus:
        """The status, except that a run whose controller is gone is not running but was interrupted."""
        return "interrupted" if self.status == "running" and self.controller.gone() else self.status


def _pid_start(pid: int) -> int | None:
    """Field 22 of proc_pid_stat(5), so that a reused pid is not mistaken; counted after the name, which holds `)`."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
    except (OSError, IndexError):
        return None
