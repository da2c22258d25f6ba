"""The load client as a process, against a real server that behaves or does not."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.stub.stub import Stub

from gpurun.parsers import parse_builtin

FILES = Path(__file__).parents[2] / "roles/load_tool/files"


class Client:
    """Runs loadgen with specs in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.raw_path = folder / "raw.json"

    def start(self, url: str, *arguments: str, **changes: Any) -> subprocess.Popen[str]:
        base = {
            "base_url": url,
            "api": "completions",
            "model": "stub",
            "load": {"concurrency": 2},
            "requests": 6,
            "data": {"kind": "synthetic", "prompt_tokens": 5, "output_tokens": 4, "seed": 7},
        }
        spec = self.folder / "spec.json"
        spec.write_text(json.dumps({**base, **changes}))
        argv = [sys.executable, "-m", "loadgen", *(arguments or (str(spec), str(self.raw_path)))]
        return subprocess.Popen(argv, cwd=FILES, stderr=subprocess.PIPE, text=True)

    def run(self, url: str, rc: int = 0, **changes: Any) -> dict[str, Any]:
        process = self.start(url, **changes)
        _, self.said = process.communicate(timeout=60)
        assert process.returncode == rc, self.said
        return self.raw()

    def raw(self) -> dict[str, Any]:
        return json.loads(self.raw_path.read_text())


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path)


@pytest.mark.parametrize("api", ["chat", "completions"])
@pytest.mark.parametrize("behaviour", ["ok", "crlf", "close", "hang_up", "late"])
def test_good_answers(client: Client, api: str, behaviour: str) -> None:
    with Stub(behaviour) as stub:
        raw = client.run(stub.url, api=api, extra_body={"ignore_eos": True}, warmup=3)
    assert raw["schema"] == "gpurun.load/1"
    assert raw["warmup"]["requests"] == 3
    assert len(raw["requests"]) == 6
    for request in raw["requests"]:
        assert request["error"] is None
        assert (request["prompt_tokens"], request["output_tokens"], request["usage"]) == (5, 4, True)
        assert len(request["chunks"]) == 4
        assert 0 <= request["intended"] <= request["sent"] <= request["first"] <= request["last"] <= request["end"]
        assert request["end"] <= raw["window"]["duration_s"] + 1e-5
    bodies = stub.completions()
    assert len(bodies) == 9
    assert all(body["ignore_eos"] and body["stream_options"] == {"include_usage": True} for body in bodies)
    assert len({json.dumps(body.get("prompt") or body["messages"]) for body in bodies}) == 9
    if behaviour == "ok":
        assert stub.connections == 2 + 1  # kept open; one to find the address
    again = raw["client"]["retries"]
    assert (again > 0) == (behaviour == "late")  # a connection that is closed between two requests costs nothing
    problems = [f"retries: {again} requests were sent once more, as the server closed their connection after a wait"]
    assert parse_builtin(raw).problems == (problems if again else [])


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ("error500", "HTTP 500: .*the model is on fire"),
        ("event", "out of memory"),
        ("drop", "closed the connection|reset by peer"),
        ("cut", r"without \[DONE\]"),
        ("stall", "no complete answer within 0.5 s"),
    ],
)
def test_bad_answers_are_errors(client: Client, behaviour: str, said: str) -> None:
    with Stub(behaviour) as stub:
        raw = client.run(stub.url, rc=1, timeout_s=0.5)
    assert [request["ok"] for request in raw["requests"]] == [False] * 6
    for request in raw["requests"]:
        with pytest.raises(AssertionError, match=said):
            raise AssertionError(request["error"])
    assert "all 6 requests failed" in client.said
    assert parse_builtin(raw).metrics["error_rate"] == 1.0


def test_without_usage_tokens_are_counted_but_marked(client: Client) -> None:
    with Stub("no_usage") as stub:
        raw = client.run(stub.url)
    assert {(request["output_tokens"], request["usage"]) for request in raw["requests"]} == {(4, False)}
    assert "no usage" in parse_builtin(raw).problems[0]


