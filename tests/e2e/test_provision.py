"""`gpurun provision` over ssh on a booted host, from signed repositories with stand-ins of the driver's packages."""

from __future__ import annotations

import json
import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.awx.job import ExecutionEnvironment, Job, Template, inventory
from tests.e2e.fleet import Desk
from tests.e2e.provisioned import (
    Machine,
    begins_nothing_that_could_not_end,
    loses_power_halfway,
    provisionable,
    waits_for_another,
)
from tests.hosts import TestHost
from tests.nvidia_machine import loaded, packages, set_devices
from tests.nvidia_repository import OFFICIAL, Repository

pytestmark = [pytest.mark.hosts, pytest.mark.slow]
# Debian 13's host is provisioned by a user whom sudo asks for a password, with the newest ansible-core.
ROWS = {"debian12": "bookworm", "debian13": "trixie"}
SUDO_PASSWORD, PROXY_PASSWORD = "planted-5ecret-of-sudo", "planted-5ecret-of-a-proxy"
BOTH = pytest.mark.parametrize("machine", ROWS, indirect=True)
ON_13 = pytest.mark.parametrize("machine", ["debian13"], indirect=True)
ON_12 = pytest.mark.parametrize("machine", ["debian12"], indirect=True)  # test_provision_cuda.py has the like on 13


@pytest.fixture(scope="module")
def machine(
    bootable: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Machine]:
    row, folder = request.param, tmp_path_factory.mktemp("provision")
    common = {"row": row, "suite": ROWS[row], "disk_mib": 8192}

    def publish(repository: Repository) -> None:
        repository.publish(row, ["580.95.05", "595.91.07"])

    if row == "debian12":
        with provisionable(folder, publish, **common) as one:
            yield one
        return
    ee = request.getfixturevalue("newer_ee")
    assert list(ee.path.glob("lib/*/site-packages/ansible_core-2.21.*"))
    password = {"ansible_become_password": "{{ lookup('ansible.builtin.env', 'SUDO_PASSWORD') }}"}
    more = {"user": "bench", "ee": ee, "variables": password}
    with pytest.MonkeyPatch.context() as patch, provisionable(folder, publish, **common, **more) as one:
        one.host.exec(["chpasswd"], stdin=f"bench:{SUDO_PASSWORD}\n")
        (one.host.root / "etc/sudoers.d/bench").write_text("bench ALL=(ALL) ALL\n")
        patch.setenv("SUDO_PASSWORD", SUDO_PASSWORD)
        patch.setenv("GPURUN_PASS_ENV", "SUDO_PASSWORD")
        patch.setenv("ANSIBLE_INJECT_FACT_VARS", "False")
        yield one


@ON_12
def test_a_plan_says_what_and_why_and_changes_nothing(machine: Machine) -> None:
    planned = machine.run("--plan")
    assert planned["status"] == "planned"
    assert [step["what"] for step in planned["steps"]] == [
        f"add {machine.repository.url}/{machine.row}/x86_64",
        "install driver 580.95.05, open modules, compute",
        "install linux-headers-6.1.0-30-amd64",
        "install linux-headers-amd64",
        "install gcc-12",
    ]
    assert planned["reboot_reasons"] == ["nouveau is loaded, which the driver cannot replace while it runs"]
    assert packages(machine.host) == machine.before


