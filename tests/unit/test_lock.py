"""Who holds a host: renewal, refusal, and taking over from the dead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.jobs import Job, locks, processes, python, start_client, stop

HERE = processes.machine_id()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    stop(tmp_path, "*", stop_s=0.2)
    assert processes.belonging(tmp_path) == []


def controller(pid: int, machine_id: str = HERE, **more: Any) -> dict[str, Any]:
    return {"host": "desk", "machine_id": machine_id, "pid": pid, **more}


def wanted(run: str, by: dict[str, Any], lease_s: float = 900) -> dict[str, Any]:
    return {"run": run, "campaign": "night", "controller": by, "lease_s": lease_s}


def dead_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as process:
        process.wait()
    return process.pid


def test_held_by_one_and_refused_to_another_by_name(home: Path) -> None:
    me = controller(os.getpid())
    assert locks.hold(home, wanted("run1", me), 0)["changed"] is True
    assert locks.hold(home, wanted("run1", me), 0)["changed"] is False
    refused = locks.hold(home, wanted("run2", me), 0)
    assert refused["held"] is False
    said = locks.describe(refused["holder"])
    assert "run run1 of campaign night holds this host since" in said and f"desk, pid {os.getpid()}" in said
    assert locks.release(home, "run2") is False
    assert locks.release(home, "run1") is True
    assert locks.hold(home, wanted("run2", me), 0)["held"] is True


def test_waits_until_the_holder_gives_it_back(home: Path) -> None:
    """Another process gives it back while we wait; nothing is shared but the files."""
    locks.hold(home, wanted("run1", controller(os.getpid())), 0)
    code = f"import os, time; time.sleep(0.5); os.unlink({str(home / 'lock.json')!r})"
    with subprocess.Popen([sys.executable, "-c", code]):
        began = time.monotonic()
        assert locks.hold(home, wanted("run2", controller(os.getpid())), 20)["held"] is True
        assert 0.3 < time.monotonic() - began < 10


def test_run_of_a_dead_controller_is_ended_before_its_host_is_taken(home: Path) -> None:
    locks.hold(home, wanted("run1", controller(dead_pid())), 0)
    old = start_client(Job(home, "run1", "job1"), *python("import time; time.sleep(600)"))
    taken = locks.hold(home, wanted("run2", controller(os.getpid())), 0)
    assert (taken["held"], [one["job"] for one in taken["ended"]]) == (True, ["job1"])
    assert old.supervisor() is None and processes.belonging(home) == []
    assert locks.renew(home, "run1") is False and locks.renew(home, "run2") is True


def test_recycled_pid_is_no_living_controller(home: Path) -> None:
    locks.hold(home, wanted("run1", controller(os.getpid(), pid_start=1)), 0)
    assert locks.hold(home, wanted("run2", controller(os.getpid())), 0)["held"] is True


def test_living_controller_is_known_by_its_start(home: Path) -> None:
    me = processes.look(os.getpid())
    assert me is not None
    start = int(me.born.rpartition(":")[2])
    locks.hold(home, wanted("run1", controller(os.getpid(), pid_start=start)), 0)
    assert locks.hold(home, wanted("run2", controller(os.getpid())), 0)["held"] is False


def test_controller_elsewhere_has_the_host_until_its_lease_passes(home: Path) -> None:
    elsewhere = controller(dead_pid(), machine_id="another machine")
    locks.hold(home, wanted("run1", elsewhere, lease_s=0.6), 0)
    assert locks.hold(home, wanted("run2", controller(os.getpid())), 0)["held"] is False
    assert locks.hold(home, wanted("run2", controller(os.getpid())), 5)["held"] is True


def test_renewal_prolongs_the_lease(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_RENEW_S", 0.0)
    locks.hold(home, wanted("run1", controller(1, machine_id="another machine"), lease_s=5), 0)
    before = locks.holder(home)["renewed_at"]
    assert locks.renew(home, "run1") is True
    assert locks.holder(home)["renewed_at"] > before


def test_resumed_run_starts_its_jobs_anew(home: Path) -> None:
    locks.hold(home, wanted("run1", controller(dead_pid())), 0)
    old = start_client(Job(home, "run1", "job1"), *python("import time; time.sleep(600)"))
    taken = locks.hold(home, wanted("run1", controller(os.getpid())), 0)
    assert (taken["held"], taken["changed"], len(taken["ended"])) == (True, True, 1)
    assert old.asked is None and not old.directory.exists()


def test_dead_controller_that_returns_by_name_takes_the_host_anew(home: Path) -> None:
    """A resumed run that still names its first controller."""
    dead = controller(dead_pid())
    locks.hold(home, wanted("run1", dead), 0)
    start_client(Job(home, "run1", "job1"), *python("import time; time.sleep(600)"))
    assert len(locks.hold(home, wanted("run1", dead), 0)["ended"]) == 1


def test_same_run_from_two_living_controllers_is_refused(home: Path) -> None:
    locks.hold(home, wanted("run1", controller(os.getpid())), 0)
    assert locks.hold(home, wanted("run1", controller(os.getppid())), 0)["held"] is False


def test_any_run_is_released_with_a_star(home: Path) -> None:
    assert locks.release(home, "*") is False
    locks.hold(home, wanted("run1", controller(os.getpid())), 0)
    assert locks.release(home, "*") is True and locks.holder(home) is None


def test_a_controller_that_left_on_purpose_keeps_the_host_until_its_lease_is_over(home: Path) -> None:
    serving = {"host": "desk", "machine_id": HERE, "pid": None, "pid_start": None}
    assert locks.hold(home, wanted("serve1", serving, lease_s=3600), 0)["held"] is True
    refused = locks.hold(home, wanted("run2", controller(os.getpid())), 0)
    assert refused["held"] is False
    assert "run serve1 of campaign night holds this host" in locks.describe(refused["holder"])
    assert "left serving, at the latest until 20" in locks.describe(refused["holder"])
    lock = home / "lock.json"
    lock.write_text(json.dumps({**json.loads(lock.read_text()), "renewed_at": time.time() - 3601}))
    assert locks.hold(home, wanted("run2", controller(os.getpid())), 0)["held"] is True


def test_a_resumed_run_takes_over_from_its_own_dead_controller_on_another_machine(home: Path) -> None:
    far = "another boot/pid:[1]"
    assert locks.hold(home, wanted("run1", controller(41, far)), 0)["held"] is True
    assert locks.hold(home, wanted("run2", controller(42, far)), 0)["held"] is False  # another run: by its lease only
    assert locks.hold(home, wanted("run1", controller(42, "a third machine")), 0)["held"] is False
    assert locks.hold(home, wanted("run1", controller(42, far)), 0)["changed"] is True


def test_a_living_controller_on_this_machine_is_not_succeeded(home: Path) -> None:
    assert locks.hold(home, wanted("run1", controller(os.getpid())), 0)["held"] is True
    assert locks.hold(home, wanted("run1", controller(1)), 0)["held"] is False


def test_a_resumed_run_has_its_host_back_from_a_lost_machine_once_that_was_silent(home: Path) -> None:
    lost, new = controller(41, "a lost machine"), controller(42, "another machine")
    mine = {**wanted("run1", lost), "silent_s": 60.0}
    locks.hold(home, mine, 0)
    lock = home / "lock.json"

    def last_heard(began_s_ago: float, renewed_s_ago: float) -> None:
        now = time.time()
        known = {**json.loads(lock.read_text()), "since": now - began_s_ago, "renewed_at": now - renewed_s_ago}
        lock.write_text(json.dumps(known))

    last_heard(100, 100)  # it had not begun to measure: installations may be silent
    assert locks.hold(home, wanted("run1", new), 0)["held"] is False
    last_heard(100, 50)
    assert locks.hold(home, wanted("run1", new), 0)["held"] is False
    last_heard(100, 70)
    assert locks.hold(home, wanted("run2", new), 0)["held"] is False
    assert locks.hold(home, wanted("run1", new), 0)["changed"] is True
    last_heard(100, 70)  # held without a say in this (a load host while the server starts): by its lease only
    assert locks.hold(home, wanted("run1", lost), 0)["held"] is False
