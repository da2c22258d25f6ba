"""The command line's frame: help without imports, one way out, errors as text and as one document."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from tests.unit import stored

from gpurun import cli
from gpurun.errors import ConfigError, ExitCode, HostError, InterruptedRunError, NotReadyError, Problem

ROOT = Path(__file__).parents[2]


def raising(error: BaseException) -> Callable[[], Any]:
    def call() -> Any:
        raise error

    return call


def test_a_variable_gives_a_repeatable_option_a_value_with_each_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPURUN_PLAN_SET", "rounds=3\nserver.env.TEXT='two words'")
    told = CliRunner().invoke(cli.gpurun, ["plan", "-c", str(ROOT / "campaigns/quickstart.yml"), "--json"])
    assert told.exit_code == 0, told.output
    plan = json.loads(told.stdout)
    assert plan["rounds"] == 3
    assert {sample["server"]["env"]["TEXT"] for sample in plan["samples"]} == {"two words"}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("wrong"), 2),
        (HostError("gone"), 3),
        (NotReadyError("lacks"), 4),
        (InterruptedRunError("interrupted"), 130),
        (InterruptedRunError("interrupted", terminated=True), 143),
        (click.UsageError("no such option"), 2),
        (KeyboardInterrupt(), 130),
        (RuntimeError("oops"), 70),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_every_way_to_fail_has_its_code_and_with_json_one_document(
    error: BaseException,
    code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["gpurun", "bench"])
    assert cli.guarded(raising(error)) == code
    plain = capsys.readouterr()
    assert plain.out == ""
    assert plain.err
    monkeypatch.setattr(sys, "argv", ["gpurun", "bench", "--json"])
    assert cli.guarded(raising(error)) == code
    told = capsys.readouterr()
    document = json.loads(told.out)
    assert document["error"]["code"] == code
    assert {"code", "message", "hint", "where"} <= document["error"].keys()
    assert told.err.splitlines()[0] == plain.err.splitlines()[0]


def test_an_error_brings_the_result_of_its_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = HostError("gone")
    error.result = {"schema": "gpurun.result/1", "samples": []}
    monkeypatch.setattr(sys, "argv", ["gpurun", "bench", "--json"])
    assert cli.guarded(raising(error)) == 3
    assert json.loads(capsys.readouterr().out).keys() == {"schema", "samples", "error"}


def test_json_asked_for_by_the_environment_counts_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPURUN_BENCH_JSON", "1")
    monkeypatch.setattr(sys, "argv", ["gpurun", "bench"])
    cli.guarded(raising(ConfigError([Problem("one"), Problem("two")])))
    assert len(json.loads(capsys.readouterr().out)["error"]["problems"]) == 2
    monkeypatch.setenv("GPURUN_BENCH_JSON", "0")
    cli.guarded(raising(ConfigError("no")))
    assert capsys.readouterr().out == ""


def test_a_bug_leaves_a_report_and_no_traceback_on_the_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert cli.guarded(raising(RuntimeError("oops"))) == ExitCode.BUG
    (report,) = tmp_path.iterdir()
    assert "RuntimeError: oops" in report.read_text()
    said = capsys.readouterr().err
    assert str(report) in said
    assert "Traceback" not in said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("words", [["plan", "-c", "campaigns/quickstart.yml"], ["validate", "none", "--set", "x"]])
def test_a_full_disk_behind_the_output_is_no_bug(words: list[str]) -> None:
    told = "GPURUN_PLAN_JSON" if words[0] == "plan" else "GPURUN_VALIDATE_JSON"
    with Path("/dev/full").open("w") as full:
        argv = [sys.executable, "-m", "gpurun", *words]
        env = {**os.environ, told: "1"}
        done = subprocess.run(argv, cwd=ROOT, env=env, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == (4 if words[0] == "plan" else 2), done.stderr
    assert "Traceback" not in done.stderr and "bug" not in done.stderr


def test_a_folder_that_is_gone_is_no_bug(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = ["sh", "-c", 'cd "$0" && rmdir "$0" && exec "$1" -m gpurun doctor', str(gone), sys.executable]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 4 and "is gone" in done.stderr, done


@pytest.mark.parametrize("result", [None, 0, 1, ExitCode.REGRESSION])
def test_a_verb_returns_its_exit_code(result: int | None) -> None:
    assert cli.guarded(lambda: result) == (result or 0)


def gpurun(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpurun", *words], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_names_of_any_bytes_and_letters_are_printed_whatever_the_locale(tmp_path: Path, encoding: str) -> None:
    name = os.fsdecode(b"\xff \xe6\x97\xa5.yml")
    (tmp_path / name).write_text((ROOT / "campaigns/quickstart.yml").read_text().replace("Leaves", "日本"))
    for verb in (["validate"], ["plan", "-c"]):
        argv = [sys.executable, "-m", "gpurun", *verb, name]
        env = {**os.environ, "PYTHONIOENCODING": encoding}
        done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b""), done


def test_stop_of_a_star_is_not_stop_of_everything() -> None:
    told = CliRunner().invoke(cli.gpurun, ["stop", "*"])
    assert isinstance(told.exception, ConfigError) and "--all" in str(told.exception)


@pytest.mark.parametrize("words", [["stop"], ["init", "x", "--from-command"]])
def test_bytes_that_are_no_text_are_the_users_mistake(words: list[str], tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "gpurun", *words, os.fsdecode(b"vllm serve \xff")]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "error: " in done.stderr and not list(tmp_path.iterdir())


def test_a_misspelt_verb_is_told_the_nearest() -> None:
    done = gpurun("bnech")
    assert done.returncode == 2
    assert "Did you mean 'bench'?" in done.stderr
    assert done.stdout == ""


def test_help_names_every_verb_and_imports_none_of_them() -> None:
    code = (
        "import sys; from gpurun import cli; cli.guarded(lambda: cli.gpurun.main(['--help'], standalone_mode=False)); "
    )
    code += "print(sorted({'pydantic', 'rich', 'yaml', 'jinja2', 'ansible_runner', 'scipy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *text, imported = done.stdout.splitlines()
    assert imported == "[]"
    for verb in cli.VERBS:
        assert any(line.strip().startswith(verb) for line in text)


@pytest.mark.parametrize("verb", list(cli.VERBS))
def test_each_verb_exists_and_explains_itself(verb: str) -> None:
    command = cli.LazyGroup().get_command(click.Context(cli.gpurun), verb)
    assert command is not None
    assert command.help
    for parameter in command.params:
        assert not isinstance(parameter, click.Option) or parameter.help or parameter.name in ("color",), parameter.name


@pytest.mark.parametrize("verb", list(cli.VERBS))
def test_every_option_answers_to_a_variable_of_its_name(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = cli.LazyGroup().get_command(click.Context(cli.gpurun), verb)
    assert command is not None
    context = click.Context(command, info_name=verb, auto_envvar_prefix=f"GPURUN_{verb.upper()}")
    for option in (one for one in command.params if isinstance(one, click.Option)):
        word = max(option.opts, key=len).removeprefix("--").replace("-", "_").upper()
        variable = "GPURUN_RESULTS" if word == "RESULTS" else f"GPURUN_{verb.upper()}_{word}"
        monkeypatch.setenv(variable, "given")
        assert option.resolve_envvar_value(context) == "given", variable


def test_a_reader_that_goes_away_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "gpurun", "schema"], stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["bench", "--resume", "last"], "there is no file `campaign.yml`"),  # as the run was begun
        (["bench", "--resume", "last", "-c", "else.yml"], "there is no file `else.yml`"),
        (["bench", "--resume", "last", "-c", "campaigns/quickstart.yml"], "is one of campaign `threads`, not of `qui"),
        (["bench"], "Missing option '-c'"),
        (["plan", "results/threads/20261130-1204-a1f3/campaign.yml"], "is given with an option: -c results/threads"),
        (["compare", "last", "1204-a1f3"], "are one run: 20261130-1204-a1f3"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_run_to_go_on_with_or_to_compare(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stored.run(tmp_path / "results", campaign="threads")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gpurun", *words])
    assert cli.guarded(lambda: cli.gpurun.main(words, standalone_mode=False)) == 2
    assert told in capsys.readouterr().err
