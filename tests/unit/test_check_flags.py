"""Flags against the shipped catalogues: the real parsers' verdicts (tests/engines/catalogues.py), and the words."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from gpurun.catalogue import nearest_version, parse_catalogue, renames, shipped, versions
from gpurun.check_flags import Remark, check_argv
from gpurun.commands import init, validate
from gpurun.engines import engine_names, load_engine
from gpurun.errors import ConfigError
from gpurun.find_launch import find_launch

FLAGS = Path(__file__).parents[1] / "fixtures" / "flags"
COMMANDS = [each["shell"] for each in yaml.safe_load((FLAGS / "commands.yml").read_text())]
VERDICTS: dict[str, dict[str, str | None]] = json.loads((FLAGS / "verdicts.json").read_text())
# End of a command -> why gpurun refuses what the real parser takes, or takes what it refuses.
DISAGREE = {
    "--mem-frac 0.8": "argparse takes a prefix that is unique; gpurun wants flags spelled out",
    "--gpu-mem 0.5": "the same",
    "-c 4k": "llama-server reads 4 out of `4k`; gpurun wants a number to its end",
}


def findings(engine: str, version: str, argv: list[str]) -> list[Remark]:
    return check_argv(shipped(engine, version), load_engine(engine), argv)


def wrong(engine: str, version: str, *argv: str) -> list[str]:
    """What is refused, with its advice."""
    return [f"{found.message} ({found.advice})" for found in findings(engine, version, list(argv)) if not found.note]


def ours(shell: str, version: str) -> bool:
    launch = find_launch(shell)
    argv = launch.rest[1:] if launch.rest[0][0] != "-" else launch.rest  # the model
    return not any(not found.note for found in findings(launch.engine, version, argv))


@pytest.mark.parametrize("wanted", sorted(VERDICTS))
def test_the_checker_says_what_the_real_parser_says(wanted: str) -> None:
    version = wanted.partition("==")[2]
    assert len(VERDICTS[wanted]) >= 25
    differ = [shell for shell, said in VERDICTS[wanted].items() if ours(shell, version) != (said is None)]
    assert [shell for shell in differ if not shell.endswith(tuple(DISAGREE))] == []


def test_each_disagreement_is_one() -> None:
    found = {
        shell
        for wanted, verdicts in VERDICTS.items()
        for shell, said in verdicts.items()
        if ours(shell, wanted.partition("==")[2]) != (said is None)
    }
    assert sorted(found) == sorted(shell for shell in COMMANDS if shell.endswith(tuple(DISAGREE)))


def test_the_record_is_of_these_commands() -> None:
    assert {shell for verdicts in VERDICTS.values() for shell in verdicts} == set(COMMANDS)


@pytest.mark.parametrize(
    ("engine", "version", "argv", "said"),
    [
        ("sglang", "0.5.23", "--mem-frac 0.8", "write `--mem-fraction-static`"),
        ("sglang", "0.5.23", "--cuda-graph-max-bs 16", "use `--cuda-graph-max-bs-decode`"),
        ("sglang", "0.5.23", "--nsa-prefill-backend x", "use `--dsa-prefill-backend`"),
        ("sglang", "0.5.9", "--cuda-graph-max-bs-decode 16", "SGLang 0.5.23 has it"),
        ("sglang", "0.5.23", "--enable-metrics true", "takes no value such as `true`"),
        ("sglang", "0.5.23", "--tp four", "takes a whole number, not 'four'"),
        ("sglang", "0.5.23", "--attention-backend flashinferr", "did you mean `flashinfer`?"),
        ("sglang", "0.5.23", "--no-enable-metrics", "`--enable-metrics` has no negative form"),
        ("sglang", "0.5.23", "--tp", "`--tp-size` needs a value"),
        ("vllm", "0.33.0", "--max-num-seqs 8k", "takes a whole number, not '8k'"),
        ("vllm", "0.33.0", "--compilation-config.cudagraph_mod FULL", "did you mean `cudagraph_mode`?"),
        ("vllm", "0.33.0", "--speculative-config {", "takes JSON"),
        ("llamacpp", "b10434", "--draft-max 8", "use `--spec-draft-n-max`"),
        ("llamacpp", "b10434", "-ngl many", "takes a number, or `auto` or `all`, not 'many'"),
        ("llamacpp", "b10434", "--spec-type draft-mtp,medusa", "does not take 'medusa'"),
        ("llamacpp", "2026.10.11549", "--mmproj x", "llama.cpp server b10434 has it"),
    ],
)
def test_what_is_wrong_is_said_with_the_next_step(engine: str, version: str, argv: str, said: str) -> None:
    found = wrong(engine, version, *argv.split())
    assert len(found) == 1
    assert said in found[0]


def test_what_is_old_is_a_note() -> None:
    found = findings(
        "sglang", "0.5.23", ["--enable-flashinfer-allreduce-fusion", "--tp-size", "2", "--tensor-parallel-size", "4"]
    )
    assert [each.note for each in found] == [True, True]
    assert "use `--flashinfer-allreduce-fusion-backend`" in found[0].advice
    assert "`--tp-size` and `--tensor-parallel-size` are one option" in found[1].message


@pytest.mark.parametrize("engine", engine_names())
def test_what_gpurun_itself_passes_is_known_to_every_shipped_version(engine: str) -> None:
    about = load_engine(engine)
    for version in versions(engine):
        known = shipped(engine, version).by_name
        for command in (about.command.env, about.command.binary, about.command.container or []):
            program = sum(not word.startswith("-") for word in command[:3]) > 2  # `-m module` is Python's
            flags = [word for word in command[3 if program or command[1:2] == ["-m"] else 0 :] if word.startswith("--")]
            assert [flag for flag in flags if flag not in known] == [], version
        assert [flag for flag in about.defaults if f"--{flag}" not in known] == []


def test_short_forms_are_written_out_to_flags_that_exist() -> None:
    for engine in filter(versions, engine_names()):
        known = {name for version in versions(engine) for name in shipped(engine, version).by_name}
        assert [flag for flag in load_engine(engine).flags.aliases.values() if f"--{flag}" not in known] == []


def test_what_a_removed_flag_is_replaced_by_exists() -> None:
    for engine in engine_names():
        newest = shipped(engine, versions(engine)[-1]).by_name if versions(engine) else {}
        for old, about in renames(engine).items():
            assert old not in newest
            assert [name for name in about.new if name not in newest] == []


def test_the_nearest_version() -> None:
    assert nearest_version("sglang", "0.5.23") == "0.5.23"
    assert nearest_version("sglang", "0.5.12.post1") == "0.5.9"
    assert nearest_version("sglang", "0.4.0") == "0.5.9"
    assert nearest_version("vllm", "1.0") == "0.33.0"
    assert nearest_version("llamacpp", "b9999") == "b10434"
    assert nearest_version("llamacpp", "2027.1.1") == "2026.10.11549"
    assert nearest_version("trtllm", "1.0") is None


CAMPAIGN = """version: 1
name: c
server:
  engine: {engine}
  model: {{path: /m}}
  flags:
    tp: 2
    lora-paths: [a=/x, b=/y]
    context-length: "{{{{ host.cpus }}}}"
    mem-frac: 0.8
