"""The short all-reduce before a run: what passes, hangs, comes out wrong or cannot be tried; torch is a stand-in."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

_FILE = Path(__file__).parents[2] / "roles/engine/files/allreduce.py"
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


def test_a_hang_is_named_within_its_limit_and_leaves_no_process(ask: Any) -> None:
    found = ask("hang", limit_s=1)
    assert found["status"] == "hang" and "1 of 2 ranks had not ended after 1 s, last at: joined" in found["message"]
    assert not [
        pid
        for pid in filter(str.isdigit, os.listdir("/proc"))
        if b"gpurun-allreduce-" in (Path("/proc") / pid / "cmdline").read_bytes() and pid != str(os.getpid())
    ]
    assert ask("ok")["cached"] is False  # a hang is not remembered


def test_what_else_may_become_of_it(ask: Any) -> None:
    crashed = ask("crash")
    assert crashed["status"] == "failed" and crashed["message"].endswith("NCCL error: unhandled system error")
    assert ask("wrong")["status"] == "wrong"
    assert ask("ok", python="/nowhere/python")["status"] == "unavailable"
    assert ask("ok", env={"TORCH": "ok", "PYTHONPATH": "/nowhere"})["status"] == "unavailable"
