"""The supervisor: real processes, how they end, and that nothing is left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.jobs import Job, eventually, log_word, processes, python, start_client, start_server, stop


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    home = tmp_path / "gpu run"  # a space, as in many a real path
    home.mkdir()
    yield home
    stop(home, "*", stop_s=0.2)
    assert processes.belonging(home) == []


@pytest.fixture
def job(home: Path) -> Job:
    return Job(home, "run1", "job1")


def over(job: Job, seconds: float = 15) -> dict[str, object]:
    eventually(job.is_over, seconds)
    return job.report()


def is_gone(pid: int) -> bool:
    return processes.look(pid) is None


def test_client_that_succeeds(job: Job) -> None:
    report = over(start_client(job, *python("print('hi')")))
    assert (report["status"], report["reason"], report["exit_code"], report["signal"]) == ("exited", None, 0, None)
    assert report["started_at"] <= report["ended_at"]
    assert report["progress"]["last_line"] == "hi"
    assert (job.directory / "log").stat().st_mode & 0o777 == 0o600


def test_end_with_a_long_message_is_read_back(job: Job) -> None:
    report = over(start_client(job, "\N{PILE OF POO}" * 60 + "/" + "\N{PILE OF POO}" * 900))
    assert (report["status"], report["reason"]) == ("failed", "spawn")
    assert str(report["message"]).startswith("cannot start \N{PILE OF POO}")


def test_a_start_that_the_system_refuses_tells_what_is_wrong_with_it(job: Job, tmp_path: Path) -> None:
    def refused(name: str, *argv: str, cwd: str | None = None) -> str:
        report = over(start_client(Job(job.home, "run1", name), *argv, cwd=cwd))
        assert (report["status"], report["reason"]) == ("failed", "spawn")
        return str(report["message"])

    plain = tmp_path / "plain"
    plain.write_text("no program")
    assert "its working folder /no/such: No such file" in refused("cwd", "true", cwd="/no/such")
    assert "Argument list too long" in refused("long", "true", "x" * (1 << 18))
    assert "Permission denied" in refused("mode", str(plain))
    plain.chmod(0o755)
    assert "Exec format error" in refused("format", str(plain))


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("moved", "not ready within 1 s; the last answer to /health: status 302, to http://elsewhere/login"),
        ("no-http", "not ready within 1 s; the last answer to /health: BadStatusLine: 220 mail ready"),
        ("deep", "health answers, but /v1/completions does not generate: status 200"),
    ],
)
def test_what_a_server_answers_instead_is_told(job: Job, word: str, told: str) -> None:
    report = over(start_server(job, word, start_s=20 if word == "deep" else 1))
    assert str(report["message"]).startswith(told)


def test_server_that_crashes_tells_code_and_last_line(job: Job) -> None:
    report = over(start_server(job, "crash"))
    assert (report["status"], report["reason"], report["exit_code"]) == ("failed", "exited", 1)
    assert "exit code 1, before it was ready" in report["message"] and "no kernel image" in report["message"]


def test_server_that_exits_with_0_unasked_has_failed(job: Job) -> None:
    report = over(start_server(job, "quiet-exit"))
    assert (report["status"], report["reason"], report["exit_code"]) == ("failed", "exited", 0)


def test_server_that_a_signal_ends(job: Job) -> None:
    report = over(start_server(job, "abort"))
    assert (report["status"], report["exit_code"], report["signal"]) == ("failed", None, signal.SIGABRT)


@pytest.mark.alone
def test_crash_is_noticed_within_a_second(job: Job) -> None:
    start_server(job)
    eventually(job.is_ready)
    killed = time.monotonic()
    os.kill(job.report()["pid"], signal.SIGKILL)
    eventually(job.is_over, 1)
    assert time.monotonic() - killed < 1
    assert job.report()["message"].startswith("ended by itself with signal 9, after it was ready")


@pytest.mark.parametrize(("argv", "word"), [(["/no/such/program"], "No such file"), (["/etc/passwd"], "Permission")])
def test_program_that_cannot_be_started(job: Job, argv: list[str], word: str) -> None:
    report = over(start_client(job, *argv))
    assert (report["status"], report["reason"]) == ("failed", "spawn")
    assert word in report["message"] and argv[0] in report["message"]


def test_child_that_ignores_sigterm_is_killed_after_its_grace(job: Job) -> None:
    start_server(job, "deaf", stop_s=0.5)
    eventually(job.is_ready)
    began = time.monotonic()
    stop(job.home, job.run, job.name)
    assert 0.4 < time.monotonic() - began < 3
    report = job.report()
    assert (report["status"], report["reason"], report["signal"]) == ("exited", "stopped", signal.SIGKILL)
    assert is_gone(report["pid"])


def test_child_that_stops_when_asked_is_not_killed(job: Job) -> None:
    code = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); print('up 1', flush=True); time.sleep(99)"
    )
    start_client(job, *python(code))
    log_word(job, "up")
    stop(job.home, job.run, job.name)
    assert (job.report()["exit_code"], job.report()["signal"]) == (7, None)


def test_grandchild_in_a_session_of_its_own_that_ignores_sigterm_is_ended(job: Job) -> None:
    start_server(job, "brood", stop_s=0.3)
    brood = int(log_word(job, "brood"))
    eventually(job.is_ready)
    stop(job.home, job.run, job.name)
    assert is_gone(brood)


@pytest.mark.alone
def test_what_a_crashed_child_leaves_behind_is_ended_at_once(job: Job) -> None:
    start_server(job, "brood", "slow")
    brood = int(log_word(job, "brood"))
    os.kill(job.report()["pid"], signal.SIGKILL)
    eventually(job.is_over, 1)
    assert is_gone(brood)


def test_killed_supervisor_takes_its_child_along_and_strays_are_found(job: Job) -> None:
    start_server(job, "brood")
    brood = int(log_word(job, "brood"))
    eventually(job.is_ready)
    child, supervisor = job.report()["pid"], job.supervisor()
    os.kill(supervisor.pid, signal.SIGKILL)
    eventually(lambda: is_gone(child))
    assert [process.pid for process in job.strays()] == [brood]
    assert job.report()["reason"] == "exited" and "supervisor" in job.report()["message"]
    ended = stop(job.home, job.run)
    assert [(one["how"], one["pid"], one["job"]) for one in ended] == [("stray", brood, job.name)]
    assert is_gone(brood)


def test_stray_call_of_a_module_removes_its_folder(job: Job, tmp_path: Path) -> None:
    """As Ansible's wrapper of modules does it: in a `finally`."""
    folder = tmp_path / "payload"
    call = (
        "import os, shutil, time\n"
        f"os.mkdir({str(folder)!r})\n"
        "try:\n"
        "    print('working', os.getpid(), flush=True)\n"
        "    time.sleep(600)\n"
        f"finally: shutil.rmtree({str(folder)!r})\n"
    )
    parent = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {call!r}]); time.sleep(600)"
    start_client(job, *python(parent))
    calling = int(log_word(job, "working"))
    assert folder.is_dir()
    child, supervisor = job.report()["pid"], job.supervisor()
    os.kill(supervisor.pid, signal.SIGKILL)
    eventually(lambda: is_gone(child))
    assert calling in [process.pid for process in job.strays()]
    stop(job.home, job.run)
    assert is_gone(calling) and not folder.exists()


