"""What decides about drivers, read from trees of files as kernels and firmware write them."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.module_utils import gpurun_host, gpurun_packages, gpurun_system


def put(root: Path, path: str, content: str | bytes) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(content if isinstance(content, bytes) else content.encode())


def device(root: Path, address: str, vendor: str, kind: str, identity: str) -> None:
    for name, value in (("vendor", vendor), ("class", kind), ("device", identity)):
        put(root, f"sys/bus/pci/devices/{address}/{name}", f"{value}\n")


def test_pci_devices_by_class_and_vendor(tmp_path: Path) -> None:
    device(tmp_path, "0000:01:00.0", "0x10de", "0x030200", "0x2330")
    device(tmp_path, "0000:01:00.1", "0x10de", "0x040300", "0x22ba")  # its sound
    device(tmp_path, "0000:02:00.0", "0x1a03", "0x030000", "0x2000")  # a management controller's display
    device(tmp_path, "0000:05:00.0", "0x10de", "0x068000", "0x22a3")
    found = list(gpurun_system._pci(str(tmp_path)))
    assert [(one["class"], one["device"]) for one in found] == [("0302", "2330"), ("0680", "22a3")]


@pytest.mark.parametrize(("last", "on"), [(b"\x06\0\0\0\x01", True), (b"\x06\0\0\0\x00", False), (None, False)])
def test_secure_boot(tmp_path: Path, last: bytes | None, on: bool) -> None:
    if last is not None:
        put(tmp_path, f"sys/firmware/efi/efivars/SecureBoot-{gpurun_system._GLOBAL}", last)
    facts = gpurun_system.collect(str(tmp_path), "auto", ["nvidia"], [])
    assert facts["secure_boot"] is on


def test_enrolled_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "mok.der"
    key.write_bytes(b"DER of a key")
    monkeypatch.setattr(gpurun_system, "_MOK", (str(key).lstrip("/"),))
    assert not gpurun_system._mok_enrolled(str(tmp_path))
    name = f"sys/firmware/efi/efivars/MokListRT-{gpurun_system._SHIM}"
    put(tmp_path, name, b"\x06\0\0\0...another key...")
    assert not gpurun_system._mok_enrolled(str(tmp_path))
    put(tmp_path, name, b"\x06\0\0\0...DER of a key...")
    assert gpurun_system._mok_enrolled(str(tmp_path))


@pytest.mark.parametrize(
    ("version", "compiler"),
    [
        ("Linux version 6.8.0-45-generic (b@l) (x86_64-linux-gnu-gcc-12 (Ubuntu 12.3.0) 12.3.0, GNU ld) #45", "gcc-12"),
        ("Linux version 5.14.0-427.el9.x86_64 (m@b) (gcc (GCC) 11.4.1 20231218 (Red Hat 11.4.1-3), GNU ld) #1", "gcc"),
        ("Linux version 6.1.0-30-amd64 (d@d) (gcc-12 (Debian 12.2.0-14) 12.2.0, GNU ld) #1 SMP", "gcc-12"),
        ("Linux version 6.6 (clang version 17)", None),
    ],
)
def test_compiler_of_the_kernel(tmp_path: Path, version: str, compiler: str | None) -> None:
    put(tmp_path, "proc/version", version)
    assert gpurun_system._kernel_compiler(str(tmp_path)) == compiler


@pytest.mark.parametrize(
    ("container", "driver", "mounts", "machine"),
    [
        ("none", True, "", "full"),
        ("docker", True, "1 2 0:1 / /usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05 ro - ext4 x", "none"),
        ("lxc", True, "", "userspace"),
        ("lxc", False, "", "none"),
        ("wsl", True, "", "none"),
    ],
)
def test_what_kind_of_machine(tmp_path: Path, container: str, driver: bool, mounts: str, machine: str) -> None:
    put(tmp_path, "proc/self/mountinfo", mounts)
    assert gpurun_system._machine(str(tmp_path), container, driver) == machine


def test_a_driver_without_its_kernel_is_somebody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers of Kubernetes on control groups of version 2 show none of the usual signs."""
    monkeypatch.setattr(gpurun_host, "_container", lambda: "none")
    put(tmp_path, "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  R")
    put(tmp_path, "proc/sys/kernel/osrelease", "6.1.0-no-such-kernel")
    facts = gpurun_system.collect(str(tmp_path), "auto", ["nvidia"], [])
    assert facts["container"] == "other" and facts["machine"] != "full"
    module = facts["module"]
    assert isinstance(module, dict) and (module["loaded"], module["open"]) == ("580.95.05", True)


def test_packages_of_this_machine() -> None:
    """Whichever package manager it has."""
    found = {**gpurun_packages.installed("apt", ["^bash$"]), **gpurun_packages.installed("dnf", ["^bash$"])}
    assert set(found) <= {"bash"}
    assert all(one["state"] == "installed" and one["version"] for one in found.values())
