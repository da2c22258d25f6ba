"""What is decided for a host, from facts and wishes. Every rule of data/provisioning.yml refuses something here."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpurun.hardware import knowledge
from gpurun.provisioning import Decision, decide, expected_reboot, problems, reboot_reasons
from gpurun.repositories import pin_text, resolve, without_repository
from gpurun.target import Wanted

KERNEL = "6.1.0-30-amd64"
NVIDIA = "NVIDIA CORPORATION <cudatools@nvidia.com>"
COMPUTE = ("nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-persistenced")
VERSIONS = ("570.211.01", "580.95.05", "580.178.04", "595.91.07", "620.40.03")
INDEX: dict[str, Any] = {
    "packages": {
        name: [f"{version}-1" for version in VERSIONS]
        for name in (*COMPUTE, "nvidia-kernel-dkms", "nvidia-open", "nvidia-fabricmanager", "libnvidia-nscq", "nvlsm")
    },
    "error": None,
    "system": {},
}

ROCKY: dict[str, Any] = {
    "os": {"id": "rocky", "version": "9.4", "like": "rhel"},
    "manager": "dnf",
    "kernel_compiler": "gcc",
}


def facts(*gpus: str, **changes: Any) -> dict[str, Any]:
    """A Debian 12 without a driver that has these GPUs (PCI device ids; `:0680` after one of a bridge)."""
    devices = [one.partition(":") for one in gpus or ("2bb5",)]
    known: dict[str, Any] = {
        "os": {"id": "debian", "version": "12", "name": "Debian GNU/Linux 12", "like": ""},
        "manager": "apt",
        "arch": "x86_64",
        "kernel": KERNEL,
        "kernel_compiler": "gcc-12",
        "kernels": {KERNEL: {"headers": True, "nvidia": False}},
        "machine": "full",
        "container": "none",
        "pci": [
            {"address": str(n), "class": kind or "0302", "device": one} for n, (one, _, kind) in enumerate(devices)
        ],
        "module": {"loaded": None, "open": None, "on_disk": None, "nouveau": False},
        "userspace": None,
        "packages": {},
        "runfile": False,
        "compilers": ["gcc", "gcc-12"],
        "cxx": True,
        "secure_boot": False,
        "mok_enrolled": False,
        "glibc": "2.36",
        "disk_free": {"/usr": 50 << 30, "/var": 50 << 30, "/boot": 1 << 30},
        "reboot_required": False,
        "initramfs": "update-initramfs",
        "sources": [],
        "users": [],
        "ledger": {},
        "docker": False,
        "boot_id": "b",
        "uid": 0,
    }
    for key, value in changes.items():
        known[key] = {**known[key], **value} if isinstance(value, dict) and isinstance(known[key], dict) else value
    return known


def with_driver(version: str = "580.95.05", **changes: Any) -> dict[str, Any]:
    """The same with a driver from NVIDIA's repository that works, installed by gpurun."""
    packages = {name: {"version": f"{version}-1", "state": "installed", "maker": NVIDIA} for name in COMPUTE}
    module = {"loaded": version, "on_disk": version, "open": True, "nouveau": False}
    known = {"packages": packages, "module": module, "userspace": version}
    known["kernels"] = {KERNEL: {"headers": True, "nvidia": True}}
    known["ledger"] = {"driver": {"packages": list(COMPUTE), "files": ["/etc/x"]}}
    return facts(**{**known, **changes})


def decided(known: dict[str, Any], wanted: Wanted | None = None, index: dict[str, Any] | None = None) -> Decision:
    """The decision as a playbook comes to it: what the repository has is asked only if it matters."""
    first = decide(known, wanted or Wanted())
    json.dumps(vars(first)["look"])
    if first.look is None or first.refusals:
        return first
    return decide(known, wanted or Wanted(), index or INDEX)


def checks(*args: Any, **options: Any) -> list[str]:
    return [one.check for one in decided(*args, **options).refusals]


def test_bare_host_gets_the_newest_of_the_branch() -> None:
    decision = decided(facts())
    assert decision.refusals == []
    assert decision.driver["version"] == "580.178.04"
    assert decision.driver["specs"] == [f"{name}=580.178.04-1" for name in COMPUTE]
    assert [(step.role, step.why) for step in decision.steps] == [
        ("repository", "it has the packages"),
        ("driver", "no driver is installed"),
        ("driver", f"modules for kernel {KERNEL} are built here"),  # the headers of kernels to come
    ]
    assert decision.repository["url"].endswith("/repos/debian12/x86_64")


