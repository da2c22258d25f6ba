"""TCP ports of this host: who listens, and which one is free for a server that will bind it some time later."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from pathlib import Path

from ansible.module_utils.gpurun_processes import describe, user_name

_LISTENING = "0A"  # the state column of /proc/net/tcp, include/net/tcp_states.h


def listeners(port: int) -> dict[str, int]:
    """Socket inode -> user id of every socket that listens on this port, at whatever address."""
    found = {}
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    found[fields[9]] = int(fields[7])
    return found


def holds(pid: int, inodes: set[str]) -> bool:
    """Whether the process has one of these sockets open."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(entry.readlink()) in wanted:
                    return True
    return False


def holder(port: int) -> dict[str, object] | None:
    """Who listens on the port: pid, user, command; pid is None where only the owner of the socket can be seen."""
    found = listeners(port)
    if not found:
        return None
    for name in os.listdir("/proc"):  # noqa: PTH208 - no Path for each entry
        if name.isdigit() and holds(int(name), set(found)):
            return describe(int(name))
    return {"pid": None, "user": user_name(next(iter(found.values()))), "command": None}


def is_free(port: int) -> bool:
    """Whether a server could bind the port at any address.

    More than "nobody listens": an engine may bind long before it listens. Stricter than the one address that the server
    will use, because which one that is stands in its own flags.
    """
    if listeners(port):
        return False
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: TIME_WAIT is no obstacle
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def choose() -> int:
    """A free port. Raises OSError where there is none.

    From below the range that outgoing connections draw from: the server binds it minutes later, and what bind(0) gives
    could by then be the near end of somebody's download or of NCCL's rendezvous.
    """
    try:
        lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        lowest = 32768
    first = max(1024, min(20000, lowest - 8000))
    if first < lowest:
        for port in random.sample(range(first, lowest), k=min(100, lowest - first)):
            if is_free(port):
                return port
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