variants:
  dead: {{server: {{flags: {{bogus: 1}}}}, expect: bad_flag}}
  wrong:
    server:
      flags:
        tp: two
benchmarks: {{b: {{load: {{concurrency: 1, requests: 1}}, data: {{prompt_tokens: 1, output_tokens: 1}}}}}}
"""


def validated(tmp_path: Path, engine: str, *options: str) -> tuple[list[Any], str]:
    """The problems, and what was printed."""
    file = tmp_path / "c.yml"
    file.write_text(CAMPAIGN.format(engine=engine))
    runner = CliRunner()
    done = runner.invoke(validate.command, [str(file), *options], standalone_mode=False)
    problems = done.exception.problems if isinstance(done.exception, ConfigError) else []
    return problems, done.output


def test_validate_tells_what_init_could_not_know(tmp_path: Path) -> None:
    found = CliRunner().invoke(init.command, [str(tmp_path), "--from-command", "vllm serve"], standalone_mode=False)
    assert found.exception is None
    done = CliRunner().invoke(validate.command, [str(tmp_path / "campaign.yml")], standalone_mode=False)
    assert "is right, 1 case\n" in done.stdout and "note: line 13 is still to be filled in\n" in done.stderr


def test_validate_points_at_the_flag_in_the_campaign(tmp_path: Path) -> None:
    problems, _ = validated(tmp_path, "sglang==0.5.23")
    assert [(problem.mark.line, problem.mark.text.strip()) for problem in problems] == [
        (10, "mem-frac: 0.8"),
        (16, "tp: two"),
    ]
    assert "takes a whole number" in problems[1].message


def test_validate_takes_another_version(tmp_path: Path) -> None:
    problems, _ = validated(tmp_path, "sglang", "--engine", "sglang==0.5.9")
    assert "SGLang 0.5.9" in problems[0].message
    problems, _ = validated(tmp_path, "sglang", "--engine", "vllm==0.33.0")
    assert "the campaign does not use it" in problems[0].message
    problems, _ = validated(tmp_path, "sglang", "--engine", "sglang == 0.5.9")
    assert "SGLang 0.5.9" in problems[0].message
    for text in ("sglang", "sglang==latest", "sglang=0.5.9"):
        problems, _ = validated(tmp_path, "sglang", "--engine", text)
        assert "names no version" in problems[0].message and problems[0].hint == "write `sglang==VERSION`"


def test_validate_says_when_it_knows_a_neighbour_only(tmp_path: Path) -> None:
    file = tmp_path / "c.yml"
    file.write_text(
        CAMPAIGN.format(engine="sglang==0.5.15").replace("    mem-frac: 0.8\n", "").replace("tp: two", "tp: 4")
    )
    done = CliRunner().invoke(validate.command, [str(file)], catch_exceptions=False, standalone_mode=False)
    assert "flags are checked against SGLang 0.5.9, the nearest to 0.5.15 that is known" in done.output
    assert "`dead`, as expected: SGLang 0.5.9 has no flag `--bogus`" in done.output


def test_the_catalogue_of_our_own_launcher_is_what_it_tells() -> None:
    roles = Path(__file__).parents[2] / "roles/engine/files"
    told = subprocess.run([sys.executable, roles / "llamacpp_server.py", "--help"], capture_output=True, text=True)
    reader = runpy.run_path(str(roles / "engine_options.py"), run_name="reader")
    version = load_engine("llamacpp").default_version
    assert version is not None
    found = parse_catalogue(
        {"engine": "llamacpp", "version": version, "options": reader["options_of_help"](told.stdout)}
    )
    assert found == shipped("llamacpp", version)


def test_a_version_may_be_written_as_a_tag() -> None:
    assert nearest_version("sglang", "v0.5.9") == "0.5.9"


def test_a_text_that_sglang_reads_as_json_is_json() -> None:
    words = ["--json-model-override-args", "{a: 1}"]
    [found] = check_argv(shipped("sglang", "0.5.23"), load_engine("sglang"), words)
    assert "takes JSON" in found.message