def test_second_time_nothing_is_to_be_done_and_the_repository_is_not_asked() -> None:
    decision = decide(with_driver(), Wanted())
    assert (decision.steps, decision.refusals, decision.look) == ([], [], None)
    assert problems(with_driver(), Wanted()) == reboot_reasons(with_driver(), Wanted()) == []


@pytest.mark.parametrize(
    ("version", "taken"), [("", None), ("latest", "580.178.04"), ("580.178.04", "580.178.04"), ("580.95.05", None)]
)
def test_a_newer_driver_of_the_branch_is_installed_on_request_only(version: str, taken: str | None) -> None:
    decision = decided(with_driver(), Wanted(version=version))
    assert decision.driver.get("version") == taken
    if taken:
        assert expected_reboot(decision, with_driver()) == ["driver 580.95.05 is loaded, and stays so until then"]


def test_branch_change() -> None:
    decision = decided(with_driver(), Wanted(branch=595))
    assert decision.driver["version"] == "595.91.07"
    assert any(step.why == "580.95.05 of another branch is installed" for step in decision.steps)
    back = decided(with_driver("595.91.07"), Wanted(branch=580))
    assert back.driver["version"] == "580.178.04"


def test_interrupted_installation_is_taken_up_at_the_version_that_was_begun() -> None:
    known = with_driver(ledger={"driver": {"before": []}})
    known["packages"][COMPUTE[1]]["state"] = "half-configured"
    decision = decided(known)
    assert decision.driver["broken"] == [COMPUTE[1]]
    assert decision.steps[-2].why == "an installation was interrupted" or decision.steps[1].why.startswith("an inst")
    whole = decided(with_driver(ledger={"driver": {"before": []}}))
    assert whole.driver["version"] == "580.95.05"  # not the newest: it is all there, and only has to be written down


@pytest.mark.parametrize(
    ("on_disk", "state", "anew"),
    [
        ("580.95.05", "installed", False),  # it only has to be written down
        (None, "installed", True),  # its script has not run
        ("580.95.05", "twice", True),  # another version was to take its place
    ],
)
def test_what_rpm_has_half_installed_is_installed_anew(on_disk: str | None, state: str, anew: bool) -> None:
    names = ("nvidia-driver-cuda", "kmod-nvidia-open-dkms")
    known = with_driver(**ROCKY, ledger={"driver": {"before": []}})
    known["packages"] = {name: {"version": "3:580.95.05-1.el9", "state": state, "maker": NVIDIA} for name in names}
    known["module"] = {**known["module"], "on_disk": on_disk}
    decision = decided(known, index={**INDEX, "packages": {name: ["3:580.95.05-1.el9"] for name in names}})
    assert decision.driver["anew"] == (sorted(names) if anew else [])


def test_incomplete_version_is_passed_over_and_named() -> None:
    packages = {**INDEX["packages"], "nvidia-kernel-open-dkms": ["580.95.05-1"]}
    assert decided(facts(), index={**INDEX, "packages": packages}).driver["version"] == "580.95.05"
    exact = decided(facts(), Wanted(version="580.178.04"), {**INDEX, "packages": packages})
    assert [one.check for one in exact.refusals] == ["version"]
    assert "580.178.04 lacks nvidia-kernel-open-dkms" in exact.refusals[0].say
    assert "580.178.04" in exact.refusals[0].fix


def test_names_change_at_590_on_ubuntu() -> None:
    ubuntu = facts(os={"id": "ubuntu", "version": "24.04", "name": "Ubuntu 24.04", "like": "debian"})
    names = (
        "libnvidia-compute-580",
        "nvidia-dkms-580-open",
        "nvidia-utils-580",
        "libnvidia-compute",
        "nvidia-dkms-open",
    )
    index = {**INDEX, "packages": {name: ["580.178.04-1ubuntu1", "595.91.07-1ubuntu1"] for name in names}}
    old = decided(ubuntu, Wanted(branch=580), index)
    assert old.driver["specs"] == [f"{name}=580.178.04-1ubuntu1" for name in names[:3]]
    new = decided(ubuntu, Wanted(branch=595), index)
    assert new.driver["specs"] == [f"{name}=595.91.07-1ubuntu1" for name in names[3:]]


