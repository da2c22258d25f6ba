"""Events are plain data: each can be written as one JSON line."""

from __future__ import annotations

import json

import pytest

from gpurun.events import (
    Event,
    HostLost,
    Notice,
    RunFinished,
    RunStarted,
    SampleFinished,
    SampleProgress,
    SampleStage,
    StageStarted,
    Where,
    record,
)
from gpurun.samples import Failure, Sample

WHERE = Where(2, "fp8-kv", "chat@64", "gpu-1", "chat-1a2b")
FAILED = Sample(
    run="r",
    variant="fp8-kv",
    benchmark="chat",
    case="chat-1a2b",
    round=2,
    host="gpu-1",
    status="failed",
    failure=Failure(klass="oom_gpu", phase="kv", proof="CUDA out of memory"),
)
EVERY: list[Event] = [
    RunStarted("20261130-0900-a1f3", "quickstart", "results/x", 5, 20, ("a", "b"), 90.0),
    StageStarted("prepare", "gpu-1", "installing llamacpp"),
    SampleStage(WHERE, "serving", "ready after 1.4 s"),
    SampleProgress(WHERE, 3, 32),
    SampleFinished(WHERE, FAILED),
    HostLost("gpu-1", "unreachable"),
    Notice("a notice"),
    RunFinished("done", 0),
]


@pytest.mark.parametrize("event", EVERY, ids=lambda event: type(event).__name__)
def test_every_event_is_one_json_line(event: Event) -> None:
    line = json.dumps(record(event, 1.23456), allow_nan=False)
    assert "\n" not in line
    assert json.loads(line)["event"] == type(event).__name__
    assert json.loads(line)["time"] == 1.235


def test_a_finished_sample_is_named_with_its_failure() -> None:
    known = record(SampleFinished(WHERE, FAILED), 0.0)
    assert (known["status"], known["failure"], known["where"]["host"]) == ("failed", "oom_gpu", "gpu-1")
    assert "sample" not in known
