"""What people see: tables as golden text, lines in a log, the live block on a real pseudo-terminal.

Golden files are rewritten with GPURUN_UPDATE_GOLDEN=1; look at the difference before committing it.
"""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.unit import stored

from gpurun.assess import Assessment, assess, compare_runs
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
)
from gpurun.references import RunSummary
from gpurun.samples import Sample
from gpurun.terminal import Terminal, plain_text, wants_color
from gpurun.terminal.observers import LiveObserver, PlainObserver
from gpurun.terminal.progress import Progress
from gpurun.terminal.tables import comparison_table, results_table, runs_table
from gpurun.text import about, duration, escape, metric_name, number, percent, shorten

GOLDEN = Path(__file__).parent.parent / "golden" / "tables"
RUN = Path("results/quickstart/20261130-1204-a1f3")
NOON = 1_796_040_000.0


def golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("GPURUN_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def quickstart() -> Assessment:
    return assess(stored.plan(), stored.samples(), RUN)


def troubled() -> Assessment:
    """Two points, two hosts, no warm-up, failures in some rounds, outliers, taints, a long name."""
    numbers = {
        "baseline": [4812.0, 4890.0, 4702.0, 4951.0, 4640.0, 4830.0],
        "fp8-kv-with-a-rather-long-name-of-a-variant": [5390.0, 5402.0, None, 5377.0, 5395.0, 4100.0],
        "half": [4810.0, None, None, None, None, None],
    }
    plan = stored.plan(numbers, points=(16, 64), hosts=("gpu-1", "gpu-2"), warmup=0, rounds=6)
    failure = {
        "class": "oom_gpu",
        "phase": "kv",
        "proof": "\x1b[31mtorch.OutOfMemoryError: CUDA out of memory.\x1b[0m\nmore",
        "advice": "lower `server.flags.gpu-memory-utilization`",
    }
    found = []
    for sample in stored.samples(numbers, points=(16, 64), hosts=("gpu-1", "gpu-2")):
        changes = {"failure": failure} if sample.failure else {"taints": ["gpu_throttled"] if sample.round == 6 else []}
        found.append(Sample.model_validate({**sample.model_dump(by_alias=True), **changes}))
    return assess(plan, found, RUN)


@pytest.mark.parametrize("width", [80, 100])
def test_table_of_the_quickstart(width: int) -> None:
    golden(f"quickstart-{width}.txt", plain_text(results_table(quickstart()), width))


@pytest.mark.parametrize("width", [80, 160])
def test_table_with_everything_that_can_go_wrong(width: int) -> None:
    golden(f"troubled-{width}.txt", plain_text(results_table(troubled()), width))


def test_table_of_a_run_that_was_cut_short() -> None:
    cut = [sample for sample in stored.samples() if sample.round <= 2]
    golden("cut-short.txt", plain_text(results_table(assess(stored.plan(), cut, RUN))))


def test_table_without_a_working_baseline() -> None:
    numbers = {**stored.NUMBERS, "baseline": [None] * 5}
    golden("no-baseline.txt", plain_text(results_table(assess(stored.plan(numbers), stored.samples(numbers), RUN))))


def test_table_of_two_runs() -> None:
    plan, hosts = stored.plan(), {"localhost": {"cpus": 2}}
    runs = [assess(plan, stored.samples(factor=f), run=f"run-{i}", hosts=hosts) for i, f in ((1, 1.0), (2, 0.9))]
    effects = compare_runs(*runs)
    golden("two-runs.txt", plain_text(comparison_table("run-1", "run-2", effects, ["a note"])))


def test_table_of_runs() -> None:
    runs = [
        RunSummary("20261130-1204-a1f3", "quickstart", "done", "2026-11-30T12:04:31Z", None, 25, str(RUN)),
        RunSummary("20261130-1000-b2e4", "quickstart", "interrupted", "2026-11-30T10:00:00Z", None, 7, str(RUN)),
    ]
    golden("runs.txt", plain_text(runs_table(runs)))


@pytest.mark.parametrize("width", [80, 120, 200])
def test_only_paths_are_wider_than_the_terminal(width: int) -> None:
    for line in plain_text(results_table(troubled()), width).splitlines():
        assert len(line) <= width or line.startswith("  log:")


def test_a_hostile_log_line_cannot_move_the_cursor() -> None:
    text = plain_text(results_table(troubled()))
    assert "\x1b" not in text
    assert r"\x1b[31mtorch.OutOfMemoryError" in text


def test_colour_is_never_the_only_sign() -> None:
    """Without colours, the table says the same."""
    coloured, bare = io.StringIO(), io.StringIO()
    Terminal("always", coloured, io.StringIO()).show(results_table(quickstart()))
    Terminal("never", bare, io.StringIO()).show(results_table(quickstart()))
    without = re.sub(r"\x1b\[[0-9;]*m", "", coloured.getvalue())
    assert "\x1b[" in coloured.getvalue()
    assert [line.rstrip() for line in without.splitlines()] == [line.rstrip() for line in bare.getvalue().splitlines()]


def test_an_output_without_our_symbols_gets_ascii() -> None:
    raw = io.BytesIO()
    stdout = io.TextIOWrapper(raw, encoding="latin-1", newline="\n")
    Terminal("never", stdout, io.StringIO()).show(results_table(quickstart()))
    assert b"v worse" in raw.getvalue()
    assert b"-36.1 % [-36.5, -35.7]" in raw.getvalue()


@pytest.mark.parametrize(
    ("color", "environ", "expected"),
    [
        ("auto", {}, False),
        ("auto", {"FORCE_COLOR": "1"}, True),
        ("auto", {"FORCE_COLOR": ""}, False),
        ("auto", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        ("always", {"NO_COLOR": "1"}, True),
        ("never", {"FORCE_COLOR": "1"}, False),
    ],
)
def test_who_decides_about_colour(color: str, environ: dict[str, str], expected: bool) -> None:
    assert wants_color(color, io.StringIO(), environ) is expected  # type: ignore[arg-type]


WHERE = Where(2, "fp8-kv", "chat@64", "gpu-1")


def measured(where: Where = WHERE) -> SampleFinished:
    sample = stored.samples({"fp8-kv": [5390.0]})[0]
    return SampleFinished(where, sample, "5 390 tok/s")


def failed(expected: bool) -> SampleFinished:
    sample = stored.samples({"too-many": [None]})[0]
    assert sample.failure is not None
    sample = sample.model_copy(update={"failure": sample.failure.model_copy(update={"expected": expected})})
    return SampleFinished(WHERE, sample)


def lines(events: Sequence[tuple[float, Event | None]]) -> list[str]:
    """What PlainObserver writes; None is a tick."""
    stream = io.StringIO()
    observer = PlainObserver(stream)
    for after, event in events:
        if event is None:
            observer.tick(NOON + after)
        else:
            observer.on_event(event, NOON + after)
    observer.close()
    return stream.getvalue().splitlines()


START = RunStarted("20261130-1204-a1f3", "quickstart", "results/x", 5, 25, ("gpu-1",), 100.0)


def test_plain_lines() -> None:
    clock = time.strftime("%H:%M", time.localtime(NOON))
    written = lines(
        [
            (0, START),
            (1, StageStarted("prepare", "gpu-1", "installing llamacpp")),
            (2, SampleStage(WHERE, "starting")),
            (3.4, SampleStage(WHERE, "serving", "ready after 1.4 s")),
            (4, SampleProgress(WHERE, 3, 32)),
            (9, measured()),
            (10, failed(expected=False)),
            (11, failed(expected=True)),
            (12, Notice("disk is almost full", "gpu-1")),
            (13, HostLost("gpu-1", "unreachable\x1b[2J")),
            (125, RunFinished("done", 0)),
        ]
    )
    assert written == [
        f"{clock}:00  run 20261130-1204-a1f3  quickstart: 25 samples in 5 rounds on 1 host, about 2 min  -> results/x",
        f"{clock}:01  prepare  gpu-1  installing llamacpp",
        f"{clock}:02  round 2/5  fp8-kv  chat@64  starting",
        f"{clock}:03  round 2/5  fp8-kv  chat@64  serving (ready after 1.4 s)",
        f"{clock}:09  round 2/5  fp8-kv  chat@64  measured 5 390 tok/s  (1/25 samples, about 2 min left)",
        f"{clock}:10  round 2/5  fp8-kv  chat@64  ✗ failed: bad_flag (start): error: --parallel: -7 is not a valid "
        "number of slots  (2/25 samples, about 2 min left)",
        f"{clock}:11  round 2/5  fp8-kv  chat@64  failed as expected: bad_flag (start)  "
        "(3/25 samples, about 75 s left)",
        f"{clock}:12  gpu-1: disk is almost full",
        f"{clock}:13  host gpu-1 drops out: unreachable\\x1b[2J",
        f"{time.strftime('%H:%M:%S', time.localtime(NOON + 125))}  done after 2 min 05 s",
    ]


def test_a_heartbeat_each_minute_and_nothing_between() -> None:
    ticks: list[tuple[float, Event | None]] = [(float(second), None) for second in range(6, 200)]
    written = lines([(0, START), (5, SampleStage(WHERE, "measuring")), (5.5, SampleProgress(WHERE, 120, 3200)), *ticks])
    assert [line[10:] for line in written[2:]] == [
        "round 2/5  fp8-kv  chat@64  measuring 60 s: 120 of 3 200 requests  0/25 samples, about 2 min left",
        "round 2/5  fp8-kv  chat@64  measuring 2 min 00 s: 120 of 3 200 requests  0/25 samples, about 2 min left",
        "round 2/5  fp8-kv  chat@64  measuring 3 min 00 s: 120 of 3 200 requests  0/25 samples, about 2 min left",
    ]


def test_a_large_fleet_does_not_fill_the_log() -> None:
    stream = io.StringIO()
    observer = PlainObserver(stream)
    hosts = tuple(f"gpu-{i}" for i in range(50))
    observer.on_event(RunStarted("r", "c", "d", 5, 500, hosts), NOON)
    for host in hosts:
        observer.on_event(SampleStage(Where(1, "baseline", "chat", host), "measuring"), NOON)
    before = len(stream.getvalue().splitlines())
    observer.tick(NOON + 61)
    beat = stream.getvalue().splitlines()[before:]
    assert len(beat) == 9
    assert "gpu-0" in beat[0]
    assert "42 more hosts" in beat[-1]


def test_the_time_left_learns_from_finished_samples() -> None:
    progress = Progress()
    progress.on_event(RunStarted("r", "c", "d", 5, 20, ("h",), estimate_s=20.0), 0.0)
    assert progress.left(0.0) == 20.0
    progress.on_event(SampleStage(WHERE, "starting"), 10.0)  # preparing took ten seconds
    assert progress.left(10.5) == 19.5
    assert progress.left(12.0) == 19.0  # one that takes too long leaves their time to the other nineteen
    guesses = []
    for done in range(1, 20):  # each takes 3 s, three times what the plan thought
        progress.on_event(measured(), 10.0 + 3.0 * done)
        left = progress.left(10.0 + 3.0 * done)
        assert left is not None
        guesses.append(abs(left - 3.0 * (20 - done)))
    assert guesses[-1] < 1.0
    assert guesses == sorted(guesses, reverse=True)


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_live_table_has_a_state_for_every_host(width: int) -> None:
    observer = LiveObserver(Terminal("never", io.StringIO(), io.StringIO())._err)
    hosts = ("gpu-1", "gpu-2", "gpu-3", "gpu-4")
    start = RunStarted("20261130-1204-a1f3", "quickstart", "results/x", 5, 25, hosts, 1000.0)

    def at(host: str) -> Where:
        return Where(2, "fp8-kv", "chat@64", host)

    for event in (
        start,
        SampleStage(at("gpu-1"), "measuring"),
        SampleProgress(at("gpu-1"), 120, 320),
        *(SampleFinished(at(host), measured().sample, f"5 39{i} tok/s") for i, host in enumerate(hosts[1:3])),
        SampleStage(at("gpu-2"), "starting"),
        SampleProgress(at("gpu-2"), detail="Loading safetensors checkpoint shards:  50% Completed \x1b[2J | 4/8"),
        SampleFinished(at("gpu-1"), failed(False).sample),
        SampleStage(at("gpu-1"), "measuring"),
        SampleProgress(at("gpu-1"), 120, 320),
        HostLost("gpu-4", "unreachable"),
    ):
        observer.on_event(event, NOON)
    observer.close()
    shown = plain_text(observer.block(NOON + 65), width)
    assert max(map(len, shown.splitlines())) <= width
    golden(f"live-{width}.txt", shown)


def test_a_live_block_on_a_terminal_leaves_no_trace_but_failures() -> None:
    """On a real pseudo-terminal: the block is drawn, and taken away; an unexpected failure stays."""
    leader, follower = os.openpty()
    with os.fdopen(follower, "w", encoding="utf-8") as stderr:

        def shown(end: str) -> str:
            """Everything written so far; `end` is written to know where that is."""
            stderr.write(end)
            stderr.flush()
            seen = b""
            while not seen.endswith(end.encode()):
                seen += os.read(leader, 4096)
            return seen.decode()

        terminal = Terminal("auto", io.StringIO(), stderr, environ={"TERM": "xterm"})
        assert terminal.live
        observer = terminal.observer()
        for step, event in enumerate((START, SampleStage(WHERE, "serving"), measured(), failed(True), failed(False))):
            observer.on_event(event, NOON + step)
        observer.on_event(SampleStage(WHERE, "measuring"), NOON + 9)
        observer.tick(NOON + 10)
        seen = shown("<seen>")
        observer.close()
        observer.close()
        last = shown("<last>")
    os.close(leader)
    assert "3/25" in seen
    assert "last 5 390 tok/s" in seen
    assert "measuring 1.0 s" in seen
    assert seen.count("✗ failed: bad_flag") == 1
    assert "as expected" not in seen
    assert "\x1b[?25h" in last  # the cursor is back
    assert "\x1b[2K" in last  # the block is gone


def test_no_live_block_where_it_would_be_noise() -> None:
    leader, follower = os.openpty()
    with os.fdopen(follower, "w") as tty:
        assert not Terminal("always", io.StringIO(), io.StringIO(), environ={}).live
        assert not Terminal("auto", io.StringIO(), tty, progress=False, environ={}).live
        assert not Terminal("auto", io.StringIO(), tty, environ={"TERM": "dumb"}).live
        assert not Terminal("auto", io.StringIO(), tty, environ={"CI": "true"}).live
        assert Terminal("auto", io.StringIO(), tty, progress=True, environ={"CI": "true"}).live
    os.close(leader)


def test_texts() -> None:
    assert [number(v) for v in (4812.4, 1_234_567.0, 99.97, 81.53, 5.0, 0.01234, 0.0, None, float("nan"))] == [
        "4 812",
        "1 234 567",
        "100.0",
        "81.5",
        "5.00",
        "0.0123",
        "0",
        "—",
        "—",
    ]
    assert [percent(v) for v in (0.12, -0.009, 0.0, -0.00001, 25.0)] == [
        "+12.0",
        "\N{MINUS SIGN}0.9",
        "+0.0",
        "+0.0",
        "+2500",
    ]
    assert [duration(v) for v in (1.42, 48.0, 125.0, 3599.9, 11_220.0, -3.0)] == [
        "1.4 s",
        "48 s",
        "2 min 05 s",
        "1 h 00 min",
        "3 h 07 min",
        "0.0 s",
    ]
    assert [about(v) for v in (1.0, 44.0, 200.0, 9000.0)] == ["about 5 s", "about 45 s", "about 3 min", "about 2.5 h"]
    assert metric_name("output_tok_per_s") == "output tok/s"
    assert metric_name("ttft_p99_ms") == "TTFT p99 (ms)"
    assert metric_name("accept_length") == "accept length"
    assert escape("a\x1b]0;t\x07b\u202ec\td\r\n") == "a\\x1b]0;t\\x07b\\u202ec d\\x0d\\x0a"
    assert shorten("\n\n  first line  \nsecond", 8) == "first l…"


def test_the_heading_says_interleaved_only_where_it_was() -> None:
    for change, said in (({}, True), ({"order": "random"}, True), ({"order": "fixed"}, False), ({"rounds": 1}, False)):
        table = plain_text(results_table(assess({**stored.plan(), **change}, stored.samples())))
        assert ("rounds, interleaved" in table) is said, change
