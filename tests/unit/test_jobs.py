"""Starting, awaiting and stopping jobs: readiness, ports, secrets, cleaning up. Real processes."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.jobs import (
    READY,
    Job,
    await_end,
    await_ready,
    create,
    eventually,
    log_word,
    ports,
    processes,
    program,
    purge,
    python,
    start_client,
    start_server,
    stop,
    wanted,
)

FOREVER = python("import time; time.sleep(600)")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    stop(tmp_path, "*", stop_s=0.2)
    assert processes.belonging(tmp_path) == []


@pytest.fixture
def job(home: Path) -> Job:
    return Job(home, "run1", "job1")


def over(job: Job, seconds: float = 15) -> dict[str, Any]:
    eventually(job.is_over, seconds)
    return dict(job.report())


class Caches(http.server.BaseHTTPRequestHandler):
    """A server with two slots, which takes any number for one of them, as llama.cpp's does; it counts what came."""

    asked: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.asked.append(self.path)
        self.send_error(200 if self.path == "/flush_cache" or "/slots/" in self.path else 404)

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"total_slots": 2}')

    def log_message(self, *told: object) -> None:
        pass


@pytest.mark.parametrize(
    ("rule", "said", "asked"),
    [
        ({"path": "/flush_cache"}, "emptied", ["/flush_cache"]),
        ({"path": "/slots/{n}", "count": "/p", "key": "total_slots"}, "emptied", ["/p", "/slots/0", "/slots/1"]),
        ({"path": "/slots/{n}", "count": "/p", "key": "slots"}, "not emptied: 'slots'", ["/p"]),
        ({"path": "/reset"}, "not emptied: HTTP Error 404: Not Found", ["/reset"]),
    ],
)
def test_caches_are_emptied_before_counters_are_read(
    job: Job, monkeypatch: pytest.MonkeyPatch, rule: dict[str, str], said: str, asked: list[str]
) -> None:
    monkeypatch.setattr(Caches, "asked", [])
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Caches) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        start_client(job, *python(""), reset={"base_url": url, **rule}, scrape={"before.txt": f"{url}/metrics"})
        server.shutdown()
    assert over(job)["reset"] == said
    assert [*asked, "/metrics"] == Caches.asked


def test_caches_of_a_server_that_is_gone_cost_nothing(job: Job) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    start_client(job, *python(""), reset={"base_url": f"http://127.0.0.1:{port}", "path": "/flush_cache"})
    found = over(job)
    assert found["status"] == "exited" and "refused" in found["reset"]


# Readiness


@pytest.mark.alone
def test_ready_is_noticed_within_0_3_s_and_its_phases_are_dated(job: Job) -> None:
    start_server(job)
    await_ready(job, 10)
    noticed, report = time.time(), job.report()
    assert report["status"] == "ready"
    assert noticed - float(log_word(job, "answered")) < 0.3
    assert report["ready_at"] - float(log_word(job, "listening")) < 0.3
    phases = report["phases"]
    assert report["started_at"] <= phases["health_at"] <= phases["model_at"] <= phases["ready_at"]


@pytest.mark.alone
def test_a_call_is_bounded_and_the_next_one_goes_on(job: Job) -> None:
    start_server(job, "slow")
    began = time.monotonic()
    await_ready(job, 0.3)
    assert 0.3 <= time.monotonic() - began < 0.8
    log_word(job, "listening")
    report = job.report()
    assert report["status"] == "starting"
    assert report["progress"]["last_line"].startswith("listening")
    assert report["progress"]["rss_bytes"] > 1 << 20 and report["progress"]["log_lines"] == 2
    assert create(job, "server", wanted(["false"])) is False


@pytest.mark.parametrize(
    ("words", "reason", "message"),
    [
        ("broken", "generation_failed", "illegal memory access"),
        ("other-model", "not_this_model", "serves other, not m"),
        ("mute", "start_hang", "one generation did not within 1 s"),
        ("slow", "start_timeout", "not ready within 2 s"),
    ],
)
def test_start_that_fails(job: Job, words: str, reason: str, message: str) -> None:
    start_server(job, words, start_s=2.0)
    report = over(job)
    assert (report["status"], report["reason"]) == ("failed", reason)
    assert message in report["message"]
    assert not ports.listeners(report["port"])


def test_silence_is_a_hang(job: Job) -> None:
    began = time.monotonic()
    start_server(job, "silent", hang_s=0.6)
    report = over(job)
    assert (report["status"], report["reason"]) == ("failed", "start_hang")
    assert time.monotonic() - began < 5


def test_busy_silence_is_no_hang(job: Job) -> None:
    assert create(job, "server", wanted(list(python("while True: pass")), ready=READY, hang_s=0.5, start_s=1.5))
    assert over(job)["reason"] == "start_timeout"


@pytest.mark.alone
def test_hanging_health_does_not_delay_the_notice_of_a_death(job: Job) -> None:
    start_server(job, "hanging-health")  # accepts, never answers, and ends 1.5 s later
    log_word(job, "asked")
    child = job.report()["pid"]
    eventually(lambda: processes.look(child) is None)
    died = time.monotonic()
    assert over(job)["exit_code"] == 3
    assert time.monotonic() - died < 1