def test_rhel_and_sbsa() -> None:
    rocky = facts(
        os={"id": "rocky", "version": "9.4", "name": "Rocky Linux 9.4", "like": "rhel centos fedora"},
        manager="dnf",
        arch="aarch64",
        kernels={KERNEL: {"headers": False, "nvidia": False}},
        kernel_compiler="gcc",
        cxx=False,
    )
    index = {
        **INDEX,
        "packages": {name: ["3:580.178.04-1.el9"] for name in ("nvidia-driver-cuda", "kmod-nvidia-open-dkms")},
    }
    decision = decided(rocky, index=index)
    assert decision.repository["url"].endswith("/rhel9/sbsa")
    assert decision.driver["specs"][0] == "nvidia-driver-cuda-3:580.178.04-1.el9"
    assert decision.driver["before"] == [f"kernel-devel-matched-{KERNEL}", "gcc-c++"]
    assert decision.driver["pin"].splitlines() == [
        "kmod-nvidia-open-dkms-3:580.178.04-1.el9.*",
        "nvidia-driver-cuda-3:580.178.04-1.el9.*",
    ]


@pytest.mark.parametrize(
    ("gpus", "fabric", "specs"),
    [
        (("2330", "22a3:0680"), True, ["nvidia-fabricmanager=580.178.04-1", "libnvidia-nscq=580.178.04-1"]),
        (
            ("2901", "2901"),
            True,
            [
                "nvidia-fabricmanager=580.178.04-1",
                "libnvidia-nscq=580.178.04-1",
                "nvlsm=620.40.03-1",  # has versions of its own
                "infiniband-diags",  # is the system's
            ],
        ),
        (("2684", "2684"), False, []),
    ],
)
def test_fabric_packages_where_there_is_a_fabric_and_at_the_drivers_version(
    gpus: tuple[str, ...], fabric: bool, specs: list[str]
) -> None:
    decision = decided(facts(*gpus))
    assert decision.refusals == []
    assert ("fabric" in [step.role for step in decision.steps]) is fabric
    assert decision.fabric.get("specs", []) == specs


def test_fabric_manager_of_another_version_is_replaced() -> None:
    known = with_driver(pci=facts("2330", "22a3:0680")["pci"])
    known["packages"]["libnvidia-nscq"] = {"version": "580.95.05-1", "state": "installed", "maker": NVIDIA}
    known["packages"]["nvidia-fabricmanager"] = {"version": "580.65.06-1", "state": "installed", "maker": NVIDIA}
    decision = decided(known)
    assert [step.role for step in decision.steps if step.role != "repository"] == ["fabric"]
    assert decision.fabric["specs"] == ["nvidia-fabricmanager=580.95.05-1", "libnvidia-nscq=580.95.05-1"]


def test_driver_from_elsewhere_that_does_is_kept_and_otherwise_not_mixed() -> None:
    packages = {"nvidia-driver-580": {"version": "580.95.05-0ubuntu1", "state": "installed", "maker": "Ubuntu"}}
    known = with_driver(packages=packages, ledger={})
    kept = decided(known)
    assert kept.steps == [] and "is kept" in kept.notes[0]
    assert checks(known, Wanted(branch=595)) == ["mixed"]


def test_containers_are_left_alone() -> None:
    injected = facts(machine="none", container="docker", module={"loaded": "580.95.05"}, userspace="580.95.05")
    decision = decided(injected)
    assert (decision.steps, decision.refusals) == ([], [])
    assert "never touched" in decision.notes[0]


