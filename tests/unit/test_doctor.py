"""What doctor makes of what it finds: state, one line, and a fix wherever something is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils import gpurun_host
from click.testing import CliRunner

from gpurun.commands.doctor import command
from gpurun.doctor import Finding, Seen, of_here, of_host, version

HERE: dict[str, Any] = {
    "python": (3, 11, 2),
    "ansible": (2, 19, 14),
    "playbook": "/v/ansible-playbook",
    "uv": "/v/uv",
    "ssh": "/bin/ssh",
    "host_keys": True,
    "encoding": "UTF-8",
    "home": "/home/me",
    "home_writable": True,
    "results": "/r",
    "results_free": 5e10,
}


def facts(**host: Any) -> dict[str, Any]:
    """Facts of a healthy host, as the module really gives them, with some of `host` changed."""
    found = gpurun_host.collect("~/.gpurun")
    healthy = {"disk_free_bytes": 90e9, "shm_bytes": 8e9, "open_files": 1 << 20, "home_writable": True, "load1": 0.2}
    return {"host": {**found, **healthy, **host}, "gpus": [], "driver": None, "topology": None, "gpu_error": None}


def one(findings: list[Finding], check: str) -> Finding:
    return next(finding for finding in findings if finding.check == check)


def test_all_is_well() -> None:
    findings = of_here(HERE) + of_host("a", Seen(facts()))
    assert {finding.state for finding in findings} == {"ok"}
    assert {finding.fix for finding in findings} == {""}
    assert all("\n" not in finding.message for finding in findings)


@pytest.mark.parametrize(
    ("check", "change", "state"),
    [
        ("python", {"python": (3, 10, 9)}, "fail"),
        ("ansible", {"ansible": None}, "fail"),
        ("ansible", {"ansible": (2, 18, 1)}, "fail"),
        ("ansible", {"ansible": (2, 22, 0)}, "fail"),
        ("ansible-playbook", {"playbook": None}, "fail"),
        ("uv", {"uv": None}, "fail"),
        ("ssh", {"ssh": None}, "warn"),
        ("host-keys", {"host_keys": False}, "warn"),
        ("locale", {"encoding": "ISO-8859-1"}, "fail"),
        ("home", {"home_writable": False}, "fail"),
        ("results", {"results_free": 5e8}, "warn"),
        ("results", {"results_free": 1e6}, "fail"),
    ],
)
def test_this_machine(check: str, change: dict[str, Any], state: str) -> None:
    found = one(of_here({**HERE, **change}), check)
    assert found.state == state and found.fix and found.message


@pytest.mark.parametrize(
    ("check", "change", "state", "said"),
    [
        ("python", {"python": {"version": "3.6.8", "path": "/usr/bin/python3"}}, "fail", "3.6.8"),
        ("home", {"home_writable": False, "home": "/data/gpurun"}, "fail", "/data/gpurun can not be written"),
        ("disk", {"disk_free_bytes": 12e9}, "warn", "12.0 GB"),
        ("disk", {"disk_free_bytes": 3e8}, "fail", "0.3 GB"),
        ("init", {"init": "other"}, "ok", "no systemd"),
        ("init", {"init": "systemd", "uid": 1000}, "ok", "no root"),
        ("shm", {"shm_bytes": 64 << 20}, "warn", "0.1 GB"),
        ("files", {"open_files": 1024}, "warn", "1024"),
    ],
)
def test_a_host(check: str, change: dict[str, Any], state: str, said: str) -> None:
    found = one(of_host("a", Seen(facts(**change))), check)
    assert (found.where, found.state) == ("a", state)
    assert said in found.message and bool(found.fix) == (state != "ok")


def test_a_broken_driver_has_the_advice_of_the_facts() -> None:
    error = {
        "kind": "driver_mismatch",
        "message": "Driver/library version mismatch",
        "advice": "reboot",
        "library": None,
    }
    found = one(of_host("a", Seen({**facts(), "gpu_error": error})), "gpus")
    assert (found.state, found.message, found.fix) == ("fail", "Driver/library version mismatch", "reboot")


def test_strangers_on_a_gpu_are_named_and_our_own_are_not() -> None:
    processes = [{"pid": 7, "user": "eve", "memory_mib": 9}, {"pid": 8, "user": "me", "memory_mib": 9}]
    gpu = {"index": 0, "name": "NVIDIA H200", "processes": processes}
    seen = Seen({**facts(), "gpus": [gpu], "driver": {"version": "580.1"}}, left=[{"run": "r1", "job": "j", "pid": 8}])
    findings = of_host("a", seen)
    assert one(findings, "gpus").message == "1 x NVIDIA H200, driver 580.1"
    assert one(findings, "gpu-free").message == "GPUs are in use by pid 7 of eve"
    assert one(findings, "leftovers").message == "still there: j"


def test_the_holder_and_a_wrong_clock_are_told() -> None:
    seen = Seen(facts(), lock={"run": "r9", "controller": {"host": "desk"}}, skew_s=81.4)
    findings = of_host("a", seen)
    assert one(findings, "lock").message == "run r9 holds the host, from desk"
    assert "gpurun stop r9" in one(findings, "lock").fix
    assert one(findings, "clock").message == "its clock is 81.0 s off"


def test_a_busy_host_is_told_unless_a_run_of_ours_is_the_reason() -> None:
    busy = facts(load1=9.04, cpus=2)
    found = one(of_host("a", Seen(busy)), "busy")
    assert (found.state, found.message) == ("warn", "2 CPUs, load average 9.0")
    assert one(of_host("a", Seen(busy, lock={"run": "r9", "controller": {"host": "desk"}})), "busy").state == "ok"


def test_a_host_out_of_reach_has_the_cause_and_its_fix() -> None:
    (found,) = of_host("a", Seen(trouble="ssh: connect to host a port 22: Connection refused"))
    assert (found.check, found.state) == ("reach", "fail")
    assert "port 22" in found.message and "ansible_port" in found.fix


def test_versions_compare_as_numbers() -> None:
    assert version("3.9.2+") < version("3.11") and version("2.19.14rc1") == (2, 19, 14)


def test_this_machine_alone(tmp_path: Path) -> None:
    done = CliRunner().invoke(command, ["--json", "--results", str(tmp_path)], standalone_mode=False)
    document = json.loads(done.output)
    assert document["schema"] == "gpurun.doctor/1"
    assert {found["where"] for found in document["findings"]} == {"this machine", "localhost"}
    failed = {found["where"] for found in document["findings"] if found["state"] == "fail"}
    assert done.return_value == (4 if "this machine" in failed else 3 if failed else 0)
