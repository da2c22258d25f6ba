"""Container engines of the tests' own, Docker and Podman: data, socket and processes apart from any other."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from tests.hosts import base_tree

_UP_S = 30.0
_PARTS = ("bin", "lib", "lib64", "etc", "usr/bin", "usr/lib", "usr/lib64")


_NEEDED = {
    "docker": ("dockerd", "docker", "containerd", "runc"),
    "podman": ("podman", "conmon", "runc", "/usr/libexec/podman/catatonit"),
}
# Podman's own limits are more than a machine that is a container itself may set.
_CONTAINERS_CONF = """
[containers]
default_ulimits = []
pids_limit = 0
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "file"
"""


def missing(runtime: str = "docker") -> str | None:
    """Why this machine cannot run such an engine; None where it can."""
    absent = [name for name in _NEEDED[runtime] if shutil.which(name) is None]
    if absent:
        return f"missing: {' '.join(absent)} (tests/hosts/install.sh installs them)"
    return None if os.geteuid() == 0 else "a container engine for tests needs root"


class Engine:
    """`with Engine() as engine: ...`; `image` is the id of a small Debian with Python, also tagged `tag`.

    `env` is what its client needs to find it.
    """

    runtime = "docker"
    tag = "localhost/gpurun-tests:1"

    def __enter__(self) -> Engine:
        self.folder = Path(tempfile.mkdtemp(prefix="gpurun-docker-", dir="/tmp"))  # short: it holds a socket
        self.socket = self.folder / "docker.sock"
        self.host = f"unix://{self.socket}"
        self.env = {"DOCKER_HOST": self.host}
        argv = ["dockerd", "--data-root", str(self.folder / "data"), "--exec-root", str(self.folder / "run")]
        argv += ["--pidfile", str(self.folder / "pid"), "--host", self.host, "--bridge", "none", "--iptables=false"]
        argv += ["--ip6tables=false", "--exec-opt", "native.cgroupdriver=cgroupfs"]
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            until = time.monotonic() + _UP_S
            while not self.socket.exists() or self("version", check=False) == "":
                if self._process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"dockerd did not start:\n{(self.folder / 'log').read_text()[-2000:]}")
                time.sleep(0.05)
            self.image = self._import(base_tree())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __call__(self, *words: str, check: bool = True) -> str:
        """What the client says."""
        command, env = [self.runtime, *words], {**os.environ, **self.env}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.returncode}: {done.stderr}")
        return done.stdout.strip()

    def containers(self) -> list[str]:
        """Names of all containers, running or not."""
        return self("ps", "--all", "--format", "{{.Names}}").split()

    def _import(self, tree: Path) -> str:
        parts = [part for part in _PARTS if (tree / part).exists()]
        with subprocess.Popen(["tar", "-C", str(tree), "-c", *parts], stdout=subprocess.PIPE) as tar:
            command, env = [self.runtime, "import", "-", self.tag], {**os.environ, **self.env}
            subprocess.run(command, env=env, stdin=tar.stdout, capture_output=True, check=True, timeout=120)
        return self("image", "inspect", "--format", "{{.Id}}", self.tag)

    def __exit__(self, *exc: object) -> None:
        """Ends the engine with everything that it runs; its containerd ends with it."""
        try:
            if self._process.poll() is None:
                left = self.containers()
                if left:
                    self("rm", "--force", *left)
                self._process.send_signal(signal.SIGTERM)
            self._process.wait(timeout=30)
        finally:
            self._remove_folder()

    def _remove_folder(self) -> None:
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            point = line.split()[4]  # it leaves the namespace of the host's network mounted
            if Path(point).is_relative_to(self.folder):
                subprocess.run(["umount", "--lazy", point], check=False)
        shutil.rmtree(self.folder)


class Podman(Engine):
    """The same with Podman, which has no process of its own."""

    runtime = "podman"

    def __enter__(self) -> Podman:
        self.folder = Path(tempfile.mkdtemp(prefix="gpurun-podman-", dir="/tmp"))
        roots = f'runroot = "{self.folder}/run"\ngraphroot = "{self.folder}/data"\n'
        (self.folder / "storage.conf").write_text(f'[storage]\ndriver = "overlay"\n{roots}')
        (self.folder / "containers.conf").write_text(_CONTAINERS_CONF)
        self.env = {
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
        }
        try:
            self.image = self._import(base_tree())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self("rm", "--all", "--force", check=False)
        self._remove_folder()
