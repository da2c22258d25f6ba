"""A way out for test hosts: this machine routes and masquerades for a fleet's subnet."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.hosts.slots import RUN_FOLDER, Slot, run

_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


@contextmanager
def share_internet(slot: Slot) -> Iterator[None]:
    """While it is open, hosts of this slot reach what this machine reaches.

    Forwarding is switched on for the time that any fleet needs it; the last one restores what was set before.
    """
    rule = f'ip saddr {slot.subnet} oifname != "{slot.name}" masquerade'
    chain = f"chain out {{\ntype nat hook postrouting priority srcnat\n{rule}\n}}"
    table = f"table ip {slot.name} {{\n{chain}\n}}\n"
    run("nft", table, check=True)
    before = RUN_FOLDER / "ip_forward.before"
    with (RUN_FOLDER / "ip_forward.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        if _FORWARD.read_text().strip() == "0":
            before.write_text("0")
            _FORWARD.write_text("1")
        try:
            yield
        finally:
            run("nft", "delete", "table", "ip", slot.name)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass  # another fleet still needs it
            else:
                if before.exists():
                    _FORWARD.write_text(before.read_text())
                    before.unlink()
