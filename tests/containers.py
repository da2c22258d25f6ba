"""A Docker engine of the tests' own: data, socket and processes apart from any other, ended by the id it recorded."""

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


def missing() -> str | None:
    """Why this machine cannot run a Docker engine; None where it can."""
    absent = [name for name in ("dockerd", "docker", "containerd", "runc") if shutil.which(name) is None]
    if absent:
        return f"missing: {' '.join(absent)} (tests/hosts/install.sh installs them)"
    return None if os.geteuid() == 0 else "a Docker engine for tests needs root"


class Engine:
    """`with Engine() as engine: ...`; `image` is the id of a small Debian with Python, also tagged `tag`."""

    tag = "gpurun-tests:1"

    def __enter__(self) -> Engine:
        self.folder = Path(tempfile.mkdtemp(prefix="gpurun-docker-", dir="/tmp"))  # short: it holds a socket
        self.socket = self.folder / "docker.sock"
        self.host = f"unix://{self.socket}"
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
        done = subprocess.run(["docker", "--host", self.host, *words], capture_output=True, text=True, timeout=60)
        if check and done.returncode != 0:
            raise RuntimeError(f"docker {' '.join(words)}: {done.returncode}: {done.stderr}")
        return done.stdout.strip()

    def containers(self) -> list[str]:
        """Names of all containers, running or not."""
        return self("ps", "--all", "--format", "{{.Names}}").split()

    def _import(self, tree: Path) -> str:
        parts = [part for part in _PARTS if (tree / part).exists()]
        with subprocess.Popen(["tar", "-C", str(tree), "-c", *parts], stdout=subprocess.PIPE) as tar:
            command = ["docker", "--host", self.host, "import", "-", self.tag]
            done = subprocess.run(command, stdin=tar.stdout, capture_output=True, text=True, check=True, timeout=120)
        return done.stdout.strip()

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
            for line in Path("/proc/self/mountinfo").read_text().splitlines():
                point = line.split()[4]  # it leaves the namespace of the host's network mounted
                if Path(point).is_relative_to(self.folder):
                    subprocess.run(["umount", "--lazy", point], check=False)
            shutil.rmtree(self.folder)
