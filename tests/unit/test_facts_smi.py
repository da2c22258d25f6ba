"""Parsers of nvidia-smi's outputs, on small outputs in its formats."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.gpurun_smi_text import parse_csv, parse_failure, parse_list, parse_query
from ansible.module_utils.gpurun_smi_topology import parse_topology
from ansible.module_utils.gpurun_smi_values import bus_id, is_error, number, switch, text, whole
from ansible.module_utils.gpurun_smi_xml import SmiFormatError, parse_xml


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("24564 MiB", 24564),
        ("26.84 W", 26.84),
        ("26840 mW", 26.84),
        ("16x", 16),
        ("38 %", 38),
        ("-7 C", -7),
        ("2 GiB", 2048),
        ("210", 210),
        *[(raw, None) for raw in ("N/A", "[N/A]", "[Not Supported]", "ERR!", "[Unknown Error]", "", None, "Active")],
        ("[Requested functionality has been deprecated]", None),
        ("[GPU is lost]", None),
    ],
)
def test_number(raw: str | None, expected: float | None) -> None:
    assert number(raw) == (pytest.approx(expected) if isinstance(expected, float) else expected)


def test_values_that_are_none_and_values_that_are_errors_differ() -> None:
    assert text("[Not Supported]") is None and not is_error("[Not Supported]")
    assert text("ERR!") is None and is_error("ERR!")
    assert (switch("Not Active"), switch(" Enabled "), switch("N/A")) == (False, True, None)
    assert whole("97887 MiB") == 97887


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("00000000:06:00.0", "0000:06:00.0"),
        ("0000000F:01:00.0", "000f:01:00.0"),
        ("65:00.0", "0000:65:00.0"),
        ("N/A", None),
    ],
)
def test_bus_id_has_the_kernels_form(raw: str, expected: str | None) -> None:
    assert bus_id(raw) == expected


def xml(gpu: str, driver: str = "595.58.03") -> str:
    """A document with one GPU; the tests fill in what they are about."""
    return (
        f"<?xml version='1.0' ?>\n<nvidia_smi_log>\n<driver_version>{driver}</driver_version>"
        f"<cuda_version>13.2</cuda_version><attached_gpus>1</attached_gpus>\n"
        f"<gpu id='00000000:3B:00.0'><product_name>NVIDIA Test</product_name><uuid>GPU-1</uuid>{gpu}</gpu>\n"
        f"</nvidia_smi_log>\n"
    )


def one(gpu: str) -> dict[str, Any]:
    (parsed,) = parse_xml(xml(gpu))[1]
    return dict(parsed)


@pytest.mark.parametrize("word", ["event", "throttle"])
def test_reasons_of_old_and_new_drivers_have_the_same_names(word: str) -> None:
    reason = f"clocks_{word}_reason_sw_power_cap"
    idle = f"clocks_{word}_reason_gpu_idle"
    gpu = one(
        f"<clocks_{word}_reasons><{idle}>Not Active\n </{idle}><{reason}>Active</{reason}></clocks_{word}_reasons>"
    )
    assert gpu["throttle_reasons"] == ["sw_power_cap"]


@pytest.mark.parametrize(
    ("group", "draw", "limit"),
    [
        ("power_readings", "power_draw", "power_limit"),
        ("gpu_power_readings", "power_draw", "current_power_limit"),
        ("gpu_power_readings", "instant_power_draw", "current_power_limit"),
    ],
)
def test_power_of_old_and_new_drivers(group: str, draw: str, limit: str) -> None:
    gpu = one(f"<{group}><{draw}>61.50 W</{draw}><{limit}>300.00 W</{limit}></{group}>")
    assert (gpu["power"]["draw_w"], gpu["power"]["limit_w"]) == (61.5, 300.0)


def test_power_that_the_module_group_lacks_is_not_taken_from_it() -> None:
    gpu = one("<module_power_readings><power_draw>900.00 W</power_draw></module_power_readings>")
    assert gpu["power"]["draw_w"] is None


def test_mig_devices_have_their_own_memory() -> None:
    device = "<mig_device><index>1</index><gpu_instance_id>2</gpu_instance_id><fb_memory_usage><total>19968 MiB</total>"
    device += "<used>19 MiB</used></fb_memory_usage></mig_device>"
    gpu = one(f"<mig_mode><current_mig>Enabled</current_mig></mig_mode><mig_devices>{device}</mig_devices>")
    assert gpu["mig"]["enabled"] is True
    assert [(d["index"], d["gpu_instance_id"], d["memory_total_mib"]) for d in gpu["mig"]["devices"]] == [(1, 2, 19968)]


def test_mig_devices_that_say_none_are_no_devices() -> None:
    gpu = one("<mig_mode><current_mig>N/A</current_mig></mig_mode><mig_devices>\n None\n</mig_devices>")
    assert gpu["mig"] == {"enabled": None, "devices": []}


def test_unified_memory_has_no_total_and_says_so() -> None:
    memory = "<fb_memory_usage><total>{}</total><used>{}</used></fb_memory_usage>"
    unified, sick = one(memory.format("N/A", "N/A")), one(memory.format("ERR!", "ERR!"))
    assert (unified["memory_total_mib"], unified["unified_memory"]) == (None, True)
    assert (sick["memory_total_mib"], sick["unified_memory"], sick["unreadable"]) == (None, False, ["total", "used"])


def test_processes_and_names_that_break_xml() -> None:
    info = "<process_info><pid>77</pid><type>C</type><process_name>a & b\x01</process_name>"
    info += "<used_memory>512 MiB</used_memory></process_info>"
    (process,) = one(f"<processes>{info}</processes>")["processes"]
    assert (process["pid"], process["name"], process["memory_mib"]) == (77, "a & b", 512)


def test_text_around_the_document_is_passed_over_and_none_is_an_error() -> None:
    assert parse_xml("Unable to determine something\n" + xml("") + "\nWARNING: infoROM is corrupted")[1]
    for broken in ("", "No devices were found", xml("<a>"), xml("")[:80]):
        with pytest.raises(SmiFormatError):
            parse_xml(broken)


def test_csv_by_column_with_units_in_header_or_cells() -> None:
    head = "index, name, memory.total [MiB], power.draw [W], temperature.gpu\n"
    (row,) = parse_csv(head + "0, Tesla P4, 7611, [N/A], 37\n")
    assert row == {
        "index": "0",
        "name": "Tesla P4",
        "memory.total": "7611 MiB",
        "power.draw": None,
        "temperature.gpu": "37",
    }
    (row,) = parse_csv(head + "0, Tesla P4, 7611 MiB, 22.50 W, ERR!\n")
    assert (row["memory.total"], row["power.draw"], row["temperature.gpu"]) == ("7611 MiB", "22.50 W", None)
    assert parse_csv("") == [] and parse_csv("No devices were found\n") == []


def test_plain_query_outline() -> None:
    output = """
