"""Jobs in containers, with a real Docker engine and Podman: the rules of any job, and nothing left of them."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.containers import Engine
from tests.hosts import HostFleet
from tests.jobs import READY, SERVER, Job, await_ready, create, eventually, log_word, processes, stop, wanted
from tests.remote_jobs import Jobs

SECRET = "planted-5ecret-value"


DOCKER_ONLY = pytest.mark.parametrize("engine", ["docker"], indirect=True)


@pytest.fixture
def home(tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, value in engine.env.items():
        monkeypatch.setenv(name, value)
    home = tmp_path / "gpu run"
    home.mkdir()
    yield home
    stop(home, "*", stop_s=0.2)
    assert processes.belonging(home) == []
    eventually(lambda: engine.containers() == [])


@pytest.fixture
def job(home: Path) -> Job:
    return Job(home, "run1", "job1")


def argv(*words: str) -> list[str]:
    return ["python3", "-u", "-c", SERVER, "@GPURUN_PORT@", *words]


def start(job: Job, engine: Engine, *words: str, container: dict[str, Any] | None = None, **changes: Any) -> Job:
    """The little server, in a container."""
    about = {"runtime": engine.runtime, "image": engine.image, **(container or {})}
    assert create(job, "server", wanted(argv(*words), **{"ready": READY, "container": about, **changes}))
    return job


def ready(job: Job) -> dict[str, Any]:
    await_ready(job, 30)
    report = job.report()
    assert report["status"] == "ready", report
    return report


def over(job: Job) -> dict[str, Any]:
    eventually(job.is_over, 30)
    return job.report()


def test_life_of_a_server_in_a_container(job: Job, engine: Engine, tmp_path: Path) -> None:
    model = tmp_path / "a, model"
    model.mkdir()
    about = {"read_only": [str(model)], "mounts": [f"{tmp_path}:/work"], "shm_size": "96m", "args": ["--cpus", "1"]}
    report = ready(start(job, engine, container=about, env={"TOKEN_SHA": "abc"}, secrets={"HF_TOKEN": SECRET}))
    assert engine.containers() == ["gpurun-run1-job1"]
    (shown,) = json.loads(engine("inspect", "gpurun-run1-job1"))
    assert shown["Config"]["Labels"] == {"gpurun.home": str(job.home), "gpurun.run": "run1", "gpurun.job": "job1"}
    assert SECRET not in json.dumps([shown["Args"], shown["Path"], shown["Config"]["Cmd"], shown["HostConfig"]])
    assert f"HF_TOKEN={SECRET}" in shown["Config"]["Env"]  # that is where Docker keeps it: see docs/design.md
    assert shown["Image"] == engine.image == report_of(job)["container"]["image_id"]
    given = shown["HostConfig"]
    assert (given["NetworkMode"], given["ShmSize"]) == ("host", 96 << 20)
    assert ipc_of(job) != Path("/proc/self/ns/ipc").readlink()
    assert (given["AutoRemove"], given["LogConfig"]["Type"]) == (True, "none")
    mounted = {(one["Source"], one["Destination"], one["RW"]) for one in shown["Mounts"]}
    assert mounted == {(str(model), str(model), False), (str(tmp_path), "/work", True)}
    assert given["NanoCpus"] == 10**9
    assert SECRET not in report_text(job) and log_word(job, "loading") == "abc"
    everybody = "".join(one.read_text(errors="replace") for one in Path("/proc").glob("[0-9]*/cmdline"))
    assert "gpurun-run1-job1" in everybody and SECRET not in everybody
    assert report["progress"]["rss_bytes"] > 8 << 20  # what is inside counts
    ended = stop(job.home, "run1", "job1")
    assert [one["how"] for one in ended] == ["supervisor"]
    report = job.report()
    assert (report["status"], report["reason"]) == ("exited", "stopped")
    assert engine.containers() == []


def inside(job: Job) -> int:
    """The server's process."""
    commands = {one.pid: Path(f"/proc/{one.pid}/cmdline").read_bytes() for one in job.strays()}
    (pid,) = (pid for pid, command in commands.items() if command.startswith(b"python3"))
    return pid


def ipc_of(job: Job) -> Path:
    """Its IPC namespace: Podman 4 tells the same mode of all containers."""
    return Path(f"/proc/{inside(job)}/ns/ipc").readlink()


def report_of(job: Job) -> dict[str, Any]:
    assert job.asked is not None
    return job.asked


def report_text(job: Job) -> str:
    return "".join(path.read_text(errors="replace") for path in job.directory.iterdir() if path.is_file())


def test_host_ipc_is_the_default(job: Job, engine: Engine) -> None:
    ready(start(job, engine))
    assert ipc_of(job) == Path("/proc/self/ns/ipc").readlink()


def test_crash_keeps_its_exit_code_and_log(job: Job, engine: Engine) -> None:
    report = over(start(job, engine, "crash"))
    assert (report["status"], report["reason"], report["exit_code"]) == ("failed", "exited", 1)
    assert "no kernel image is available" in report["message"]


@pytest.mark.alone
def test_death_is_noticed_within_a_second(job: Job, engine: Engine) -> None:
    ready(start(job, engine))
    server, killed = inside(job), time.monotonic()
    os.kill(server, signal.SIGKILL)
    report = over(job)
    assert time.monotonic() - killed < 2  # the engine's own clean-up is in it
    assert (report["reason"], report["exit_code"]) == ("exited", 137)
    assert report["ended_at"] - killed - (time.time() - time.monotonic()) < 1


