"""What a booted host needs to look like a machine with GPUs to `gpurun provision`: kernel, PCI devices, modprobe."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.hosts import TestHost
    from tests.nvidia_repository import Repository

KERNEL = "6.1.0-30-amd64"
MACHINE = "/srv/machine"  # what stands for /proc and /sys on a host: the role's `provision_root`
_MODPROBE = f"""#!/bin/sh
[ "$1" = nvidia ] || exit 1
mkdir -p /run/kernel/nvidia
ko=$(ls /lib/modules/{KERNEL}/updates/dkms/nvidia.ko /lib/modules/{KERNEL}/extra/nvidia.ko 2>/dev/null | head -1)
[ -n "$ko" ] || exit 1
grep -q ^nouveau /run/kernel/modules && exit 1
[ -e /run/kernel/nvidia/version ] || cp $ko /run/kernel/nvidia/version
"""
_MODINFO = f"""#!/bin/sh
cd /lib/modules/{KERNEL}
cat updates/dkms/nvidia.ko extra/nvidia.ko 2>/dev/null | grep -o '[0-9]*[.][0-9.]*' | head -1
"""
_BOOT = """[Unit]
Description=what a kernel does when it starts
Before=ssh.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'mkdir -p /run/kernel; : > /run/kernel/modules; \
    test -e /etc/modprobe.d/gpurun-nouveau.conf || cat /srv/machine/nouveau > /run/kernel/modules; \
    /usr/local/sbin/modprobe nvidia; true'
[Install]
WantedBy=multi-user.target
"""


def make_machine(host: TestHost, repository: Repository, *, gpus: Iterable[str] = ("0302:2bb5",)) -> None:
    """Makes a host look like a bare machine with these PCI devices (class:device) and nouveau loaded.

    Its kernel is `KERNEL`; a driver is "loaded" (and told under `MACHINE`/proc) when the stand-in of modprobe finds the
    module that a stand-in of a package has built; what is loaded stays so until a reboot.
    """
    root = host.root
    files = {
        f"{MACHINE}/proc/sys/kernel/osrelease": f"{KERNEL}\n",
        f"{MACHINE}/proc/version": f"Linux version {KERNEL} (x@y) (gcc-12 (Debian 12.2.0-14) 12.2.0) #1 SMP\n",
        f"{MACHINE}/nouveau": "nouveau 2400256 0 - Live 0x0\n",
        "/usr/local/sbin/modprobe": _MODPROBE,
        "/usr/local/sbin/modinfo": _MODINFO,
        "/usr/local/sbin/update-initramfs": "#!/bin/sh\necho $* >> /run/initramfs\n",
        "/etc/systemd/system/kernel.service": _BOOT,
        "/etc/apt/sources.list": f"deb [trusted=yes] http://{repository.address}:{repository.port}/system ./\n",
        f"/lib/modules/{KERNEL}/modules.order": "",
    }
    for path, content in files.items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
        target.chmod(0o755 if "sbin" in path else 0o644)
    set_devices(host, gpus)
    (root / "etc/modprobe.d").mkdir(exist_ok=True)
    (root / MACHINE.lstrip("/") / "proc/driver").mkdir(exist_ok=True)
    for link, there in (("driver/nvidia", "/run/kernel/nvidia"), ("modules", "/run/kernel/modules")):
        os.symlink(there, root / MACHINE.lstrip("/") / "proc" / link)
    host.inside(["systemctl", "enable", "--now", "kernel.service"])


def set_devices(host: TestHost, devices: Iterable[str]) -> None:
    """What is on the PCI bus: `class:device`."""
    place = host.root / MACHINE.lstrip("/") / "sys/bus/pci/devices"
    shutil.rmtree(place, ignore_errors=True)
    for number, (kind, _, device) in enumerate(one.partition(":") for one in devices):
        folder = place / f"0000:0{number + 1}:00.0"
        folder.mkdir(parents=True)
        for name, value in (("vendor", "0x10de"), ("class", f"0x{kind}00"), ("device", f"0x{device}")):
            (folder / name).write_text(f"{value}\n")


def become(host: TestHost, identity: str, version: str, like: str = "") -> None:
    """Another os-release."""
    place = host.root / "etc/os-release"
    place.unlink()
    place.write_text(f'ID="{identity}"\nVERSION_ID="{version}"\nPRETTY_NAME="{identity} {version}"\nID_LIKE="{like}"\n')


def packages(host: TestHost) -> dict[str, str]:
    """Installed packages of dpkg's, and their versions."""
    said = host.inside(["dpkg-query", "-W", "-f", "${Package} ${Version} ${db:Status-Status}\n"])
    found = (line.split() for line in said.splitlines())
    return {words[0]: words[1] for words in found if words[-1] == "installed"}


def loaded(host: TestHost) -> str | None:
    """The version of the "loaded" module."""
    said = host.inside(["cat", "/run/kernel/nvidia/version"], check=False)
    match = re.search(r"\d{3}\.[\d.]+", said)
    return match.group() if match else None
