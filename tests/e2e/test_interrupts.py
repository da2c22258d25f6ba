"""Ctrl-C, SIGTERM and kill -9 at each stage: nothing of ours goes on, what was measured is kept, people are told."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.program import Place, Program, eventually, server

pytestmark = pytest.mark.slow

SLOW = server("--token-delay", "10")  # a sample of minutes, that is never waited for
LATE = server("--start-delay", "240")


@pytest.fixture
def deaf_index() -> Iterator[str]:
    """The address of a package index that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/simple"


def interrupted(place: Place, program: Program, code: int = 130) -> str:
    """What must hold after an interrupt at any stage with a run; returns the run's id."""
    assert program.finish() == code, program.stderr
    assert program.stdout == ""
    place.nothing_left()
    manifest = place.manifest(program.run)
    assert (manifest["status"], manifest["exit_code"]) == ("interrupted", code)
    assert f"the run is kept in {Path('results') / 'e2e' / program.run}" in program.stderr
    return program.run


def test_ctrl_c_while_looking_at_the_host(place: Place) -> None:
    place.campaign()
    program = place.bench()
    program.wait_for("preflight")
    program.send(signal.SIGINT)
    assert program.finish() == 130, program.stderr
    assert program.stderr.splitlines()[-2:] == ["error: interrupted", "hint: nothing was changed on a host"]
    place.nothing_left()
    assert not (place.folder / "results").exists()


def test_ctrl_c_while_installing(fresh_place: Place, deaf_index: str) -> None:
    fresh_place.campaign()
    cache = str(fresh_place.folder / "empty cache")
    program = fresh_place.bench(env={"UV_DEFAULT_INDEX": deaf_index, "UV_CACHE_DIR": cache})
    program.wait_for("install the load tool")
    eventually(lambda: any("uv pip install" in line for line in fresh_place.leftovers()))
    program.send(signal.SIGINT)
    run = interrupted(fresh_place, program)
    assert fresh_place.samples(run) == []


def test_ctrl_c_while_starting(place: Place) -> None:
    place.campaign(server=LATE)
    program = place.bench()
    program.wait_for("baseline  chat  starting")
    eventually(lambda: any("--start-delay" in line for line in place.leftovers()))
    program.send(signal.SIGINT)
    assert place.samples(interrupted(place, program)) == []


def test_ctrl_c_while_measuring_keeps_what_was_measured(place: Place) -> None:
    place.campaign(variants={"slow": {"server": SLOW}}, order="fixed")
    program = place.bench("--json")
    program.wait_for("slow  chat  measuring")
    eventually(lambda: any("loadgen" in line for line in place.leftovers()))
    program.send(signal.SIGINT)
    assert program.finish() == 130, program.stderr
    document = json.loads(program.stdout)
    assert document["run"]["status"] == "interrupted"
    assert [(one["variant"], one["status"]) for one in document["samples"]] == [("baseline", "measured")]
    assert document["error"]["code"] == 130
    place.nothing_left()
    kept = place.samples(program.run)
    assert [(one["variant"], one["status"]) for one in kept] == [("baseline", "measured")]
    assert len(place.jobs(program.run)) == 4  # what was not brought home may still be of use
    assert place.manifest(program.run)["status"] == "interrupted"
    assert "interrupted after 1 of 2 samples" in program.stderr


def test_sigterm_while_measuring_ends_with_143(place: Place) -> None:
    place.campaign(server=SLOW)
    program = place.bench()
    program.wait_for("baseline  chat  measuring")
    program.send(signal.SIGTERM)
    interrupted(place, program, 143)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("verb", [["doctor"], ["stop", "--all"], ["plan", "-c", "campaign.yml"]], ids=lambda v: v[0])
def test_looking_and_stopping_can_be_interrupted_too(place: Place, verb: list[str], number: int, code: int) -> None:
    place.campaign()
    python, inventory = place.folder / "python", place.folder / "inventory.yml"
    python.write_text("#!/bin/sh\nexec sleep 200\n")
    python.chmod(0o755)
    inventory.write_text(inventory.read_text().replace("'{{ ansible_playbook_python }}'", json.dumps(str(python))))
    program = place.start(*verb, "-i", "inventory.yml")
    eventually(lambda: any("sleep 200" in line for line in place.leftovers()))
    program.send(number)
    assert program.finish() == code, program.stderr
    assert "Traceback" not in program.stderr
    eventually(lambda: not place.leftovers())
    place.nothing_left()


