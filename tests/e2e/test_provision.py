"""`gpurun provision` over ssh on a booted host, from signed repositories with stand-ins of the driver's packages."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.fleet import Desk, inventory_of
from tests.e2e.program import Program, eventually
from tests.hosts import HostFleet, TestHost
from tests.nvidia_repository import MACHINE, OFFICIAL, Repository, become, loaded, make_machine, packages, set_devices

PACKAGES = ("python3-apt", "dnf", "dnf-plugins-core", "rpm")
pytestmark = [pytest.mark.hosts, pytest.mark.slow]


class Machine:
    """A host, its repositories, and a desk to provision it from."""

    def __init__(self, fleet: HostFleet, repository: Repository, folder: Path) -> None:
        self.fleet, self.host, self.repository = fleet, fleet[0], repository
        self.wishes = {
            "provision_root": MACHINE,
            "provision_machine": "full",
            "provision_repository_url": repository.url,
            "provision_keyring_sha256": repository.keyring_sha256("debian12"),
        }
        self.desk = Desk(folder, inventory_of(fleet, **self.wishes))
        self.before: dict[str, str] = {}

    def start(self, *words: str) -> Program:
        return self.desk.start("provision", "--json", *words)

    def run(self, *words: str, code: int = 0) -> dict[str, Any]:
        """gpurun provision, to its end; what it says of the host."""
        return self.finished(self.start(*words), code)

    def finished(self, program: Program, code: int = 0) -> dict[str, Any]:
        assert program.finish(240) == code, program.stderr + program.stdout
        hosts = json.loads(program.stdout)["hosts"]
        found = hosts[self.host.name]
        assert isinstance(found, dict)
        return found

    def versions(self) -> dict[str, str]:
        """The driver's packages, and their versions without the packaging's."""
        return {
            name: v.partition("-")[0]
            for name, v in packages(self.host).items()
            if "nvidia" in name or "libcuda" in name
        }


@pytest.fixture(scope="module")
def machine(bootable: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    lacking = [program for program in ("gpg", "dpkg-deb", "rpmbuild", "createrepo_c") if not shutil.which(program)]
    if lacking:
        reason = f"missing: {' '.join(lacking)} (tests/hosts/install.sh installs them)"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    folder = tmp_path_factory.mktemp("provision")
    with HostFleet(packages=PACKAGES, disk_mib=8192) as fleet:
        repository = Repository(folder, fleet[0].address.rpartition(".")[0] + ".1")
        repository.publish("debian12", ["580.95.05", "595.91.07"])
        repository.publish_system()
        make_machine(fleet[0], repository)
        one = Machine(fleet, repository, folder / "desk")
        one.before = packages(fleet[0])
        yield one
        one.desk.end()
        repository.close()


def test_a_plan_says_what_and_why_and_changes_nothing(machine: Machine) -> None:
    planned = machine.run("--plan")
    assert planned["status"] == "planned"
    assert [step["what"] for step in planned["steps"]] == [
        f"add {machine.repository.url}/debian12/x86_64",
        "install driver 580.95.05, open modules, compute",
        "install linux-headers-6.1.0-30-amd64",
        "install linux-headers-amd64",
        "install gcc-12",
    ]
    assert planned["reboot_reasons"] == ["nouveau is loaded, which the driver cannot replace while it runs"]
    assert packages(machine.host) == machine.before


def test_a_bare_host_gets_a_driver_as_the_check_said_it_would(machine: Machine) -> None:
    checked = machine.run("--check")
    assert packages(machine.host) == machine.before
    boot = machine.host.inside(["cat", "/proc/sys/kernel/random/boot_id"])
    done = machine.run()
    assert done["changed"] == checked["changed"]
    assert done["status"] == "ok" and done["driver"] == "580.95.05" == loaded(machine.host)
    assert machine.host.inside(["cat", "/proc/sys/kernel/random/boot_id"]) != boot  # nouveau was loaded
    assert set(machine.versions().values()) == {"580.95.05"}
    assert "nvidia-fabricmanager" not in machine.versions()  # no NVSwitch here


def test_the_second_time_nothing_changes_and_nothing_is_downloaded(machine: Machine) -> None:
    machine.repository.asked.clear()
    done = machine.run()
    assert (done["status"], done["changed"], done["steps"]) == ("ok", [], [])
    assert machine.repository.asked == []


def test_the_driver_moves_on_request_only(machine: Machine) -> None:
    machine.repository.publish("debian12", ["580.178.04"])
    machine.host.inside(["apt-get", "update", "-qq"])
    simulated = machine.host.inside(["apt-get", "-s", "dist-upgrade"])  # what an unattended upgrade would do
    assert "nvidia" not in simulated and "libcuda" not in simulated
    assert machine.run()["changed"] == []
    checked = machine.run("--driver-version", "latest", "--check")
    done = machine.run("--driver-version", "latest", "--diff")
    assert done["changed"] == checked["changed"] and "Reboot now" in done["changed"]
    assert done["driver"] == "580.178.04" == loaded(machine.host)
    assert set(machine.versions().values()) == {"580.178.04"}
    assert "+Pin: version 580.178.04-1" in machine.desk._started[-1].stderr


def test_another_branch_interrupted_and_conflicting_definitions_of_the_repository(machine: Machine) -> None:
    other = "/etc/apt/sources.list.d/by-hand.list"
    line = f"deb [signed-by=/etc/apt/other.gpg] {machine.repository.url}/debian12/x86_64/ /"
    line += f"\ndeb [signed-by=/etc/apt/other.gpg] {OFFICIAL}/debian12/x86_64/ /"
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


def test_an_installation_whose_host_lost_power_is_taken_up(machine: Machine) -> None:
    machine.host.inside(["touch", "/run/hold-postinst"])
    program = machine.start("--driver-version", "580.178.04")
    eventually(lambda: (machine.host.root / "run").exists() and _seen(machine.host, "/run/postinst-runs"))
    machine.host.stop()
    machine.host.start()
    assert program.finish(240) == 3
    assert "half-installed" in _states(machine.host) or "unpacked" in _states(machine.host)
    done = machine.run("--driver-version", "580.178.04")
    assert done["status"] == "ok" and done["driver"] == "580.178.04"
    assert set(machine.versions().values()) == {"580.178.04"}
    assert machine.run("--driver-branch", "580")["changed"] == []


def test_a_driver_that_does_not_build_is_told_and_another_one_heals_it(machine: Machine) -> None:
    machine.repository.publish("debian12", ["580.99.99"])
    failed = machine.run("--driver-version", "580.99.99", code=3)
    assert failed["status"] == "failed" and "Bad return status for module build" in failed["error"]
    done = machine.run("--driver-version", "580.178.04")
    assert done["status"] == "ok" and set(machine.versions().values()) == {"580.178.04"}


def test_nothing_is_begun_where_it_could_not_end(machine: Machine) -> None:
    before = packages(machine.host)
    machine.host.fill_disk(200 << 20)
    full = machine.run("--driver-branch", "595", code=3)
    machine.host.free_disk()
    assert [one["check"] for one in full["refusals"]] == ["disk"]
    machine.repository.down()
    down = machine.run("--driver-branch", "595", code=3)
    assert [one["check"] for one in down["refusals"]] == ["repository"]
    assert machine.run()["status"] == "ok"  # where nothing is to be done it is not missed
    machine.repository.up()
    assert packages(machine.host) == before


def test_fabric_manager_comes_with_the_switches_at_the_drivers_version_and_apt_is_waited_for(machine: Machine) -> None:
    set_devices(machine.host, ["0302:2330"] * 2 + ["0680:22a3"])
    lock = "import fcntl,os,time; f=open('/var/lib/dpkg/lock-frontend','w'); fcntl.lockf(f,fcntl.LOCK_EX); "
    lock += "open('/run/locked','w'); [time.sleep(.1) for _ in iter(lambda: os.path.exists('/run/locked'), False)]"
    machine.host.inside(["systemd-run", "--unit=other-apt", "python3", "-c", lock])
    eventually(lambda: _seen(machine.host, "/run/locked"))
    program = machine.start()
    program.wait_for("install the packages")
    assert "nvidia-fabricmanager" not in packages(machine.host)
    machine.host.inside(["rm", "/run/locked"])
    done = machine.finished(program)
    assert done["status"] == "ok"
    assert machine.versions()["nvidia-fabricmanager"] == machine.versions()["libnvidia-nscq"] == "580.178.04"
    assert machine.run()["changed"] == []
    set_devices(machine.host, ["0302:2bb5"])


def test_container_toolkit(machine: Machine) -> None:
    machine.desk.use(
        inventory_of(machine.fleet, **machine.wishes, provision_toolkit_url=machine.repository.publish_toolkit())
    )
    checked = machine.run("--toolkit", "--check")
    done = machine.run("--toolkit")
    assert done["changed"] == checked["changed"] and done["status"] == "ok"
    assert packages(machine.host)["nvidia-container-toolkit"] == "1.19.1-1"
    assert machine.run("--toolkit")["changed"] == []
    machine.run("--remove", "toolkit")
    assert "nvidia-container-toolkit" not in packages(machine.host)


def test_removal_takes_everything_back(machine: Machine) -> None:
    done = machine.run("--remove", "driver")
    assert done["status"] == "ok" and loaded(machine.host) is None
    assert packages(machine.host) == machine.before
    left = machine.host.inside(
        ["sh", "-c", "find /etc /var/lib -name '*gpurun*' -o -name 'cuda-*' -o -name driver.json"]
    )
    assert left == ""
    assert machine.run("--remove", "driver")["notes"] == ["gpurun has installed no driver here"]


def test_ubuntu_and_its_names_of_packages_before_and_after_590(machine: Machine) -> None:
    """Only its names: the system beneath is Debian. One release becomes the next with the driver installed."""
    (machine.host.root / f"{MACHINE}/nouveau".lstrip("/")).write_text("")
    names = {"580": {"libnvidia-compute-580", "nvidia-dkms-580-open", "nvidia-utils-580"}}
    names["595"] = {"libnvidia-compute", "nvidia-dkms-open", "nvidia-utils"}
    for version, branch, driver in (("22.04", "580", "580.95.05"), ("24.04", "595", "595.91.07")):
        become(machine.host, "ubuntu", version, "debian")
        name = f"ubuntu{version.replace('.', '')}"
        machine.repository.publish(name, ["580.95.05", "595.91.07"], "-1ubuntu1")
        wishes = {**machine.wishes, "provision_keyring_sha256": machine.repository.keyring_sha256(name)}
        machine.desk.use(inventory_of(machine.fleet, **wishes))
        done = machine.run("--driver-branch", branch)
        assert done["status"] == "ok" and done["driver"] == driver
        assert set(machine.versions()) - {"cuda-keyring"} == names[branch]
        assert machine.run("--driver-branch", branch)["changed"] == []
    machine.run("--remove", "driver")
    assert packages(machine.host) == machine.before


def test_rpm_family(machine: Machine) -> None:
    """Only its package manager: the system beneath is Debian."""
    become(machine.host, "rocky", "9.4", "rhel centos fedora")
    repository = machine.repository
    repository.publish_rpm("rhel9", ["580.95.05", "595.91.07"])
    repository.publish_rpm_system()
    system = f"[system]\nname=system\nbaseurl=http://{repository.address}:{repository.port}/system-rpm\ngpgcheck=0\n"
    (machine.host.root / "etc/yum.repos.d").mkdir(exist_ok=True)
    (machine.host.root / "etc/yum.repos.d/system.repo").write_text(system)
    checked = machine.run("--check")
    done = machine.run()
    assert done["changed"] == checked["changed"]
    assert done["status"] == "ok" and done["driver"] == "580.95.05" == loaded(machine.host)
    assert machine.run()["changed"] == []
    assert "595" not in machine.host.inside(["sh", "-c", "dnf -q check-update 2>&1 || true"])
    done = machine.run("--driver-branch", "595")
    assert done["status"] == "ok" and done["driver"] == "595.91.07"
    done = machine.run("--remove", "driver")
    assert done["status"] == "ok" and "nvidia" not in machine.host.inside(["rpm", "-qa"])


def _seen(host: TestHost, path: str) -> bool:
    return host.inside(["sh", "-c", f"test -e {path} && echo yes || true"]) != ""


def _states(host: TestHost) -> str:
    return host.inside(["dpkg-query", "-W", "-f", "${db:Status-Status}\n"])


def test_unknown_words_are_usage_errors(tmp_path: Path) -> None:
    desk = Desk(tmp_path, {"gpu_hosts": {"hosts": {}, "vars": {}}})
    code, program = desk.run("provision", "--remove", "kernel")
    assert code == 2 and "driver" in program.stderr
