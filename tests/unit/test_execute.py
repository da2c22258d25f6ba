"""What the end of a turn does with samples: none that was measured is lost."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.test_steps import PLANNED, READY, raw

from gpurun import events, execute
from gpurun.execute import _Run, _Turn
from gpurun.manifest import Controller, Manifest
from gpurun.playbooks import Outcome, TaskEvent
from gpurun.samples import Sample
from gpurun.steps import not_measured, pending, record, settle
from gpurun.store import RunStore

GONE = Outcome(status="failed", unreachable={"h": "ssh: connect to host 192.0.2.4 port 22: Connection timed out"})
LOAD = {"status": "exited", "exit_code": 0, "started_at": 1.0, "ended_at": 4.0}
SWAPPED = ("unix_s,swapped_pages,strangers\n" + "".join(f"{at}.0,200,\n" for at in range(1, 5))).encode()


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """A run with a measured sample that swapping taints, and a second one that waits."""
    first = {**PLANNED, "label": "chat"}
    first |= {"server": {**PLANNED["server"], "job": "r1-s"}, "load": {**PLANNED["load"], "job": "r1-c"}}
    second = {**first, "case": "v-chat-1", "variant": "v", "id": "1/v-chat-1/h"}
    manifest = Manifest(run="20261130-0900-a1f3", campaign="c", started_at="t", controller=Controller.this())
    store = RunStore.create(tmp_path, "version: 1\n", manifest)
    store.write_plan({"samples": [first, second]})
    record(store, first, server=READY, load=LOAD, files={"raw.json": raw(0), "telemetry.csv": SWAPPED}, began=0.0)
    run: Any = object.__new__(_Run)
    vars(run).update(
        _store=store, _lost={}, _away={}, _quarantined={}, _forgive=(), _home={}, _dead=set(), _campaign=None
    )
    run._observer = SimpleNamespace(on_event=lambda event, now: None, tick=lambda now: None)
    return run


def home(run: Any) -> dict[str, Sample]:
    return {sample.variant: sample for sample in run._store.samples()}


def waiting(run: Any) -> list[str]:
    return [planned["variant"] for planned in pending(run._store, "h")]


def test_a_task_that_fails_costs_the_sample_it_failed_on(run: Any) -> None:
    run._end_turn(_Turn("h", 1, []), Outcome(status="failed", failed={"h": "Send the load: boom"}))
    assert home(run)["v"].status == "failed"
    assert waiting(run) == ["baseline"]  # set aside, to be measured again


def test_an_interrupt_keeps_what_was_measured(run: Any) -> None:
    run._end_turn(_Turn("h", 1, []), Outcome(status="canceled"))
    assert home(run)["baseline"].status == "measured" and waiting(run) == ["v"]


def test_a_host_that_is_lost_keeps_what_was_measured(run: Any) -> None:
    run._away = {"h": -1e9}
    run._end_turn(_Turn("h", 1, []), GONE)
    assert "h" in run._lost and run._take_turn("h", None) == {}
    assert {name: sample.status for name, sample in home(run).items()} == {"baseline": "measured", "v": "failed"}


@pytest.mark.parametrize("second", ["failed", "not tried", "host lost"])
def test_the_first_measurement_stands_where_there_is_no_second(run: Any, second: str) -> None:
    first = home(run)["baseline"]
    run._end_turn(_Turn("h", 1, []), Outcome(status="successful"))
    assert waiting(run) == ["baseline", "v"]
    (again, _) = pending(run._store, "h")
    if second == "failed":
        not_measured(run._store, again, "engine_dead", "serving", "", "")
        run._end_turn(_Turn("h", 1, []), Outcome(status="successful"))
    elif second == "not tried":
        settle(run._store, over=True)
    else:
        run._lost["h"] = "ssh: connect to host 192.0.2.4 port 22: Connection timed out"
        run._take_turn("h", None)
    assert home(run)["baseline"] == first


def test_a_passing_failure_is_tried_again_once(run: Any) -> None:
    _, planned = run._store.plan["samples"]
    for times in (1, 2):
        not_measured(run._store, planned, "port_in_use", "start", "", "")
        run._end_turn(_Turn("h", 1, []), Outcome(status="successful"))
        assert ("v" in waiting(run)) is (times == 1)
    not_measured(run._store, {**planned, "round": 2}, "engine_dead", "start", "", "")
    run._end_turn(_Turn("h", 2, []), Outcome(status="successful"))
    assert [(s.round, s.failure.klass) for s in run._store.samples() if s.failure] == [
        (1, "port_in_use"),
        (2, "engine_dead"),
    ]


def test_a_host_that_answers_again_has_its_minute_again(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(execute, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    rest = pending(run._store, "h")
    run._end_turn(_Turn("h", 1, rest), GONE)
    for _ in range(6):
        clock[0] += 20
        run._on_task(TaskEvent("retry", "h", "run : Send the load", {"job": {"status": "running"}}), rest)
    run._end_turn(_Turn("h", 1, rest), GONE)
    assert run._lost == {} and run._away == {"h": clock[0]}
    clock[0] += 61
    run._end_turn(_Turn("h", 1, rest), GONE)
    assert "h" in run._lost


def test_no_load_is_told_of_a_server_that_never_came_up(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(run, "_emit", told.append)
    rest = pending(run._store, "h")
    for status in ("failed", "ready"):
        job = {"status": status, "started_at": 1, "ready_at": 2}
        for kind, task, result in (
            ("start", "Start the server", {}),
            ("ok", "Start the server", {"job": job}),
            ("start", "Send the load", {}),
        ):
            run._on_task(TaskEvent(kind, "h", f"run : {task}", result), rest)
    stages = [event.stage for event in told if isinstance(event, events.SampleStage)]
    assert stages == ["starting", "starting", "serving", "measuring"]