def test_a_second_ctrl_c_skips_the_clean_up_and_says_how_to_do_it(place: Place) -> None:
    place.campaign(server=LATE)
    program = place.bench()
    program.wait_for("baseline  chat  starting")
    eventually(lambda: any("--start-delay" in line for line in place.leftovers()))
    program.send(signal.SIGINT)
    program.wait_for("clean-up")
    program.send(signal.SIGINT)
    assert program.finish(10) == 130, program.stderr
    assert f"gpurun stop {program.run} -i inventory.yml" in program.stderr
    assert "on here gpurun was starting `baseline`" in program.stderr
    stop = place.start("stop", program.run, "-i", "inventory.yml")
    assert stop.finish() == 0, stop.stderr
    eventually(lambda: not place.leftovers())
    place.nothing_left()


@pytest.fixture
def killed(place: Place) -> Program:
    """A run whose gpurun was killed while its server was starting; the playbook has ended by itself."""
    place.campaign(server=LATE)
    program = place.bench()
    program.wait_for("baseline  chat  starting")
    eventually(lambda: any("--start-delay" in line for line in place.leftovers()))
    os.kill(program.process.pid, signal.SIGKILL)
    assert program.finish() == -signal.SIGKILL
    eventually(lambda: not any("ansible-playbook" in line for line in place.leftovers()), 15)
    assert any("--start-delay" in line for line in place.leftovers())  # the server does not know yet
    return program


def test_stop_ends_what_a_killed_run_left(place: Place, killed: Program) -> None:
    stop = place.start("stop", killed.run, "-i", "inventory.yml", "--json")
    assert stop.finish() == 0, stop.stderr
    ended = json.loads(stop.stdout)["ended"]["here"]
    assert [(one["run"], one["job"].startswith("r1-baseline")) for one in ended] == [(killed.run, True)]
    assert place.leftovers() == [] and place.jobs(killed.run) == []
    assert not (place.home / "lock.json").exists()
    again = place.start("stop", killed.run, "-i", "inventory.yml")
    assert again.finish() == 0
    assert again.stdout == f"here: nothing of run {killed.run} was running\n"


def test_the_next_run_ends_what_a_killed_run_left(place: Place, killed: Program) -> None:
    place.campaign()
    following = place.bench()
    assert following.finish() == 0, following.stderr
    assert f"here: ended what run {killed.run} had left here: r1-baseline-" in following.stderr
    assert place.leftovers() == []
    listed = place.start("runs", "--json")
    assert listed.finish() == 0, listed.stderr
    status = {one["id"]: one["status"] for one in json.loads(listed.stdout)["runs"]}
    assert status == {killed.run: "interrupted", following.run: "done"}


def test_a_second_run_on_a_host_is_refused_by_name_or_waits(place: Place) -> None:
    place.campaign(server=SLOW)
    first = place.bench()
    first.wait_for("baseline  chat  measuring")
    place.campaign(name="other")
    second = place.bench()
    assert second.finish() == 3, second.stderr
    assert f"run {first.run} of campaign e2e holds this host" in second.stderr
    assert f"gpurun stop {first.run}" in second.stderr
    waiting = place.bench("--wait", "2m")
    waiting.wait_for(f"here: waits for up to 120 s: run {first.run} of campaign e2e holds this host")
    assert first.process.poll() is None
    first.send(signal.SIGINT)
    assert first.finish() == 130
    assert waiting.finish() == 0, waiting.stderr
    place.nothing_left()


def test_a_terminal_that_is_closed_ends_the_run_cleanly(place: Place) -> None:
    place.campaign(server=LATE)
    program = place.bench()
    program.wait_for("baseline  chat  starting")
    program.send(signal.SIGHUP)
    interrupted(place, program, 143)


def test_a_screen_that_goes_away_does_not_end_the_run(place: Place) -> None:
    place.campaign()
    read, write = os.pipe()
    os.close(read)
    gone = ["bash", "-c", f'exec "$@" 2>&{write}', "bash", sys.executable, "-m", "gpurun"]
    program = place.start("bench", "-c", "campaign.yml", "-i", "inventory.yml", "--json", program=gone, keep=[write])
    os.close(write)
    assert program.finish() == 0
    assert json.loads(program.stdout)["samples"][0]["status"] == "measured"
    place.nothing_left()
