"""What preflight costs a host when everything is warm: `python tests/benchmarks/preflight.py [SECONDS]`.

Two runs of one campaign on this machine with GPUs that a stand-in describes; of the second, the time from the call to
the plan (facts, all checks of hosts and rules), and of the steps of preparation that only look (flags, all-reduce), as
the run's own events tell it. Exit code 1 where it is more than SECONDS (3).
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


def main() -> int:
    limit = float(sys.argv[1]) if len(sys.argv) > 1 else 3.0
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder) / "here", Path(folder) / "home")
        try:
            env = Gpus(place).env
            place.campaign()
            for _ in range(2):
                called = time.time()
                bench = place.bench(env=env)
                bench.finish(600)
            path = place.stored(bench.run) / "events.jsonl"
            events = [json.loads(line) for line in path.read_text().splitlines()]
        finally:
            place.end()
    told = [(one["time"], one["event"], one.get("detail") or "") for one in events]
    planned = next(at for at, event, _ in told if event == "RunStarted") - called
    number = next(n for n, (_, _, detail) in enumerate(told) if "all-reduce" in detail)
    looked = told[number + 1][0] - told[number][0]
    print(f"call to plan {planned:.2f} s, of it gpurun's start and Ansible's; flags and all-reduce {looked:.2f} s")
    return int(planned + looked > limit)


if __name__ == "__main__":
    sys.exit(main())
