"""One campaign from beginning to end: what the server receives, what is printed, what stays behind."""

from __future__ import annotations

import itertools
import json
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.program import Place, Program, server

pytestmark = pytest.mark.slow

SECRET = 'se"cret \\ é-tok{{en}}-7f3a'
WORDS = [
    "$(id)",
    "`id`",
    "'single' \"double\"",
    "{{ '{{' }} braces {{ '}}' }}",
    "naïve 漢字 🙂",
    "a\nb",
    "--x=;|&<>*?~",
    "",
]
RECEIVED = ["{{ braces }}" if "braces" in word else word for word in WORDS]


class Watcher(threading.Thread):
    """Looks for a text in every command line of this machine and every file of some folders, until it is told to stop.

    What a server itself writes down (`log`) is the server's. How jobs ended is kept, as their folders go with the run.
    """

    def __init__(self, text: str, *folders: Path) -> None:
        super().__init__()
        self.text, self.folders, self.stop = text.encode(), folders, threading.Event()
        self.seen: set[str] = set()
        self.looked_at: set[str] = set()
        self.ended: dict[str, Any] = {}

    def run(self) -> None:
        while not self.stop.wait(0.05):
            for pid in filter(str.isdigit, os.listdir("/proc")):
                self._look(Path(f"/proc/{pid}/cmdline"))
            for folder, _, names in itertools.chain(*map(os.walk, self.folders)):  # folders come and go meanwhile
                for path in (Path(folder, name) for name in names):
                    if path.name != "log" and path.is_file():  # no FIFOs
                        self._look(path)

    def _look(self, path: Path) -> None:
        try:
            content = path.read_bytes()
        except OSError:
            return
        self.looked_at.add(path.name)
        if path.name == "ended.json":
            self.ended[path.parent.name] = json.loads(content)
        if self.text in content:
            self.seen.add(f"{path}: {content[:300]!r}")


@dataclass
class Whole:
    """A campaign that has ended."""

    place: Place
    program: Program
    code: int
    run: str
    document: dict[str, Any]
    watcher: Watcher


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Any:
    place = Place(tmp_path_factory.mktemp("whole") / "a folder", home)
    wanted = server(*WORDS, env={"TEXT": WORDS[3], "OTHER": WORDS[4]}, secrets=["E2E_SECRET"])
    crash = {"server": server("--crash", "CUDA error: no kernel image is available for execution on the device")}
    place.campaign(server=wanted, variants={"broken": {**crash, "expect": "unsupported_arch"}})
    inventory = yaml.safe_load((place.folder / "inventory.yml").read_text())
    inventory["gpu_hosts"]["hosts"]["here"] |= {"ansible_become_password": "planted-7f3a", "planted": "planted-7f3a"}
    outside = place.folder.parent / "inventory.yml"
    outside.write_text(yaml.safe_dump(inventory))
    watcher = Watcher("-7f3a", place.temporary, home / "jobs")
    watcher.start()
    try:
        said = {"GPURUN_BENCH_SET": f"description={json.dumps(SECRET)}", "GPURUN_BENCH_INVENTORY": str(outside)}
        program = place.start("bench", "-c", "campaign.yml", "--json", env={"E2E_SECRET": SECRET, **said})
        code = program.finish()
        yield Whole(place, program, code, program.run, json.loads(program.stdout), watcher)
    finally:
        watcher.stop.set()
        watcher.join()
        place.end()


def started(whole: Whole) -> dict[str, Any]:
    """What the server says that it was started with."""
    log = next(whole.place.stored(whole.run).glob("samples/1/baseline-*/here/server.log")).read_text(encoding="utf-8")
    line = next(line for line in log.splitlines() if line.startswith("started "))
    document = json.loads(line.removeprefix("started "))
    assert isinstance(document, dict)
    return document


@pytest.mark.alone  # all of the campaign runs before this test
def test_a_campaign_with_an_expected_failure_ends_with_0(whole: Whole) -> None:
    assert whole.code == 0, whole.program.stderr
    by_variant = {sample["variant"]: sample for sample in whole.document["samples"]}
    assert by_variant["baseline"]["status"] == "measured"
    assert by_variant["baseline"]["metrics"]["output_tok_per_s"] > 0
    assert by_variant["broken"]["failure"]["class"] == "unsupported_arch"
    assert by_variant["broken"]["failure"]["expected"] is True


def test_values_reach_the_server_unchanged(whole: Whole) -> None:
    said = started(whole)
    assert said["argv"][2:] == RECEIVED
    assert said["env"]["TEXT"] == RECEIVED[3]
    assert said["env"]["OTHER"] == RECEIVED[4]


def test_a_secret_reaches_the_server_and_is_in_nothing_else(whole: Whole) -> None:
    assert started(whole)["env"]["E2E_SECRET"] == "[secret]"  # it was there
    for path in whole.place.folder.rglob("*"):
        assert not path.is_file() or b"7f3a" not in path.read_bytes(), path
    assert "7f3a" not in whole.program.stderr + whole.program.stdout


def test_a_secret_is_in_no_command_line_and_no_file_meanwhile(whole: Whole) -> None:
    assert {"cmdline", "vars.yml", "job.json", "ended.json", "raw.json"} <= whole.watcher.looked_at
    assert whole.watcher.seen == set()


def test_json_is_one_document_and_everything_else_is_on_stderr(whole: Whole) -> None:
    assert whole.document["schema"] == "gpurun.result/1"
    assert whole.document["run"]["status"] == "done"
    stored = json.loads((whole.place.stored(whole.run) / "result.json").read_text())
    assert stored == whole.document


def test_lines_tell_each_stage_once_and_in_order(whole: Whole) -> None:
    lines = [line[10:].strip() for line in whole.program.lines]
    stages = [line for line in lines if "prepare  here" in line]
    assert stages == ["prepare  here  take the host", "prepare  here  install the load tool"]
    of_one = [line.split("  ")[3].partition(" (")[0] for line in lines if line.startswith("round 1/1  baseline  chat")]
    assert of_one[:4] == ["starting", "serving", "measuring", "collecting"]
    assert of_one[4].startswith("measured ")
    assert of_one[5] == "stopping"
    assert any(line.startswith("clean-up") for line in lines)
    assert lines[-1].startswith("done after")


def test_nothing_is_left_behind(whole: Whole) -> None:
    whole.place.nothing_left()
    assert whole.place.jobs(whole.run) == []


def test_a_crash_is_noticed_within_a_second(whole: Whole) -> None:
    log = next(whole.place.stored(whole.run).glob("samples/1/broken-*/here/server.log")).read_text(encoding="utf-8")
    crashed = next(line.split()[1] for line in log.splitlines() if line.startswith("crashing "))
    noticed = next(ended["ended_at"] for job, ended in whole.watcher.ended.items() if job.startswith("r1-broken-"))
    assert 0 <= noticed - float(crashed) < 1
