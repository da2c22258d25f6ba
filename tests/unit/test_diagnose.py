"""What a log says: our own fixtures, the same in disguise, how a process ended, and a log of twenty megabytes."""

from __future__ import annotations

import csv
import json
import random
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpurun.commands.explain import command
from gpurun.diagnose import Evidence, classify
from gpurun.serverlog import mask
from gpurun.signatures import needle, signatures

LOGS = Path(__file__).parents[1] / "fixtures" / "logs"
ROWS = list(csv.DictReader((LOGS / "index.tsv").read_text(encoding="utf-8").splitlines(), delimiter="\t"))


def _read(row: dict[str, str]) -> str:
    return (LOGS / row["file"]).read_text(encoding="utf-8")


def _exit_code(row: dict[str, str]) -> int | None:
    return int(row["exit_code"]) if row["exit_code"] else None


def _answer(row: dict[str, str], log: str) -> tuple[str, str, str]:
    told = classify(log, exit_code=_exit_code(row))
    return told.klass, told.phase or "none", str(told.line or "none")


def _expected(row: dict[str, str]) -> tuple[str, str, str]:
    return row["class"], row["phase"], row["line"]


def test_the_fixtures_are_all_indexed() -> None:
    assert sorted(row["file"] for row in ROWS) == sorted(path.name for path in LOGS.glob("*.log"))
    assert len(ROWS) >= 60
    assert sum(row["class"] == "none" for row in ROWS) >= 10


@pytest.mark.parametrize("row", ROWS, ids=[row["file"] for row in ROWS])
def test_fixture(row: dict[str, str]) -> None:
    log = _read(row)
    assert _answer(row, log) == _expected(row)
    named = classify(log, engine=row["engine"] if row["engine"] != "unknown" else None, exit_code=_exit_code(row))
    assert (named.klass, named.phase or "none", str(named.line or "none")) == _expected(row)
    assert bool(named.advice) is (row["class"] != "none")
    assert "?" not in named.advice, "a number that the advice needs is not in the log"


@pytest.mark.parametrize(
    "line",
    [
        "INFO 11-15 10:01:41 metrics.py:449] Avg prompt throughput: 12.3 tokens/s, Running: 1 reqs",
        "INFO 11-15 10:00:23 gpu_executor.py:113] # GPU blocks: 60012, # CPU blocks: 4681",
        "INFO 04-02 08:00:10 [core.py:61] Initializing a V1 LLM engine (v0.8.2) with config: model='m'",
        "[2025-01-10 09:12:03 TP1] Prefill batch. #new-seq: 1, #new-token: 7, #cached-token: 0, token usage: 0.00",
        "slot launch_slot_: id  0 | task 0 | processing task",
        "llm_load_print_meta: model type       = 7B",
        "print_info: n_ctx_train      = 8192",
    ],
)
def test_a_part_of_a_healthy_log_is_known_for_its_engines(line: str) -> None:
    """So that explain does not ask whether it is a server's log at all; old and new forms."""
    told = classify(f"{line}\n")
    assert told.klass == "none" and told.engine


DISGUISES = {
    "windows": lambda line: line + "\r",
    "coloured": lambda line: f"\x1b[1;36m{line}\x1b[0;0m",
    "bare colours": lambda line: f"[0;36m{line}[0;0m",
    "compose": lambda line: f"server-1  | {line}",
    "kubernetes": lambda line: f"2026-10-05T09:00:00.123456789Z stderr F {line}",
    "journal": lambda line: f"Oct 05 09:00:00 gpu-1 python3[4242]: {line}",
    "times": lambda line: f"2026-10-05 09:00:00,123 {line}",
    "indented": lambda line: f"    {line}",
    "mpirun": lambda line: f"[1,0]<stderr>: {line}",
}


@pytest.mark.parametrize("disguise", DISGUISES)
def test_prefixes_and_colours_change_no_answer(disguise: str) -> None:
    change = DISGUISES[disguise]
    wrong = []
    for row in ROWS:
        log = "\n".join(change(line) if line else line for line in _read(row).split("\n"))
        if _answer(row, log) != _expected(row):
            wrong.append((row["file"], _answer(row, log), _expected(row)))
    assert not wrong


@pytest.mark.parametrize("seed", [1, 2])
def test_other_processes_writing_in_between_change_no_class(seed: int) -> None:
    noise = random.Random(seed)
    wrong = []
    for row in ROWS:
        lines = []
        for line in _read(row).split("\n"):
            lines.append(line)
            if noise.random() < 0.2:
                lines.append("(Worker_TP3 pid=9) INFO 10-05 09:00:00 [utils.py:1] error counters are all zero")
        if _answer(row, "\n".join(lines))[0] != row["class"]:
            wrong.append((row["file"], _answer(row, "\n".join(lines)), _expected(row)))
    assert not wrong


def test_an_end_without_an_error_is_a_failure_all_the_same() -> None:
    log = "INFO:     Application startup complete.\nvllm.v1.engine.exceptions.EngineDeadError: EngineCore died.\n"
    assert classify(log, engine="vllm", exit_code=0).klass == "engine_dead"


