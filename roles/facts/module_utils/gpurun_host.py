"""Facts of the machine itself: what may be used of it, not only what is built into it."""

from __future__ import annotations

import os
import platform
import pwd
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = "/"  # where the system's files are read; tests point it at a tree of their own
ENGINES = ("llama-server", "vllm", "sglang", "trtllm-serve", "transformers")
COMMANDS = (*ENGINES, "docker", "podman", "nvidia-smi", "systemd-run")
# Where GPU clouds and WSL put nvidia-smi, and what a non-login ssh session leaves out of PATH.
_MORE_PATHS = (
    "/usr/local/bin",
    "/usr/local/sbin",
    "/usr/sbin",
    "/sbin",
    "/usr/bin",
    "/bin",
    "/opt/bin",
    "/usr/local/nvidia/bin",
    "/usr/lib/wsl/lib",
    "/run/current-system/sw/bin",
)


def collect(home: str) -> dict[str, object]:
    """The `host` part of gpurun_facts. Sizes in bytes, times in seconds since the epoch."""
    place = Path(os.path.expanduser(home))  # noqa: PTH111 (pathlib's raises where a user has no home)
    memory_limit, memory_current = _memory_limit()
    meminfo = _meminfo()
    total, available = meminfo.get("MemTotal", 0), meminfo.get("MemAvailable", 0)
    if memory_limit is not None and memory_limit < total:
        total, available = memory_limit, min(available, max(0, memory_limit - memory_current))
    logical, cores, sockets, model = _cpuinfo()
    commands = {name: find_command(name) for name in COMMANDS}
    return {
        "name": socket.gethostname(),
        "hostname": socket.gethostname(),
        "cpus": usable_cpus(),
        "cpus_logical": logical,
        "cores": cores,
        "sockets": sockets,
        "cpu_model": model,
        "memory_bytes": total,
        "memory_available_bytes": available,
        "arch": platform.machine(),
        "kernel": platform.release(),
        "os": _os_release(),
        "python": {"path": sys.executable, "version": platform.python_version()},
        "home": str(place),
        "home_writable": os.access(_existing(place), os.W_OK | os.X_OK),
        "disk_free_bytes": _disk_free(place),
        "cuda_home": cuda_home(place),
        "shm_bytes": _size("/dev/shm"),  # noqa: S108 (looked at, not used)
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "init": "systemd"
        if Path(ROOT + "/run/systemd/system").is_dir() and _read("/proc/1/comm") == "systemd"
        else "other",
        "container": _container(),
        "user": _user(),
        "uid": os.getuid(),
        "commands": commands,
        "engine_versions": {name: version for name in ENGINES if (version := _version(commands[name]))},
        "boot_id": _read("/proc/sys/kernel/random/boot_id"),
        "machine_id": _read("/etc/machine-id"),
        "clock_unix": time.time(),
        "load1": os.getloadavg()[0],
    }


def cuda_home(place: Path) -> str | None:
    """The newest CUDA 13 with a compiler: installed by gpurun for this user, else the system's."""
    try:
        own = [env.parent for env in place.glob("cuda/*/.complete")]
    except PermissionError:  # another user's
        own = []
    homes = [home for env in own for home in env.glob("lib/python3*/site-packages/nvidia/cu13")]
    for found in (homes, list(Path("/usr/local").glob("cuda-13*"))):
        usable = [home for home in found if (home / "bin" / "nvcc").exists()]
        if usable:
            return str(max(usable, key=lambda home: [int(part) for part in re.findall(r"\d+", str(home))]))
    return None


def find_command(name: str) -> str | None:
    """Its path on PATH, or in the places that a non-login session forgets."""
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath), *_MORE_PATHS)))


def _version(program: str | None) -> str | None:
    """The version of an engine's program: of the Python package beside it, else what llama-server says of itself (the
    others take seconds to say so)."""
    if program is None:
        return None
    name, beside = Path(program).name, Path(program).resolve().parent.parent
    package = "tensorrt_llm" if name == "trtllm-serve" else name
    for found in beside.glob(f"lib/python3*/site-packages/{package}-*.dist-info"):
        return found.name[len(package) + 1 : -len(".dist-info")]
    if name != "llama-server":
        return None
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, errors="replace", timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = [line for line in (said.stdout + said.stderr).splitlines() if line.startswith("version: ")]
    return lines[0][len("version: ") :] if lines else None


def usable_cpus() -> int:
    """Processors that this session may really use: its affinity and any CPU quota, rounded down to whole ones."""
    usable = len(os.sched_getaffinity(0))
    for quota in _cpu_quotas():
        usable = min(usable, max(1, int(quota)))
    return usable


