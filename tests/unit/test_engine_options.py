"""How options are read from an engine: a parser like the engines' own, a --help like llama-server's, and the cache."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

_FILE = Path(__file__).parents[2] / "roles/engine/files/engine_options.py"
_SPEC = importlib.util.spec_from_file_location("engine_options", _FILE)
assert _SPEC is not None and _SPEC.loader is not None
reader: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(reader)


@dataclasses.dataclass
class Config:
    mode: int = 0


def optional(read: Any) -> Any:
    return lambda text: None if text == "None" else read(text)


def to_config(text: str, cls: Any = Config) -> Any:
    return cls(**json.loads(text))


def size(text: str) -> int:
    return int(text[:-1]) * 1000 if text.endswith("k") else int(text)


class Old(argparse.Action):
    """As SGLang has them."""

    def __init__(self, *args: Any, new_flag: str | None = None, error_message: str | None = None, **more: Any) -> None:
        self.new_flag, self.error_message = new_flag, error_message
        super().__init__(*args, **more)

    def __call__(self, *args: Any) -> None: ...


def test_an_argparse_parser_tells_its_options() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tp-size", "--tp", type=int, default=1)
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--prefix-caching", action=argparse.BooleanOptionalAction)
    parser.add_argument("--dtype", choices=["auto", "half"], default="auto", required=True)
    parser.add_argument("--sizes", type=int, nargs="+")
    parser.add_argument("--length", type=size)
    parser.add_argument("--fraction", type=optional(float))
    parser.add_argument("--config", type=optional(to_config))
    parser.add_argument("--any", type=json.loads)
    parser.add_argument("--hook", action="append")
    parser.add_argument("--old", action=Old, nargs=0, new_flag="--new=1")
    parser.add_argument("--gone", action=Old, nargs=0, error_message="Use --new.")
    parser.add_argument("--late", help="(Deprecated: use --new) It was once %% useful.")
    parser.add_argument("--kept", help="Replaces the deprecated --late.")
    assert reader.options_of_parser(parser) == [
        {"names": ["--tp-size", "--tp"], "type": "int", "default": 1},
        {"names": ["--metrics"], "takes": 0},
        {"names": ["--prefix-caching"], "negative": ["--no-prefix-caching"], "takes": 0},
        {"names": ["--dtype"], "choices": ["auto", "half"], "required": True, "default": "auto"},
        {"names": ["--sizes"], "takes": "+", "type": "int"},
        {"names": ["--length"], "type": "size"},
        {"names": ["--fraction"], "type": "float", "none": True},
        {"names": ["--config"], "type": "json", "keys": ["mode"], "none": True},
        {"names": ["--any"], "type": "json"},
        {"names": ["--hook"], "repeats": True},
        {"names": ["--old"], "takes": 0, "deprecated": "Use --new=1 instead.", "instead": ["--new"]},
        {"names": ["--gone"], "takes": 0, "removed": "Use --new.", "instead": ["--new"]},
        {"names": ["--late"], "deprecated": "(Deprecated: use --new) It was once % useful.", "instead": ["--new"]},
        {"names": ["--kept"]},
    ]


HELP = """----- common params -----

-h,    --help, --usage                  print usage and exit
-c,    --ctx-size N                     size of the prompt context (default: 0)
                                        (env: LLAMA_ARG_CTX_SIZE)
-kvo,  --kv-offload, -nkvo, --no-kv-offload
                                        whether to enable it
-fa,   --flash-attn [on|off|auto]       set it ('on', 'off', or 'auto')
-ctk,  --cache-type-k TYPE              data type
                                        allowed values: f32, q8_0
                                        (default: f16)
-ngl,  --gpu-layers N                   a number, 'auto', or 'all'
--control-vector-layer-range START END
                                        layers
-dev,  --device <dev1,dev2,..>          devices
--spec-type none,draft-mtp,ngram-mod    types
--ui,  --webui, --no-ui, --no-webui     the page
--draft, --draft-max N                  the argument has been removed. use --spec-draft-n-max
                                        (env: LLAMA_ARG_DRAFT_MAX)
