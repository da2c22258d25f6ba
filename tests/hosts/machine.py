"""One test host: a disk of its own over the base tree, a network namespace, and systemd or a bare sshd inside."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from tests.hosts.slots import Slot, cgroup_roots, kill_cgroup, run

Kind = Literal["systemd", "plain"]
_REBOOT = 133  # how systemd-nspawn --keep-unit says that the guest wants to boot again
_UP_S = 30.0
# What Debian 13's systemd has to be told where the kernel's control groups are (also) of version 1.
_BOOT = ("--boot", "SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1")
_STAND_IN = Path(__file__).parents[1] / "fixtures" / "nvidia" / "nvidia_smi.py"


class TestHost:
    """A host that is up. `name` is its host name and its name in the inventory; it listens on `address`:`port`."""

    __test__ = False

    def __init__(
        self,
        slot: Slot,
        n: int,
        *,
        name: str,
        kind: Kind,
        base: Path,
        disk_mib: int,
        port: int,
        bind: Mapping[str, str],
        overlay: Mapping[str, str],
    ) -> None:
        self.name, self.kind, self.port = name, kind, port
        self.address = slot.address(n + 1)
        self.machine = f"{slot.name}-{n}"
        self.folder = slot.folder / str(n)
        self.root = self.folder / "root"
        self.boot_s = 0.0
        self._slot, self._base, self._disk_mib, self._bind, self._overlay = slot, base, disk_mib, bind, overlay
        self._link = f"{slot.name}.{n}"
        self._filler = self.folder / "disk" / "filler"
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: threading.Thread | None = None
        self._changed = threading.Condition()
        self._boots = 0
        self._wanted = False

    @property
    def inventory_path(self) -> Path:
        """The Ansible inventory of the fleet that this host is in."""
        return self._slot.folder / "inventory.yml"

    # -- building and taking down -------------------------------------------------------------------------------------

    def create(self, authorized_key: str) -> None:
        """Disk, tree, keys and network; nothing runs yet."""
        disk = self.folder / "disk"
        disk.mkdir(parents=True)
        self.root.mkdir()
        image = self.folder / "disk.img"
        with image.open("wb") as stream:
            stream.truncate(self._disk_mib << 20)
        run("mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", "-E", "lazy_itable_init=1", str(image), check=True)
        run("mount", "-o", "loop", str(image), str(disk), check=True)
        for layer in ("upper", "work"):
            (disk / layer).mkdir()
        (disk / "upper").chmod(0o755)
        layers = f"lowerdir={self._base},upperdir={disk / 'upper'},workdir={disk / 'work'}"
        run("mount", "-t", "overlay", "overlay", "-o", layers, str(self.root), check=True)
        self._write_identity(authorized_key)
        self._connect()

    def _write_identity(self, authorized_key: str) -> None:
        etc = self.root / "etc"
        (etc / "hostname").write_text(f"{self.name}\n")
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {self.name}\n")
        (etc / "machine-id").write_text(f"{uuid.uuid4().hex}\n")
        if self.port != 22:
            (etc / "ssh/sshd_config.d/port.conf").write_text(f"Port {self.port}\n")
        key = etc / "ssh/ssh_host_ed25519_key"
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.name, "-f", str(key), check=True)
        self.host_key = " ".join(key.with_suffix(".pub").read_text().split()[:2])
        for home in ("root", "home/bench"):
            folder = self.root / home / ".ssh"
            folder.mkdir(mode=0o700, exist_ok=True)
            (folder / "authorized_keys").write_text(authorized_key)
            owner = folder.parent.stat()
            for path in (folder, folder / "authorized_keys"):
                os.chown(path, owner.st_uid, owner.st_gid)

    def _connect(self) -> None:
        inside = ("ip", "-n", self.machine)
        run("ip", "netns", "add", self.machine, check=True)
        peer = ("peer", "name", "eth0", "netns", self.machine)
        run("ip", "link", "add", self._link, "type", "veth", *peer, check=True)
        run("ip", "link", "set", self._link, "master", self._slot.name, "up", check=True)
        run(*inside, "addr", "add", f"{self.address}/24", "dev", "eth0", check=True)
        for device in ("lo", "eth0"):
            run(*inside, "link", "set", device, "up", check=True)
        run(*inside, "route", "add", "default", "via", self._slot.address(1), check=True)

    # -- running ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Boots, and returns when sshd answers; `boot_s` says how long that took."""
        began = time.monotonic()
        self._wanted = True
        self._spawn()
        self._watcher = threading.Thread(target=self._watch, name=f"watch {self.machine}", daemon=True)
        self._watcher.start()
        self.wait_up()
        self.boot_s = time.monotonic() - began

    def stop(self) -> None:
        """Pulls the plug: every process of the host dies at once. The disk stays as it is."""
        self._wanted = False
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(timeout=10)
        for root in cgroup_roots():
            kill_cgroup(root / self.machine)
        if self._watcher is not None:
            self._watcher.join(timeout=10)

    def reboot(self) -> None:
        """Boots again, in good order (systemd) or by a restart of the container (plain), and waits until it is up."""
        if self.kind == "plain":
            self.stop()
            self.start()
            return
        with self._changed:
            before = self._boots
            self.inside(["systemctl", "reboot"])
            if not self._changed.wait_for(lambda: self._boots > before, timeout=_UP_S):
                raise TimeoutError(f"{self.name} did not go down for its reboot; its console is {self.console}")
        self.wait_up()

    @property
    def console(self) -> Path:
        """What the host wrote on its console."""
        return self.folder / "console.log"

    def _spawn(self) -> None:
        argv = ["systemd-nspawn", "--quiet", "--keep-unit", "--register=no", f"--directory={self.root}"]
        argv += [f"--machine={self.machine}", f"--hostname={self.name}", "--console=pipe", "--link-journal=no"]
        argv += [f"--network-namespace-path=/run/netns/{self.machine}", "--resolv-conf=off", "--timezone=off"]
        argv += [f"--bind-ro={source}:{target}" for source, target in self._bind.items()]
        # Their upper layers are on the host's own disk: counted there, kept over a reboot, gone with it.
        for number, (source, target) in enumerate(self._overlay.items()):
            upper = self.folder / "disk" / f"overlay-{number}" / "upper"
            upper.mkdir(parents=True, exist_ok=True)
            argv.append(f"--overlay={source}:{upper}:{target}")
        argv += _BOOT if self.kind == "systemd" else ["--as-pid2", "/bin/sh", "-c", _BARE_SSHD]
        groups = [root / self.machine for root in cgroup_roots()]
        for group in groups:
            group.mkdir(exist_ok=True)
        # A control group of its own: hosts must not share systemd's, and all of it can be found and ended.
        enter = "".join(f"echo $$ > {shlex.quote(str(group / 'cgroup.procs'))} && " for group in groups)
        with self.console.open("ab") as console:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f'{enter}exec "$@"', "sh", *argv],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _watch(self) -> None:
        while True:
            process = self._process
            assert process is not None
            code = process.wait()
            with self._changed:
                if not self._wanted or code != _REBOOT:
                    return
                self._spawn()
                self._boots += 1
                self._changed.notify_all()

    def wait_up(self, timeout_s: float = _UP_S) -> None:
        """Waits until sshd answers. Raises TimeoutError with the end of the console."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                with socket.create_connection((self.address, self.port), timeout=1) as connection:
                    if connection.recv(4) == b"SSH-":
                        return
            except OSError:
                pass
            if self._process is not None and self._process.poll() not in (None, _REBOOT):
                break
            time.sleep(0.01)
        tail = self.console.read_text(errors="replace")[-2000:]
        raise TimeoutError(f"{self.name} ({self.kind}) does not answer on {self.address}:{self.port}; console:\n{tail}")

    # -- working on it ------------------------------------------------------------------------------------------------

    @property
    def ssh_options(self) -> list[str]:
        """For ssh, scp, rsync: pinned host key, no agent, no user configuration, dead connections noticed in 4 s."""
        options = ["BatchMode=yes", "IdentitiesOnly=yes", "StrictHostKeyChecking=yes", "ConnectTimeout=5"]
        options += [f"UserKnownHostsFile={self._slot.folder / 'known_hosts'}", "GlobalKnownHostsFile=none"]
        options += ["ServerAliveInterval=2", "ServerAliveCountMax=2", f"Port={self.port}"]
        return ["-F", "none", "-i", str(self._slot.folder / "key"), *(f"-o{option}" for option in options)]

    def exec(
        self, argv: Sequence[str], *, user: str = "root", check: bool = True, timeout_s: float = 60, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command over ssh. With `check`, a failure raises RuntimeError with its output."""
        command = ["ssh", *self.ssh_options, f"{user}@{self.address}", shlex.join(argv)]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s)
        if check and done.returncode != 0:
            raise RuntimeError(f"{shlex.join(argv)} on {self.name}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def inside(self, argv: Sequence[str], *, check: bool = True, timeout_s: float = 60) -> str:
        """Runs a command as root in the host's namespaces, without its network or sshd: works while it is cut off."""
        assert self._process is not None
        pid = self._process.pid
        leader = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]
        command = ["nsenter", "-t", leader, "-m", "-u", "-i", "-n", "-p", "-r", "-w", "--", *argv]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s)
        if check and done.returncode != 0:
            raise RuntimeError(f"{shlex.join(argv)} in {self.name}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def cut(self) -> None:
        """Unplugs the network cable: packets vanish, open connections hang."""
        run("ip", "link", "set", self._link, "down", check=True)

    def heal(self) -> None:
        """Plugs it in again, and waits until sshd answers."""
        run("ip", "link", "set", self._link, "up", check=True)
        self.wait_up()

    def fill_disk(self, leave_bytes: int = 0) -> None:
        """Leaves that many bytes free on the host's disk (0: the next write fails with ENOSPC)."""
        self.free_disk()
        with self._filler.open("wb") as stream:
            while (surplus := self._disk_free() - leave_bytes) > 0:
                # Not all at once: the file's own bookkeeping takes blocks too.
                piece = surplus // 2 if surplus > 1 << 20 else 4096
                try:
                    os.posix_fallocate(stream.fileno(), stream.seek(0, os.SEEK_END), piece)
                except OSError:
                    return

    def _disk_free(self) -> int:
        space = os.statvfs(self._filler.parent)
        return space.f_bavail * space.f_frsize

    def free_disk(self) -> None:
        """Takes back what `fill_disk` took."""
        self._filler.unlink(missing_ok=True)

    # -- GPUs ---------------------------------------------------------------------------------------------------------

    def set_gpus(self, description: Mapping[str, object] | str) -> None:
        """Gives the host GPUs: a description, or the name of one in tests/fixtures/nvidia (`8x-rtxpro6000`, ...).

        The stand-in reads it at each call, so a test may change it at any time. It is gone after a reboot (/run).
        """
        text = _STAND_IN.with_name(f"{description}.json").read_text() if isinstance(description, str) else None
        smi = self.root / "usr/local/bin/nvidia-smi"
        if not smi.exists():
            shutil.copyfile(_STAND_IN, smi)
            smi.chmod(0o755)
        script = "import sys; open('/run/gpurun-fake-gpus.json.new','w').write(sys.argv[1]);"
        script += "import os; os.replace('/run/gpurun-fake-gpus.json.new','/run/gpurun-fake-gpus.json')"
        self.inside(["python3", "-c", script, text if text is not None else json.dumps(description)])


_BARE_SSHD = "mkdir -p /run/sshd && exec /usr/sbin/sshd -D -e"
