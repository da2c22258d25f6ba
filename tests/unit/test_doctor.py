"""What doctor makes of what it finds: state, one line, and a fix wherever something is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils import gpurun_host
from click.testing import CliRunner

from gpurun import doctor
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


def eight(**changes: Any) -> dict[str, Any]:
    """The facts of eight healthy GPUs, as nvidia-smi's stand-in gives them, with something else about the third."""
    path = Path(__file__).parents[2] / "campaigns/hosts/8x-rtx-pro-6000.json"
    found = json.loads(path.read_text())["hosts"]["rtx-pro-6000"]
    for gpu in found["gpus"]:
        gpu["pcie"]["card_width"] = gpu["pcie"]["width_max"]
        gpu["iommu"] = "identity"
        gpu.update(reset_required=False, recovery_action=None)
    links = {name: dict.fromkeys(row, "OK") for name, row in found["topology"]["links"].items()}
    found["topology"]["p2p"] = links
    found["gpus"][2].update(changes)
    return {**facts(), **{key: found[key] for key in ("gpus", "driver", "topology")}}


@pytest.mark.parametrize(
    ("check", "change", "said"),
    [
        ("iommu", {"iommu": "DMA-FQ"}, "translates"),
        ("pcie", {"pcie": {"width": 8, "card_width": 16}}, "GPU 2 "),
        ("persistence", {"persistence": False}, "GPU 2"),
        ("ecc", {"ecc": {"enabled": True, "uncorrected_volatile": 3}}, "GPU 2 "),
        ("ecc-alike", {"ecc": {"enabled": False}}, "off for others"),
        ("throttle", {"throttle_reasons": ["gpu_idle", "hw_thermal_slowdown"]}, "GPU 2 "),
        ("power-limit", {"power": {"limit_w": 300.0, "default_limit_w": 600.0}}, "GPU 2 "),
        ("clocks", {"throttle_reasons": ["applications_clocks_setting"]}, "GPU 2 "),
        ("gpu-health", {"reset_required": True}, "GPU 2"),
    ],
)
def test_a_gpu(check: str, change: dict[str, Any], said: str) -> None:
    well = one(of_host("a", Seen(eight())), check)
    assert (well.state, well.fix) == ("ok", "")
    found = one(of_host("a", Seen(eight(**change))), check)
    assert found.state == "warn" and found.fix and said in found.message


def test_gpus_without_peer_access() -> None:
    known = eight()
    assert one(of_host("a", Seen(known)), "p2p").state == "ok"
    known["topology"]["p2p"]["GPU1"]["GPU5"] = "CNS"
    found = one(of_host("a", Seen(known)), "p2p")
    assert found.state == "warn" and found.message.startswith("GPU 1 ")


def test_every_rule_about_hosts_finds_its_facts() -> None:
    """A rule whose facts are not there is left out, so that a misspelt one would be, too."""
    rules = yaml.safe_load((Path(doctor.__file__).parent / "data" / "doctor.yml").read_text())["host"]
    found = {finding.check for finding in of_host("a", Seen(eight()))}
    assert {rule["check"] for rule in rules} - found == {"gpu-free"}  # nobody is on the GPUs


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
    seen = Seen({**facts(), "skew_s": 81.4}, lock={"run": "r9", "controller": {"host": "desk"}})
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
