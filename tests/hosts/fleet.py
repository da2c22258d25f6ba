"""Several test hosts on a bridge of their own, with keys, a pinned known_hosts and an Ansible inventory."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import yaml
from tests.hosts.base import SUITE, base_tree
from tests.hosts.machine import Kind, TestHost
from tests.hosts.network import share_internet
from tests.hosts.slots import Slot, run

PROGRAMS = ("systemd-nspawn", "debootstrap", "ip", "mkfs.ext4", "nsenter", "ssh", "ssh-keygen")


UV_CACHE = "/var/cache/uv"  # on the hosts
_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}


def missing() -> str | None:
    """Why this machine cannot boot test hosts; None where it can."""
    status = Path("/proc/self/status").read_text()
    effective = int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), 16)
    lacking = [name for name, bit in _CAPABILITIES.items() if not effective >> bit & 1]
    if os.geteuid() != 0 or lacking:
        return " ".join(["booted test hosts need root with", *(lacking or _CAPABILITIES)])
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    return f"missing: {' '.join(absent)} (tests/hosts/install.sh installs them)" if absent else None


class HostFleet:
    """`with HostFleet(4) as fleet: ...` boots four hosts and removes every trace of them at the end.

    n          how many
    kind       "systemd" (booted) or "plain" (a bare sshd, as in rented containers)
    names      host names; default host1, host2, ... or plain1, ...
    bind       {path here: path there}, read-only
    overlay    {path here: path there}, writable there, unchanged here (a warm package cache)
    uv_cache   a folder of uv's here: the hosts install from it, offline, through the inventory's uv_environment
    variables  inventory variables for all hosts
    internet   the hosts reach what this machine reaches (off: only each other and this machine)
    suite      which Debian
    disk_mib   size of each host's disk (sparse)
    port       where sshd listens
    slot       number of the slot (see slots.py); by default the first free one
    """

    def __init__(
        self,
        n: int = 1,
        kind: Kind = "systemd",
        *,
        names: Sequence[str] = (),
        bind: Mapping[str, str] | None = None,
        overlay: Mapping[str, str] | None = None,
        uv_cache: Path | None = None,
        variables: Mapping[str, object] | None = None,
        internet: bool = False,
        suite: str = SUITE,
        disk_mib: int = 16384,
        port: int = 22,
        slot: int | None = None,
    ) -> None:
        self._names = list(names) or [f"{'host' if kind == 'systemd' else 'plain'}{k + 1}" for k in range(n)]
        self._kind, self._suite, self._internet = kind, suite, internet
        self._disk_mib, self._port, self._wanted_slot = disk_mib, port, slot
        self._bind, self._overlay = dict(bind or {}), dict(overlay or {})
        self._variables = dict(variables or {})
        if uv_cache is not None:
            self._overlay[str(uv_cache)] = UV_CACHE
            offline = {"UV_CACHE_DIR": UV_CACHE, "UV_OFFLINE": "1", "UV_LINK_MODE": "copy"}
            self._variables.setdefault("uv_environment", offline)
        self.hosts: list[TestHost] = []
        self._cleanup = contextlib.ExitStack()

    def __getitem__(self, index: int) -> TestHost:
        return self.hosts[index]

    def __len__(self) -> int:
        return len(self.hosts)

    @property
    def folder(self) -> Path:
        """Keys, known_hosts and inventory of this fleet; removed at the end."""
        return self._slot.folder

    @property
    def known_hosts(self) -> Path:
        """The pinned host keys."""
        return self.folder / "known_hosts"

    @property
    def key(self) -> Path:
        """The private key that root and bench accept on every host."""
        return self.folder / "key"

    @property
    def inventory_path(self) -> Path:
        """All hosts in the group gpu_hosts, logging in as root."""
        return self.folder / "inventory.yml"

    def inventory(self, user: str = "root", **extra: object) -> dict[str, object]:
        """The same as data, for another user or with more variables for each host."""
        common = "-F none -o IdentitiesOnly=yes -o StrictHostKeyChecking=yes -o GlobalKnownHostsFile=none"
        common += f" -o UserKnownHostsFile={self.known_hosts}"
        common += " -o ServerAliveInterval=2 -o ServerAliveCountMax=2 -o ConnectTimeout=5"
        variables = {
            "ansible_user": user,
            "ansible_ssh_private_key_file": str(self.key),
            "ansible_ssh_common_args": common,
            "ansible_control_path_dir": str(self.folder / "cp"),
            "ansible_python_interpreter": "/usr/bin/python3",
            **self._variables,
            **extra,
        }
        hosts = {host.name: {"ansible_host": host.address, "ansible_port": host.port} for host in self.hosts}
        return {"gpu_hosts": {"hosts": hosts, "vars": variables}}

    def start(self) -> HostFleet:
        """Builds the base tree if need be, then boots all hosts side by side."""
        base = base_tree(self._suite)
        self._slot = Slot(self._wanted_slot)
        self._cleanup.callback(self._slot.release)
        try:
            self._boot(base)
        except BaseException:
            self.stop()
            raise
        return self

    def _boot(self, base: Path) -> None:
        slot = self._slot
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "gpurun-tests", "-f", str(self.key), check=True)
        run("ip", "link", "add", slot.name, "type", "bridge", check=True)
        run("ip", "addr", "add", f"{slot.address(1)}/24", "dev", slot.name, check=True)
        run("ip", "link", "set", slot.name, "up", check=True)
        if self._internet:
            self._cleanup.enter_context(share_internet(slot))
            for name in ("/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt"):
                self._bind.setdefault(str(Path(name).resolve()), name)
        self.hosts = [
            TestHost(
                slot,
                n,
                name=name,
                kind=self._kind,
                base=base,
                disk_mib=self._disk_mib,
                port=self._port,
                bind=self._bind,
                overlay=self._overlay,
            )
            for n, name in enumerate(self._names, start=1)
        ]
        authorized = self.key.with_suffix(".pub").read_text()
        with ThreadPoolExecutor(len(self.hosts)) as pool:
            list(pool.map(lambda host: host.create(authorized), self.hosts))
            known = [f"{_known_name(host)} {host.host_key}" for host in self.hosts]
            self.known_hosts.write_text("\n".join(known) + "\n")
            self.inventory_path.write_text(yaml.safe_dump(self.inventory()))
            list(pool.map(TestHost.start, self.hosts))

    def stop(self) -> None:
        """Ends ssh masters, hosts, mounts, links and files. May be called again."""
        for socket in self.folder.glob("cp/*"):
            command = ["ssh", "-F", "none", "-O", "exit", "-o", f"ControlPath={socket}", "host"]
            subprocess.run(command, capture_output=True, timeout=10)
        with contextlib.ExitStack() as stack:
            stack.callback(self._cleanup.close)
            for host in self.hosts:
                stack.callback(host.stop)
        self.hosts = []

    def __enter__(self) -> HostFleet:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _known_name(host: TestHost) -> str:
    return host.address if host.port == 22 else f"[{host.address}]:{host.port}"
