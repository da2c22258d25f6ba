"""Jobs on real hosts over ssh: in a unit under systemd, under the bare supervisor elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.jobs import eventually
from tests.remote_jobs import Jobs

SECRET = "planted-5ecret-value"
BOTH = pytest.mark.parametrize("here", ["host", "plain_host"])


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
    job = jobs.start(secrets={"HF_TOKEN": SECRET}, life_s=1_300_000.0)  # systemd reads no 1.3e+06
    assert job["status"] == "ready", job
    assert job["unit"] == ("gpurun-run1-job1" if jobs.host.kind == "systemd" else None)
    if job["unit"]:
        assert "gpurun-run1-job1.service" in jobs.said("cat", f"/proc/{job['pid']}/cgroup")
        shown = jobs.said("systemctl", "show", job["unit"])
        assert "RuntimeMaxUSec=2w 1d 1h 7min 41s" in shown and "KillMode=control-group" in shown and SECRET not in shown
    assert jobs.said("grep", "-rlF", SECRET, "/root", "/tmp", "/run", "/var", "/etc") == ""
    assert SECRET not in jobs.said("ps", "-eo", "args")
    assert SECRET in jobs.said("cat", f"/proc/{job['pid']}/environ")
    stopped = jobs(state="stopped")
    assert [(one["job"], one["how"]) for one in stopped["ended"]] == [("job1", "supervisor")]
    assert jobs(state="stopped")["changed"] is False
    assert jobs(state="info", job="job1")["job"]["reason"] == "stopped"


@pytest.mark.alone
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


@pytest.mark.parametrize("here", ["plain_host"])  # under systemd the unit's control group ends it
def test_orphan_without_any_mark_is_ended_after_its_supervisor_was_killed(jobs: Jobs) -> None:
    job = jobs.start("hidden")
    hidden = jobs.said("cat", f"{job['dir']}/hidden")
    eventually(lambda: hidden in jobs.said("cat", f"{job['dir']}/tree.json"))
    jobs.said("kill", "-9", str(json.loads(jobs.said("cat", f"{job['dir']}/supervisor.json"))["pid"]))
    assert [(one["job"], one["how"]) for one in jobs(state="stopped")["ended"]] == [("job1", "stray")]
    assert hidden not in jobs.said("ps", "-eo", "pid").split()


@pytest.mark.parametrize("here", ["host"])
def test_host_that_is_rebooted_in_good_order_is_told(jobs: Jobs) -> None:
    assert jobs.start()["status"] == "ready"
    jobs.host.reboot()
    job = jobs(state="info", job="job1")["job"]
    assert (job["status"], job["reason"]) == ("failed", "rebooted"), job


@BOTH
def test_host_that_lost_power_is_told(jobs: Jobs) -> None:
    assert jobs.start()["status"] == "ready"
    jobs.host.stop()
    jobs.host.start()
    job = jobs(state="finished", job="job2", argv=["true"], server_job="job1")["server"]
    assert (job["status"], job["reason"]) == ("failed", "rebooted")
    assert jobs.start()["reason"] == "rebooted"  # its name is used up, and nothing is measured on another server


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