==============NVSMI LOG==============

Driver Version                            : 570.10
CUDA Version                              : 12.8

Attached GPUs                             : 2
GPU 00000000:17:00.0
    Product Name                          : NVIDIA L4
    FB Memory Usage
        Total                             : 23034 MiB
    Clocks Event Reasons
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Active
        Sync Boost                        : N/A

GPU 00000000:65:00.0
    Product Name                          : NVIDIA L4
"""
    driver, gpus = parse_query(output)
    assert driver == {"version": "570.10", "cuda_version": "12.8", "attached_gpus": 2}
    assert [gpu["pci_bus_id"] for gpu in gpus] == ["0000:17:00.0", "0000:65:00.0"]
    first: dict[str, Any] = dict(gpus[0])
    assert first["FB Memory Usage"] == {"Total": "23034 MiB"}
    assert first["Clocks Event Reasons"] == {
        "HW Slowdown": "Not Active",
        "HW Thermal Slowdown": "Active",
        "Sync Boost": None,
    }


def test_list_with_mig() -> None:
    output = "GPU 0: NVIDIA A30 (UUID: GPU-a)\n  MIG 2g.12gb     Device  0: (UUID: MIG-b)\n"
    output += "  MIG 1g.6gb+me   Device  1: (UUID: MIG-c)\nGPU 1: NVIDIA A30 (UUID: GPU-d)\n"
    first, second = parse_list(output)
    assert [(d["profile"], d["index"], d["uuid"]) for d in first["mig_devices"]] == [
        ("2g.12gb", 0, "MIG-b"),
        ("1g.6gb+me", 1, "MIG-c"),
    ]
    assert (second["index"], second["uuid"], second["mig_devices"]) == (1, "GPU-d", [])


@pytest.mark.parametrize(
    ("output", "code", "kind"),
    [
        (
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.5",
            18,
            "driver_mismatch",
        ),
        (
            "Unable to determine the device handle for GPU0: 0000:41:00.0: Unknown Error\nNo devices were found",
            6,
            "gpu_lost",
        ),
        ("Unable to determine the device handle for GPU 0000:41:00.0: GPU is lost.  Reboot the system", 15, "gpu_lost"),
        ("No devices were found", 6, "no_devices"),
        ("No devices were found", 0, "no_devices"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", 9, "no_driver"),
        ("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", 12, "no_library"),
        ("Failed to initialize NVML: Insufficient Permissions", 4, "no_permission"),
        ("Failed to initialize NVML: Unknown Error", 255, "nvml"),
        ("", 15, "gpu_lost"),
        ("", 99, "unknown"),
    ],
)
def test_failures_are_named(output: str, code: int, kind: str) -> None:
    failure = parse_failure(output, code)
    assert failure is not None and failure["kind"] == kind
    assert failure["message"]


def test_failure_details() -> None:
    mismatch = parse_failure("Driver/library version mismatch\nNVML library version: 570.5", 18)
    lost = parse_failure("Unable to determine the device handle for GPU0: 0000:41:00.0: Unknown Error", 0)
    assert mismatch is not None and mismatch["library"] == "570.5"
    assert lost is not None and lost["gpu"] == "0000:41:00.0"
    assert parse_failure("fine", 0) is None


TOPOLOGY = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV4\tSYS\tPXB\t0-15\t0\t\tN/A\n"
    "GPU1\tNV4\t X \tPIX\tSYS\t16-31\t1\t\tN/A\n"
    "NIC0\tSYS\tPIX\t X \tSYS\t\t\t\t\n"
    "NIC1\tPXB\tSYS\tSYS\t X \t\t\t\t\n"
    "\nLegend:\n\n  X    = Self\n\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_1\n"
)


def test_topology_with_adapters() -> None:
    topology = parse_topology(TOPOLOGY)
    assert topology is not None
    assert topology["devices"] == ["GPU0", "GPU1", "NIC0", "NIC1"]
    assert topology["links"]["GPU0"] == {"GPU1": "NV4", "NIC0": "SYS", "NIC1": "PXB"}
    assert topology["gpus"]["GPU1"] == {
        "cpu_affinity": "16-31",
        "numa_node": 1,
        "gpu_numa_id": None,
        "nearest_nics": ["NIC0"],
    }
    assert topology["numa_nodes"] == {"0": [0], "1": [1]}
    assert topology["nvlink"] is True
    assert topology["nic_names"] == {"NIC0": "mlx5_0", "NIC1": "mlx5_1"}


def test_topology_set_with_spaces_reads_the_same() -> None:
    spaced = TOPOLOGY.replace("\t\t\t\t", "").replace("\t\tN/A", "\tN/A").replace("\t", "    ")
    assert parse_topology(spaced) == parse_topology(TOPOLOGY)
    assert parse_topology("No devices were found\n") is None
