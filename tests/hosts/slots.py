"""A slot is one fleet's own share of this machine: a subnet, a bridge, a folder, a prefix for every name.

Fleets of several test runs live side by side. A slot is held by a lock that dies with its holder; who takes a slot
first removes what a dead holder left, by the slot's own names.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

RUN_FOLDER = Path("/run/gpurun-tests")
DISK_FOLDER = Path("/var/tmp/gpurun-tests")
NSPAWN = Path("/run/systemd/nspawn")


class Slot:
    """Claims a free slot (or that very one), and gives it back with `release`."""

    def __init__(self, wanted: int | None = None) -> None:
        RUN_FOLDER.mkdir(parents=True, exist_ok=True)
        for number in range(256) if wanted is None else (wanted,):
            lock = (RUN_FOLDER / f"{number}.lock").open("w")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                continue
            self.number, self._lock = number, lock
            break
        else:
            raise RuntimeError(f"no free slot for test hosts: {'0 to 255 are' if wanted is None else wanted} in use")
        self.sweep()
        self.folder.mkdir(parents=True, mode=0o700)

    @property
    def name(self) -> str:
        """Prefix of the names of everything in this slot."""
        return f"gpt{self.number}"

    @property
    def folder(self) -> Path:
        """Disks, keys, inventory."""
        return DISK_FOLDER / str(self.number)

    @property
    def subnet(self) -> str:
        """From the range that RFC 2544 sets aside for tests between networks."""
        return f"198.18.{self.number}.0/24"

    def address(self, n: int) -> str:
        """Address n of the subnet; 1 is this machine."""
        return f"198.18.{self.number}.{n}"

    def sweep(self) -> None:
        """Ends and removes everything that carries this slot's names."""
        for folder in self.cgroups():
            kill_cgroup(folder)
        for mount in reversed(_mounts_under(self.folder)):
            with contextlib.suppress(OSError):
                # systemd-nspawn's lock on this root, which it leaves behind when it is killed.
                root = Path(mount).stat()
                (NSPAWN / "locks" / f"inode-{root.st_dev}:{root.st_ino}").unlink(missing_ok=True)
            run("umount", "--lazy", mount)
        for line in run("ip", "netns", "list").stdout.splitlines():
            if line.split()[0].startswith(f"{self.name}-"):
                run("ip", "netns", "del", line.split()[0])
        # A namespace lives on while a process is in it, and so does its end of a link: take that by the end out here.
        for link in [*Path("/sys/class/net").glob(f"{self.name}.*"), Path(f"/sys/class/net/{self.name}")]:
            if link.exists():
                run("ip", "link", "del", link.name)
        if shutil.which("nft"):
            run("nft", "delete", "table", "ip", self.name)
        for propagate in (NSPAWN / "propagate").glob(f"{self.name}-*"):
            with contextlib.suppress(OSError):
                propagate.rmdir()
        shutil.rmtree(self.folder, ignore_errors=True)

    def cgroups(self) -> list[Path]:
        """Control groups of this slot's hosts, in every hierarchy."""
        return [folder for root in cgroup_roots() for folder in root.glob(f"{self.name}-*")]

    def release(self) -> None:
        """Removes everything and lets the slot go."""
        self.sweep()
        self._lock.close()


def cgroup_roots() -> list[Path]:
    """Mount points of the hierarchies that hosts are apart in: cgroup2, and of version 1 systemd's own and memory's."""
    roots = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind, options = line.split()[:4]
        if point.startswith("/sys/fs/cgroup") and (
            kind == "cgroup2" or (kind == "cgroup" and {"name=systemd", "memory"} & set(options.split(",")))
        ):
            roots.append(Path(point))
    return roots


def kill_cgroup(folder: Path) -> None:
    """Kills every process in a control group and below, and removes it. Bounded: raises TimeoutError after 10 s."""
    deadline = time.monotonic() + 10
    while folder.is_dir():
        folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
        pids = []
        for path in folders:
            with contextlib.suppress(OSError):
                pids += (path / "cgroup.procs").read_text().split()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        for path in sorted(folders, key=lambda path: -len(path.parts)):
            with contextlib.suppress(OSError):
                path.rmdir()
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {' '.join(pids)} in {folder} survive SIGKILL")
        if folder.is_dir():
            time.sleep(0.01)  # the kernel tells nobody when a killed process has left its group


def _mounts_under(folder: Path) -> list[str]:
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if Path(point).is_relative_to(folder)]


def run(*argv: str, check: bool = False) -> subprocess.CompletedProcess[str]:
    """Runs a program of this machine; with `check`, a failure is an error that shows what it said."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    if check and done.returncode != 0:
        raise RuntimeError(
            f"`{' '.join(argv)}` failed with {done.returncode}: {done.stderr.strip() or done.stdout.strip()}"
        )
    return done