def test_stray_that_has_overwritten_its_environment_is_found_by_its_log(job: Job) -> None:
    """Process titles of vLLM and SGLang do that."""
    code = (
        "import ctypes, os, time\n"
        "os.setsid()\n"
        "start, end = map(int, open('/proc/self/stat').read().rpartition(')')[2].split()[47:49])\n"
        "ctypes.memset(start, 0, end - start)\n"
        "print('wiped', os.getpid(), flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {code!r}]); time.sleep(600)"
    start_client(job, *python(parent))
    wiped = int(log_word(job, "wiped"))
    assert b"GPURUN_JOB" not in Path(f"/proc/{wiped}/environ").read_bytes()
    os.kill(job.supervisor().pid, signal.SIGKILL)
    eventually(lambda: job.supervisor() is None)
    assert wiped in [process.pid for process in job.strays()]
    stop(job.home, "*")
    assert is_gone(wiped)


def test_time_limit(job: Job) -> None:
    report = over(start_client(job, *python("import time; time.sleep(99)"), life_s=0.5))
    assert (report["status"], report["reason"]) == ("failed", "time_limit")
    assert "0.5 s" in report["message"]


def test_flood_of_output_reaches_the_log_and_starts_all_the_same(job: Job) -> None:
    start_server(job, "flood")
    eventually(job.is_ready)
    assert job.report()["progress"]["log_bytes"] > 400 * 65536
    assert job.report()["progress"]["log_lines"] >= 402


def test_full_disk_does_not_keep_the_end_from_being_told(job: Job) -> None:
    """The file size limit stands in for the disk: as root, a real one needs a mount."""
    code = "import sys, time\nfor _ in range(100): sys.stdout.write('x' * 65536)\n"
    start_client(job, "prlimit", "--fsize=100000", *python("import signal; signal.signal(25, 1)\n" + code))
    report = over(job)
    assert report["exit_code"] not in (0, None)
    assert report["progress"]["log_bytes"] == 100000


def test_signals_and_limits_of_a_child_are_those_of_a_login(job: Job) -> None:
    """Also where gpurun was started with `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    code = "print(open('/proc/self/status').read())"
    try:
        over(start_client(job, *python(code)))
    finally:
        signal.signal(signal.SIGHUP, before)
    status = dict(line.split(":\t") for line in (job.directory / "log").read_text().splitlines() if ":\t" in line)
    assert int(status["SigBlk"], 16) == 0
    assert int(status["SigIgn"], 16) & (1 << (signal.SIGHUP - 1) | 1 << (signal.SIGTERM - 1)) == 0


def test_recycled_pid_is_never_signalled(job: Job) -> None:
    me = processes.look(os.getpid())
    stranger = me._replace(born=me.born + "1")
    assert processes.send(stranger, signal.SIGKILL) is False
    assert processes.send(me, 0) is True
