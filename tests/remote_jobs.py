"""The modules of the role `server` on booted hosts, as Ansible runs them over ssh."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.hosts import TestHost
from tests.jobs import READY, SERVER

ROLE = Path(__file__).resolve().parents[1] / "roles" / "server"


class Jobs:
    """The module on a host, as Ansible runs it, and what a person would look up there."""

    def __init__(self, host: TestHost) -> None:
        self.host = host
        self.user = "root"

    def __call__(self, module: str = "gpurun_job", **params: Any) -> dict[str, Any]:
        ansible = str(Path(sys.executable).with_name("ansible"))
        command = [ansible, self.host.name, "-i", str(self.host.inventory_path), "-e", f"ansible_user={self.user}"]
        command += ["-M", str(ROLE / "library"), "-m", module, "-a", json.dumps({"run": "run1", **params})]
        folders = {"ANSIBLE_MODULE_UTILS": "module_utils", "ANSIBLE_ACTION_PLUGINS": "action_plugins"}
        env = {**os.environ, "ANSIBLE_PIPELINING": "1", **{name: str(ROLE / place) for name, place in folders.items()}}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
        assert " => " in done.stdout, done.stdout + done.stderr
        return dict(json.loads(done.stdout.partition(" => ")[2]))

    def start(self, *words: str, **params: Any) -> dict[str, Any]:
        argv = ["python3", "-u", "-c", SERVER, "@GPURUN_PORT@", *words]
        result = self(**{"state": "started", "job": "job1", "argv": argv, "ready": READY, "stop_s": 1, **params})
        return dict(result["job"])

    def hold(self, run: str = "run1") -> dict[str, Any]:
        """Take the host for a run whose controller is a process on it that never ends."""
        born = int(self.said("cat", "/proc/1/stat").rpartition(")")[2].split()[19])
        namespace = self.said("readlink", "/proc/self/ns/pid").strip()
        boot = self.said("cat", "/proc/sys/kernel/random/boot_id").strip()
        controller = {"host": "test", "machine_id": f"{boot}/{namespace}", "pid": 1, "pid_start": born}
        return self("gpurun_lock", run=run, controller=controller)

    def said(self, *argv: str) -> str:
        return self.host.inside(argv, check=False)

    def processes(self) -> list[str]:
        """What is left of any job."""
        return [
            line
            for line in self.said("ps", "-eo", "pid,args").splitlines()
            if "gpurun" in line or "http.server" in line
        ]

    def units(self) -> list[str]:
        return self.said("systemctl", "list-units", "--all", "--plain", "--no-legend", "gpurun-*").splitlines()
