"""`gpurun provision` over ssh on a booted host, from signed repositories with stand-ins of the driver's packages."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.fleet import Desk, inventory_of
from tests.e2e.program import Program
from tests.hosts import HostFleet
from tests.nvidia_repository import MACHINE, Repository, loaded, make_machine, packages

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
            "provision_keyring_sha256": repository.keyring_sha256,
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

    def remove(self) -> None:
        """Back to a bare machine."""
        self.run("--remove", "driver")


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


def test_unknown_words_are_usage_errors(tmp_path: Path) -> None:
    desk = Desk(tmp_path, {"gpu_hosts": {"hosts": {}, "vars": {}}})
    code, program = desk.run("provision", "--remove", "kernel")
    assert code == 2 and "driver" in program.stderr
