"""Samples as they are brought home: what a load that went wrong is called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpurun.errors import ConfigError
from gpurun.manifest import Controller, Manifest
from gpurun.opening import secret_values
from gpurun.steps import end_round, open_store, pending, record
from gpurun.store import RunStore

LOGS = Path(__file__).parents[1] / "fixtures" / "logs"
READY = {"status": "ready", "started_at": 1.0, "ready_at": 2.0}
DIED = {**READY, "status": "failed", "reason": "exited", "exit_code": 0, "message": "ended by itself with exit code 0"}
KILLED = {**DIED, "exit_code": None, "signal": 9}
XID = "NVRM: Xid (PCI:0000:17:00): 79, pid=1, GPU has fallen off the bus."
_CASE = {
    "label": "chat",
    "id": "1/baseline-chat-1/h",
    "round": 1,
    "repeat": 1,
    "host": "h",
    "case": "baseline-chat-1",
    "variant": "baseline",
    "benchmark": "chat",
    "axes": {},
}
SPEC = {"load": {"concurrency": 4}, "requests": 10, "warmup": 0, "data": {"kind": "file", "output_tokens": 2}}
PLANNED: dict[str, Any] = _CASE | {
    "content": "c",
    "expect": None,
    "start": True,
    "stop": True,
    "server": {
        "engine": {"name": "vllm", "version": None},
        "argv": [],
        "env": {},
        "model": {"name": "m", "path": None},
    },
    "load": {"timeout_s": 60, "error_rate": 0.01, "spec": SPEC},
}


def raw(failed: int) -> bytes:
    """Ten requests, the last of which failed."""
    answered = {"ok": True, "error": None, "status": 200, "first": 0.1, "last": 0.4, "chunks": [0.1, 0.4]}
    refused = {"ok": False, "error": "HTTP 500", "status": 500, "first": None, "last": None, "chunks": []}
    common = {"intended": 0.0, "sent": 0.0, "end": 0.5, "prompt_tokens": 4, "output_tokens": 2, "usage": True}
    requests = [{**common, **(answered if number < 10 - failed else refused)} for number in range(10)]
    window = {"start_unix": 1.0, "duration_s": 1.0, "fixed": False}
    return json.dumps({"schema": "gpurun.load/1", "window": window, "client": {}, "requests": requests}).encode()


def brought(tmp_path: Path, log: str, server: dict[str, Any], failed: int) -> tuple[str | None, dict[str, float]]:
    """The failure's class and the metrics, after a load that ended with 0 and this server's log."""
    manifest = Manifest(run="20261130-0900-a1f3", campaign="c", started_at="t", controller=Controller.this())
    store = RunStore.create(tmp_path, "version: 1\n", manifest)
    store.write_plan({"samples": [PLANNED]})
    files = {"server.log": (LOGS / log).read_bytes(), "raw.json": raw(failed)}
    load = {"status": "exited", "exit_code": 0, "started_at": 3.0, "ended_at": 4.0}
    sample = record(store, PLANNED, server=server, load=load, files=files, began=0.0)
    return sample.failure and sample.failure.klass, sample.metrics


def test_raw_results_that_are_cut_are_a_failure_of_the_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = raw(0)
    monkeypatch.setattr(f"{__name__}.raw", lambda _: whole[:100] + b"\n[gpurun: 9 bytes left out]\n" + whole[109:])
    assert brought(tmp_path, "ok-vllm-cpu-eager.log", READY, 0) == ("client_error", {})


def test_secrets_come_by_their_own_names_or_as_the_command_line_hands_them_over(tmp_path: Path) -> None:
    known = {"A": "one-value", "GPURUN_SECRET_A": "two-value", "B": "three-value", "OTHER": "four-value"}
    assert secret_values(["A", "B"], known) == {"A": "two-value", "B": "three-value"}
    with pytest.raises(ConfigError, match="not set: C"):
        secret_values(["A", "C"], known)
    (tmp_path / "file").write_text("kept-value\n")
    known |= {"GPURUN_SECRET_D_FILE": str(tmp_path / "file"), "GPURUN_SECRET_E_FILE": str(tmp_path / "none")}
    assert secret_values(["D"], known) == {"D": "kept-value"}
    with pytest.raises(ConfigError, match="not set: E"):
        secret_values(["E"], known)
    manifest = Manifest(run="20261130-0900-a1f3", campaign="c", started_at="t", controller=Controller.this())
    directory = RunStore.create(tmp_path, "version: 1\n", manifest).directory
    (directory / "plan.json").write_text('{"secrets": ["A", "B"], "samples": []}')
    said = "one-value two-value three-value kept-value four-value"
    open_store(str(directory), known).append_event({"said": said})
    assert json.loads((directory / "events.jsonl").read_text()) == {"said": "[secret] " * 4 + "four-value"}


@pytest.mark.parametrize(
    ("log", "server", "failed", "klass"),
    [
        ("ok-vllm-cpu-eager.log", {"status": "absent"}, 0, "interrupted"),  # `gpurun stop` from elsewhere
        ("ok-vllm-cpu-eager.log", {**KILLED, "kernel": None}, 0, "oom_host"),
        ("ok-vllm-cpu-eager.log", {**KILLED, "kernel": {"oom_kills": 0, "log": []}}, 0, "engine_dead"),
        ("ok-vllm-cpu-eager.log", {**DIED, "kernel": {"oom_kills": 1, "log": []}}, 0, "oom_host"),
        ("ok-vllm-cpu-eager.log", {**DIED, "kernel": {"oom_kills": 0, "log": [XID]}}, 0, "driver_mismatch"),
        ("ok-vllm-cpu-eager.log", READY, 0, None),
        ("ok-vllm-cpu-eager.log", READY, 5, "invalid_measurement"),
        (
            "vllm-cpu-engine-killed-exit-0.log",
            READY,
            5,
            "engine_dead",
        ),  # its server is still up, and answers with errors
        ("vllm-cpu-engine-killed-exit-0.log", DIED, 5, "engine_dead"),
        ("ok-vllm-cpu-eager.log", DIED, 0, "engine_dead"),  # an end that nobody asked for, with exit code 0
    ],
)
def test_what_a_load_is_called(
    tmp_path: Path, log: str, server: dict[str, Any], failed: int, klass: str | None
) -> None:
    found, metrics = brought(tmp_path, log, server, failed)
    assert found == klass
    assert bool(metrics) is (klass is None)


def test_a_sample_that_something_passing_taints_is_measured_again_once(tmp_path: Path) -> None:
    planned = {**PLANNED}
    planned["load"] = {
        **PLANNED["load"],
        "job": "r1-c",
        "argv": ["/h/jobs/run/r1-c/spec.json"],
        "files": {"a.py": "f00"},
    }
    planned["server"] = {**PLANNED["server"], "job": "r1-s"}
    manifest = Manifest(run="20261130-0900-a1f3", campaign="c", started_at="t", controller=Controller.this())
    store = RunStore.create(tmp_path, "version: 1\n", manifest)
    store.write_plan({"samples": [planned], "scripts": {"f00": "print()"}})
    (first,) = pending(store, "h")
    assert (first["load"]["job"], first["load"]["files"]) == ("r1-c", {"a.py": "print()"})
    load = {"status": "exited", "exit_code": 0, "started_at": 1.0, "ended_at": 4.0}
    sensors = "unix_s,swapped_pages,strangers\n" + "".join(f"{at}.0,200,\n" for at in range(1, 5))
    files = {"raw.json": raw(0), "telemetry.csv": sensors.encode()}
    sample = record(store, planned, server=READY, load=load, files=files, began=0.0)
    assert sample.status == "measured" and sample.taints == ["swap: the host swapped 3 MiB"]
    (notice,) = end_round(store, "h", 1)
    assert notice.message.endswith(sample.taints[0])
    (again,) = pending(store, "h")
    assert (again["load"]["job"], again["server"]["job"]) == ("r1-c-2", "r1-s-2")
    assert again["load"]["argv"] == ["/h/jobs/run/r1-c-2/spec.json"] and again["load"]["files"] == {"a.py": "print()"}
    record(store, again, server=READY, load=load, files=files, began=0.0)
    assert end_round(store, "h", 1) == [] and pending(store, "h") == []  # it is kept, tainted as it is
    assert len(list(store.directory.glob("samples/1/*/h~1/sample.json"))) == 1  # and so is the first
    assert store.samples()[0].taints == sample.taints


def test_a_check_that_fails_names_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PLANNED["load"], "spec", {**SPEC, "requests": 11})
    manifest = Manifest(run="20261130-0900-a1f3", campaign="c", started_at="t", controller=Controller.this())
    store = RunStore.create(tmp_path, "version: 1\n", manifest)
    store.write_plan({"samples": [PLANNED]})
    load = {"status": "exited", "exit_code": 0, "started_at": 3.0, "ended_at": 4.0}
    sample = record(store, PLANNED, server=READY, load=load, files={"raw.json": raw(0)}, began=0.0)
    assert sample.failure is not None and sample.failure.klass == "invalid_measurement"
    assert sample.failure.proof == "requests: 10 requests ended, 11 were asked for"


def test_who_talked_garbage_in_the_first_round_does_so_in_the_others(tmp_path: Path) -> None:
    """Servers are asked in the first round alone."""

    def said(*texts: str) -> bytes:
        return json.dumps({"answers": [{"choices": [{"message": {"content": text}}]} for text in texts]}).encode()

    variant = {"case": "v-chat-1", "variant": "v"}
    both = [
        {**PLANNED, **of, "round": number, "id": f"{number}/{of.get('case', PLANNED['case'])}/h"}
        for number in (1, 2)
        for of in ({}, variant)
    ]
    manifest = Manifest(run="20261130-0900-a1f3", campaign="c", started_at="t", controller=Controller.this())
    store = RunStore.create(tmp_path, "version: 1\n", manifest)
    store.write_plan({"samples": both})
    load = {"status": "exited", "exit_code": 0, "started_at": 1.0, "ended_at": 4.0}
    answers = [said("The sea.", "Paris", "4", "cold", "Earth"), said(*"!!!!!"), None, None]
    for planned, answer in zip(both, answers, strict=True):
        files = {"raw.json": raw(0)} | ({} if answer is None else {"answers.json": answer})
        record(store, planned, server=READY, load=load, files=files, began=0.0)
    found = {(s.round, s.variant): s.failure and s.failure.klass for s in store.samples()}
    assert found == {
        (1, "baseline"): None,
        (2, "baseline"): None,
        (1, "v"): "invalid_measurement",
        (2, "v"): "invalid_measurement",
    }
