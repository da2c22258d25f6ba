"""Jobs on real hosts over ssh: in a unit under systemd, under the bare supervisor elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hosts import TestHost
from tests.jobs import READY, SERVER, eventually

ROLE = Path(__file__).resolve().parents[2] / "roles" / "server"
SECRET = "planted-5ecret-value"
BOTH = pytest.mark.parametrize("here", ["host", "plain_host"])


class Jobs:
    """The module on a host, as Ansible runs it, and what a person would look up there."""

    def __init__(self, host: TestHost) -> None:
        self.host = host
        self.user = "root"

    def __call__(self, **params: Any) -> dict[str, Any]:
        ansible = str(Path(sys.executable).with_name("ansible"))
        command = [ansible, self.host.name, "-i", str(self.host.inventory_path), "-e", f"ansible_user={self.user}"]
        command += ["-M", str(ROLE / "library"), "-m", "gpurun_job", "-a", json.dumps({"run": "run1", **params})]
        env = {**os.environ, "ANSIBLE_MODULE_UTILS": str(ROLE / "module_utils"), "ANSIBLE_PIPELINING": "1"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
        assert " => " in done.stdout, done.stdout + done.stderr
        return dict(json.loads(done.stdout.partition(" => ")[2]))

    def start(self, *words: str, **params: Any) -> dict[str, Any]:
        argv = ["python3", "-u", "-c", SERVER, "@GPURUN_PORT@", *words]
        result = self(**{"state": "started", "job": "job1", "argv": argv, "ready": READY, "stop_s": 1, **params})
        return dict(result["job"])

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


@pytest.fixture
def jobs(here: str, request: pytest.FixtureRequest) -> Iterator[Jobs]:
    jobs = Jobs(request.getfixturevalue(here))
    yield jobs
    jobs.host.free_disk()
    jobs(state="stopped", run="*", purge=True, stop_s=0)
    assert jobs.processes() == []
    assert jobs.host.kind == "plain" or jobs.units() == []


@BOTH
def test_life_of_a_server(jobs: Jobs) -> None:
    job = jobs.start(secrets={"HF_TOKEN": SECRET})
    assert job["status"] == "ready", job
    assert job["unit"] == ("gpurun-run1-job1" if jobs.host.kind == "systemd" else None)
    if job["unit"]:
        assert "gpurun-run1-job1.service" in jobs.said("cat", f"/proc/{job['pid']}/cgroup")
        shown = jobs.said("systemctl", "show", job["unit"])
        assert "RuntimeMaxUSec=1h 1min 1s" in shown and "KillMode=control-group" in shown and SECRET not in shown
    assert jobs.said("grep", "-rlF", SECRET, "/root", "/tmp", "/run", "/var", "/etc") == ""
    assert SECRET not in jobs.said("ps", "-eo", "args")
    assert SECRET in jobs.said("cat", f"/proc/{job['pid']}/environ")
    stopped = jobs(state="stopped")
    assert [(one["job"], one["how"]) for one in stopped["ended"]] == [("job1", "supervisor")]
    assert jobs(state="stopped")["changed"] is False
    assert jobs(state="info", job="job1")["job"]["reason"] == "stopped"


@BOTH
def test_crash_while_starting(jobs: Jobs) -> None:
    job = jobs.start("crash")
    assert (job["status"], job["reason"], job["exit_code"]) == ("failed", "exited", 1)
    assert job["ended_at"] - job["started_at"] < 1


@BOTH
def test_killed_supervisor_leaves_nothing_that_stop_does_not_find(jobs: Jobs) -> None:
    job = jobs.start("brood")
    supervisor = json.loads(jobs.said("cat", f"{job['dir']}/supervisor.json"))["pid"]
    assert len(jobs.processes()) >= 3
    jobs.said("kill", "-9", str(supervisor))
    # The child dies with it; the grandchild ignores SIGTERM, also systemd's, and has half a minute left by its unit.
    eventually(lambda: str(job["pid"]) not in jobs.said("ps", "-eo", "pid").split())
    ended = jobs(state="stopped")["ended"]
    assert ended and {one["how"] for one in ended} <= {"stray", "unit"}
    assert jobs.processes() == []


@pytest.mark.slow
@pytest.mark.parametrize("here", ["host"])
def test_hung_supervisor_is_ended_with_its_tree(jobs: Jobs) -> None:
    job = jobs.start("brood")
    supervisor = json.loads(jobs.said("cat", f"{job['dir']}/supervisor.json"))["pid"]
    jobs.said("kill", "-STOP", str(supervisor))
    jobs(state="stopped", stop_s=0)
    assert jobs.processes() == []


@BOTH
def test_end_is_told_on_a_full_disk(jobs: Jobs) -> None:
    job = jobs.start()
    jobs.host.fill_disk()
    assert jobs.said("sh", "-c", "echo x > /root/x; echo $?").strip() != "0"
    jobs.said("kill", "-9", str(job["pid"]))
    ended = jobs.start()
    assert (ended["status"], ended["reason"], ended["signal"]) == ("failed", "exited", 9)


@BOTH
def test_user_without_privileges_has_a_supervisor_that_outlives_the_connection(jobs: Jobs) -> None:
    jobs.user = "bench"
    job = jobs.start()
    assert (job["status"], job["unit"]) == ("ready", None)
    assert "/home/bench/.gpurun/" in job["dir"]
    jobs.said("pkill", "-u", "bench", "sshd")  # their connections; on the host, nobody else's
    assert jobs(state="info", job="job1")["job"]["status"] == "ready"
    assert len(jobs(state="stopped")["ended"]) == 1
