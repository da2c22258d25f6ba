"""A results directory is whole at every moment, is never overwritten, and stays inside its folder."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import stat
import tempfile
from pathlib import Path

import pytest

from gpurun.errors import ConfigError, ExitCode, GpurunError, NotReadyError
from gpurun.manifest import Controller, Manifest
from gpurun.redact import MASK, redact
from gpurun.references import find, list_runs, name_run, names
from gpurun.samples import Failure, Sample
from gpurun.store import RunStore, new_run_id

NOW = 1_796_000_000.0


def manifest(run: str = "20261130-0900-a1f3", started: str = "2026-11-30T09:00:00Z") -> Manifest:
    return Manifest(run=run, campaign="quickstart", started_at=started, controller=Controller.this())


def create(results: Path, run: str = "20261130-0900-a1f3", **options: object) -> RunStore:
    started = f"2026-11-30T{run[9:11]}:{run[11:13]}:00Z"
    return RunStore.create(results, "version: 1\n", manifest(run, started), **options)  # type: ignore[arg-type]


def sample(number: int = 1, host: str = "h", case: str = "chat-1a2b", **changes: object) -> Sample:
    fields = {"run": "r", "variant": "baseline", "benchmark": "chat", "case": case, "round": number, "host": host}
    fields |= {"status": "measured", "metrics": {"output_tok_per_s": 81.5}, **changes}
    return Sample.model_validate(fields)


def tree(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def test_a_run_comes_back_as_it_was_written(tmp_path: Path) -> None:
    store = create(tmp_path / "results")
    store.write_plan({"schema": "gpurun.plan/1", "samples": []})
    place = store.write_sample(sample(), {"server.log": b"ready\n", "raw.json": b"{}"})
    store.append_event({"event": "x"})
    store.append_event({"event": "y"})
    store.write_result({"schema": "gpurun.result/1"})
    store.set_status("done", now=NOW, exit_code=0)

    again = RunStore.open(store.directory)
    assert again.samples() == [sample(files=["raw.json", "server.log"])]
    assert again.sample("1/chat-1a2b/h") == again.samples()[0]
    with pytest.raises(GpurunError, match="cannot read a sample"):
        again.sample("2/chat-1a2b/h")
    assert (place / "server.log").read_text() == "ready\n"
    assert again.plan == {"schema": "gpurun.plan/1", "samples": []}
    assert (again.directory / "campaign.yml").read_text() == "version: 1\n"
    assert (again.manifest.status, again.manifest.exit_code) == ("done", 0)
    assert again.manifest.ended_at is not None
    assert [json.loads(line)["event"] for line in (store.directory / "events.jsonl").read_text().splitlines()] == [
        "x",
        "y",
    ]
    assert tree(store.directory) == [
        "campaign.yml",
        "events.jsonl",
        "manifest.json",
        "plan.json",
        "result.json",
        "samples/1/chat-1a2b/h/raw.json",
        "samples/1/chat-1a2b/h/sample.json",
        "samples/1/chat-1a2b/h/server.log",
    ]


def test_modes_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        place = create(tmp_path).write_sample(sample(), {"server.log": b"x"})
    finally:
        os.umask(before)
    assert stat.S_IMODE((place / "server.log").stat().st_mode) == 0o640
    assert stat.S_IMODE(place.stat().st_mode) == 0o750


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    create(tmp_path).write_sample(sample())
    with pytest.raises(NotReadyError, match="exists") as caught:
        create(tmp_path)
    assert "new id" in caught.value.render()
    assert len(find(tmp_path, "last").samples()) == 1


def test_a_repeated_sample_keeps_the_earlier_one(tmp_path: Path) -> None:
    store = create(tmp_path)
    failed = sample(status="failed", metrics={}, failure=Failure(klass="interrupted", phase="serving"))
    for attempt in (failed, failed, sample()):
        store.write_sample(attempt)
    assert [found.status for found in store.samples()] == ["measured"]
    assert sorted(path.name for path in (store.directory / "samples/1/chat-1a2b").iterdir()) == ["h", "h~1", "h~2"]


@pytest.mark.parametrize("text", ["", "null", "[1]", "{}", '{"samples": [1]}', "[" * 100_000])
def test_a_damaged_plan_is_told_with_its_path(tmp_path: Path, text: str) -> None:
    store = create(tmp_path)
    (store.directory / "plan.json").write_text(text)
    with pytest.raises(GpurunError, match="no readable plan") as told:
        _ = store.plan
    assert told.value.where == str(store.directory / "plan.json")


def test_a_run_can_be_named(tmp_path: Path) -> None:
    store = create(tmp_path)
    name_run(tmp_path, store, "before-upgrade")
    assert find(tmp_path, "before-upgrade").directory == store.directory
    assert names(tmp_path) == {"before-upgrade": f"{store.manifest.campaign}/{store.manifest.run}"}
    other = create(tmp_path, "20261130-1000-b2e4")
    assert name_run(tmp_path, other, "before-upgrade") == store.manifest.run
    assert sorted(run.names for run in list_runs(tmp_path)) == [(), ("before-upgrade",)]
    for taken in ("last", "b2e4", "2026"):
        with pytest.raises(ConfigError, match="names a run by itself"):
            name_run(tmp_path, store, taken)
    assert name_run(tmp_path, store, "before-upgrade") == other.manifest.run
    with pytest.raises(ConfigError):
        name_run(tmp_path, store, "../x")
    (tmp_path / "names.json").write_text("{")
    with pytest.raises(GpurunError, match="cannot read the names"):
        find(tmp_path, "before-upgrade")


def test_a_resumed_run_keeps_its_earlier_plan(tmp_path: Path) -> None:
    store = create(tmp_path)
    for plan in ({"a": 1}, {"a": 1}, {"a": 2}):
        store.write_plan({"samples": [], **plan})
    store.write_campaign("version: 1\nname: other\n")
    assert store.plan == {"samples": [], "a": 2}
    assert json.loads((store.directory / "plan.json~1").read_text()) == {"samples": [], "a": 1}
    assert not (store.directory / "plan.json~2").exists()
    assert (store.directory / "campaign.yml~1").read_text() == "version: 1\n"


def test_a_sample_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    store = create(tmp_path)
    with pytest.raises(NotReadyError):
        store.write_sample(sample(), {"raw.json": b"{}", "sample.json": b"in the record's place"})
    assert store.samples() == []
    assert tree(store.directory) == ["campaign.yml", "manifest.json"]


def test_what_a_killed_writer_left_is_not_a_sample(tmp_path: Path) -> None:
    store = create(tmp_path)
    place = store.write_sample(sample())
    place.rename(place.with_name(".h.123-abcd"))
    assert store.samples() == []
    assert list_runs(tmp_path)[0].samples == 0


def test_what_a_killed_writer_left_is_swept_once_the_run_is_over(tmp_path: Path) -> None:
    store = create(tmp_path)
    place = store.write_sample(sample())
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    dead, alive = (place.with_name(f".h.{writer}-0a1b2c3d") for writer in (pid, os.getpid()))
    for left in (dead, alive):
        left.mkdir()
    store.sweep()
    assert dead.exists()  # the run goes on
    store.set_status("interrupted", now=NOW, exit_code=130)
    store.sweep()
    assert sorted(place.parent.iterdir()) == [alive, place]


def test_killed_in_the_middle_is_shown_as_interrupted(tmp_path: Path) -> None:
    """A real process writes samples until it is killed; what is left is a readable run."""
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            store = create(tmp_path)
            for number in range(1, 100_000):
                store.write_sample(sample(number), {"server.log": b"x" * 5000})
                os.write(tell, b".")
        finally:
            os._exit(1)
    assert os.read(ready, 1) == b"."
    assert list_runs(tmp_path)[0].status == "running"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(ready)
    os.close(tell)
    store = find(tmp_path, "last")
    assert store.manifest.status == "running"
    assert store.manifest.status_now == "interrupted"
    assert [found.round for found in store.samples()] == list(range(1, len(store.samples()) + 1))


def test_a_reused_pid_is_not_the_controller() -> None:
    this = Controller.this()
    assert not this.gone()
    assert this.model_copy(update={"pid_start": 1}).gone()
    assert not this.model_copy(update={"host": "elsewhere", "pid": 2**22 + 1}).gone()


@pytest.mark.parametrize("place", ["/proc/results", "file/results", "file"])
def test_an_unwritable_place_is_refused_at_once(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotReadyError) as caught:
        create(tmp_path / place)
    assert caught.value.exit_code == ExitCode.NOT_READY
    assert "cannot write results" in caught.value.render()
    assert place in caught.value.render()
    assert "--results" in caught.value.render()


def test_a_read_only_directory_is_refused() -> None:
    """Root may write anywhere, so it becomes someone else for this."""
    place = Path(tempfile.mkdtemp())
    root = os.geteuid() == 0
    try:
        place.chmod(0o555)
        if root:
            os.seteuid(65534)
        with pytest.raises(NotReadyError, match="permission denied") as caught:
            create(place)
        assert str(place) in caught.value.render()
    finally:
        if root:
            os.seteuid(0)
        place.chmod(0o755)
        place.rmdir()


def test_a_disk_that_takes_no_more_costs_one_sample(tmp_path: Path) -> None:
    """The kernel refuses to let any file grow beyond 64 KiB: a real failed write in the middle of a sample."""
    store = create(tmp_path)
    store.write_sample(sample(1))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, before[1]))
    try:
        with pytest.raises(NotReadyError, match="cannot write results: file too large"):
            store.write_sample(sample(2), {"server.log": b"x" * 100_000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [found.round for found in store.samples()] == [1]
    assert not any("server.log" in path for path in tree(store.directory))


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a\\b", "a\nb", "a\0b", ".hidden", "h~1", "x" * 300])
def test_names_stay_inside(tmp_path: Path, name: str) -> None:
    store = create(tmp_path)
    with pytest.raises(ConfigError):
        RunStore.create(tmp_path, "", manifest().model_copy(update={"campaign": name}))
    with pytest.raises(ConfigError):
        store.write_sample(sample(host=name))
    with pytest.raises(ConfigError):
        store.write_sample(sample(), {name: b""})
    assert store.samples() == []


def test_secrets_are_written_nowhere(tmp_path: Path) -> None:
    secret = 'hf_"quoted"/väl+ue'
    store = create(tmp_path, secrets=[secret])
    log = b"\xff binary\ntoken=" + secret.encode() + b"\nend"
    store.write_plan({"env": {"T": secret}})
    store.append_event({"detail": f"token {secret}"})
    failure = Failure(klass="unknown", phase="start", proof=f"denied: {secret}")
    store.write_sample(
        sample(status="failed", failure=failure), {"server.log": log, "raw.json": json.dumps(secret).encode()}
    )
    content = b"".join((store.directory / name).read_bytes() for name in tree(store.directory))
    assert b"quoted" not in content
    assert content.count(MASK.encode()) == 5
    assert store.samples()[0].failure == Failure(klass="unknown", phase="start", proof=f"denied: {MASK}")


def test_short_values_do_not_wreck_the_text() -> None:
    assert redact("port 1, key abcd-efgh", ["1", "", "abcd", "abcd-efgh"]) == f"port 1, key {MASK}"
    assert redact("the cache is EMPTY", ["EMPTY"]) == "the cache is EMPTY"  # what people write where no key is needed


def test_a_number_that_is_none_is_left_out(tmp_path: Path) -> None:
    store = create(tmp_path)
    store.write_sample(sample(metrics={"a": 1.0, "b": math.nan, "c": math.inf}))
    assert store.samples()[0].metrics == {"a": 1.0}


def test_runs_are_found_by_what_people_type(tmp_path: Path) -> None:
    older, newer = create(tmp_path, "20261130-0900-a1f3"), create(tmp_path, "20261130-1000-b2e4")
    for reference, store in {
        "last": newer,
        "20261130-0900-a1f3": older,
        "20261130-09": older,
        "a1f3": older,
        "quickstart/20261130-1000-b2e4": newer,
        str(older.directory): older,
    }.items():
        assert find(tmp_path, reference).directory == store.directory, reference
    with pytest.raises(GpurunError, match="2 runs: quickstart/20261130-1000-b2e4, quickstart/20261130-0900-a1f3"):
        find(tmp_path, "20261130")
    with pytest.raises(GpurunError, match="no run `xyz`"):
        find(tmp_path, "xyz")
    with pytest.raises(GpurunError, match="no runs here"):
        find(tmp_path / "nowhere", "last")


def test_a_damaged_run_is_listed_and_named(tmp_path: Path) -> None:
    store = create(tmp_path)
    (store.directory / "manifest.json").write_text("{")
    assert [run.status for run in list_runs(tmp_path)] == ["unreadable"]
    with pytest.raises(GpurunError, match="manifest") as caught:
        _ = RunStore.open(store.directory).manifest
    assert "manifest.json" in caught.value.render()


def test_a_damaged_sample_is_named(tmp_path: Path) -> None:
    store = create(tmp_path)
    (store.write_sample(sample()) / "sample.json").write_text('{"schema": "gpurun.sample/9"}')
    with pytest.raises(GpurunError, match="a sample is damaged: `schema`: Input should be") as caught:
        store.samples()
    assert "samples/1/chat-1a2b/h/sample.json" in caught.value.render() and "--resume" in caught.value.render()
    (store.directory / "samples/1/chat-1a2b/h/sample.json").write_bytes(b"[" * 100_000)
    with pytest.raises(GpurunError, match=r"a sample is damaged: Invalid JSON"):
        store.samples()


def test_the_last_run_is_not_one_that_was_refused(tmp_path: Path) -> None:
    begun, refused = create(tmp_path, "20261130-0900-a1f3"), create(tmp_path, "20261130-1000-b2e4")
    refused.set_status("failed", now=NOW, exit_code=3)
    assert find(tmp_path, "last").directory == begun.directory


def test_a_sample_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    stored = sample().model_dump(mode="json", by_alias=True)
    stored["timing"]["server_stop_s"] = None
    assert Sample.model_validate(stored) == sample()


def test_run_ids_sort_by_time_and_differ() -> None:
    ids = {new_run_id(NOW) for _ in range(50)}
    assert len(ids) > 45
    assert new_run_id(NOW) < new_run_id(NOW + 86_400)
