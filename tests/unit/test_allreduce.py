"""The short all-reduce before a run: what passes, hangs, comes out wrong or cannot be tried; torch is a stand-in."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpurun import opening, smoke, steps
from gpurun.cases import check
from gpurun.facts_file import read_facts
from gpurun.load import load_text
from gpurun.manifest import Controller
from gpurun.plan import build
from gpurun.store import RunStore

ROOT = Path(__file__).parents[2]
_FILE = ROOT / "roles/engine/files/allreduce.py"
_SPEC = importlib.util.spec_from_file_location("allreduce", _FILE)
assert _SPEC is not None and _SPEC.loader is not None
allreduce = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(allreduce)

# As much of torch as the ranks use. What it does is in TORCH: ok, hang, wrong, or crash.
TORCH = """
import os, time
class Values:
    def __init__(self, value): self.value = value
    def __ne__(self, other): return Values(self.value != other)
    def sum(self): return self
    def item(self): return int(self.value)
def full(shape, value, device): return Values(value)
"""
DISTRIBUTED = """
import os, sys, time
state = {}
def init_process_group(backend, init_method, rank, world_size, timeout): state.update(rank=rank, ranks=world_size)
def all_reduce(values):
    kind = os.environ["TORCH"] if state["rank"] == 1 else "ok"
    if kind == "crash": sys.exit("NCCL error: unhandled system error")
    if kind == "hang": time.sleep(60)
    values.value = state["ranks"] * (state["ranks"] + 1) / 2 + (kind == "wrong")
"""


@pytest.fixture
def ask(tmp_path: Path) -> Any:
    package = tmp_path / "torch" / "distributed"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text(TORCH)
    (package / "__init__.py").write_text(DISTRIBUTED)

    def ask(kind: str, **more: Any) -> dict[str, Any]:
        env = {"PYTHONPATH": str(tmp_path), "TORCH": kind}
        question = {"python": sys.executable, "env": env, "ranks": 2, "backend": "gloo", "import_s": 60, "limit_s": 60}
        found = allreduce.answer({**question, "same": ["boot"], "remember": str(tmp_path / "remembered"), **more})
        assert isinstance(found, dict)
        return found

    return ask


def test_what_passed_is_remembered_while_the_host_stays_the_same(ask: Any) -> None:
    assert (ask("ok")["status"], ask("crash")["status"]) == ("ok", "ok")
    assert ask("crash")["cached"] is True
    assert ask("crash", same=["another boot"])["status"] == "failed"


def test_a_hang_is_named_within_its_limit_and_leaves_no_process(ask: Any, tmp_path: Path) -> None:
    found = ask("hang", limit_s=1)
    assert found["status"] == "hang" and "1 of 2 ranks had not ended after 1 s, last at: joined" in found["message"]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # gone meanwhile
            environ = (Path("/proc") / pid / "environ").read_bytes()
            assert f"PYTHONPATH={tmp_path}\0".encode() not in environ
    assert ask("ok")["cached"] is False  # a hang is not remembered


def plan_of(text: str, folder: Path) -> RunStore:
    facts = read_facts(str(ROOT / "campaigns/hosts/8x-h100.json"))
    campaign, cases = check(load_text(text, "h100.yml"))
    plan = build(campaign, cases, facts, "20261130-0900-a1f3")
    controller = Controller.of(1 << 22)
    return opening.open_run(plan, campaign_text=text, results_dir=folder, controller=controller, facts=facts)


def test_each_way_to_use_several_gpus_is_tried_once_and_a_hang_refuses_its_samples(tmp_path: Path) -> None:
    store = plan_of((ROOT / "campaigns/h100-8x.yml").read_text().replace("rounds: 5", "rounds: 1"), tmp_path)
    asked = smoke.questions(store, "h100")
    assert [one["question"]["ranks"] for one in asked] == [8, 4]
    assert asked[0]["question"]["python"] == "/root/.gpurun/engines/vllm-0.33.0/bin/python"
    assert len(asked[0]["samples"]) == 2 * 4  # two loads, and all but `half`
    hang, fine = {"status": "hang", "message": "8 of 8"}, {"status": "ok", "message": ""}
    refused, notes = smoke.refuse(store, asked, [hang, fine])
    assert (len(refused), notes) == (8, [])
    failure = refused[0].failure
    assert failure is not None and (failure.klass, failure.phase) == ("comm_hang", "preflight") and failure.advice
    assert {one["variant"] for one in steps.pending(store, "h100")} == {"half"}


def test_an_engine_in_an_image_is_asked_in_a_container_of_it(tmp_path: Path) -> None:
    text = (ROOT / "campaigns/h100-8x.yml").read_text().replace("rounds: 5", "rounds: 1")
    box = "  runtime: docker\n  image: vllm/vllm-openai:v0.33.0\n  container: {allow_tags: true, shm_size: 8g}\n"
    store = plan_of(text.replace("\nserver:\n", f"\nserver:\n{box}", 1), tmp_path)
    asked = smoke.questions(store, "h100")
    assert [one["question"]["ranks"] for one in asked] == [8, 4]
    inside = {"runtime": "docker", "image": "vllm/vllm-openai:v0.33.0", "shm_size": "8g"}
    assert (asked[0]["question"]["python"], asked[0]["question"]["container"]) == ("python3", inside)
    assert asked[0]["question"]["remember"].startswith("/root/.gpurun/options/allreduce-")


def test_one_gpu_needs_no_all_reduce_and_what_could_not_be_tried_is_said(tmp_path: Path) -> None:
    text = (ROOT / "campaigns/h100-8x.yml").read_text().replace("rounds: 5", "rounds: 1")
    alone = text.replace("tensor-parallel-size: 8", "tensor-parallel-size: 1")
    alone = alone.replace("tensor-parallel-size: 4", "seed: 4").replace("[tensor-parallel-size]", "[seed]")
    assert smoke.questions(plan_of(alone, tmp_path / "alone"), "h100") == []
    store = plan_of(text, tmp_path / "other")
    asked = smoke.questions(store, "h100")
    refused, notes = smoke.refuse(store, asked, [{"status": "unavailable", "message": "no torch"}] * 2)
    assert refused == [] and "no torch" in notes[0]


def test_the_program_answers_as_a_host_gets_it(tmp_path: Path) -> None:
    question = {"python": "/nowhere/python", "env": {}, "ranks": 2, "backend": "nccl", "import_s": 1, "limit_s": 1}
    question |= {"same": [None], "remember": str(tmp_path / "x")}
    program = smoke.program(_FILE.read_text(), question)
    said = subprocess.run([sys.executable, "-I", "-"], input=program, capture_output=True, text=True, check=True)
    assert json.loads(said.stdout)["status"] == "unavailable"


def test_what_else_may_become_of_it(ask: Any) -> None:
    crashed = ask("crash")
    assert crashed["status"] == "failed" and crashed["message"].endswith("NCCL error: unhandled system error")
    assert ask("wrong")["status"] == "wrong"
    assert ask("ok", python="/nowhere/python")["status"] == "unavailable"
    assert ask("ok", env={"TORCH": "ok", "PYTHONPATH": "/nowhere"})["status"] == "unavailable"
