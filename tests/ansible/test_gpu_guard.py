"""GPU memory around a server, on a booted host whose nvidia-smi is the stand-in: real processes, described GPUs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from tests.hosts import TestHost
from tests.jobs import eventually
from tests.remote_jobs import Jobs

TWO = {
    "defaults": {
        "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "architecture": "Blackwell",
        "compute_cap": "12.0",
        "memory_total_mib": 97887,
    },
    "gpus": [{"bus_id": "00000000:01:00.0"}, {"bus_id": "00000000:02:00.0"}],
}
UNIFIED = {"defaults": {**TWO["defaults"], "memory_total_mib": None}, "gpus": [{"bus_id": "0000000F:01:00.0"}]}  # type: ignore[dict-item]
HOLD = {"FAKE_GPU_MEMORY_MIB": "0:20000,1:30000"}
# Holds memory of a GPU until it is killed; no connection waits for it.
SQUATTER = """
import os, sys, time
if os.fork():
    sys.exit()
os.setsid()
for number in range(3):
    os.close(number)
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(600)
"""


def gpus(*used_mib: int, **more: object) -> dict[str, object]:
    """The two GPUs with this much memory in use that no process holds."""
    return {**TWO, "gpus": [{**gpu, "used_mib": mib} for gpu, mib in zip(TWO["gpus"], used_mib)], **more}  # type: ignore[dict-item]


@pytest.fixture
def jobs(host: TestHost) -> Iterator[Jobs]:
    jobs = Jobs(host)
    host.set_gpus(TWO)
    jobs.hold()
    yield jobs
    host.set_gpus(TWO)
    jobs(state="stopped", run="*", purge=True, stop_s=0)
    assert jobs.processes() == [] and jobs.units() == []


def squat(host: TestHost, claim: str, *env: str) -> int:
    """A process that holds GPU memory, as the user bench; its pid."""
    host.inside(["rm", "-f", "/tmp/squatter"])
    command = ["sudo", "-u", "bench", "env", f"FAKE_GPU_MEMORY_MIB={claim}", *env, "python3", "-c", SQUATTER]
    host.inside([*command, "/tmp/squatter"])
    return int(eventually(lambda: host.inside(["cat", "/tmp/squatter"], check=False)))


def test_server_gives_the_memory_of_all_its_gpus_back(jobs: Jobs) -> None:
    assert jobs.start("brood", env=HOLD, require_lock=True)["status"] == "ready"
    asked = json.loads(jobs.said("cat", "/root/.gpurun/jobs/run1/job1/job.json"))
    assert asked["gpus"]["before_mib"] == {"0": 0, "1": 0}
    held = jobs.said("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits").split()
    assert held == ["40000", "60000"]  # the server's, and that of a grandchild which ignores SIGTERM
    stopped = jobs(state="stopped", job="job1", drain_s=5)["job"]
    assert (stopped["status"], stopped["gpu_memory_left"]) == ("exited", None)
    assert jobs.start(job="job2", require_lock=True)["status"] == "ready"


@pytest.mark.parametrize("claim", ["1:4096", "0:20000,1:400"])
def test_stranger_is_named_and_refused_and_lives_on(jobs: Jobs, claim: str) -> None:
    pid = squat(jobs.host, claim)
    refused = jobs.start(require_lock=True)
    assert (refused["status"], refused["reason"]) == ("failed", "gpu_busy")
    gpu, _, mib = claim.split(",")[0].partition(":")
    assert f"GPU {gpu}: python3" in refused["message"], refused["message"]
    assert f"(pid {pid}, user bench, {mib} MiB)" in refused["message"]
    assert [one["gpu"] for one in refused["gpu_holders"]] == [int(part[0]) for part in claim.split(",")]
    jobs.said("kill", str(pid))  # it was there to be killed
    eventually(lambda: jobs.said("nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader") == "")
    assert jobs.start(require_lock=True)["status"] == "ready"  # the name was not used up


def test_stranger_on_a_gpu_that_the_server_does_not_see_is_no_obstacle(jobs: Jobs) -> None:
    pid = squat(jobs.host, "1:4096")
    assert jobs.start(env={"CUDA_VISIBLE_DEVICES": "0"}, require_lock=True)["status"] == "ready"
    assert jobs.start(job="job2", env={"CUDA_VISIBLE_DEVICES": "0,1"}, require_lock=True)["reason"] == "gpu_busy"
    jobs.said("kill", str(pid))


def test_unified_memory_is_judged_by_processes(jobs: Jobs) -> None:
    jobs.host.set_gpus(UNIFIED)
    assert jobs.start(env={"FAKE_GPU_MEMORY_MIB": "0:9000"}, require_lock=True)["status"] == "ready"
    assert jobs(state="stopped", job="job1", drain_s=5)["job"]["gpu_memory_left"] is None
    pid = squat(jobs.host, "0:4096")
    assert f"(pid {pid}, user bench, 4096 MiB)" in jobs.start(job="job2", require_lock=True)["message"]
    jobs.said("kill", str(pid))


def test_what_a_dead_run_left_is_ended(jobs: Jobs) -> None:
    """The supervisor was killed; what it supervised ignores that, as a grandchild that left session and parent can."""
    assert jobs.start("brood", env={"FAKE_GPU_MEMORY_MIB": "1:9000"}, run="run0")["status"] == "ready"
    assert jobs.start(require_lock=True)["status"] == "ready"
    assert jobs(state="info", run="run0", job="job1")["job"]["reason"] == "stopped"
    # Without the lock nobody says that it is left over.
    jobs(state="stopped", job="job1")
    assert jobs.start("brood", env={"FAKE_GPU_MEMORY_MIB": "1:9000"}, run="run0", job="job2")["status"] == "ready"
    assert jobs.start(job="job3")["reason"] == "gpu_busy"


def test_memory_that_nobody_holds_is_refused(jobs: Jobs) -> None:
    jobs.host.set_gpus(gpus(0, 2000))
    refused = jobs.start(require_lock=True)
    assert refused["reason"] == "gpu_busy"
    assert "2000 MiB of GPU 1 is in use, by no process that can be seen" in refused["message"]
    assert jobs.start(require_lock=True, gpu_free_mib=2500)["status"] == "ready"


def test_memory_that_stays_quarantines_the_host_for_the_run(jobs: Jobs) -> None:
    assert jobs.start(env=HOLD, require_lock=True)["status"] == "ready"
    jobs.host.set_gpus(gpus(0, 7000))
    began = time.monotonic()
    stopped = jobs(state="stopped", job="job1", drain_s=2)["job"]
    assert 2 < time.monotonic() - began < 8
    assert "7000 MiB of GPU 1 is still in use (before it: 0 MiB on GPU 1)" in stopped["gpu_memory_left"]
    jobs.host.set_gpus(TWO)
    refused = jobs.start(job="job2", require_lock=True)
    assert (refused["status"], refused["reason"]) == ("failed", "quarantined")
    assert "7000 MiB of GPU 1" in refused["message"]
    jobs.hold()  # the same controller again: it knows
    assert jobs.start(job="job2", require_lock=True)["reason"] == "quarantined"
    jobs(state="stopped")  # the run is over
    jobs.hold("run2")
    assert jobs.start(run="run2", require_lock=True)["status"] == "ready"


def test_nvidia_smi_that_hangs_after_a_stop_quarantines(jobs: Jobs) -> None:
    assert jobs.start(env=HOLD, require_lock=True)["status"] == "ready"
    jobs.host.set_gpus({**TWO, "state": "lost"})
    stopped = jobs(state="stopped", job="job1", drain_s=1)["job"]
    assert "Unable to determine the device handle" in stopped["gpu_memory_left"]
    assert jobs.start(job="job2", require_lock=True)["reason"] == "quarantined"


def test_without_a_driver_nothing_is_asked(jobs: Jobs) -> None:
    jobs.host.set_gpus("no-driver")
    assert jobs.start(require_lock=True)["status"] == "ready"
    assert jobs(state="stopped", job="job1")["job"]["gpu_memory_left"] is None


def test_growing_gpu_memory_is_progress_and_busy_gpus_are_not(jobs: Jobs) -> None:
    """A silent start: GPU memory grows for longer than the limit allows silence; then nothing moves any more."""
    jobs("gpurun_job", state="info", job="job1")
    first = jobs.start("silent", require_lock=True, hang_s=4, start_s=60, wait_s=0)
    assert first["status"] == "starting"
    for step in range(1, 9):
        jobs.host.set_gpus(gpus(step * 1000, 0))
        eventually(_passed(1.0))
        assert jobs(state="info", job="job1")["job"]["status"] == "starting"
    jobs.host.set_gpus({**gpus(8000, 0), "defaults": {**TWO["defaults"], "utilization": 100}})  # type: ignore[dict-item]
    over = jobs.start("silent", require_lock=True, wait_s=45)
    assert over["reason"] == "start_hang"
    assert "busy all the same: GPU 0 100 %, GPU 1 100 %" in over["message"]


def _passed(seconds: float):  # type: ignore[no-untyped-def]
    until = time.monotonic() + seconds
    return lambda: time.monotonic() >= until
