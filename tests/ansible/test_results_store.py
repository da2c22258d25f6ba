"""The results store: what is pushed survives the results directory, whatever breaks on the way."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.program import eventually
from tests.hosts import TestHost
from tests.stores import S3, begin, measure

from gpurun import report, steps
from gpurun.assess import assess
from gpurun.errors import GpurunError, NoSuchRunError, NotReadyError
from gpurun.remote import Remote
from gpurun.store import RunStore


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    service = S3()
    yield service
    service.stop()


@pytest.fixture(params=["file", "s3", pytest.param("sftp", marks=pytest.mark.hosts)])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty store of each kind."""
    if request.param == "file":
        return f"file://{tmp_path}/a%20store/runs"
    if request.param == "s3":
        service = request.getfixturevalue("s3")
        for name, value in service.environment.items():
            monkeypatch.setenv(name, value)
        return f"{service.url}/{tmp_path.name}"
    host = request.getfixturevalue("host")
    monkeypatch.setenv("GPURUN_STORE_KNOWN_HOSTS", str(host.inventory_path.with_name("known_hosts")))
    monkeypatch.setenv("GPURUN_STORE_KEY_FILE", str(host.inventory_path.with_name("key")))
    return f"sftp://root@{host.address}/srv/{tmp_path.name}"


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A store that is a folder."""
    return f"file://{tmp_path}/store"


def files(store: RunStore) -> dict[str, bytes]:
    """What a run is made of, but for what says where it is."""
    left_out = ("manifest.json", "report.html", "report.md", "result.json", "plan.json", ".pushed", ".pushing")
    return {
        str(path.relative_to(store.directory)): path.read_bytes()
        for path in store.directory.rglob("*")
        if path.is_file() and path.name not in left_out
    }


def test_a_run_survives_its_directory(url: str, tmp_path: Path) -> None:
    store = begin(tmp_path / "results", url)
    for number in (1, 2):
        assert measure(store, "alpha", [number]) == 2
        assert steps.push(store, ["alpha"]) == ""
    kept, run = store.samples(), store.manifest.run
    assert [(one.id, one.status, one.samples) for one in Remote(url).runs()] == [(run, "running", 4)]
    shutil.rmtree(store.directory)  # as a job's machine goes
    copy = Remote(url).find(tmp_path / "elsewhere", "last")
    assert copy.samples() == kept
    assert (copy.manifest.copy_of, copy.manifest.run) == (url, run)
    shutil.move(tmp_path / "elsewhere", tmp_path / "another machine")
    again = begin(tmp_path / "another machine", url, run=run)
    assert again.manifest.copy_of is None and len(again.samples()) == 4
    assert measure(again, "alpha") == 2  # only what was not
    closed = steps.close_run(again)
    assert (closed.exit_code, closed.not_stored) == (0, "")
    assert Remote(url).push(again) == 0  # nothing is pushed twice
    whole = Remote(url).find(tmp_path / "at last", run[-4:])
    assert files(whole) == files(again)
    assert whole.plan == again.plan
    assert (whole.manifest.status, whole.manifest.exit_code) == ("done", 0)
    assert report.write(whole).is_file()


@pytest.fixture
def at_home(folder: str, tmp_path: Path) -> tuple[RunStore, list[Path]]:
    """A run with two samples that are not pushed, and their folders in the store, empty."""
    store = begin(tmp_path / "results", folder)
    measure(store, "alpha", [1])
    part = next((tmp_path / "store" / "kept" / store.manifest.run).iterdir())
    there = [part / path.relative_to(store.directory) for path in store.sample_folders()]
    for path in there:
        path.mkdir(parents=True)
    return store, there


def test_a_push_that_was_killed_shows_nothing_half_and_is_gone_on_with(
    folder: str, at_home: tuple[RunStore, list[Path]], tmp_path: Path
) -> None:
    store, (_, there) = at_home
    first, _ = store.sample_folders()
    os.mkfifo(there / "server.log")  # whoever writes there waits for a reader
    program = "import sys, pathlib; from gpurun import steps; steps.push(steps.open_store(sys.argv[1]))"
    pusher = subprocess.Popen([sys.executable, "-c", program, str(store.directory)])
    try:
        eventually(lambda: any((there / name).is_file() for name in ("raw.json", "sample.json")))
    finally:
        pusher.send_signal(signal.SIGKILL)
        pusher.wait(10)
    (there / "server.log").unlink()
    assert [one.samples for one in Remote(folder).runs()] == [1]  # the first is whole
    copy = Remote(folder).find(tmp_path / "elsewhere", "last")
    assert [path.relative_to(copy.directory) for path in copy.sample_folders()] == [first.relative_to(store.directory)]
    assert Remote(folder).push(store) == 4  # the second one's files, and the events
    assert [one.samples for one in Remote(folder).runs()] == [2]


def test_what_reads_otherwise_than_it_was_written_is_not_stored(
    folder: str, at_home: tuple[RunStore, list[Path]]
) -> None:
    store, (there, _) = at_home
    (there / "server.log").symlink_to(os.devnull)  # takes anything, keeps nothing
    assert "reads otherwise than it was written" in steps.push(store, tries=1)
    assert [one.samples for one in Remote(folder).runs()] == [0]
    (there / "server.log").unlink()
    assert steps.push(store, tries=1) == ""


def test_what_was_damaged_in_the_store_is_told_and_never_shown(folder: str, tmp_path: Path) -> None:
    store = begin(tmp_path / "results", folder)
    measure(store, "alpha")
    steps.push(store)
    stored = next((tmp_path / "store").glob("kept/*/*/samples/2/baseline-*/alpha/sample.json"))
    stored.write_bytes(stored.read_bytes().replace(b"80.2", b"99.2"))
    with pytest.raises(GpurunError, match=r"samples/2/baseline-.*sample.json is not what was stored"):
        Remote(folder, tries=1).find(tmp_path / "elsewhere", "last")
    assert not list((tmp_path / "elsewhere").rglob("sample.json"))
    listing = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=stored.parent, capture_output=True, text=True)
    assert "sample.json: FAILED" in listing.stdout and "server.log: OK" in listing.stdout


def test_a_store_that_goes_down_costs_no_measurement(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    url = f"{s3.url}/down"
    store = begin(tmp_path / "results", url)
    measure(store, "alpha", [1])
    assert steps.push(store, ["alpha"], tries=2) == ""
    s3.stop()
    try:
        measure(store, "alpha", [2, 3])
        why = steps.push(store, ["alpha"], tries=2)
        assert "the results store failed" in why
        monkeypatch.setattr(steps, "_LAST_TRIES", 1)
        closed = steps.close_run(store)
        assert len(store.samples()) == 6 and closed.not_stored
        assert (closed.exit_code, store.manifest.exit_code, store.manifest.status) == (4, 4, "done")
    finally:
        s3.start()
    assert steps.push(store) == ""
    assert [one.samples for one in Remote(url).runs()] == [6]


def test_slices_that_share_a_run_are_one(folder: str, tmp_path: Path) -> None:
    jobs = {host: begin(tmp_path / host, folder, [host, f"{host}2"], run="20261130-0900-a1f3") for host in ("a", "b")}
    for host, store in jobs.items():
        measure(store, host)
        measure(store, f"{host}2")
        steps.close_run(store)
    (one,) = Remote(folder).runs()
    assert (one.id, one.status, one.samples) == ("20261130-0900-a1f3", "done", 24)
    whole = Remote(folder).find(tmp_path / "whole", "last")
    assert sorted(whole.plan["hosts"]) == sorted(whole.manifest.hosts) == ["a", "a2", "b", "b2"]
    assert [sample["round"] for sample in whole.plan["samples"]] == sorted([1, 2, 3] * 8)
    judged = assess(whole.plan, whole.samples(), whole.directory)
    (effect,) = (one for one in judged.effects if one.primary and one.case.variant == "half")
    assert len(judged.of[effect.case.id]) == 12
    assert effect.verdict == "worse"


def test_a_slice_that_is_lost_is_gone_on_with_by_whoever_has_its_hosts(folder: str, tmp_path: Path) -> None:
    run = "20261130-0900-a1f3"
    for host in ("a", "b"):
        store = begin(tmp_path / host, folder, [host], run=run)
        measure(store, host, [1])
        steps.push(store)
    again = begin(tmp_path / "new", folder, ["b", "c"], run=run)  # the inventory was cut otherwise
    assert {sample.host for sample in again.samples()} == {"b"}
    assert (measure(again, "b"), measure(again, "c")) == (4, 6)
    steps.close_run(again)
    whole = Remote(folder).find(tmp_path / "whole", run)
    assert sorted(whole.plan["hosts"]) == ["a", "b", "c"]
    assert len(whole.samples()) == 2 + 6 + 6
    assert whole.manifest.status == "running"  # the first one's job has not ended


def test_parts_of_different_campaigns_are_no_run(folder: str, tmp_path: Path) -> None:
    for host, rounds in (("a", 3), ("b", 4)):
        begin(tmp_path / host, folder, [host], run="20261130-0900-a1f3", rounds=rounds)
    with pytest.raises(GpurunError, match="differ in rounds"):
        Remote(folder).find(tmp_path / "whole", "last")


def test_a_run_that_was_measured_without_a_store_is_pushed_later(folder: str, tmp_path: Path) -> None:
    store = begin(tmp_path / "results", None)
    measure(store, "alpha")
    steps.close_run(store)
    words = ["report", "last", "--store", folder, "--results", str(tmp_path / "results")]
    gpurun = [sys.executable, "-m", "gpurun"]
    assert subprocess.run([*gpurun, *words], capture_output=True, text=True, check=True).stderr == ""
    shutil.rmtree(tmp_path / "results")
    listed = subprocess.run([*gpurun, "runs", "--store", folder, "--json"], capture_output=True, text=True, check=True)
    (run,) = json.loads(listed.stdout)["runs"]
    assert (run["status"], run["samples"]) == ("done", 6)
    shown = subprocess.run(
        [*gpurun, "runs", "show", "last", "--store", folder], capture_output=True, text=True, cwd=tmp_path
    )
    assert "worse" in shown.stdout
    bad = subprocess.run([*gpurun, "runs", "--store", "sftp://me:word@host/x"], capture_output=True, text=True)
    assert bad.returncode == 2 and "write no key or password into it" in bad.stderr


def test_a_run_that_is_not_there(folder: str, tmp_path: Path) -> None:
    with pytest.raises(NoSuchRunError):
        Remote(folder).find(tmp_path, "last")
    assert Remote(folder).runs() == []


@pytest.fixture
def password(host: TestHost) -> Iterator[str]:
    """That of the user bench, for now."""
    host.exec(["chpasswd"], stdin="bench:correct-horse\n")
    yield "correct-horse"
    host.exec(["chpasswd"], stdin="bench:bench\n")


def test_sftp_by_password_wants_a_host_key_that_is_known(
    host: TestHost, password: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sftp://bench@{host.address}/home/bench/store"
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("GPURUN_STORE_PASSWORD", password)
    (tmp_path / "none").touch()
    monkeypatch.setenv("GPURUN_STORE_KNOWN_HOSTS", str(tmp_path / "none"))
    with pytest.raises(NotReadyError, match="key of the results store's host is not known"):
        begin(tmp_path / "results", url)
    monkeypatch.setenv("GPURUN_STORE_KNOWN_HOSTS", str(host.inventory_path.with_name("known_hosts")))
    store = begin(tmp_path / "results", url)
    assert measure(store, "alpha") and steps.push(store) == ""
    monkeypatch.setenv("GPURUN_STORE_PASSWORD", "wrong-horse")
    with pytest.raises(NotReadyError) as caught:
        begin(tmp_path / "results", url)
    assert "Permission denied" in caught.value.render()
    told = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"horse" not in told