def test_container_that_the_kernel_ends_for_its_memory_has_the_kernels_word(job: Job, engine: Engine) -> None:
    report = over(start(job, engine, "greedy", container={"args": ["--memory", "128m", "--memory-swap", "128m"]}))
    assert (report["reason"], report["exit_code"]) == ("exited", 137)
    assert any("Killed process" in line for line in report["kernel"]["log"]), report["kernel"]
    assert report["kernel"]["oom_kills"] in (1, None)  # Docker's note may come after the end; Podman has none


@pytest.mark.parametrize("words", [("deaf",), ("deaf", "brood")])
def test_container_that_ignores_sigterm_is_killed_after_its_grace(job: Job, engine: Engine, words: list[str]) -> None:
    ready(start(job, engine, *words, stop_s=0.5))
    began = time.monotonic()
    stop(job.home, "run1", "job1")
    assert 0.5 < time.monotonic() - began < 8
    assert engine.containers() == [] and job.strays() == []


def test_time_limit(job: Job, engine: Engine) -> None:
    report = over(start(job, engine, life_s=3, stop_s=1))
    assert report["reason"] == "time_limit"
    assert engine.containers() == []


def test_container_of_a_killed_supervisor_is_found_by_its_label(job: Job, engine: Engine) -> None:
    ready(start(job, engine, "brood"))
    supervisor = job.supervisor()
    assert supervisor is not None
    os.kill(supervisor.pid, signal.SIGKILL)
    eventually(job.is_over)
    assert engine.containers() == ["gpurun-run1-job1"]
    other = engine(
        "run", "--detach", "--rm", "--network", "none", "--label", "gpurun.run=run1", engine.image, "sleep", "99"
    )
    ended = stop(job.home, "*")
    left = engine("ps", "--quiet", "--no-trunc")
    engine("rm", "--force", other)
    assert (ended[0]["job"], ended[0]["how"], ended[0]["command"]) == ("job1", "container", "gpurun-run1-job1")
    assert left == other  # the same run's name, another home's


def test_killed_client_takes_its_container_along(job: Job, engine: Engine) -> None:
    report = ready(start(job, engine))
    os.kill(report["pid"], signal.SIGKILL)
    report = over(job)
    assert (report["reason"], report["signal"]) == ("exited", 9)
    assert engine.containers() == []


@pytest.mark.parametrize(
    ("container", "word"),
    [
        ({"image": "no-such-image:1"}, " pull` must fetch the image no-such-image:1 first"),
        ({"runtime": "no-docker"}, "there is no no-docker on this host"),
    ],
)
def test_what_cannot_be_started_says_why(job: Job, engine: Engine, container: dict[str, Any], word: str) -> None:
    report = over(start(job, engine, container=container))
    assert (report["status"], report["reason"]) == ("failed", "spawn")
    assert word in report["message"]


def test_missing_mount_is_told_in_the_log(job: Job, engine: Engine) -> None:
    report = over(start(job, engine, container={"read_only": ["/no/such/model"]}))
    assert (report["status"], report["exit_code"]) == ("failed", 125)
    assert "/no/such/model" in (job.directory / "log").read_text()


@DOCKER_ONLY
def test_gpus_are_asked_for_where_the_host_has_some(job: Job, engine: Engine) -> None:
    report = over(start(job, engine, gpus={"nvidia_smi": "/usr/bin/nvidia-smi"}))
    assert "--gpus" in report_of(job)["argv"]
    assert report["exit_code"] == 125 and "could not select device driver" in (job.directory / "log").read_text()


@DOCKER_ONLY
def test_unit_of_a_killed_supervisor_removes_its_container(engine: Engine) -> None:
    """On a booted host that reaches this engine: systemd ends what is in no control group of its own; so does stop,
    which sees no process of the container there."""
    bind = {"/usr/bin/docker": "/usr/bin/docker", str(engine.socket): "/run/docker.sock"}
    with HostFleet(1, bind=bind) as fleet:
        jobs = Jobs(fleet[0])
        about = {"runtime": "docker", "image": engine.image}
        job = jobs.start("silent", container=about, wait_s=0)
        eventually(lambda: engine("ps", "--format", "{{.Names}}") == "gpurun-run1-job1")
        supervisor = json.loads(jobs.said("cat", f"{job['dir']}/supervisor.json"))["pid"]
        jobs.said("kill", "-9", str(supervisor))
        eventually(lambda: engine.containers() == [])
        # A supervisor's unit that is gone at once, as after a reboot of the host without its engine: only the label.
        job = jobs.start("silent", container=about, wait_s=0, job="job2")
        eventually(lambda: engine("ps", "--format", "{{.Names}}") == "gpurun-run1-job2")
        unit = f"{job['unit']}.service"
        jobs.said("mkdir", "-p", f"/run/systemd/system/{unit}.d")
        jobs.said("sh", "-c", f"printf '[Service]\\nExecStopPost=\\n' > /run/systemd/system/{unit}.d/none.conf")
        jobs.said("systemctl", "daemon-reload")
        supervisor = json.loads(jobs.said("cat", f"{job['dir']}/supervisor.json"))["pid"]
        jobs.said("kill", "-9", str(supervisor))
        eventually(lambda: jobs.units() == [])
        assert engine.containers() == ["gpurun-run1-job2"]
        ended = jobs(state="stopped", run="*")["ended"]
        assert ("job2", "container") in [(one["job"], one["how"]) for one in ended]
        assert engine.containers() == []
