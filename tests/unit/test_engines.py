"""Engine files and how flags become argv."""

from __future__ import annotations

import argparse
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gpurun.engines import Engine, FlagRules, engine_names, flag_argv, flags_argv, load_engine
from gpurun.errors import Mark
from gpurun.template import ENGINE_FACTS, unknown_facts
from gpurun.tree import node_of

SGLANG = FlagRules(negative={"radix-cache": "disable-radix-cache"})
VLLM = FlagRules(false_form="no")
LLAMA = FlagRules(
    lists="comma",
    aliases={"c": "ctx-size", "ngl": "gpu-layers"},
    negative={"mmap": "no-mmap"},
    on_off={"flash-attn": ("on", "off")},
)
REPEAT = FlagRules(lists="repeat", list_forms={"one": "after"}, same_underscore=False)


@pytest.mark.parametrize(
    ("rules", "flag", "value", "argv"),
    [
        (SGLANG, "enable-metrics", True, ["--enable-metrics"]),
        (SGLANG, "radix-cache", False, ["--disable-radix-cache"]),
        (VLLM, "enable-prefix-caching", False, ["--no-enable-prefix-caching"]),
        (VLLM, "max_model_len", "16k", ["--max-model-len", "16k"]),
        (VLLM, "compilation-config.mode", 3, ["--compilation-config.mode", "3"]),
        (VLLM, "speculative-config", {"method": "mtp", "n": 2}, ["--speculative-config", '{"method":"mtp","n":2}']),
        (SGLANG, "cuda-graph-bs-decode", [1, 2, 4], ["--cuda-graph-bs-decode", "1", "2", "4"]),
        (REPEAT, "x", ["a", "b"], ["-x", "a", "-x", "b"]),
        (REPEAT, "one", ["a", "b"], ["--one", "a", "b"]),
        (REPEAT, "tp_size", 8, ["--tp_size", "8"]),
        (LLAMA, "tensor-split", [3, 1.5], ["--tensor-split", "3,1.5"]),
        (LLAMA, "c", 4096, ["--ctx-size", "4096"]),
        (LLAMA, "ngl", 99, ["--gpu-layers", "99"]),
        (LLAMA, "cache_type_k", "q8_0", ["--cache-type-k", "q8_0"]),
        (LLAMA, "flash-attn", True, ["--flash-attn", "on"]),
        (LLAMA, "flash-attn", "auto", ["--flash-attn", "auto"]),
        (LLAMA, "mmap", False, ["--no-mmap"]),
        (LLAMA, "parallel", -7, ["--parallel", "-7"]),
        (LLAMA, "empty", "", ["--empty", ""]),
        (VLLM, "maps", [{"a": "ü"}, {"b": None}], ["--maps", '{"a":"ü"}', '{"b":null}']),
    ],
)
def test_flags(rules: FlagRules, flag: str, value: Any, argv: list[str]) -> None:
    assert flag_argv(rules, flag, value) == argv


def test_false_without_a_negative_form_is_an_error() -> None:
    with pytest.raises(ValueError, match="`x` has no negative form"):
        flag_argv(SGLANG, "x", False)


def test_a_comma_in_a_list_with_commas_is_an_error() -> None:
    with pytest.raises(ValueError, match="comma"):
        flag_argv(LLAMA, "x", ["a,b"])


def test_null_is_left_out_and_the_order_is_kept() -> None:
    assert flags_argv(VLLM, {"b": 1, "a": None, "cc": True}) == ["-b", "1", "--cc"]


words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
awkward = st.sampled_from(
    ["$(id)", "`id`", "a'b", 'a"b', "{{ x }}", "{%", "a b", "\n", "--x", "ü☃", "\\", "*", "%s", ""]
)


@given(words | awkward)
def test_any_text_reaches_the_server_unchanged(text: str) -> None:
    assert flag_argv(LLAMA, "x-flag", text) == ["--x-flag", text]


@given(st.dictionaries(words | awkward, words | awkward | st.integers() | st.booleans() | st.lists(words), min_size=1))
def test_maps_are_one_json_value_that_says_the_same(value: dict[str, Any]) -> None:
    _flag, argument = flag_argv(VLLM, "some-config", value)
    assert json.loads(argument) == value


@given(st.lists(words.filter(lambda word: not word.startswith("-")), min_size=1))
def test_lists_come_back_from_a_parser(items: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--some-list", nargs="+")
    assert parser.parse_args(flag_argv(SGLANG, "some-list", items)).some_list == items


@pytest.mark.parametrize("name", engine_names())
def test_engine_files_agree_with_themselves(name: str) -> None:
    engine = load_engine(name)
    assert engine.name == name
    commands = [engine.command.model_dump(), engine.ready.model_dump(), engine.env]
    commands.append(engine.install.model_dump() if engine.install else {})
    for text in node_of(commands, Mark(name, 1, 1)).texts():
        assert unknown_facts(text.value, ENGINE_FACTS) == [], text
    assert (engine.install is None) == (not engine.command.env)
    assert not engine.install or engine.default_version
    assert (engine.binary is None) == (not engine.command.binary)
    flags_argv(engine.flags, engine.defaults)
    for argv in (engine.command.env, engine.command.binary):
        given_here = [word[2:] for word in argv if word.startswith("--")]
        assert set(given_here) <= set(engine.flags.reserved), "what the command sets, a campaign must not"
    for alias, flag in engine.flags.aliases.items():
        assert alias != flag and flag not in engine.flags.aliases, f"alias {alias}"


def test_unknown_engines_and_keys() -> None:
    with pytest.raises(KeyError):
        load_engine("../../../etc/passwd")
    with pytest.raises(ValidationError):
        Engine.model_validate({"name": "x", "title": "x", "docs": "x", "flgs": {}})