def test_sigkill_is_an_oom_kill_unless_the_engine_did_it_or_the_kernel_denies_it() -> None:
    loading = "Loading safetensors checkpoint shards:  50% Completed | 2/4\n"
    assert classify(loading, engine="vllm", exit_code=137).klass == "oom_host"
    denied = classify(loading, engine="vllm", signal=9, evidence=Evidence(oom_kills=0))
    assert denied.klass == "engine_dead" and "not the kernel's OOM killer" in denied.advice
    by_itself = loading + "Received sigquit from a child process. It usually means the child failed.\nKilled\n"
    assert classify(by_itself, engine="sglang", exit_code=137).klass == "unknown"
    told = classify(by_itself, engine="sglang", exit_code=137, evidence=Evidence(oom_kills=2))
    assert (told.klass, told.line) == ("oom_host", None)
    assert "oom_kill rose by 2" in told.proof


@pytest.mark.parametrize(
    ("message", "klass", "advice"),
    [
        ("[Errno 2] No such file or directory: 'vllm'", "missing_dependency", "install it"),
        ("[Errno 7] Argument list too long: 'vllm'", "limits", "128 KiB"),
        ("[Errno 8] Exec format error: '/opt/vllm'", "missing_dependency", "another processor"),
        ("[Errno 11] Resource temporarily unavailable", "limits", "pids.max"),
        ("[Errno 13] Permission denied: '/opt/vllm'", "missing_dependency", "chmod +x"),
        ("its working folder /no/such: No such file or directory", "bad_flag", "`cwd`"),
        ("[Errno 28] No space left on device: '/home/x'", "disk_full", "gpurun_home"),
    ],
)
def test_a_program_that_cannot_be_started_is_told_by_the_systems_word(message: str, klass: str, advice: str) -> None:
    told = classify("", reason="spawn", message=f"cannot start vllm: {message}")
    assert (told.klass, told.phase) == (klass, "start")
    assert message in told.proof and advice in told.advice


def test_what_the_kernel_says_counts_unless_the_log_has_a_cause() -> None:
    xid = Evidence(dmesg=("[99.000001] NVRM: Xid (PCI:0000:17:00): 79, pid=1, GPU has fallen off the bus.",))
    told = classify("Uvicorn running\n", exit_code=1, evidence=xid)
    assert told.klass == "driver_mismatch"
    assert "Xid" in told.proof
    assert classify("x: error: unrecognized arguments: --y\n", exit_code=2, evidence=xid).klass == "bad_flag"


@pytest.mark.parametrize(
    ("reason", "log", "expected"),
    [
        ("port_in_use", "starting\n", "port_in_use"),
        ("spawn", "", "missing_dependency"),
        ("not_this_model", "INFO: up\n", "bad_model"),
        ("start_timeout", "Load weight begin. avail mem=9 GB\n", "start_timeout"),
        ("start_hang", "Load weight begin. avail mem=9 GB\n", "start_hang"),
        ("start_hang", "vLLM is using nccl==2.27.3\n", "comm_hang"),
        ("start_timeout", "RuntimeError: CUDA out of memory. Tried to allocate 1 GiB\n", "oom_gpu"),
        ("time_limit", "Application startup complete.\n", "interrupted"),
        ("time_limit", "Load weight begin\n", "start_timeout"),
        ("exited", "Load weight begin\n", "unknown"),
        ("exited", "Application startup complete.\n", "engine_dead"),
    ],
)
def test_the_reason_of_the_job(reason: str, log: str, expected: str) -> None:
    assert classify(log, reason=reason).klass == expected  # type: ignore[arg-type]


def test_numbers_of_the_line_are_in_the_advice() -> None:
    told = classify(
        "ValueError: To serve at least one request with the models's max seq len (9), (1 GiB KV cache is needed\n"
        "the estimated maximum model length is 52320.\n"
    )
    assert "--max-model-len to at most 52320" in told.advice


def test_a_log_that_matches_nothing_is_unknown_with_its_most_telling_lines() -> None:
    told = classify("hello\nwidget 7 failed to spin\nbye\n", exit_code=1)
    assert (told.klass, told.phase) == ("unknown", "start")
    assert told.others == ("widget 7 failed to spin",)
    assert classify("hello\nbye\n").klass == "none"
    assert classify("").klass == "none"
    assert classify("", exit_code=127).line is None


def test_what_is_shown_is_bounded_and_has_no_secret() -> None:
    told = mask("\x1b[31mAuthorization: Bearer abcdef123 hf_abcdefghijk https://me:pw@host/x?token=qwertz " + "z" * 400)
    assert len(told) == 300
    for secret in ("abcdef123", "hf_abcdefghijk", "me:pw", "qwertz", "\x1b"):
        assert secret not in told