def test_answer_of_a_stranger_on_our_port_is_not_our_readiness(job: Job) -> None:
    """It took the port after we chose it; our own server is still loading."""
    stranger = start_server(Job(job.home, "run1", "stranger"))
    await_ready(stranger, 10)
    assert create(job, "server", wanted(list(FOREVER), ready=READY, port_of="stranger"))  # so it is not checked first
    report = over(job)
    assert report["reason"] == "not_this_model"
    assert f"pid {stranger.report()['pid']}" in report["message"]
    assert stranger.report()["status"] == "ready"


# Ports


def test_port_that_is_taken_is_refused_and_its_holder_named(job: Job) -> None:
    code = "import socket; s = socket.create_server(('', 0)); print(s.getsockname()[1], flush=True); s.accept()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as stranger:
        try:
            assert stranger.stdout is not None
            port = int(stranger.stdout.readline())
            start_server(job, port=port)
            report = job.report()
            assert (report["status"], report["reason"]) == ("failed", "port_in_use")
            assert report["holder"]["pid"] == stranger.pid and report["holder"]["user"] == "root"
            assert f"port {port} is taken by" in report["message"] and f"pid {stranger.pid}" in report["message"]
            assert "create_server" in report["holder"]["command"]
            assert stop(job.home, "run1") == [] and stranger.poll() is None
        finally:
            stranger.kill()


def test_port_that_is_bound_but_not_listened_on_is_taken(job: Job) -> None:
    with socket.socket() as early:
        early.bind(("127.0.0.1", 0))
        start_server(job, port=early.getsockname()[1])
        assert job.report()["reason"] == "port_in_use"


def test_chosen_port_is_outside_the_range_of_outgoing_connections() -> None:
    lowest, highest = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not lowest <= ports.choose() <= highest


def test_port_is_filled_in_everywhere_and_nothing_else_is(job: Job) -> None:
    start_server(job)
    await_ready(job, 10)
    port = job.report()["port"]
    client = Job(job.home, "run1", "client")
    words = ["http://h:@GPURUN_PORT@/", "@GPURUN_PORT", "{{ 6 * 7 }}", "$(id)", "ü 'x' \"y\" \n z", ""]
    code = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['WHERE'], open('spec.json').read()]))"
    files = {"spec.json": '{"url": "@GPURUN_PORT@"}'}
    start_client(client, *python(code), *words, port_of="job1", env={"WHERE": "at @GPURUN_PORT@"}, files=files)
    over(client)
    argv, where, spec = json.loads((client.directory / "log").read_text())
    assert argv == [f"http://h:{port}/", *words[1:]]
    assert (where, spec) == (f"at {port}", f'{{"url": "{port}"}}')


# Secrets and environment


def test_secret_reaches_the_child_and_nothing_else(job: Job) -> None:
    secret = "planted-" + os.urandom(8).hex()
    code = "import os, time; print('backwards', os.environ['HF_TOKEN'][::-1], flush=True); time.sleep(600)"
    start_client(job, *python(code), secrets={"HF_TOKEN": secret})
    assert log_word(job, "backwards") == secret[::-1]
    files = [path for path in job.home.rglob("*") if path.is_file()]
    assert len(files) >= 5
    assert [path for path in files if secret.encode() in path.read_bytes()] == []
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in (job.supervisor().pid, job.report()["pid"])}
    assert all(secret.encode() not in command for command in commands.values())
    assert secret.encode() not in Path(f"/proc/{job.supervisor().pid}/environ").read_bytes()
    assert job.directory.stat().st_mode & 0o777 == 0o700


def test_child_inherits_only_what_a_login_has(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "controller's own")
    over(start_client(job, "env", env={"VLLM_X": "1"}))
    names = {line.partition("=")[0] for line in (job.directory / "log").read_text().splitlines()}
    assert {"PATH", "HOME", "VLLM_X", "GPURUN_JOB", "GPURUN_HOME"} <= names
    assert "AWS_SECRET_ACCESS_KEY" not in names


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "a b", "a\nb", "x" * 161])
def test_names_that_could_leave_the_folder_are_refused(home: Path, name: str) -> None:
    with pytest.raises(Exception, match="is not a name"):
        Job(home, name, "job1")


# Clients


@pytest.mark.alone
def test_client_is_ended_when_its_server_dies(job: Job) -> None:
    start_server(job)
    await_ready(job, 10)
    client = start_client(Job(job.home, "run1", "client"), *FOREVER)
    os.kill(job.report()["pid"], signal.SIGKILL)
    began = time.monotonic()
    await_end(client, 10, job)
    assert time.monotonic() - began < 2
    report = client.report()
    assert (report["status"], report["reason"]) == ("failed", "server_died")
    assert "job1 ended while the load ran" in report["message"]


