"""`gpurun serve` on this machine: cut short, and at the end of its time. Over ssh: see test_fleet.py."""

from __future__ import annotations

import signal

import pytest
from tests.e2e.program import Place, eventually, server


def test_ctrl_c_while_it_starts_leaves_nothing(place: Place) -> None:
    before = set((place.home / "jobs").glob("*/*/log"))  # of interrupted runs of other tests
    place.campaign(server=server("--start-delay", "40"))
    program = place.start("serve", "-c", "campaign.yml", "-i", "inventory.yml")
    program.wait_for("starting")
    eventually(lambda: any("--start-delay" in line for line in place.leftovers()))
    program.send(signal.SIGINT)
    assert program.finish() == 130, program.stderr
    assert program.stderr.splitlines()[-2:] == ["error: interrupted", "hint: what was started has been ended"]
    assert program.stdout == ""
    place.nothing_left()
    assert set((place.home / "jobs").glob("*/*/log")) == before


def test_it_ends_after_its_time_though_gpurun_is_gone(place: Place) -> None:
    place.campaign()
    program = place.start("serve", "-c", "campaign.yml", "-i", "inventory.yml", "--for", "8s")
    assert program.finish() == 0, program.stderr
    said = program.stdout.splitlines()
    assert said[0].startswith("here: baseline serves on http://127.0.0.1:")
    stop = said[-1].removeprefix("stop with: gpurun stop ").split()
    assert stop[1:] == ["-i", "inventory.yml"]
    assert place.leftovers()
    eventually(lambda: not place.leftovers())
    assert len(place.jobs(stop[0])) == 1
    again = place.start("stop", *stop)
    assert again.finish() == 0, again.stderr
    place.nothing_left()
    assert place.jobs(stop[0]) == []


@pytest.mark.parametrize(
    ("time", "says"), [("10", "a duration needs a unit"), ("0s", "a server needs some time, such as 1h")]
)
def test_a_time_without_a_unit_or_none_is_refused(place: Place, time: str, says: str) -> None:
    place.campaign()
    program = place.start("serve", "-c", "campaign.yml", "-i", "inventory.yml", "--for", time)
    assert program.finish() == 2
    assert says in program.stderr
