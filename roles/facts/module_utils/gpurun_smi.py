"""Runs nvidia-smi within a time limit and puts its answers together."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from ansible.module_utils.gpurun_smi_text import parse_csv, parse_failure, parse_list
from ansible.module_utils.gpurun_smi_topology import parse_topology
from ansible.module_utils.gpurun_smi_values import bus_id, number, switch, text, whole
from ansible.module_utils.gpurun_smi_xml import SmiFormatError, parse_xml

_COLUMNS = (
    "index",
    "uuid",
    "name",
    "pci.bus_id",
    "driver_version",
    "memory.total",
    "memory.used",
    "memory.free",
    "compute_cap",
    "power.draw",
    "power.limit",
    "temperature.gpu",
    "utilization.gpu",
    "persistence_mode",
)
_CALLS = {
    "xml": ["-q", "-x"],
    "csv": ["--query-gpu=" + ",".join(_COLUMNS), "--format=csv"],
    "list": ["-L"],
    "topo": ["topo", "-m"],
    "p2p": ["topo", "-p2p", "r"],
}


def collect(nvidia_smi: str, limit_s: float) -> dict[str, object]:
    """gpus, driver, topology and gpu_error of this host, within `limit_s` seconds and a little.

    The calls run side by side: without persistence mode each wakes the driver, which takes seconds on a large host.
    A GPU that no longer answers can leave nvidia-smi in the kernel, where no signal reaches it. It is then left behind
    and reported (kind `hung`).
    """
    answers = _run_all(nvidia_smi, limit_s)
    exit_code, output = answers["xml"]
    if exit_code is None:
        hung: dict[str, object] = {
            "kind": "hung",
            "message": f"nvidia-smi gave no answer within {limit_s:g} s",
            "advice": "a GPU or the driver hangs: see `dmesg | grep -i -e xid -e nvrm`; the host may need a reboot",
            "library": None,
            "gpu": None,
        }
        return {"gpus": [], "driver": _module_version(), "topology": None, "gpu_error": hung}
    error = parse_failure(output, exit_code)
    try:
        driver, gpus = parse_xml(output)
    except SmiFormatError as reason:
        driver, gpus = _from_csv(answers["csv"][1])
        if not gpus and error is None:
            error = {"kind": "unknown", "message": str(reason), "advice": None, "library": None, "gpu": None}
    if gpus:
        _complete(gpus, parse_csv(answers["csv"][1]), parse_list(answers["list"][1]))
    topology = parse_topology(answers["topo"][1])
    if topology is not None:  # the same kind of matrix: OK, or why one GPU cannot read another's memory
        topology["p2p"] = (parse_topology(answers["p2p"][1]) or {}).get("links")
    for gpu in gpus:
        place = (topology or {}).get("gpus", {}).get(f"GPU{gpu['index']}", {})  # type: ignore[attr-defined]
        gpu["cpu_affinity"] = place.get("cpu_affinity")
        gpu["numa_node"] = place.get("numa_node")
        if gpu["numa_node"] is None:
            gpu["numa_node"] = _numa_node(gpu.get("pci_bus_id"))
        device = f"/sys/bus/pci/devices/{gpu.get('pci_bus_id')}"
        # `identity`: the IOMMU passes addresses through; `DMA`, `DMA-FQ`: it translates them, also between GPUs.
        gpu["iommu"] = _read(f"{device}/iommu_group/type") or None
        # The card's own; nvidia-smi's maximum is that of card and slot together.
        gpu["pcie"]["card_width"] = whole(_read(f"{device}/max_link_width")) or gpu["pcie"].get("width_max")  # type: ignore[index,attr-defined]
        for process in gpu["processes"]:  # type: ignore[attr-defined]
            process["user"] = _owner(process["pid"])
    known = {**_module_version(), **{key: value for key, value in driver.items() if value is not None}}
    return {"gpus": gpus, "driver": known, "topology": topology if gpus else None, "gpu_error": error}


def pci_devices() -> list[str]:
    """PCI addresses of NVIDIA's display and 3D controllers, from sysfs: what the host has, driver or none."""
    found = []
    for device in Path("/sys/bus/pci/devices").glob("*"):
        if _read(f"{device}/vendor") == "0x10de" and _read(f"{device}/class")[:6] in ("0x0300", "0x0302"):
            found.append(device.name)
    return sorted(found)


