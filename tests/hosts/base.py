"""The tree that every test host is a copy-on-write layer over: a small Debian, built once and cached."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SUITE = "bookworm"
PACKAGES = (
    "ca-certificates",
    "dbus",
    "iproute2",
    "libpam-systemd",  # ssh logins become sessions, as on real hosts
    "openssh-server",
    "procps",
    "python3",
    "python3-apt",
    "sudo",
    "systemd",
    "systemd-sysv",
)
RPM_FAMILY = ("dnf", "dnf-plugins-core", "rpm")  # for hosts of SUITE that say they are of that family
OTHERS = ("libgomp1",)  # for hosts of other suites: llama.cpp loads it, and of SUITE's packages one brings it
# Run inside the fresh tree. The user `bench` is who logs in where a test wants no root login; it may become root.
SETUP = r"""
set -eu
rm -f /etc/ssh/ssh_host_*
useradd --create-home --shell /bin/bash bench
echo 'bench:bench' | chpasswd
echo 'bench ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/bench
printf 'HostKey /etc/ssh/ssh_host_ed25519_key\nUseDNS no\nMaxStartups 100\n' > /etc/ssh/sshd_config.d/tests.conf
systemctl mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer \
    systemd-networkd.service systemd-resolved.service systemd-timesyncd.service console-getty.service getty.target
apt-get clean
rm -rf /var/lib/apt/lists/*
"""


def cache_folder() -> Path:
    """Where base trees are kept: outside the repository, shared by all checkouts of this machine."""
    return Path(os.environ.get("GPURUN_TEST_CACHE", "/var/cache/gpurun-tests"))


@contextmanager
def locked(path: Path, shared: bool = False) -> Iterator[None]:
    """Holds a lock on a file, alone or with others that share it; the kernel lets it go if we die."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield


def base_tree(suite: str = SUITE) -> Path:
    """The folder of a Debian's base tree; built if this machine has none (about a minute).

    Raises subprocess.CalledProcessError with debootstrap's output when the packages cannot be had.
    """
    packages = sorted({*PACKAGES, *(RPM_FAMILY if suite == SUITE else OTHERS)})
    key = hashlib.sha256("\n".join((suite, *packages, SETUP)).encode()).hexdigest()[:16]
    tree = cache_folder() / key
    if tree.is_dir():
        return tree
    with locked(cache_folder() / f"{key}.lock"):
        if tree.is_dir():
            return tree
        partial = tree.with_name(f"{key}.{uuid.uuid4().hex[:8]}.partial")
        try:
            _run(["debootstrap", "--variant=minbase", f"--include={','.join(packages)}", suite, str(partial)])
            _run(["chroot", str(partial), "/bin/sh", "-c", SETUP])
            partial.rename(tree)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return tree


def _run(argv: list[str]) -> None:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise RuntimeError(f"{argv[0]} failed with {done.returncode}, so no test host can be built:\n{tail}")


if __name__ == "__main__":  # ahead of the tests
    base_tree()
