"""The text forms of nvidia-smi: `--query-gpu` CSV, plain `-q`, `-L`, and what it says when it fails. Pure."""

from __future__ import annotations

import csv
import re

from ansible.module_utils.gpurun_smi_values import bus_id, text

_HEADER = re.compile(r"^([A-Za-z][\w.]*)(?: \[(\S+)\])?$")


def parse_csv(output: str) -> list[dict[str, str | None]]:
    """`--query-gpu=... --format=csv` -> one row per GPU, by column name.

    A unit that stands only in the header (`nounits`) is put behind the values, so that both forms read alike. What is
    not a value (`[N/A]`, `[Not Supported]`, ...) is None. Lines that are no rows (warnings) are passed over.
    """
    rows = [row for row in csv.reader(output.splitlines(), skipinitialspace=True) if row]
    heads = ([_HEADER.match(cell.strip()) for cell in row] for row in rows)
    head = next((number for number, cells in enumerate(heads) if all(cells)), None)
    if head is None:
        return []
    columns = [match.groups() for match in map(_HEADER.match, map(str.strip, rows[head])) if match]
    table = []
    for row in rows[head + 1 :]:
        if len(row) != len(columns):
            continue
        entry: dict[str, str | None] = {}
        for (name, unit), cell in zip(columns, row):
            value = text(cell)
            bare = value is not None and unit is not None and re.fullmatch(r"[-+]?[\d.]+", value)
            entry[name] = f"{value} {unit}" if bare else value
        table.append(entry)
    return table


def parse_query(output: str) -> tuple[dict[str, object], list[dict[str, object]]]:
    """Plain `nvidia-smi -q` -> driver, and per GPU what is in the indented outline, nested by its headings.

    Each GPU also has `pci_bus_id` (the kernel's form) and `index`.
    """
    driver: dict[str, object] = {"version": None, "cuda_version": None, "attached_gpus": None}
    names = {"Driver Version": "version", "CUDA Version": "cuda_version", "Attached GPUs": "attached_gpus"}
    gpus: list[dict[str, object]] = []
    stack: list[tuple[int, dict[str, object]]] = []
    for line in output.splitlines():
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        key, colon, value = (part.strip() for part in line.partition(" : "))
        if indent == 0:
            if re.match(r"^GPU [0-9A-Fa-f]{4,8}:", line):
                gpu: dict[str, object] = {"index": len(gpus), "pci_bus_id": bus_id(line.split()[1])}
                gpus.append(gpu)
                stack = [(0, gpu)]
            elif key in names:
                number = text(value)
                driver[names[key]] = int(number) if key == "Attached GPUs" and number else number
            continue
        if not stack:
            continue
        while len(stack) > 1 and stack[-1][0] >= indent:
            stack.pop()
        if colon:
            stack[-1][1][key] = text(value)
        else:
            section: dict[str, object] = {}
            stack[-1][1][key] = section
            stack.append((indent, section))
    return driver, gpus


_GPU_LINE = re.compile(r"^GPU (\d+): (.+?) \(UUID: ([^)\s]+)\)")
_MIG_LINE = re.compile(r"^\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: ([^)\s]+)\)")


def parse_list(output: str) -> list[dict[str, object]]:
    """`nvidia-smi -L` -> index, name, uuid, and the MIG devices (index, profile, uuid) of each GPU."""
    gpus: list[dict[str, object]] = []
    devices: list[dict[str, object]] = []
    for line in output.splitlines():
        gpu, mig = _GPU_LINE.match(line), _MIG_LINE.match(line)
        if gpu:
            devices = []
            gpus.append(
                {"index": int(gpu.group(1)), "name": gpu.group(2), "uuid": gpu.group(3), "mig_devices": devices}
            )
        elif mig and gpus:
            devices.append({"profile": mig.group(1), "index": int(mig.group(2)), "uuid": mig.group(3)})
    return gpus


# Text before exit code: the codes are shared by several causes. Order matters: a lost GPU is also "no devices".
_FAILURES = (
    (r"driver/library version mismatch", "driver_mismatch"),
    (r"unable to determine the device handle|gpu is lost|fallen off the bus|gpu requires reset", "gpu_lost"),
    (r"couldn't communicate with the nvidia driver|driver not loaded", "no_driver"),
    (r"couldn't find libnvidia-ml|nvml library (?:was )?not found|libnvidia-ml\.so.*cannot open", "no_library"),
    (r"no devices were found|no supported gpus were found", "no_devices"),
    (r"insufficient permissions|permission denied", "no_permission"),
    (r"failed to initialize nvml", "nvml"),
)
# https://docs.nvidia.com/deploy/nvidia-smi/ "Return value"; 18 is NVML_ERROR_LIB_RM_VERSION_MISMATCH.
_EXIT_KINDS = {
    4: "no_permission",
    6: "no_devices",
    9: "no_driver",
    12: "no_library",
    15: "gpu_lost",
    18: "driver_mismatch",
}
_ADVICE = {
    "driver_mismatch": "the driver was updated under a running kernel module: reboot, or reload the nvidia modules",
    "gpu_lost": "the GPU no longer answers: see `dmesg | grep -i xid`, reset it or power-cycle the host",
    "no_driver": "the kernel module is not loaded: see `dmesg | grep -i nvidia`, load or install the driver",
    "no_library": "the user-space part of the driver is missing, or this container was started without GPUs",
    "no_devices": "the driver runs but has no usable GPU: see `dmesg | grep -i -e nvrm -e xid`",
    "no_permission": "this user may not read the GPU: look at the modes of /dev/nvidia*",
}


def parse_failure(output: str, exit_code: int) -> dict[str, object] | None:
    """What a failing nvidia-smi means; None for a healthy output.

    kind      driver_mismatch | gpu_lost | no_driver | no_library | no_devices | no_permission | nvml | unknown
    message   what nvidia-smi said;   advice   the next step, or None
    library   version of the NVML library, where a mismatch names it;   gpu   PCI address of a lost GPU, where named
    """
    kind = next((kind for pattern, kind in _FAILURES if re.search(pattern, output, re.IGNORECASE)), None)
    if kind is None and exit_code == 0:
        return None
    kind = kind or _EXIT_KINDS.get(exit_code, "unknown")
    library = re.search(r"NVML library version: (\S+)", output)
    # Only the part that is about the failure: a healthy GPU's data may follow it.
    said = " ".join(output.split("<?xml")[0].split())[:500]
    lost = re.search(r"\b((?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\b", said)
    return {
        "kind": kind,
        "message": said or f"nvidia-smi exited with {exit_code} and said nothing",
        "advice": _ADVICE.get(kind),
        "library": library.group(1) if library else None,
        "gpu": bus_id(lost.group(1)) if lost and kind == "gpu_lost" else None,
    }