def _run_all(nvidia_smi: str, limit_s: float) -> dict[str, tuple[int | None, str]]:
    """Exit code (None: no answer in time) and both streams of each call."""
    deadline = time.monotonic() + limit_s
    answers: dict[str, tuple[int | None, str]] = {}
    with contextlib.ExitStack() as stack:
        running = {}
        for name, arguments in _CALLS.items():
            # Files, not pipes: a process that nothing can end must not keep us waiting for the end of its output.
            output = stack.enter_context(tempfile.TemporaryFile())
            try:
                process = subprocess.Popen(
                    [nvidia_smi, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "LC_ALL": "C"},
                    start_new_session=True,
                )
            except OSError as error:
                answers[name] = (127, f"cannot run {nvidia_smi}: {error.strerror}")
                continue
            running[name] = (process, output)
        for name, (process, output) in running.items():
            exit_code: int | None
            try:
                exit_code = process.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                exit_code = None
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.5)
                process.returncode = process.returncode if process.returncode is not None else -9
            output.seek(0)
            answers[name] = (exit_code, output.read().decode("utf-8", "replace"))
    return answers


def _complete(
    gpus: list[dict[str, object]], rows: list[dict[str, str | None]], listed: list[dict[str, object]]
) -> None:
    """Adds what the XML lacks: the compute capability (CSV), profile and UUID of MIG devices (-L)."""
    by_uuid = {row.get("uuid"): row for row in rows}
    mig_by_uuid = {entry["uuid"]: entry["mig_devices"] for entry in listed}
    for gpu in gpus:
        row = by_uuid.get(gpu["uuid"], {})  # type: ignore[call-overload]
        if row.get("index") is not None:
            gpu["index"] = whole(row["index"])
        if gpu["compute_capability"] is None:
            gpu["compute_capability"] = row.get("compute_cap")
        names = {entry["index"]: entry for entry in mig_by_uuid.get(gpu["uuid"], [])}  # type: ignore[attr-defined]
        for device in gpu["mig"]["devices"]:  # type: ignore[index]
            match = names.get(device["index"], {})
            device["uuid"], device["profile"] = match.get("uuid"), match.get("profile")


def _from_csv(output: str) -> tuple[dict[str, object], list[dict[str, object]]]:
    """The same document from the CSV alone, with None for what it does not hold."""
    gpus: list[dict[str, object]] = []
    version = None
    for position, row in enumerate(parse_csv(output)):
        version = version or row.get("driver_version")
        index = whole(row.get("index"))
        total = whole(row.get("memory.total"))
        gpus.append(
            {
                "index": position if index is None else index,
                "minor": None,
                "name": text(row.get("name")),
                "architecture": None,
                "uuid": row.get("uuid"),
                "serial": None,
                "pci_bus_id": bus_id(row.get("pci.bus_id")),
                "memory_total_mib": total,
                "memory_reserved_mib": None,
                "memory_used_mib": whole(row.get("memory.used")),
                "memory_free_mib": whole(row.get("memory.free")),
                "unified_memory": total is None and "memory.total" in row,
                "compute_capability": row.get("compute_cap"),
                "compute_mode": None,
                "persistence": switch(row.get("persistence_mode")),
                "performance_state": None,
                "power": {"draw_w": number(row.get("power.draw")), "limit_w": number(row.get("power.limit"))},
                "temperature_c": whole(row.get("temperature.gpu")),
                "utilization_percent": whole(row.get("utilization.gpu")),
                "clocks_mhz": {},
                "max_clocks_mhz": {},
                "throttle_reasons": [],
                "ecc": {},
                "mig": {"enabled": None, "devices": []},
                "pcie": {},
                "fabric": {},
                "virtualization": None,
                "reset_required": None,
                "recovery_action": None,
                "processes": [],
                "unreadable": [],
            }
        )
    return {"version": version, "cuda_version": None}, gpus


def _module_version() -> dict[str, object]:
    """What the loaded kernel module says of itself; it stays readable when nvidia-smi does not work."""
    said = _read("/proc/driver/nvidia/version")
    words = said.split()
    module = next((word for word in words if word[:1].isdigit() and "." in word), None)
    return {
        "version": None,
        "cuda_version": None,
        "module_version": module,
        "open_module": "Open Kernel Module" in said or None,
    }


def _numa_node(address: object) -> int | None:
    node = _read(f"/sys/bus/pci/devices/{address}/numa_node")
    return int(node) if node.isdigit() else None


def _owner(pid: object) -> str | None:
    """The user of a process; None where it cannot be seen from here (another PID namespace, or gone)."""
    try:
        uid = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
