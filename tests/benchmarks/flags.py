"""What checking the flags adds to a run when the hosts have their answers in caches: one program there, one check.

    python -m tests.benchmarks.flags [TIMES]

Each time a fresh Python, started as on a host, reads the kept answers of three engines (their shipped options), and
20 variants of each are checked. Without the connection: that is one round trip over an ssh connection that is open.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gpurun.catalogue import parse_catalogue, shipped
from gpurun.check_flags import check_argv
from gpurun.engines import load_engine

READER = Path(__file__).parents[2] / "roles/engine/files/engine_options.py"
ENGINES = {"sglang": "0.5.23", "vllm": "0.33.0", "llamacpp": "b10434"}
FLAGS = {
    "sglang": "--tp 8 --mem-fraction-static 0.8",
    "vllm": "-tp 8 --max-model-len 16k",
    "llamacpp": "-c 4096 -ngl 99",
}


def main() -> None:
    """Print the median and the longest of TIMES (default 20), in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        asked = [question(Path(folder), engine, version) for engine, version in ENGINES.items()]
        times = [once(asked) for _ in range(int((sys.argv[1:] or ["20"])[0]))]
    print(f"median {statistics.median(times):.3f} s, longest {max(times):.3f} s, of {len(times)}")


def question(folder: Path, engine: str, version: str) -> dict[str, Any]:
    """A question whose answer is kept already."""
    names = ("python", "binary", "launcher", "parser")
    asked = {"name": engine, "version": version, "help": [], "cache": str(folder / engine), **dict.fromkeys(names)}
    options = [one.model_dump(exclude_defaults=True) for one in shipped(engine, version).options]
    space: dict[str, Any] = {"__name__": "reader"}
    exec(READER.read_text(), space)
    (folder / engine).write_text(
        json.dumps({"engine": engine, "version": version, "key": space["identity"](asked), "options": options})
    )
    return asked


def once(asked: list[dict[str, Any]]) -> float:
    """Seconds from the question to the last verdict."""
    begin = time.monotonic()
    source = READER.read_text()
    program = f"{source}\nprint(json.dumps(read({asked!r}, '')))\n"
    said = subprocess.run([sys.executable, "-I", "-"], input=program, capture_output=True, text=True, check=True).stdout
    for answer in json.loads(said):
        engine, catalogue = load_engine(answer["engine"]), parse_catalogue(answer)
        for _ in range(20):
            assert check_argv(catalogue, engine, FLAGS[engine.name].split()) == []
    return time.monotonic() - begin


if __name__ == "__main__":
    main()
