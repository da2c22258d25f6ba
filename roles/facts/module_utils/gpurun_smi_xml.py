"""`nvidia-smi -q -x` -> drivers and GPUs. Pure.

Names differ between driver branches: throttle reasons became event reasons (535), `power_readings` became
`gpu_power_readings` (530), `power_limit` became `current_power_limit`, `power_draw` became `average_power_draw` or
`instant_power_draw` (545). Every known name is tried, the newest first.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from ansible.module_utils.gpurun_smi_values import bus_id, is_error, number, switch, text, whole

_START, _END = "<nvidia_smi_log>", "</nvidia_smi_log>"
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_BARE_AMPERSAND = re.compile(r"&(?!(?:amp|lt|gt|quot|apos|#\d+|#x[0-9a-fA-F]+);)")
_REASON = re.compile(r"^clocks_(?:event|throttle)_reason_(.+)$")


class SmiFormatError(ValueError):
    """The output is not what nvidia-smi writes."""


def parse_xml(output: str) -> tuple[dict[str, object], list[dict[str, object]]]:
    """Driver and GPUs out of `-q -x`; text around the document is passed over.

    Raises SmiFormatError where there is no document, or a broken one.
    """
    start, end = output.find(_START), output.rfind(_END)
    if start < 0 or end < 0:
        raise SmiFormatError("no <nvidia_smi_log> document in the output of nvidia-smi -q -x")
    document = _BARE_AMPERSAND.sub("&amp;", _NOT_XML.sub("", output[start : end + len(_END)]))
    try:
        root = ET.fromstring(document)  # noqa: S314
    except ET.ParseError as error:
        raise SmiFormatError(f"nvidia-smi -q -x wrote broken XML: {error}") from None
    driver: dict[str, object] = {
        "version": text(root.findtext("driver_version")),
        "cuda_version": text(root.findtext("cuda_version")),
    }
    return driver, [_gpu(node, position) for position, node in enumerate(root.findall("gpu"))]


def _first(node: ET.Element, *paths: str) -> str | None:
    """The first of several names that is there and has a value; else the first that is there at all."""
    found = [raw for raw in (node.findtext(path) for path in paths) if raw is not None]
    return next((raw for raw in found if text(raw) is not None), found[0] if found else None)


def _gpu(node: ET.Element, position: int) -> dict[str, object]:
    total = _first(node, "fb_memory_usage/total")
    mig = switch(_first(node, "mig_mode/current_mig"))
    return {
        "index": position,
        "minor": whole(_first(node, "minor_number")),
        "name": text(_first(node, "product_name")),
        "architecture": text(_first(node, "product_architecture")),
        "uuid": text(_first(node, "uuid")),
        "serial": text(_first(node, "serial")),
        "pci_bus_id": bus_id(_first(node, "pci/pci_bus_id") or node.get("id")),
        "memory_total_mib": whole(total),
        "memory_reserved_mib": whole(_first(node, "fb_memory_usage/reserved")),
        "memory_used_mib": whole(_first(node, "fb_memory_usage/used")),
        "memory_free_mib": whole(_first(node, "fb_memory_usage/free")),
        # A GPU that shares the machine's memory (GB10, Jetson) has no frame buffer of its own to report.
        "unified_memory": total is not None and text(total) is None and not is_error(total) and not mig,
        "compute_capability": text(_first(node, "compute_cap")),
        "compute_mode": text(_first(node, "compute_mode")),
        "persistence": switch(_first(node, "persistence_mode")),
        "performance_state": text(_first(node, "performance_state")),
        "power": _power(node),
        "temperature_c": whole(_first(node, "temperature/gpu_temp")),
        "utilization_percent": whole(_first(node, "utilization/gpu_util")),
        "clocks_mhz": _clocks(node, "clocks"),
        "max_clocks_mhz": _clocks(node, "max_clocks"),
        "throttle_reasons": _reasons(node),
        "ecc": _ecc(node),
        "mig": {"enabled": mig, "devices": [_mig_device(entry) for entry in node.findall("mig_devices/mig_device")]},
        "pcie": {
            "generation": whole(_first(node, "pci/pci_gpu_link_info/pcie_gen/current_link_gen")),
            "generation_max": whole(_first(node, "pci/pci_gpu_link_info/pcie_gen/max_link_gen")),
            "width": whole(_width(node, "current_link_width")),
            "width_max": whole(_width(node, "max_link_width")),
        },
        "fabric": {"state": text(_first(node, "fabric/state")), "status": text(_first(node, "fabric/status"))},
        "virtualization": text(_first(node, "gpu_virtualization_mode/virtualization_mode")),
        "reset_required": switch(_first(node, "gpu_reset_status/reset_required")),
        "recovery_action": text(_first(node, "gpu_recovery_action", "recovery_action")),
        "processes": [_process(entry) for entry in node.findall("processes/process_info")],
        "unreadable": sorted({child.tag for child in node.iter() if is_error(child.text)}),
    }


def _width(node: ET.Element, name: str) -> str | None:
    raw = node.findtext(f"pci/pci_gpu_link_info/link_widths/{name}")
    return raw.strip().rstrip("x") if raw else None


def _power(node: ET.Element) -> dict[str, float | int | None]:
    groups = ("gpu_power_readings", "power_readings")

    def watts(*names: str) -> float | int | None:
        return number(_first(node, *(f"{group}/{name}" for group in groups for name in names)))

    return {
        "draw_w": watts("instant_power_draw", "power_draw", "average_power_draw"),
        "limit_w": watts("current_power_limit", "enforced_power_limit", "power_limit"),
        "default_limit_w": watts("default_power_limit"),
        "min_limit_w": watts("min_power_limit"),
        "max_limit_w": watts("max_power_limit"),
    }


def _clocks(node: ET.Element, group: str) -> dict[str, int | None]:
    return {
        name: whole(_first(node, f"{group}/{tag}"))
        for name, tag in (("graphics", "graphics_clock"), ("sm", "sm_clock"), ("memory", "mem_clock"))
    }


def _reasons(node: ET.Element) -> list[str]:
    """Names of the active reasons, without the prefix that changed: `gpu_idle`, `sw_power_cap`, ..."""
    active = set()
    for group in ("clocks_event_reasons", "clocks_throttle_reasons"):
        for child in node.findall(f"{group}/*"):
            match = _REASON.match(child.tag)
            if match and switch(child.text):
                active.add(match.group(1))
    return sorted(active)


def _ecc(node: ET.Element) -> dict[str, object]:
    def total(scope: str, *words: str) -> int | None:
        values = [
            value
            for child in node.findall(f"ecc_errors/{scope}/*")
            if any(child.tag.endswith(word) for word in words)
            for value in [whole(child.text)]
            if value is not None
        ]
        return sum(values) if values else None

    correctable, uncorrectable = ("_correctable",), ("_uncorrectable", "_uncorrectable_parity", "_uncorrectable_secded")
    return {
        "enabled": switch(_first(node, "ecc_mode/current_ecc")),
        "corrected_volatile": total("volatile", *correctable),
        "uncorrected_volatile": total("volatile", *uncorrectable),
        "corrected_aggregate": total("aggregate", *correctable),
        "uncorrected_aggregate": total("aggregate", *uncorrectable),
        "remapped_rows_pending": switch(_first(node, "remapped_rows/remapped_row_pending")),
        "remapped_rows_failure": switch(_first(node, "remapped_rows/remapped_row_failure")),
    }


def _mig_device(node: ET.Element) -> dict[str, object]:
    return {
        "index": whole(_first(node, "index")),
        "gpu_instance_id": whole(_first(node, "gpu_instance_id")),
        "compute_instance_id": whole(_first(node, "compute_instance_id")),
        "multiprocessors": whole(_first(node, "device_attributes/shared/multiprocessor_count")),
        "memory_total_mib": whole(_first(node, "fb_memory_usage/total")),
        "memory_used_mib": whole(_first(node, "fb_memory_usage/used")),
        "memory_free_mib": whole(_first(node, "fb_memory_usage/free")),
        # Neither is in the XML: they come from `nvidia-smi -L`.
        "uuid": None,
        "profile": None,
    }


def _process(node: ET.Element) -> dict[str, object]:
    return {
        "pid": whole(_first(node, "pid")),
        "type": text(_first(node, "type")),
        "name": text(_first(node, "process_name")),
        "memory_mib": whole(_first(node, "used_memory")),
        "mig": [whole(_first(node, "gpu_instance_id")), whole(_first(node, "compute_instance_id"))],
        "user": None,
    }
