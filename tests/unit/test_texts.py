"""Texts from templates: of what is not known nothing is said, and what comes from a host cannot steer a terminal."""

from __future__ import annotations

from gpurun.doctor import Finding
from gpurun.text import fill


def test_what_was_ended_is_told_by_what_is_known_of_it() -> None:
    ended = {"a": [{"job": "r1-base", "run": "r", "pid": 3}, {"command": "python"}, {}, "a container"], "b": []}
    assert fill("stop.txt.j2", ended=ended, run="r").splitlines() == [
        "a: ended r1-base of run r, pid 3",
        "a: ended python",
        "a: ended a process",
        "a: a container",
        "b: nothing of run r was running",
    ]


def test_a_host_that_was_not_looked_at_has_a_line_too() -> None:
    told = fill(
        "provision.txt.j2", hosts={"b": {"changed": []}, "a": {"status": "ok", "summary": "Debian", "notes": []}}
    )
    assert told.splitlines() == ["a: ok; Debian", "b: failed; it was not looked at"]


def test_findings_stand_below_their_place_and_control_nothing() -> None:
    findings = [Finding("h", "disk", "ok", "2 GB"), Finding("h", "busy", "fail", "by \x1b[31m", "end it")]
    assert fill("doctor.txt.j2", findings=findings).splitlines() == [
        "h",
        "  ok    disk: 2 GB",
        r"  fail  busy: by \x1b[31m",
        "        fix: end it",
    ]