@ON_13
@pytest.mark.parametrize(
    ("password", "said"), [("", "none was handed over"), ("wrong", "does not take the password that it was given")]
)
def test_a_password_of_sudo_that_is_missing_or_wrong_is_told(
    machine: Machine, password: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_PASSWORD", password)
    machine.run(code=3)
    assert said in machine.said and "ansible_become_password" in machine.said
    assert packages(machine.host) == machine.before


@BOTH
def test_a_bare_host_gets_a_driver_as_the_check_said_it_would(machine: Machine) -> None:
    checked = machine.run("--check", "--diff")
    told = machine.said
    assert packages(machine.host) == machine.before
    boot = machine.host.inside(["cat", "/proc/sys/kernel/random/boot_id"])
    done = machine.run("--diff")
    assert SUDO_PASSWORD not in told + machine.said
    assert done["changed"] == checked["changed"]
    assert done["status"] == "ok" and done["driver"] == "580.95.05" == loaded(machine.host)
    assert machine.host.inside(["cat", "/proc/sys/kernel/random/boot_id"]) != boot  # nouveau was loaded
    assert set(machine.versions().values()) == {"580.95.05"}
    assert "nvidia-fabricmanager" not in machine.versions()  # no NVSwitch here
    files = re.findall(r"^\+\+\+ (/\S+)\n@@ .* @@\n((?:\+.*\n)+)", told, re.MULTILINE)
    assert len(files) == 4, told
    for path, lines in files:  # as the check had shown them, before any of them was there
        assert machine.host.inside(["cat", path]) == re.sub(r"(?m)^\+", "", lines)


@ON_12
def test_the_second_time_nothing_changes_and_nothing_is_downloaded(machine: Machine) -> None:
    machine.repository.asked.clear()
    done = machine.run()
    assert (done["status"], done["changed"], done["steps"]) == ("ok", [], [])
    assert machine.repository.asked == []


@BOTH
def test_the_driver_moves_on_request_only_and_apt_is_waited_for(machine: Machine) -> None:
    machine.repository.publish(machine.row, ["580.178.04"])
    machine.host.inside(["apt-get", "update", "-qq"])
    simulated = machine.host.inside(["apt-get", "-s", "dist-upgrade"])  # what an unattended upgrade would do
    assert "nvidia" not in simulated and "libcuda" not in simulated
    assert machine.run()["changed"] == []
    checked = machine.run("--driver-version", "latest", "--check")
    done = waits_for_another(machine, "--driver-version", "latest", "--diff")
    assert done["changed"] == checked["changed"] and "Reboot now" in done["changed"]
    assert done["driver"] == "580.178.04" == loaded(machine.host)
    assert set(machine.versions().values()) == {"580.178.04"}
    assert "+Pin: version 580.178.04-1" in machine.said


@BOTH
def test_another_branch_interrupted_and_conflicting_definitions_of_the_repository(machine: Machine) -> None:
    other = "/etc/apt/sources.list.d/by-hand.list"
    line = f"deb [signed-by=/etc/apt/other.gpg] {machine.repository.url}/{machine.row}/x86_64/ /"
    line += f"\ndeb [signed-by=/etc/apt/other.gpg] {OFFICIAL}/{machine.row}/x86_64/ /"
    machine.host.inside(["sh", "-c", f"echo '{line}' > {other}; touch /etc/apt/other.gpg"])
    broken = machine.host.inside(["sh", "-c", "apt-get update 2>&1 || true"])
    assert "Conflicting values set for option Signed-By" in broken
    program = machine.start("--driver-branch", "595")
    program.wait_for("install the driver")
    program.send(signal.SIGINT)
    assert program.finish(60) == 130
    assert "the same command takes it up" in program.stderr
    done = machine.run("--driver-branch", "595", "--reboot", "never")
    assert done["status"] == "reboot_needed" and loaded(machine.host) == "580.178.04"
    assert done["reboot_reasons"] == ["driver 580.178.04 is loaded, 595.91.07 is installed"]
    done = machine.run("--driver-branch", "595")
    assert done["changed"] == ["Reboot now"] and done["status"] == "ok"
    assert done["driver"] == "595.91.07" == loaded(machine.host)
    assert set(machine.versions().values()) == {"595.91.07"}
    assert machine.host.inside(["cat", other]).count("# gpurun: deb") == 2
    machine.host.inside(["apt-get", "update", "-qq"])


@BOTH
def test_an_installation_whose_host_lost_power_is_taken_up(machine: Machine) -> None:
    loses_power_halfway(machine, "--driver-version", "580.178.04")
    assert "half-installed" in _states(machine.host) or "unpacked" in _states(machine.host)
    done = machine.run("--driver-version", "580.178.04")
    assert done["status"] == "ok" and done["driver"] == "580.178.04"
    assert set(machine.versions().values()) == {"580.178.04"}
    assert machine.run("--driver-branch", "580")["changed"] == []


@ON_12
def test_a_driver_that_does_not_build_is_told_and_another_one_heals_it(machine: Machine) -> None:
    machine.repository.publish(machine.row, ["580.99.99"])
    failed = machine.run("--driver-version", "580.99.99", code=3)
    assert failed["status"] == "failed" and "Bad return status for module build" in failed["error"]
    done = machine.run("--driver-version", "580.178.04")
    assert done["status"] == "ok" and set(machine.versions().values()) == {"580.178.04"}


@BOTH
def test_nothing_is_begun_where_it_could_not_end(machine: Machine) -> None:
    begins_nothing_that_could_not_end(machine, "--driver-branch", "595")
    machine.repository.down()
    assert machine.run()["status"] == "ok"  # where nothing is to be done it is not missed
    machine.repository.up()


@ON_13
def test_a_job_of_awx_does_what_the_command_line_does(
    machine: Machine, newer_ee: ExecutionEnvironment, project: Path
) -> None:
    """The password of sudo is the machine credential's."""
    known = machine.inventory()["gpu_hosts"]
    by_agent = known["vars"]["ansible_ssh_common_args"].replace("-o IdentitiesOnly=yes", "")
    known["vars"]["ansible_ssh_common_args"] = by_agent
    login = {"key": machine.fleet.key, "user": "bench", "become_password": SUDO_PASSWORD}
    template = Template.named("gpurun provision", inventory(known["hosts"], known["vars"]), **login)
    with tempfile.TemporaryDirectory(prefix="awx_", dir="/tmp") as folder:
        job = Job(Path(folder), newer_ee, project, template, 1, provision_driver_branch="595").run()
    assert job.status == "successful", job.stdout
    assert job.artifacts["gpurun_provision"][machine.host.name]["driver"] == "595.91.07" == loaded(machine.host)
    assert SUDO_PASSWORD not in json.dumps(job.events)
    assert machine.run("--driver-branch", "595")["changed"] == []


@ON_12
def test_fabric_manager_comes_with_the_switches_at_the_drivers_version(machine: Machine) -> None:
    set_devices(machine.host, ["0302:2330"] * 2 + ["0680:22a3"])
    done = machine.run()
    assert done["status"] == "ok"
    assert machine.versions()["nvidia-fabricmanager"] == machine.versions()["libnvidia-nscq"] == "580.178.04"
    assert machine.run()["changed"] == []
    set_devices(machine.host, ["0302:2bb5"])


@ON_12
def test_container_toolkit_through_a_proxy(machine: Machine) -> None:
    machine.repository.publish_toolkit()
    proxy = {"http_proxy": f"http://me:{PROXY_PASSWORD}@{machine.repository.address}:{machine.repository.port}"}
    outside = "http://known-to-the-proxy.example/toolkit"
    machine.desk.use(machine.inventory(provision_toolkit_url=outside, provision_environment=proxy))
    checked = machine.run("--toolkit", "--check")
    assert not any(path.startswith(outside) and path.endswith(".deb") for path in machine.repository.asked)
    done = machine.run("--toolkit", "--diff")
    assert done["changed"] == checked["changed"] and done["status"] == "ok"
    assert any(path.startswith(outside) and path.endswith(".deb") for path in machine.repository.asked)
    assert PROXY_PASSWORD not in machine.said + json.dumps(done)
    assert packages(machine.host)["nvidia-container-toolkit"] == "1.19.1-1"
    assert machine.run("--toolkit")["changed"] == []
    machine.run("--remove", "toolkit")
    assert "nvidia-container-toolkit" not in packages(machine.host)


@ON_12
def test_removal_takes_everything_back(machine: Machine) -> None:
    done = machine.run("--remove", "driver")
    assert done["status"] == "ok" and loaded(machine.host) is None
    assert packages(machine.host) == machine.before
    left = machine.host.inside(
        ["sh", "-c", "find /etc /var/lib -name '*gpurun*' -o -name 'cuda-*' -o -name driver.json"]
    )
    assert left == ""
    assert machine.run("--remove", "driver")["notes"] == ["gpurun has installed no driver here"]


def _states(host: TestHost) -> str:
    return host.inside(["dpkg-query", "-W", "-f", "${db:Status-Status}\n"])


def test_unknown_words_are_usage_errors(tmp_path: Path) -> None:
    desk = Desk(tmp_path, {"gpu_hosts": {"hosts": {}, "vars": {}}})
    for words, said in {
        ("--remove", "kernel"): "driver",
        ("--driver-branch", "old"): "580",
        ("--cuda", "12.8"): "13.0",
    }.items():
        code, program = desk.run("provision", *words)
        assert code == 2 and said in program.stderr
