"""`nvidia-smi topo -m` -> which device reaches which over what, and where each GPU sits. Pure."""

from __future__ import annotations

import re

from ansible.module_utils.gpurun_smi_values import text

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_DEVICE = re.compile(r"^(?:GPU\d+|NIC\d+|mlx\d_\d+\S*|bond\S*|ib\S*|hfi\S*|bnxt_re\S*|irdma\S*|roce\S*)$")
_AFFINITY = {"CPU Affinity": "cpu_affinity", "NUMA Affinity": "numa_node", "GPU NUMA ID": "gpu_numa_id"}
# Nearest first. NV# (bonded NVLinks) is nearer than any PCIe path.
_DISTANCE = ("PIX", "PXB", "PHB", "NODE", "SYS")


def parse_topology(output: str) -> dict[str, object] | None:
    """The matrix; None where the output holds none.

    devices      names in the order of the columns: GPU0, ..., NIC0, ... (or the adapters' own names)
    links        {"GPU0": {"GPU1": "NV18" | "PIX" | "PXB" | "PHB" | "NODE" | "SYS", ...}, ...}
    gpus         {"GPU0": {"cpu_affinity": "0-63", "numa_node": 0, "gpu_numa_id": None, "nearest_nics": ["NIC0"]}, ...}
    numa_nodes   {"0": [0, 1, 2, 3], ...}: GPU indices by NUMA node
    nvlink       True where any two GPUs are joined by NVLink
    nic_names    {"NIC0": "mlx5_0", ...}

    The matrix of `topo -p2p r` reads alike: its links are OK, or why one GPU cannot read the other's memory.
    """
    lines = [_ANSI.sub("", line).rstrip() for line in output.splitlines()]
    head = next((n for n, line in enumerate(lines) if re.match(r"^\s*GPU\d+\b", line) and "Affinity" in line), None)
    if head is None:
        # A driver without affinity columns, or a matrix of which only the devices are left.
        head = next((n for n, line in enumerate(lines) if re.match(r"^\s+GPU\d+\b", line)), None)
    if head is None:
        return None
    columns = [cell.strip() for cell in _cells(lines[head]) if cell.strip()]
    devices = [name for name in columns if name not in _AFFINITY]
    links: dict[str, dict[str, str]] = {}
    gpus: dict[str, dict[str, object]] = {}
    for line in lines[head + 1 :]:
        cells = [cell.strip() for cell in _cells(line)]
        if not cells or cells[0] not in devices:
            if links and not line.strip():
                break
            continue
        row = cells[1 : len(devices) + 1]
        links[cells[0]] = {name: link for name, link in zip(devices, row) if link not in ("", "X")}
        if cells[0].startswith("GPU"):
            gpus[cells[0]] = _affinity(columns[len(devices) :], cells[len(devices) + 1 :])
            gpus[cells[0]]["nearest_nics"] = _nearest_nics(links[cells[0]])
    numa_nodes: dict[str, list[int]] = {}
    for name, place in gpus.items():
        if place["numa_node"] is not None:
            numa_nodes.setdefault(str(place["numa_node"]), []).append(int(name[3:]))
    between_gpus = [link for name in gpus for peer, link in links[name].items() if peer.startswith("GPU")]
    return {
        "devices": devices,
        "links": links,
        "gpus": gpus,
        "numa_nodes": numa_nodes,
        "nvlink": any(link.startswith("NV") for link in between_gpus),
        "nic_names": dict(re.findall(r"^\s*(NIC\d+): (\S+)", "\n".join(lines), re.MULTILINE)),
    }


def _cells(line: str) -> list[str]:
    """Cells are set apart by tabs; where a terminal or a copy has expanded them, by two or more spaces."""
    return line.split("\t") if "\t" in line else re.split(r"\s{2,}", line.replace(" X ", " X"))


def _affinity(names: list[str], cells: list[str]) -> dict[str, object]:
    # Some drivers write one tab more before the last column than the header has: then empty cells are no column.
    values = cells if len(cells) == len(names) else [cell for cell in cells if cell]
    place: dict[str, object] = {"cpu_affinity": None, "numa_node": None, "gpu_numa_id": None}
    for name, cell in zip(names, values):
        value = text(cell)
        if name == "CPU Affinity":
            place["cpu_affinity"] = value
        elif value is not None and re.fullmatch(r"\d+", value):
            place[_AFFINITY[name]] = int(value)
    return place


def _nearest_nics(row: dict[str, str]) -> list[str]:
    nics = {name: link for name, link in row.items() if not name.startswith("GPU") and link in _DISTANCE}
    if not nics:
        return []
    best = min(_DISTANCE.index(link) for link in nics.values())
    return [name for name, link in nics.items() if _DISTANCE.index(link) == best]