def test_client_that_notices_first_that_its_server_died_does_not_hide_it(job: Job) -> None:
    start_server(job)
    await_ready(job, 10)
    code = "import os, sys; os.kill(int(sys.argv[1]), 9); sys.exit('connection reset')"
    client = start_client(Job(job.home, "run1", "client"), *python(code), str(job.report()["pid"]))
    await_end(client, 10, job)
    assert client.report()["status"] == "failed"
    assert (job.report()["status"], job.report()["signal"]) == ("failed", signal.SIGKILL)


def test_a_client_whose_last_requests_failed_waits_for_what_becomes_of_the_server(job: Job) -> None:
    """An engine can be dead for seconds before its server is: vLLM's. The client has ended well by its own account."""
    start_server(job)
    await_ready(job, 10)
    code = """open("progress.json", "w").write('{"failed": 1, "failing": true}')"""
    client = start_client(Job(job.home, "run1", "client"), *python(code))
    pid = job.report()["pid"]
    killer = threading.Thread(target=lambda: eventually(client.is_over) and os.kill(pid, signal.SIGKILL))
    killer.start()
    await_end(client, 10, job)
    killer.join()
    assert client.report()["status"] == "exited"
    assert (job.report()["status"], job.report()["signal"]) == ("failed", signal.SIGKILL)


def test_client_that_fails_keeps_its_code(job: Job) -> None:
    start_client(job, *python("import sys; sys.exit('no such model')"))
    await_end(job, 10)
    report = job.report()
    assert (report["status"], report["reason"], report["exit_code"]) == ("failed", "exited", 1)


def test_progress_of_a_client_in_its_own_words(job: Job) -> None:
    start_client(job, *python("import time; open('progress.json', 'w').write('{\"done\": 3}'); time.sleep(600)"))
    assert eventually(lambda: job.report()["progress"]["progress_file"]) == {"done": 3}


# Stopping


def test_stop_is_safe_to_repeat_and_tells_what_it_ended(home: Path) -> None:
    for run, name in (("run1", "a"), ("run1", "b"), ("run2", "c")):
        start_client(Job(home, run, name), *FOREVER)
    assert {one["job"] for one in stop(home, "run1", pretend=True)} == {"a", "b"}
    assert {(one["run"], one["job"], one["how"]) for one in stop(home, "run1")} == {
        ("run1", "a", "supervisor"),
        ("run1", "b", "supervisor"),
    }
    assert stop(home, "run1") == []
    assert [one["job"] for one in stop(home, "*")] == ["c"]
    assert len(purge(home, "*")) == 3 and list((home / "jobs").iterdir()) == []


def test_another_home_is_left_alone(home: Path) -> None:
    other = Job(home / "other", "run1", "job1")
    start_client(other, *FOREVER)
    assert stop(home, "*") == []
    assert other.supervisor() is not None
    stop(home / "other", "*")


def test_supervisor_that_hangs_is_killed_with_its_tree(job: Job) -> None:
    start_client(job, *FOREVER, stop_s=0.1)
    child = eventually(lambda: job.report()["pid"])
    os.kill(job.supervisor().pid, signal.SIGSTOP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ansible.module_utils.gpurun_stop._KILL_S", 0.2)
        stop(job.home, "run1")
    assert processes.look(child) is None and job.supervisor() is None


@pytest.mark.slow
def test_30_starts_and_stops_leave_nothing(home: Path) -> None:
    before = {process.pid for process in processes.everybody()}
    used = []
    for number in range(30):
        job = start_server(Job(home, "run1", f"job{number}"), "brood" if number % 3 == 0 else "plain", stop_s=0.2)
        await_ready(job, 20)
        report = job.report()
        assert report["status"] == "ready", report
        used.append(report["port"])
        if number % 5 == 4:
            os.kill(job.supervisor().pid, signal.SIGKILL)
        stop(home, "run1", job.name)
    left = [processes.describe(process.pid) for process in processes.everybody() if process.pid not in before]
    assert [one for one in left if str(home) in str(one["command"]) or "http.server" in str(one["command"])] == []
    assert processes.belonging(home) == []
    assert [port for port in used if ports.listeners(port)] == []
    purge(home, "*")
    assert [path for path in home.rglob("*") if path.is_file()] == []


def test_spec_that_never_comes_ends_the_supervisor(home: Path) -> None:
    """The module was killed between starting the supervisor and telling it what to do."""
    job = Job(home, "run1", "job1")
    start_client(job, *FOREVER)
    stop(home, "*")
    orphan = home / "jobs" / "run1" / "orphan"
    orphan.mkdir()
    os.mkfifo(orphan / "spec.fifo")
    with subprocess.Popen(
        [sys.executable, "-I", "-S", program(), str(orphan)],
        env={"GPURUN_HOME": str(home), "GPURUN_JOB": "run1/orphan"},
    ) as started:
        eventually((orphan / "supervisor.json").exists)
        assert [one["job"] for one in stop(home, "run1")] == ["orphan"]
        assert started.wait(5) is not None
    assert Job(home, "run1", "orphan").is_over()
