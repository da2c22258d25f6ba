"""A campaign with a benchmark script of the user's own beside the builtin client: what is installed, run, kept."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from tests.e2e.program import Place, server

pytestmark = pytest.mark.slow

SCRIPT = """
import json, sys, time, urllib.request
url, model, tokens, out = sys.argv[1:]
body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": int(tokens), "stream": True}
request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
began = time.perf_counter()
with urllib.request.urlopen(request) as answer:
    lines = answer.read().count(b"word")
took = time.perf_counter() - began
with open(out + "/mine.json", "w") as file:
    json.dump({"results": [{"rate": lines / took, "seconds": took}]}, file)
"""
MINE = {
    "tool": "script",
    "load": {"concurrency": 1, "requests": 1},
    "data": {"prompt_tokens": 1, "output_tokens": 20},
    "script": {
        "file": "mine.py",
        "args": ["{{ base_url }}{{ endpoint }}", "{{ model.name }}", "{{ data.output_tokens }}", "{{ out }}"],
        "output": "mine.json",
        "metrics": {"output_tok_per_s": "results.0.rate", "e2e_mean_ms": "results.0.seconds"},
        "scale": {"e2e_mean_ms": 1000},
    },
}


def test_a_script_and_the_builtin_client_in_one_campaign(tmp_path: Path, home: Path) -> None:
    place = Place(tmp_path / "here", home)
    (place.folder / "mine.py").write_text(SCRIPT)
    chat = {"load": {"concurrency": 2, "requests": 20}, "data": {"prompt_tokens": 8, "output_tokens": 40}}
    place.campaign(server=server("--token-delay", "0.005"), benchmarks={"chat": chat, "mine": MINE})
    program = place.bench("--json")
    try:
        assert program.finish(240) == 0, program.stderr
        samples = {sample["benchmark"]: sample for sample in json.loads(program.stdout)["samples"]}
        assert samples["mine"]["failure"] is None
        metrics = samples["mine"]["metrics"]
        assert metrics["output_tok_per_s"] == pytest.approx(20 / metrics["e2e_mean_ms"] * 1000)
        assert 0 < metrics["output_tok_per_s"] < 200  # 5 ms a token at least
        (kept,) = place.stored(program.run).glob("samples/1/*mine*/here/raw.json")
        assert json.loads(kept.read_text())["results"][0]["rate"] == metrics["output_tok_per_s"]

        assert samples["chat"]["metrics"]["host_cpu_percent"] > 0
        (seen,) = place.stored(program.run).glob("samples/1/*chat*/here/telemetry.csv")
        rows = list(csv.DictReader(seen.read_text().splitlines()))
        assert len(rows) >= 2  # two seconds of load
        assert all(0 <= float(row["cpu_percent"]) <= 100 and float(row["memory_used_mib"]) > 0 for row in rows)
        assert float(rows[-1]["unix_s"]) - float(rows[0]["unix_s"]) == pytest.approx(len(rows) - 1, abs=0.5)
        place.nothing_left()
    finally:
        place.end()


def test_a_broken_script_is_found_while_the_server_boots_and_costs_its_own_samples_only(place: Place) -> None:
    broken = "import no_such_package\n" + SCRIPT
    (place.folder / "mine.py").write_text(broken)
    chat = {"load": {"concurrency": 2, "requests": 4}, "data": {"prompt_tokens": 8, "output_tokens": 8}}
    place.campaign(server=server("--start-delay", "2"), benchmarks={"mine": MINE, "chat": chat})
    program = place.bench("--json")
    assert program.finish(240) == 1, program.stderr
    samples = {sample["benchmark"]: sample for sample in json.loads(program.stdout)["samples"]}
    failure = samples["mine"]["failure"]
    assert (failure["class"], failure["phase"]) == ("client_error", "preflight")
    assert failure["proof"] == "mine.py:1 imports `no_such_package`, which is not there" and failure["advice"]
    assert samples["chat"]["status"] == "measured"
    place.nothing_left()