def test_nobody_listens(client: Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    raw = client.run(f"http://127.0.0.1:{port}", rc=1)
    assert raw["requests"] == []
    assert f"no connection to 127.0.0.1:{port}" in raw["aborted"]


def test_a_server_that_refuses_all_ends_the_run_early(client: Client) -> None:
    with Stub("error500") as stub:
        raw = client.run(stub.url, rc=1, requests=None, duration_s=60)
    assert "gave up" in raw["aborted"]
    assert 50 <= len(raw["requests"]) < 60


@pytest.mark.alone
def test_open_loop_counts_from_the_intended_start(client: Client) -> None:
    # One place and 4 x 20 ms an answer, wanted every 10 ms: each waits for those before it.
    load = {"request_rate": 100.0, "arrival": "constant", "max_concurrency": 1}
    with Stub(delay_s=0.02) as stub:
        raw = client.run(stub.url, load=load)
    requests = raw["requests"]
    assert [request["intended"] for request in requests] == pytest.approx([0, 0.01, 0.02, 0.03, 0.04, 0.05])
    assert requests[-1]["sent"] - requests[-1]["intended"] > 5 * 0.08 - 0.06
    assert raw["client"]["max_lag_s"] < 0.1  # the wait for the place is not the client's


def test_open_loop_without_a_limit_does_not_wait(client: Client) -> None:
    with Stub(delay_s=0.05) as stub:
        raw = client.run(stub.url, load={"request_rate": 200.0, "arrival": "poisson"})
    sent = [request["sent"] for request in raw["requests"]]
    assert sent[-1] < min(request["end"] for request in raw["requests"])


def test_a_duration(client: Client) -> None:
    with Stub(delay_s=0.05) as stub:
        raw = client.run(stub.url, requests=None, duration_s=0.7)
    assert raw["window"]["duration_s"] == 0.7
    late = [request for request in raw["requests"] if request.get("late")]
    assert late
    assert all(request["ok"] and request["end"] > 0.7 >= request["sent"] for request in late)


@pytest.mark.parametrize("form", ["words", "count"])
def test_prompts_are_measured_with_the_servers_tokenizer(client: Client, form: str) -> None:
    with Stub(tokenize=form) as stub:
        raw = client.run(stub.url, tokenize="/tokenize")
    assert raw["lengths"] == "tokens"
    assert {request["prompt_tokens"] for request in raw["requests"]} == {4}  # words, to which its tokenizer adds one


def test_without_a_tokenizer_words_are_counted(client: Client) -> None:
    with Stub(tokenize="") as stub:
        raw = client.run(stub.url, tokenize="/tokenize")
    assert raw["lengths"] == "words"
    assert "answered 404" in client.said


def test_sigterm_keeps_what_was_measured(client: Client, tmp_path: Path) -> None:
    progress = tmp_path / "progress.json"
    with Stub(delay_s=0.01) as stub:
        process = client.start(stub.url, requests=100000, progress=str(progress))
        deadline = time.monotonic() + 30
        while not progress.exists() or json.loads(progress.read_text())["done"] < 4:
            assert time.monotonic() < deadline
            assert process.poll() is None
            os.sched_yield()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=10)
    assert process.returncode == 143
    raw = client.raw()
    assert raw["interrupted"] is True
    assert len(raw["requests"]) >= 4
    assert all(request["ok"] for request in raw["requests"])
    told = json.loads(progress.read_text())
    assert set(told) == {"warming", "done", "total", "failed", "failing", "output_tokens", "elapsed_s"}
    assert told["failing"] is told["warming"] is False


def test_sigterm_in_the_warm_up(client: Client, tmp_path: Path) -> None:
    progress = tmp_path / "progress.json"
    with Stub("stall") as stub:
        process = client.start(stub.url, warmup=1, progress=str(progress))
        deadline = time.monotonic() + 30
        while not progress.exists():
            assert time.monotonic() < deadline
            os.sched_yield()
        told = json.loads(progress.read_text())
        assert (told["warming"], told["done"], told["total"]) == (True, 0, 1)
        deadline = time.monotonic() + 30
        while not stub.completions():
            assert time.monotonic() < deadline
            os.sched_yield()
        process.terminate()
        process.communicate(timeout=10)
    assert process.returncode == 143
    assert client.raw()["requests"] == []


def test_ipv6_and_names(client: Client) -> None:
    with Stub(host="::1") as stub:
        assert len(client.run(stub.url)["requests"]) == 6
    with Stub() as stub:
        assert len(client.run(f"http://localhost:{stub.port}")["requests"]) == 6


def test_check_sends_nothing_and_a_wrong_spec_names_its_key(client: Client, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "spec.json"
    client.start("http://127.0.0.1:9").communicate()
    bad.replace(good)
    process = client.start("http://127.0.0.1:9", "--check", str(good))
    assert (process.communicate()[1], process.returncode) == ("", 0)
    process = client.start("http://127.0.0.1:9", "--check", str(bad), requests="many")
    _, said = process.communicate()
    assert process.returncode == 2
    assert "requests must be a whole number of at least 1, not 'many'" in said