"""


def test_a_help_text_tells_its_options() -> None:
    gone = "the argument has been removed. use --spec-draft-n-max"
    assert reader.options_of_help(HELP) == [
        {"names": ["-c", "--ctx-size"], "type": "number"},
        {"names": ["-kvo", "--kv-offload"], "takes": 0, "negative": ["-nkvo", "--no-kv-offload"]},
        {"names": ["-fa", "--flash-attn"], "choices": ["on", "off", "auto"]},
        {"names": ["-ctk", "--cache-type-k"], "choices": ["f32", "q8_0"]},
        {"names": ["-ngl", "--gpu-layers"], "type": "number", "words": ["auto", "all"]},
        {"names": ["--control-vector-layer-range"], "takes": 2},
        {"names": ["-dev", "--device"]},
        {"names": ["--spec-type"], "choices": ["none", "draft-mtp", "ngram-mod"], "commas": True},
        {"names": ["--ui", "--webui"], "takes": 0, "negative": ["--no-ui", "--no-webui"]},
        {"names": ["--draft", "--draft-max"], "type": "number", "removed": gone, "instead": ["--spec-draft-n-max"]},
    ]


def question(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    parser = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--x')\nversion = '1.2'\n"
    asked = {"name": "e", "version": None, "python": sys.executable, "binary": None, "launcher": None, "help": []}
    return asked | {"parser": parser, "cache": str(tmp_path / "home/options.json"), **changes}


def read(*asked: dict[str, Any]) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = reader.read(list(asked), _FILE.read_text())
    return answers


def test_an_engine_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read(question(tmp_path))[0]
    assert (first["version"], first["options"]) == ("1.2", [{"names": ["--x"]}])
    monkeypatch.setattr(reader.subprocess, "run", lambda *_, **__: pytest.fail("asked again"))
    assert read(question(tmp_path)) == [first]


def test_a_program_that_changed_is_asked_again(tmp_path: Path) -> None:
    program = tmp_path / "engine"
    program.write_text("#!/bin/sh\necho '-a, --alpha N   a number'\n")
    program.chmod(0o755)
    asked = question(tmp_path, parser=None, python=None, binary=str(program), help=[str(program), "--help"])
    assert read(asked)[0]["options"] == [{"names": ["-a", "--alpha"], "type": "number"}]
    program.write_text("#!/bin/sh\necho '-b, --beta-max N   a number'\n")
    assert read(asked)[0]["options"] == [{"names": ["-b", "--beta-max"], "type": "number"}]


def test_what_takes_longer_goes_on_in_a_worker(tmp_path: Path) -> None:
    asked = question(tmp_path)
    told: list[Any] = []

    def carry_on(target: Path, work: Any, wait_s: float, life_s: float) -> dict[str, Any]:
        told.append((target, wait_s))
        if len(told) == 1:
            return {"status": "working", "progress": {}}
        # The first of these was left by an earlier call, for a program that is another one by now.
        return {"status": "done", "result": {"key": "old"} if len(told) == 2 else work(None)}

    assert reader.read([asked], _FILE.read_text(), carry_on, 0.1) == [{"working": True}]
    assert reader.read([asked], _FILE.read_text(), carry_on, 0.1)[0]["options"] == [{"names": ["--x"]}]
    assert told == [(tmp_path / "home/options.json", 0.1)] * 3


def test_the_python_of_a_script_is_in_its_first_line(tmp_path: Path) -> None:
    program = tmp_path / "engine"
    program.write_text(f"#!{sys.executable}\n")
    assert read(question(tmp_path, python=None, binary=str(program)))[0]["options"]
    program.write_text("#!/bin/sh\n")
    assert "is no Python script" in read(question(tmp_path, python=None, binary=str(program)))[0]["error"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"parser": "import no_such_module"}, "No module named 'no_such_module'"),
        ({"parser": None, "help": ["/no/such"]}, "FileNotFoundError"),
        ({"parser": None, "help": ["true"]}, "told no options"),
    ],
)
def test_one_that_cannot_be_asked_is_told(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    answers = read(question(tmp_path, **change), question(tmp_path, cache=str(tmp_path / "other.json")))
    assert said in answers[0]["error"]
    assert answers[1]["options"]