GCC_13 = {**INDEX, "system": {"gcc-13": False}}
OLD_HEADERS = {**INDEX, "system": {f"linux-headers-{KERNEL}": False}}
NO_HEADERS = {"kernels": {KERNEL: {"headers": False, "nvidia": False}}}
REFUSED: list[tuple[str, dict[str, Any], Wanted, dict[str, Any] | None]] = [
    ("privileges", facts(uid=1000), Wanted(), None),
    ("system", facts(os={"id": "arch", "version": None, "name": "Arch"}, manager="other"), Wanted(), None),
    ("system", facts(os={"id": "rocky", "version": "7.9", "like": "rhel"}, manager="dnf"), Wanted(), None),
    ("architecture", facts(arch="ppc64le"), Wanted(), None),
    ("container", facts(machine="none", container="docker"), Wanted(), None),
    (
        "container",
        facts(machine="userspace", container="lxc", module={"loaded": "580.95.05"}, userspace="580.65.06"),
        Wanted(),
        None,
    ),
    ("gpu", facts(pci=[]), Wanted(), None),
    ("flavour", facts("2330"), Wanted(branch=620, flavour="proprietary"), None),
    ("flavour", facts("2bb5"), Wanted(flavour="proprietary"), None),
    ("flavour", facts("1db4"), Wanted(), None),
    ("branch", facts("1db4"), Wanted(branch=595, flavour="proprietary"), None),
    ("branch", facts("2bb5"), Wanted(branch=535), None),
    ("cuda", facts("1db4"), Wanted(flavour="proprietary", cuda="13.0"), None),
    ("secure_boot", facts(secure_boot=True), Wanted(), None),
    ("kernel", facts(kernels={"6.1.0-31-amd64": {}}, kernel="6.1.0-29-amd64"), Wanted(), None),
    ("headers", facts(**NO_HEADERS), Wanted(), OLD_HEADERS),
    ("compiler", facts(kernel_compiler="gcc-13"), Wanted(), GCC_13),
    ("dkms", facts(**ROCKY), Wanted(), {**INDEX, "system": {"dkms": False}}),
    ("known_bad", facts(kernel="6.17.9", kernels={"6.17.9": {"headers": True}}), Wanted(version="580.95.05"), None),
    ("disk", facts(disk_free={"/var": 100 << 20}), Wanted(), None),
    ("runfile", facts(runfile=True), Wanted(), None),
    ("in_use", with_driver(users=[{"pid": 7, "command": "python3"}]), Wanted(branch=595), None),
    ("repository", facts(), Wanted(), {"packages": {}, "error": "timed out", "system": {}}),
    ("version", facts(), Wanted(branch=615), None),
    ("version", facts(), Wanted(version="580.1.2"), None),
    (
        "fabric",
        facts("2330", "22a3:0680"),
        Wanted(),
        {**INDEX, "packages": {k: v for k, v in INDEX["packages"].items() if "nscq" not in k}},
    ),
    ("fabric", facts("2901"), Wanted(), {**INDEX, "system": {"infiniband-diags": False}}),
    ("key", facts(), Wanted(url="http://mirror.example"), None),
]


@pytest.mark.parametrize(
    ("check", "known", "wanted", "index"), REFUSED, ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_cannot_work_is_refused_before_anything_is_changed(
    check: str, known: dict[str, Any], wanted: Wanted, index: dict[str, Any] | None
) -> None:
    refusals = decided(known, wanted, index).refusals
    assert check in [one.check for one in refusals]
    assert all(one.say and one.fix for one in refusals)


def test_every_rule_is_tried() -> None:
    tried = {check for check, *_ in REFUSED} | {"mixed", "reboot"}
    assert {rule["check"] for rule in knowledge()["refusals"]} == tried


def test_the_controller_is_not_rebooted() -> None:
    always = Wanted(reboot="always")
    assert [one.check for one in decide(facts(), always, INDEX, is_controller=True).refusals] == ["reboot"]
    assert decide(facts(), always, INDEX).refusals == []


def test_enrolled_key_is_good_enough_for_secure_boot() -> None:
    assert checks(facts(secure_boot=True, mok_enrolled=True)) == []


def test_bad_version_is_passed_over() -> None:
    known = facts(kernel="6.17.9", kernels={"6.17.9": {"headers": True}})
    assert decided(known).driver["version"] == "580.178.04"
    index = {"nvidia-open": ["580.95.05-1", "580.119.02-1"]}
    chosen = resolve(index, [["nvidia-open"]], 580, "", lambda version: version == "580.119.02")
    assert chosen.version == "580.95.05"


def test_idle_daemons_do_not_use_a_gpu() -> None:
    assert checks(with_driver(users=[{"pid": 7, "command": "nvidia-persiste"}]), Wanted(branch=595)) == []


def test_removal_takes_what_was_installed_and_nothing_else() -> None:
    decision = decided(with_driver(), Wanted(remove=("driver",)))
    assert decision.remove == {"driver": {"packages": list(COMPUTE), "files": ["/etc/x"]}}
    nothing = decided(with_driver(ledger={}), Wanted(remove=("driver",)))
    assert nothing.steps == [] and nothing.notes == ["gpurun has installed no driver here"]
    assert reboot_reasons(with_driver(), Wanted(remove=("driver",))) == ["the removed driver is still loaded"]


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ({"loaded": "580.95.05", "on_disk": "580.178.04"}, "driver 580.95.05 is loaded, 580.178.04 is installed"),
        ({"loaded": None, "nouveau": True}, "nouveau is loaded, which the driver cannot replace while it runs"),
        ({"loaded": None}, "the driver's module could not be loaded into the running kernel"),
    ],
)
def test_reboot_where_it_is_needed(module: dict[str, Any], reason: str) -> None:
    assert reboot_reasons(with_driver(module={**with_driver()["module"], **module}), Wanted()) == [reason]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"userspace": "580.65.06"}, "versions differ: loaded 580.95.05, on disk 580.95.05, libcuda 580.65.06"),
        (
            {"module": {"loaded": "580.95.05", "on_disk": "580.95.05", "open": False}},
            "the loaded module is proprietary",
        ),
        ({"module": {"loaded": None, "on_disk": None, "open": None}}, "the module nvidia is not loaded"),
        (
            {"kernels": {KERNEL: {"nvidia": True}, "6.1.0-31-amd64": {"nvidia": False}}},
            "kernel 6.1.0-31-amd64, which starts next time, has no module nvidia",
        ),
    ],
)
def test_what_is_wrong_afterwards(changes: dict[str, Any], problem: str) -> None:
    found = problems(with_driver(**changes), Wanted())
    assert any(one.startswith(problem) for one in found), found