def test_twenty_megabytes_take_seconds() -> None:
    noise = random.Random(7)
    words = ["cat", "error", "memory", "Killed", "failed", "cannot", "file"]
    texts = [" ".join(noise.choice(words) for _ in range(20)) for _ in range(500)]
    lines = ["Starting to load model", "INFO:     Application startup complete."]
    for number in range(20_000_000 // 160):
        lines.append(f"[2026-10-05 08:00:00 TP0] Prefill batch {number:x} of {texts[number % 500]}")
    lines.append("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 50.00 MiB. ")
    began = time.process_time()
    told = classify("\n".join(lines), engine="vllm")
    assert (told.klass, told.line) == ("oom_gpu", len(lines))
    assert time.process_time() - began < 20, "about three seconds on an ordinary machine"


def test_the_table_is_sound() -> None:
    ids = [one.id for one in signatures()]
    assert len(ids) == len(set(ids))
    assert all(one.source and one.advice for one in signatures())


@pytest.mark.parametrize("pattern", ["a+b+c", "(?:error|failure)", "first thing|second thing"])
def test_a_pattern_that_would_make_every_log_slow_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"plain characters|separate patterns"):
        needle(pattern)


def test_needles_are_text_that_every_match_contains() -> None:
    assert (
        needle(r"Rank \d+ scheduler died during init \(exit code: -9\)")
        == " scheduler died during init (exit code: -9)"
    )
    assert needle(r"colou?r is wrong") == "r is wrong"


def test_explain_prints_class_phase_line_and_advice(tmp_path: Path) -> None:
    log = LOGS / "vllm-heads.log"
    shown = CliRunner().invoke(command, [str(log)])
    assert shown.exit_code == 0
    assert "bad_parallelism while in phase start" in shown.output
    assert f"{log}:5" in shown.output
    document = json.loads(CliRunner().invoke(command, [str(log), "--engine", "vLLM", "--json"]).stdout)
    assert {"class", "phase", "line", "proof", "advice"} <= set(document)
    assert document["line"] == 5


def test_explain_reads_standard_input_and_any_spelling_of_an_engine() -> None:
    told = CliRunner().invoke(command, ["-", "--engine", "llama.cpp", "--json"], input="error: invalid argument: --x\n")
    assert json.loads(told.stdout)["class"] == "bad_flag"
    told = CliRunner().invoke(command, ["-", "--engine", "pytorch/nccl", "--json"], input="all is well\n")
    assert json.loads(told.stdout)["class"] == "none"
    assert "no engine is named" in told.stderr


def test_explain_says_when_it_cannot_read(tmp_path: Path) -> None:
    told = CliRunner().invoke(command, [str(tmp_path / "nothing.log")])
    assert told.exit_code == 2
    assert "cannot read" in told.output


@pytest.mark.parametrize("path", ["/dev/urandom", "/dev/zero", sys.executable])
def test_explain_refuses_what_is_no_text_and_comes_to_an_end(path: str) -> None:
    told = CliRunner().invoke(command, [path])
    assert told.exit_code == 2
    assert "is not the text of a log" in told.output


def test_explain_reads_a_log_with_zeros_and_no_more_than_it_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpurun.commands.explain._MOST_BYTES", 1 << 20)
    text = "\0" * 5000 + "error: invalid argument: --x\n" + "all is well\n" * 200_000
    told = CliRunner().invoke(command, ["-", "--engine", "llamacpp"], input=text)
    assert told.stdout.startswith("bad_flag") and "only the first 1 MiB were read" in told.stderr


def test_what_was_asked_last_is_the_proof_of_a_start_that_took_too_long() -> None:
    message = "not ready within 60 s; the last answer to /health: status 302, to http://login/"
    told = classify("loading\n", reason="start_timeout", message=message)
    assert (told.klass, told.proof) == ("start_timeout", message)


@pytest.mark.parametrize(
    ("reason", "klass", "phase"),
    [
        ("gpu_busy", "gpu_busy", "start"),
        ("quarantined", "gpu_busy", "stop"),
        ("lock_lost", "interrupted", "start"),
        ("stopped", "interrupted", "start"),
        ("spawn", "missing_dependency", "start"),
        ("generation_failed", "engine_dead", "warmup"),
        ("server_died", "engine_dead", "serving"),
        ("rebooted", "host_unreachable", "start"),
    ],
)
def test_what_only_the_starter_knows(reason: str, klass: str, phase: str) -> None:
    found = classify("", reason=reason, message="GPU 1 is held by python3 (pid 7)")
    assert (found.klass, found.phase, found.line) == (klass, phase, None)
    assert found.proof == "GPU 1 is held by python3 (pid 7)" and found.advice


def test_cause_in_the_log_comes_before_a_refused_generation() -> None:
    log = "Application startup complete\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    found = classify(log, engine="vllm", reason="generation_failed", message="status 500")
    assert (found.klass, found.line) == ("oom_gpu", 2)


@pytest.mark.parametrize(
    "line",
    [
        "serve --api-key PLANTED99 --tp 8",
        '{"api_key": "PLANTED99"}',
        "Namespace(api_key='PLANTED99', x=1)",
        "password: PLANTED99",
        "token=PLANTED99",
    ],
)
def test_a_line_that_proves_shows_no_key(line: str) -> None:
    from gpurun.serverlog import mask

    assert "PLANTED" not in mask(line) and "***" in mask(line)
