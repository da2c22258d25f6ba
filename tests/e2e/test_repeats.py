"""Several loads on one server: each load's repeats, caches between them, the engine's counters. The server says that it
is SGLang, with that engine's metrics."""

from __future__ import annotations

import json
import sys

import pytest
from tests.e2e.program import ROOT, Place

pytestmark = pytest.mark.slow

# Each answer of six tokens took two verifications. Of its caches it refuses every other emptying.
SGLANG = f"""#!{sys.executable}
import argparse, sys, threading
sys.path.insert(0, {str(ROOT)!r})
from tests.e2e.server import Server

class SGLang(Server):
    flushed = 0

    def page(self, path):
        answered = len([body for body in self.completions() if body.get("stream")])
        if path == "/metrics":
            return 200, (
                f'sglang:generation_tokens_total{{{{model_name="m"}}}} {{6 * answered}}.0\\n'
                f'sglang:spec_verify_calls_total{{{{model_name="m"}}}} {{2 * answered}}.0\\n'
                f'sglang:spec_accept_length{{{{model_name="m",tp_rank="0"}}}} 9.0\\n'
            )
        if path == "/flush_cache":
            self.flushed += 1
            return (200 if self.flushed % 2 else 400), "there are running requests"
        return super().page(path)

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
options, _ = parser.parse_known_args()
server = SGLang()
server.port = options.port
with server:
    threading.Event().wait()
"""


def test_repeats_are_one_number_of_their_round(place: Place) -> None:
    program = place.folder / "sglang"
    program.write_text(SGLANG)
    program.chmod(0o755)
    (place.folder / "config.json").write_text("{}")  # a model directory
    load = {"load": {"concurrency": 2, "requests": 4}, "data": {"prompt_tokens": 8, "output_tokens": 6}}
    place.campaign(
        server={"engine": "sglang", "binary": str(program), "model": {"path": str(place.folder), "name": "stub"}},
        benchmarks={"chat": load},
        repeats=3,
        rounds=2,
    )
    bench = place.bench("--json")
    assert bench.finish(240) == 0, bench.stderr
    samples = place.samples(bench.run)
    assert [(one["round"], one["repeat"]) for one in samples] == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]
    assert [one["caches"] for one in samples[:3]] == [None, "emptied", "not emptied: HTTP Error 400: Bad Request"]
    assert {one["metrics"]["accept_length"] for one in samples} == {3.0}
    assert [one["timing"]["server_start_s"] is None for one in samples[:3]] == [False, True, True]
    document = json.loads(bench.stdout)
    assert [one.get("repeat") for one in document["samples"][:3]] == [None, 2, 3]
    place.nothing_left()