LIST = """# ours
deb https://deb.example/debian bookworm main
deb [signed-by=/etc/apt/old.gpg] https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/ /
deb https://developer.download.nvidia.com/compute/cuda/repos/debian11/x86_64/ /
"""
SOURCES = """Types: deb
URIs: https://deb.example/debian
Suites: bookworm

Types: deb
URIs: https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/
Suites: /
Signed-By: /etc/apt/old.gpg
"""
REPO = """[other]
baseurl=https://mirror.example/
[cuda]
name=cuda
baseurl=https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64
enabled=1
"""


@pytest.mark.parametrize(("text", "kept", "gone"), [(LIST, 3, 1), (SOURCES, 3, 4), (REPO, 2, 4)])
def test_other_definitions_become_comments(text: str, kept: int, gone: int) -> None:
    url = "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64"
    healed = without_repository(text, {url})
    lines = [line for line in healed.splitlines() if line]
    assert sum(line.startswith("# gpurun: ") for line in lines) == gone
    assert sum(not line.startswith("# gpurun: ") for line in lines) == kept
    assert without_repository(healed, {url}) == healed
    assert without_repository(text, {"https://elsewhere.example"}) == text


def test_pin_groups_packages_by_version() -> None:
    text = pin_text("apt", {"b": "580.1-1", "a": "580.1-1", "c": "580.1-0x"})
    assert text.count("Pin-Priority: 1001") == 2
    assert "Package: a b\nPin: version 580.1-1\n" in text


def test_architectures_do_not_overlap() -> None:
    spans = []
    for one in knowledge()["architectures"]:
        spans += [tuple(int(end, 16) for end in span.split("-")) for span in one["ids"]]
    spans.sort()
    assert all(before[1] < after[0] for before, after in zip(spans, spans[1:], strict=False))


def test_wishes_are_what_they_say() -> None:
    assert replace(Wanted(), driver=False).branch == 580
    assert decided(facts(), Wanted(driver=False)).steps == []


def test_no_task_needs_the_bindings_of_dnf() -> None:
    """Those of RHEL 8 are for a Python that Ansible cannot use: gpurun_dnf calls the program."""
    roles = Path(__file__).parents[2] / "roles"
    texts = {path: path.read_text() for path in roles.glob("*/tasks/*.yml")}
    assert any("gpurun_dnf:" in text for text in texts.values())
    bound = re.compile(r"(?m)^\s+(ansible\.builtin\.)?(dnf5?|yum|package):")
    assert [path for path, text in texts.items() if bound.search(text)] == []
