"""What decides whether and how a driver can be installed on a host. Read-only; needs no driver and no lspci."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from ansible.module_utils import gpurun_host, gpurun_packages

_VERSION = re.compile(r"\d{3}\.\d+(?:\.\d+)?")
_SOURCES = ("etc/apt/sources.list", "etc/apt/sources.list.d/*.list", "etc/apt/sources.list.d/*.sources")
_SOURCES_RPM = ("etc/yum.repos.d/*.repo",)
_MODULES = ("updates/dkms/nvidia.ko*", "extra/nvidia*.ko*", "weak-updates/nvidia*/nvidia.ko*", "kernel/**/nvidia.ko*")
_GLOBAL = "8be4df61-93ca-11d2-aa0d-00e098032b8c"  # UEFI's own variables
_SHIM = "605dab50-e046-4300-abb6-3dd810dd8b23"  # shim's
_MOK = ("var/lib/dkms/mok.pub", "var/lib/shim-signed/mok/MOK.der")
LEDGER = "/var/lib/gpurun/provision"  # what gpurun has installed, by component


def collect(root: str, machine: str, patterns: Iterable[str], mention: Iterable[str]) -> dict[str, object]:
    """The facts; what /proc and /sys tell is read below `root`; sizes in bytes.

    `machine` overrides what kind of machine it is taken for (auto: by its evidence). `patterns` say which packages are
    told; of the files that define repositories, those are told that have one of the texts `mention` in them.
    """
    release = gpurun_host._os_release()
    release["like"] = _os_like()
    words = {release["id"], *str(release["like"]).split()}
    manager = "dnf" if words & {"rhel", "fedora", "centos"} else "apt" if words & {"debian", "ubuntu"} else "other"
    kernel = _read(root, "proc/sys/kernel/osrelease") or platform.release()
    container, loaded = gpurun_host._container(), _read(root, "proc/driver/nvidia/version")
    if container == "none" and loaded and not Path("/lib/modules", kernel).is_dir():
        container = "other"  # a driver is loaded that this tree has no kernel for: it is somebody else's
    return {
        "os": release,
        "manager": manager,
        "arch": platform.machine(),
        "kernel": kernel,
        "kernel_compiler": _kernel_compiler(root),
        "kernels": _kernels(),
        "machine": _machine(root, container, bool(loaded)) if machine == "auto" else machine,
        "container": container,
        "pci": list(_pci(root)),
        "module": {
            "loaded": _first_version(loaded),
            "open": "Open Kernel Module" in loaded if loaded else None,
            "on_disk": _on_disk(kernel),
            "nouveau": bool(re.search(r"^nouveau ", _read(root, "proc/modules"), re.MULTILINE)),
        },
        "userspace": _userspace(),
        "packages": gpurun_packages.installed(manager, patterns),
        "runfile": Path("/usr/bin/nvidia-uninstall").exists(),
        "compilers": sorted(one.name for one in Path("/usr/bin").glob("gcc*") if re.fullmatch(r"gcc(-\d+)?", one.name)),
        "cxx": bool(shutil.which("g++")),
        "secure_boot": _efi(root, f"SecureBoot-{_GLOBAL}")[-1:] == b"\1",
        "mok_enrolled": _mok_enrolled(root),
        "glibc": platform.libc_ver()[1],
        "disk_free": {place: gpurun_host._disk_free(Path(place)) for place in ("/usr", "/var", "/boot")},
        "reboot_required": Path("/run/reboot-required").exists(),
        "initramfs": next((name for name in ("update-initramfs", "dracut") if gpurun_host.find_command(name)), None),
        "sources": _sources(manager, list(mention)),
        "users": list(_users()),
        "ledger": ledger(),
        "docker": bool(gpurun_host.find_command("docker")),
        "boot_id": _read("/", "proc/sys/kernel/random/boot_id"),
        "uid": os.geteuid(),
    }


def ledger() -> dict[str, object]:
    """component -> what gpurun has installed of it (see the module gpurun_ledger)."""
    found = {}
    for path in Path(LEDGER).glob("*.json"):
        try:
            found[path.stem] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found[path.stem] = {}
    return found


def _read(root: str, path: str) -> str:
    try:
        return Path(root, path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _os_like() -> str:
    found = re.search(r"^ID_LIKE=[\"']?([^\"'\n]*)", gpurun_host._read("/etc/os-release"), re.MULTILINE)
    return found.group(1) if found else ""


def _first_version(text: str) -> str | None:
    found = _VERSION.search(text)
    return found.group() if found else None


def _pci(root: str) -> Iterator[dict[str, str]]:
    """NVIDIA's display and 3D controllers, and its bridges: NVSwitches are among these."""
    for device in sorted(Path(root, "sys/bus/pci/devices").glob("*")):
        kind = _read(str(device), "class").removeprefix("0x")[:4]
        if _read(str(device), "vendor") == "0x10de" and kind in ("0300", "0302", "0680"):
            identity = _read(str(device), "device").removeprefix("0x")
            yield {"address": device.name, "class": kind, "device": identity}


