"""A variant that the host's GPUs rule out is recorded and costs no start; the rest runs, and the rule can be forced."""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.e2e.program import SERVER, Place
from tests.e2e.test_gpus import Gpus


def test_a_dead_end_is_refused_before_it_is_started_and_can_be_forced(place: Place) -> None:
    gpus = Gpus(place)  # two of them
    program = place.folder / "bin" / "trtllm-serve"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{SERVER}" "$@"\n')
    program.chmod(0o755)
    model = place.folder / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    server: dict[str, Any] = {"engine": "trtllm", "binary": str(program), "model": {"path": str(model)}}
    wide = {"server": {"flags": {"tp_size": 16}}, "tests": ["tp_size"]}
    place.campaign(server={**server, "flags": {"tp_size": 2}}, variants={"wide": wide})

    bench = place.bench("--json", env=gpus.env)
    assert bench.finish(180) == 1, bench.stderr
    samples = {one["variant"]: one for one in json.loads(bench.stdout)["samples"]}
    assert samples["baseline"]["status"] == "measured"
    failure = samples["wide"]["failure"]
    assert (failure["class"], failure["phase"]) == ("bad_parallelism", "preflight")
    assert "needs 16 GPUs" in failure["proof"] and "campaign.yml:" in failure["proof"] and failure["advice"]
    assert "wide: refused: the server needs 16 GPUs" in bench.stderr
    assert not list(place.stored(bench.run).glob("samples/*/wide-*/*/server.log"))  # it was not started

    again = place.bench("--resume", bench.run, "--force", "gpu-count", env=gpus.env)  # this server does not mind
    assert again.finish(180) == 0
    kept = [one["status"] for one in place.samples(bench.run)]  # what was refused is set aside
    assert kept.count("measured") == 2
    assert place.manifest(bench.run)["forced"] == ["gpu-count"]
    place.nothing_left()
