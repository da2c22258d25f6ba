"""Scores the parsers on real nvidia-smi outputs: `python tests/benchmarks/host_captures.py DIR`.

DIR holds captures (*.txt, *.csv, *.xml) and an index.tsv with a row per file: name, kind of command, and in words what
must be read out of it. The kind picks the parser. What each file must yield is checked by what its kind promises, and
what was read is printed beside the index's words, for a reader to compare. Exit code 1 where a check fails.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ansible.module_utils

ansible.module_utils.__path__.append(str(Path(__file__).parents[2] / "roles" / "facts" / "module_utils"))

from ansible.module_utils.gpurun_smi_text import parse_csv, parse_failure, parse_list, parse_query  # noqa: E402
from ansible.module_utils.gpurun_smi_topology import parse_topology  # noqa: E402
from ansible.module_utils.gpurun_smi_values import is_error, text  # noqa: E402
from ansible.module_utils.gpurun_smi_xml import parse_xml  # noqa: E402

Reading = tuple[str, list[str]]  # what was read, in a line; what is wrong with it


def read_topology(output: str, promise: str) -> Reading:
    """Every pair of GPUs has a link, the matrix is symmetric, each GPU has a NUMA node."""
    topology: Any = parse_topology(output)
    if topology is None:
        return "nothing", ["no matrix found"]
    gpus, links = list(topology["gpus"]), topology["links"]
    pairs = [(a, b) for a in gpus for b in gpus if a != b]
    wrong = [f"{a}-{b}" for a, b in pairs if links[a].get(b) is None or links[a][b] != links[b].get(a)]
    wrong += [f"{gpu} has no NUMA node" for gpu in gpus if topology["gpus"][gpu]["numa_node"] is None]
    words = sorted({links[a][b] for a, b in pairs})
    nics = [place["nearest_nics"] for place in topology["gpus"].values() if place["nearest_nics"]]
    said = f"{len(gpus)} GPUs, links {'/'.join(words)}, nvlink {topology['nvlink']}, NUMA {topology['numa_nodes']}"
    return said + (f", nearest NICs {nics}" if nics else ""), wrong + promised_count(promise, len(gpus))


def read_query(output: str, promise: str) -> Reading:
    """As many GPUs as the log says are attached, each with address and name; versions as promised."""
    driver, gpus = parse_query(output)
    wrong = promised_count(promise, len(gpus)) + promised_versions(promise, driver)
    wrong += [
        f"{gpu['index']}: no name or address" for gpu in gpus if not (gpu["pci_bus_id"] and gpu.get("Product Name"))
    ]
    if driver["attached_gpus"] != len(gpus):
        wrong.append(f"{driver['attached_gpus']} attached, {len(gpus)} read")
    return f"{driver}, {[gpu['pci_bus_id'] for gpu in gpus]}", wrong


def read_xml(output: str, promise: str) -> Reading:
    """Name, UUID, address, memory, limit and clocks of each GPU; MIG devices with memory where they are promised."""
    driver, gpus = parse_xml(output)
    wrong = promised_versions(promise, driver)
    said = []
    for gpu in gpus:
        entry: Any = gpu
        mig = entry["mig"]["devices"]
        needed = {key: entry[key] for key in ("name", "uuid", "pci_bus_id", "memory_total_mib")}
        needed.update({"limit_w": entry["power"]["limit_w"], "sm clock": entry["clocks_mhz"]["sm"]})
        wrong += [f"GPU {entry['index']}: no {key}" for key, value in needed.items() if value is None]
        wrong += ["MIG device without memory" for device in mig if not device["memory_total_mib"]]
        if "mig_devices" in promise and not mig:
            wrong.append("no MIG devices")
        memory = [device["memory_total_mib"] for device in mig]
        said.append(f"{entry['name']}, reasons {entry['throttle_reasons']}, {entry['power']}, MIG memory {memory}")
    return f"{driver}; {'; '.join(said)}", wrong + ([] if gpus else ["no GPU"])


def read_csv(output: str, promise: str) -> Reading:
    """As many rows as lines, every column of the header, and nothing taken for a value that is none."""
    rows = parse_csv(output)
    lines = [row for row in csv.reader(output.splitlines(), skipinitialspace=True) if row]
    wrong = [] if len(rows) == len(lines) - 1 else [f"{len(lines) - 1} rows, {len(rows)} read"]
    wrong += ["columns differ" for row in rows if len(row) != len(lines[0])]
    bad = [cell for row in rows for cell in row.values() if cell is not None and (text(cell) is None or is_error(cell))]
    wrong += [f"{cell} taken for a value" for cell in bad if cell != "None"]
    wrong += [f"{row['name']}: a bracket is no value" for row in rows if "[" in "".join(filter(None, row.values()))]
    shown = ("name", "driver_version", "memory.total", "memory.used", "temperature.gpu", "power.draw", "compute_cap")
    said = [{key: row[key] for key in shown if key in row} for row in rows]
    return f"{len(rows)} x {len(lines[0])}: {said}", wrong


def read_list(output: str, promise: str) -> Reading:
    """Every line is read."""
    gpus: Any = parse_list(output)
    lines = len([line for line in output.splitlines() if line.strip()])
    read = len(gpus) + sum(len(gpu["mig_devices"]) for gpu in gpus)
    said = [(gpu["name"], [(device["profile"], device["uuid"]) for device in gpu["mig_devices"]]) for gpu in gpus]
    return str(said), [] if read == lines else [f"{lines} lines, {read} read"]


def read_error(output: str, promise: str) -> Reading:
    """A kind that the words of the index bear out, and the version or address that they name."""
    code = 18 if "exit 18" in promise else 1
    failure: Any = parse_failure(output, code)
    words = {"differ": "driver_mismatch", "lost GPU": "gpu_lost", "not loaded": "no_driver", "0 usable": "no_devices"}
    kind = next((kind for word, kind in reversed(list(words.items())) if word in promise), None)
    kind = "gpu_lost" if "lost GPU" in promise else kind
    wrong = [] if kind in (None, failure["kind"]) else [f"kind is {failure['kind']}, not {kind}"]
    for named in re.findall(r"(?:library is |at )(\S+)", promise):
        if named not in (failure["library"], failure["gpu"]):
            wrong.append(f"{named} not read")
    return f"{failure['kind']}, library {failure['library']}, gpu {failure['gpu']}", wrong


def promised_count(promise: str, count: int) -> list[str]:
    """The number of GPUs that the index names, against the number read."""
    match = re.search(r"(\d+) (?:attached )?GPUs", promise)
    return [f"{match.group(1)} GPUs promised, {count} read"] if match and int(match.group(1)) != count else []


def promised_versions(promise: str, driver: dict[str, object]) -> list[str]:
    """Driver and CUDA versions that the index names, against those read."""
    wrong = []
    for pattern, key in ((r"driver (\d+(?:\.\d+)*)", "version"), (r"CUDA (\d+\.\d+)", "cuda_version")):
        match = re.search(pattern, promise)
        if match and not str(driver[key]).startswith(match.group(1)):
            wrong.append(f"{key}: {match.group(1)} promised, {driver[key]} read")
    return wrong


READERS: tuple[tuple[str, Callable[[str, str], Reading]], ...] = (
    ("error", read_error),
    ("topo", read_topology),
    ("-q -x", read_xml),
    ("--query-gpu", read_csv),
    ("-L", read_list),
    ("-q", read_query),
)


def main() -> int:
    """Prints a line per file and the score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR")
    folder: Path = parser.parse_args().folder
    with (folder / "index.tsv").open(newline="") as stream:
        index = list(csv.DictReader(stream, delimiter="\t"))
    right = 0
    for row in index:
        name, kind, promise = row["file"], row["kind"], row["parser_must_extract"]
        read = next(reader for word, reader in READERS if word in kind)
        try:
            said, wrong = read((folder / name).read_text(errors="replace"), f"{promise} ({kind})")
        except ValueError as error:
            said, wrong = "", [str(error)]
        right += not wrong
        print(f"{'wrong' if wrong else 'right'}  {name}\n       must: {promise}\n       read: {said}")
        for complaint in wrong:
            print(f"       WRONG: {complaint}")
    print(f"{right} of {len(index)} right")
    return 0 if right == len(index) else 1


if __name__ == "__main__":
    sys.exit(main())
