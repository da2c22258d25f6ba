"""`gpurun provision` on other systems, as far as their os-release, names of packages and package manager go: the system
beneath is a booted Debian 12, with real apt, dnf and rpm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.e2e.provisioned import (
    Machine,
    begins_nothing_that_could_not_end,
    loses_power_halfway,
    provisionable,
    waits_for_another,
)
from tests.nvidia_machine import MACHINE, become, loaded, packages, set_devices
from tests.nvidia_repository import Repository

pytestmark = [pytest.mark.hosts, pytest.mark.slow]
VERSIONS, LATER = ("580.95.05", "595.91.07"), "580.178.04"
EVERYTHING = ("--cuda", "13.0", "--toolkit")


@pytest.fixture(scope="module")
def machine(bootable: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    def publish(repository: Repository) -> None:
        for row in ("ubuntu2204", "ubuntu2404", "ubuntu2604"):
            repository.publish(row, (*VERSIONS, LATER), "-1ubuntu1")
        repository.publish_rpm(VERSIONS)
        repository.publish_rpm_system()
        repository.publish_toolkit()
        repository.publish_rpm_toolkit()

    with provisionable(tmp_path_factory.mktemp("provision"), publish, row="ubuntu2204", disk_mib=16384) as machine:
        (machine.host.root / f"{MACHINE}/nouveau".lstrip("/")).write_text("")
        yield machine


def is_now(machine: Machine, identity: str, version: str, like: str = "debian") -> None:
    """The machine is taken for one of another system, whose repository is there."""
    become(machine.host, identity, version, like)
    machine.row = f"rhel{version.partition('.')[0]}" if "rhel" in like else identity + version.replace(".", "")
    address = f"http://{machine.repository.address}:{machine.repository.port}"
    machine.desk.use(machine.inventory(provision_toolkit_url=f"{address}/toolkit"))


def has_all_that_debian_has(machine: Machine) -> set[str]:
    """From 580.95.05 to a later 580 and on to 595, on request only, through all that goes wrong on the way. Returns the
    names that the packages of 580 had."""
    done = machine.run("--driver-branch", "580", "--driver-version", VERSIONS[0])
    assert (done["status"], done["driver"]) == ("ok", VERSIONS[0])
    assert machine.run()["changed"] == []
    begins_nothing_that_could_not_end(machine, "--driver-version", "latest")
    loses_power_halfway(machine, "--driver-version", "latest")
    done = machine.run("--driver-version", "latest")
    assert (done["status"], done["driver"]) == ("ok", LATER)
    before = {name: version for name, version in machine.driver() if name != "cuda-keyring"}
    assert set(before.values()) == {LATER}
    other = ("--driver-branch", "595", "--reboot", "never")
    checked = machine.run(*other, "--check")
    done = waits_for_another(machine, *other)
    assert (done["status"], done["changed"]) == ("reboot_needed", checked["changed"])
    assert done["reboot_reasons"] == [f"driver {LATER} is loaded, {VERSIONS[1]} is installed"]
    done = machine.run("--driver-branch", "595")
    assert (done["status"], done["changed"], done["driver"]) == ("ok", ["Reboot now"], VERSIONS[1])
    return set(before)


@pytest.mark.parametrize("version", ["22.04", "24.04", "26.04"])
def test_ubuntu_and_its_names_of_packages_before_and_after_590(machine: Machine, version: str) -> None:
    """One release becomes the next with the driver installed."""
    is_now(machine, "ubuntu", version)
    if version != "22.04":
        assert machine.run("--driver-branch", "595")["changed"] == []
    before = has_all_that_debian_has(machine)
    assert before == {"libnvidia-compute-580", "nvidia-dkms-580-open", "nvidia-utils-580"}
    assert set(machine.versions()) - {"cuda-keyring"} == {"libnvidia-compute", "nvidia-dkms-open", "nvidia-utils"}
    if version == "26.04":
        machine.run("--remove", "driver")
        assert packages(machine.host) == machine.before


def test_rpm_family_gets_everything_as_the_check_said(machine: Machine) -> None:
    """Driver, fabric manager, CUDA and container toolkit by dnf, all of them once."""
    is_now(machine, "rocky", "9.4", "rhel centos fedora")
    repository = machine.repository
    system = f"[system]\nname=system\nbaseurl=http://{repository.address}:{repository.port}/system-rpm\ngpgcheck=0\n"
    for folder in ("etc/yum.repos.d", "etc/pki/rpm-gpg"):  # as that family has them
        (machine.host.root / folder).mkdir(parents=True, exist_ok=True)
    (machine.host.root / "etc/yum.repos.d/system.repo").write_text(system)
    # Debian's own repository of what was downloaded: its packages are not signed.
    (machine.host.root / "etc/dnf/plugins/local.conf").write_text("[main]\nenabled = false\n")
    set_devices(machine.host, ["0302:2330"] * 2 + ["0680:22a3"])
    checked = machine.run(*EVERYTHING, "--check")
    assert rpms(machine) == {}
    done = machine.run(*EVERYTHING)
    assert done["changed"] == checked["changed"]
    assert done["status"] == "ok" and done["driver"] == VERSIONS[0] == loaded(machine.host)
    assert set(rpms(machine).values()) == {(VERSIONS[0],)}
    status = {one["check"]: one["status"] for one in done["checks"]}
    assert {status[name] for name in ("versions", "count", "context", "fabric", "nvcc", "kernel")} == {"ok"}
    assert machine.run(*EVERYTHING)["changed"] == []


def test_rpm_family_moves_on_request_only_and_waits_for_dnf(machine: Machine) -> None:
    machine.repository.publish_rpm(["580.178.04"])
    updates = machine.host.inside(["sh", "-c", "dnf -q check-update --refresh || true"])
    assert not any("nvidia" in line.partition(" ")[0] for line in updates.splitlines())
    assert machine.run()["changed"] == []
    checked = machine.run("--driver-version", "latest", "--check")
    done = waits_for_another(machine, "--driver-version", "latest")
    assert done["changed"] == checked["changed"] and "Reboot now" in done["changed"]
    assert done["driver"] == "580.178.04" == loaded(machine.host)
    assert set(rpms(machine).values()) == {("580.178.04",)}


def test_rpm_family_takes_up_another_branch_whose_host_lost_power(machine: Machine) -> None:
    loses_power_halfway(machine, "--driver-branch", "595")
    done = machine.run("--driver-branch", "595", "--reboot", "never")
    assert done["status"] == "reboot_needed" and loaded(machine.host) == LATER
    assert set(rpms(machine).values()) == {(VERSIONS[1],)}
    done = machine.run("--driver-branch", "595")
    assert (done["status"], done["changed"], done["driver"]) == ("ok", ["Reboot now"], VERSIONS[1])
    assert machine.run("--driver-branch", "595")["changed"] == []


def test_rpm_family_begins_nothing_that_could_not_end(machine: Machine) -> None:
    begins_nothing_that_could_not_end(machine)


def test_rhel_10_has_a_key_and_a_repository_of_its_own(machine: Machine) -> None:
    """A release that has become the next one: then everything is taken back."""
    is_now(machine, "rocky", "10.0", "rhel centos fedora")
    has_all_that_debian_has(machine)
    assert any(path.endswith("rhel10/x86_64/CDF6BA43.pub") for path in machine.repository.asked)
    done = machine.run("--remove", "driver", "--remove", "cuda", "--remove", "toolkit")
    assert done["status"] == "ok" and rpms(machine) == {}
    left = machine.host.inside(["sh", "-c", "find /etc /var/lib -name '*gpurun*' -o -name 'cuda-*' || true"])
    assert left == ""


def test_rhel_8_is_served_by_the_program_dnf(machine: Machine) -> None:
    """The Python that Ansible can use there has no bindings of dnf."""
    is_now(machine, "rocky", "8.10", "rhel centos fedora")
    machine.host.inside(["python3", "-m", "venv", "--without-pip", "/opt/python39"])
    machine.desk.use(machine.inventory(ansible_python_interpreter="/opt/python39/bin/python"))
    has_all_that_debian_has(machine)
    assert any("/rhel8/x86_64/" in path for path in machine.repository.asked)
    assert machine.run("--remove", "driver")["status"] == "ok" and rpms(machine) == {}
    failed = machine.run("--driver-branch", "none", "--cuda", "13.9", code=3)
    assert "would bring a driver (kmod-nvidia-open-dkms, nvidia-driver-cuda)" in failed["error"]
    assert machine.run("--remove", "cuda")["status"] == "ok" and rpms(machine) == {}


def rpms(machine: Machine) -> dict[str, tuple[str, ...]]:
    """The driver's packages, and every version of each that is installed."""
    found = machine.driver()
    return {name: tuple(version for other, version in found if other == name) for name, _ in found}