def _kernels() -> dict[str, dict[str, bool]]:
    """Installed kernels: whether their headers are there, and a module `nvidia`."""
    return {
        folder.name: {
            "headers": (folder / "build" / "Makefile").exists() or (folder / "build" / "include").exists(),
            "nvidia": any(next(folder.glob(pattern), None) for pattern in _MODULES),
        }
        for folder in sorted(Path("/lib/modules").glob("*"))
        if folder.is_dir()
    }


def _kernel_compiler(root: str) -> str | None:
    """Such as `gcc-12`, which the running kernel was built with; None where it does not say."""
    found = re.search(r"\b(gcc(?:-\d+)?) \(", _read(root, "proc/version"))
    return found.group(1) if found else None


def _on_disk(kernel: str) -> str | None:
    """Version of the module that `modprobe nvidia` would load."""
    modinfo = gpurun_host.find_command("modinfo")
    if modinfo is None:
        return None
    try:
        done = subprocess.run(
            [modinfo, "-k", kernel, "-F", "version", "nvidia"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return _first_version(done.stdout)


def _userspace() -> str | None:
    places = ("usr/lib/*-linux-gnu", "usr/lib64", "usr/lib", "usr/local/nvidia/lib64")
    for place in places:
        for path in sorted(Path("/").glob(f"{place}/libcuda.so.[0-9]*.[0-9]*")):
            return path.name[len("libcuda.so.") :]
    return None


def _machine(root: str, container: str, driver: bool) -> str:
    """full: drivers are ours to install. userspace: shares the host's kernel driver, needs libraries of its version.
    none: the driver is put in from outside (a container toolkit, WSL), or there is nothing that we could do about it.
    """
    if container == "none":
        return "full"
    mounts = [line.split()[4] for line in _read(root, "proc/self/mountinfo").splitlines() if len(line.split()) > 4]
    injected = any(Path(point).name.startswith(("libcuda.so", "nvidia-smi")) for point in mounts)
    return "userspace" if driver and not injected and container in ("lxc", "systemd-nspawn", "other") else "none"


def _efi(root: str, name: str) -> bytes:
    try:
        return Path(root, "sys/firmware/efi/efivars", name).read_bytes()
    except OSError:
        return b""


def _mok_enrolled(root: str) -> bool:
    """Whether the key that DKMS would sign with is among those that the firmware's shim knows."""
    known = _efi(root, f"MokListRT-{_SHIM}")
    keys = (Path("/", place) for place in _MOK)
    return any(key.is_file() and key.stat().st_size > 0 and key.read_bytes() in known for key in keys)


def _sources(manager: str, mention: list[str]) -> list[dict[str, str]]:
    found = []
    for pattern in _SOURCES if manager == "apt" else _SOURCES_RPM:
        for path in sorted(Path("/").glob(pattern)):
            try:
                text = path.read_text(encoding="utf-8", errors="replace")
            except PermissionError:  # verify looks as the login user, and needs none of them
                continue
            if any(word in text for word in mention):
                found.append({"path": str(path), "text": text})
    return found


def _users() -> Iterator[dict[str, object]]:
    """Processes that have a GPU open."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            links = [os.readlink(link) for link in folder.glob("fd/*")]  # noqa: PTH115 (its text, whatever it names)
            if any(re.match(r"/dev/nvidia\d", link) for link in links):
                yield {"pid": int(folder.name), "command": _read(str(folder), "comm")}
        except OSError:
            continue