def _cgroup_folders(controller: str) -> list[str]:
    """Folders of our cgroup for a controller (version 1 or 2), from its own up to the root."""
    folders = []
    for line in _read("/proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        elif controller in controllers.split(","):
            roots = [f"/sys/fs/cgroup/{controllers}", f"/sys/fs/cgroup/{controller}"]
        else:
            continue
        while True:
            folders += [root + path.rstrip("/") for root in roots]
            if path in ("", "/"):
                break
            path = str(Path(path).parent)
    return folders


def _cpu_quotas() -> list[float]:
    """Every limit in processors that applies to us."""
    quotas = []
    for folder in _cgroup_folders("cpu"):
        words = _read(f"{folder}/cpu.max").split() or [
            _read(f"{folder}/cpu.cfs_quota_us"),
            _read(f"{folder}/cpu.cfs_period_us"),
        ]
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            quotas.append(int(words[0]) / int(words[1]))
    return quotas


def _memory_limit() -> tuple[int | None, int]:
    """The tightest memory limit above us, and what is used of it, in bytes."""
    tightest: tuple[int | None, int] = (None, 0)
    for folder in _cgroup_folders("memory"):
        for limit_file, used_file in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit = _read(f"{folder}/{limit_file}")
            if limit.isdigit() and (tightest[0] is None or int(limit) < tightest[0]):
                used = _read(f"{folder}/{used_file}")
                tightest = (int(limit), int(used) if used.isdigit() else 0)
    return tightest


def _meminfo() -> dict[str, int]:
    found = {}
    for line in _read("/proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            found[name] = int(words[0]) * 1024
    return found


def _cpuinfo() -> tuple[int, int | None, int | None, str | None]:
    """Logical processors, physical cores, sockets, model; None where this architecture does not say."""
    logical = os.cpu_count() or 1
    cores, sockets, model, socket_id = set(), set(), None, "0"
    for line in _read("/proc/cpuinfo").splitlines():
        name, _, value = (part.strip() for part in line.partition(":"))
        if name == "physical id":
            socket_id = value
            sockets.add(value)
        elif name == "core id":
            cores.add((socket_id, value))
        elif name in ("model name", "Model", "Hardware") and model is None:
            model = value
    return logical, len(cores) or None, len(sockets) or None, model


def _os_release() -> dict[str, str | None]:
    values = {}
    for line in (_read("/etc/os-release") or _read("/usr/lib/os-release")).splitlines():
        name, _, value = line.partition("=")
        values[name.strip()] = value.strip().strip("\"'")
    return {"id": values.get("ID"), "version": values.get("VERSION_ID"), "name": values.get("PRETTY_NAME")}


def _existing(path: Path) -> Path:
    """The path, or the folder that it would be made in."""
    return next((place for place in (path, *path.parents) if os.access(place, os.F_OK)), path)


def _size(path: str) -> int:
    """Bytes of the file system there; 0 without one."""
    try:
        status = os.statvfs(path)
    except OSError:
        return 0
    return status.f_blocks * status.f_frsize


def _disk_free(path: Path) -> int | None:
    """Bytes that this user may still write where `path` is, or will be."""
    for place in (path, *path.parents):
        try:
            status = os.statvfs(place)
        except OSError:  # not there yet, or not ours to look at
            continue
        return status.f_bavail * status.f_frsize
    return None


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _container() -> str:
    """docker | podman | lxc | systemd-nspawn | kubernetes | wsl | other (some container, by its evidence) | none."""
    named = _read("/run/systemd/container") or _environment_of_init().get("container", "")
    if named:
        return named
    if Path(ROOT + "/run/secrets/kubernetes.io").exists() or "KUBERNETES_SERVICE_HOST" in _environment_of_init():
        return "kubernetes"
    if Path(ROOT + "/run/.containerenv").exists():
        return "podman"
    groups = _read("/proc/1/cgroup")
    if Path(ROOT + "/.dockerenv").exists() or "/docker" in groups:
        return "docker"
    for word, kind in (("kubepods", "kubernetes"), ("libpod", "podman"), ("/lxc", "lxc"), ("containerd", "other")):
        if word in groups:
            return kind
    if "microsoft" in platform.release().lower():
        return "wsl"
    mounts = [line.split() for line in _read("/proc/self/mounts").splitlines()]
    layered = any(
        words[1] == "/" and words[2] in ("overlay", "fuse.fuse-overlayfs") for words in mounts if len(words) > 2
    )
    return "other" if layered else "none"


def _environment_of_init() -> dict[str, str]:
    """Readable by root only."""
    pairs = (entry.partition("=") for entry in _read("/proc/1/environ").split("\0"))
    return {name: value for name, _, value in pairs if name}


def _read(path: str) -> str:
    try:
        return Path(ROOT + path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
