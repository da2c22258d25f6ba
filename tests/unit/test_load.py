"""YAML with positions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpurun.errors import ConfigError, Problem
from gpurun.load import load_file, load_text, load_value


def refused(text: str) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        load_text(text, "f.yml")
    return caught.value.problems


def where(problem: Problem) -> tuple[int, int, int]:
    assert problem.mark is not None
    return problem.mark.line, problem.mark.column, problem.mark.length


def test_positions_of_keys_and_values() -> None:
    document = load_text("a:\n  b: [x, {c: 17}]\n", "f.yml")
    assert document.data == {"a": {"b": ["x", {"c": 17}]}}
    assert (document.root.mark(("a", "b", 1, "c")).line, document.root.mark(("a", "b", 1, "c")).column) == (2, 14)
    assert document.root.mark(("a", "b", 1, "c"), key=True).column == 11
    assert document.root.nearest(("a", "b", 1, "c"))[0].source == "17"
    assert document.root.mark(("a", "b", 1, "c")).text == "  b: [x, {c: 17}]"


def test_a_path_that_is_not_there_has_the_mark_of_what_is_above() -> None:
    document = load_text("a:\n  b: 1\n", "f.yml")
    assert document.root.mark(("a", "zzz")) == document.root.mark(("a",), key=True)
    assert (document.root.mark(("zzz",)).line, document.root.mark(("zzz",)).column) == (1, 1)


def test_duplicate_keys_are_all_collected_and_the_first_wins() -> None:
    document = load_text("a: 1\nb: {x: 1, x: 2}\na: 3\n", "f.yml")
    assert document.data == {"a": 1, "b": {"x": 1}}
    assert [(p.message, where(p)) for p in document.problems] == [
        ("duplicate key `x`", (2, 11, 1)),
        ("duplicate key `a`", (3, 1, 1)),
    ]
    assert document.problems[1].hint == "it is first given in line 1"


@pytest.mark.parametrize("word", ["on", "Off", "yes", "NO", "0777", "0o17", "12:30", "1_000", "0x1F", ".inf", "-.NaN"])
def test_what_parsers_read_differently_is_refused_unless_quoted(word: str) -> None:
    (problem,) = load_text(f"a: {word}", "f.yml").problems
    assert where(problem) == (1, 4, len(word))
    assert f'"{word}"' in str(problem.hint)
    assert load_text(f'a: "{word}"', "f.yml").problems == ()
    assert load_text(f"a: '{word}'", "f.yml").data == {"a": word}


def test_such_words_are_refused_as_keys_too() -> None:
    assert len(load_text("on: 1\nno: 2", "f.yml").problems) == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-7", -7),
        ("0", 0),
        ("0.10", 0.1),
        (".5", 0.5),
        ("1.5e+3", 1500.0),
        ("1e3", "1e3"),
        ("1.2.3", "1.2.3"),
        ("2026-01-01", "2026-01-01"),
        ("true", True),
        ("FALSE", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("'null'", "null"),
        ("y", "y"),
        ("90s", "90s"),
        ("=", "="),
    ],
)
def test_scalars(text: str, value: object) -> None:
    document = load_text(f"a: {text}", "f.yml")
    assert document.problems == ()
    assert document.data["a"] == value and type(document.data["a"]) is type(value)


@pytest.mark.parametrize(
    ("text", "message", "position"),
    [
        ("", "the file is empty", (1, 1)),
        ("# nothing\n", "the file is empty", (1, 1)),
        ("- a", "the file must be a mapping of keys to values, not a list", (1, 1)),
        ("word", "the file must be a mapping of keys to values, not one value", (1, 1)),
        ("a:\n\tb: 1", "broken YAML: a tab is used to indent", (2, 1)),
        ("a: [1, 2", "broken YAML: expected ',' or ']', but got '<stream end>'", (1, 9)),
        ("a: b: c", "broken YAML: mapping values are not allowed here", (1, 5)),
        ("a: *x", "broken YAML: there is no anchor for the alias 'x'", (1, 4)),
        ("a: \x07", "the character U+0007 is not allowed in YAML", (1, 4)),
        ('x: 1\na: "b\\U00110000"', "there is no character of this number", (2, 6)),
        ("a: 'x", "broken YAML: found unexpected end of stream", (1, 6)),
        ("a: 1\n---\nb: 2", "broken YAML: but found another document", (2, 1)),
        ("a: " + "[" * 3000, "the file is nested too deeply", (1, 1)),
    ],
)
def test_what_cannot_be_read_has_a_position(text: str, message: str, position: tuple[int, int]) -> None:
    (problem,) = refused(text)
    assert problem.message == message
    assert where(problem)[:2] == position


def test_aliases_work_and_cannot_explode() -> None:
    assert load_text("a: &x {k: 1}\nb: *x\n", "f.yml").data["b"] == {"k": 1}
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    for n in range(1, 9):
        bomb += f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n"
    assert "more than 20000 values" in refused(bomb)[0].message
    assert "levels" in refused("a: &a [*a]")[0].message


@pytest.mark.parametrize("tag", ["!!python/object:os.system x", "!custom x", "!!binary aGk=", "!!set {a: }"])
def test_tags_are_refused(tag: str) -> None:
    assert "the tag" in load_text(f"a: {tag}", "f.yml").problems[0].message


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\x85", "\u2028"])
def test_a_complaint_shows_its_line_whatever_ends_lines(end: str) -> None:
    (problem,) = load_text(f"a: 1{end}b:  on{end}", "f.yml").problems
    assert where(problem) == (2, 5, 2)
    assert "2 | b:  on\n  |     ^^" in problem.render()


def test_of_a_long_line_the_part_around_the_problem_is_shown() -> None:
    for text in (f"a: [{'x, ' * 4_000}on, {'y, ' * 4_000}]", f"a: {'0' * 100_000}"):
        (problem,) = load_text(text, "f.yml").problems
        lines = problem.render().splitlines()
        assert max(map(len, lines)) < 700
        caret = lines[4].index("^")
        assert lines[3][caret : caret + 2] in ("on", "00")


def test_a_template_without_quotes_is_told_what_it_lacks() -> None:
    (problem,) = load_text("threads: {{ host.cpus }}", "f.yml").problems
    assert "quotes" in str(problem.hint) and "{{ host.cpus }}" in str(problem.hint)


@pytest.mark.parametrize("text", ["1: a", "true: a", "null: a", "? [a, b]\n: c", "1.5: a"])
def test_keys_are_text(text: str) -> None:
    assert load_text(text, "f.yml").problems[0].message == "a key must be text"


def test_merge_keys_are_refused() -> None:
    assert "merge keys" in load_text("<<: {a: 1}", "f.yml").problems[0].message
    assert load_text('"<<": 1', "f.yml").problems == ()


@pytest.mark.parametrize("text", [r'"\0"', r'"\uD800"'])
def test_text_that_no_program_can_get_is_refused(text: str) -> None:
    assert "NUL" in load_text(f"a: {text}", "f.yml").problems[0].message


def test_json_is_read_with_all_its_characters() -> None:
    data = {"a": '🚀 ü "x" \\ \n', "b": [1, None, True, {"c": "on"}]}
    for ascii_only in (True, False):
        document = load_text(json.dumps(data, indent=1, ensure_ascii=ascii_only), "f.yml")
        assert (document.data, document.problems) == (data, ())


def test_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        load_file(tmp_path / "none.yml")
    with pytest.raises(ConfigError, match="cannot read"):
        load_file(tmp_path)
    with pytest.raises(ConfigError, match="cannot read"):
        load_file("a\0b")
    bad = tmp_path / "latin.yml"
    bad.write_bytes("version: 1\nname: café\n".encode("latin-1"))
    with pytest.raises(ConfigError) as caught:
        load_file(bad)
    assert caught.value.problems[0].message == "the file is not UTF-8 text"
    assert where(caught.value.problems[0])[:2] == (2, 10)
    bom = tmp_path / "bom.yml"
    bom.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    assert load_file(bom).data == {"a": 1, "b": 2}
    big = tmp_path / "big.yml"
    big.write_text("a: " + "x" * (1 << 20))
    with pytest.raises(ConfigError, match="bytes"):
        load_file(big)


def test_one_value() -> None:
    assert load_value("[1, x]", "--set").data == [1, "x"]
    assert load_value("", "--set").data is None


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(st.characters(exclude_categories=["Cs", "Cc"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcdefxyz-_.", min_size=2), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text("abcdefxyz-_.", min_size=2), plain, min_size=1, max_size=4))
def test_what_is_quoted_safely_comes_back_as_it_was(data: dict[str, Any]) -> None:
    text = yaml.safe_dump(data, allow_unicode=True, default_style=None)
    document = load_text(text, "f.yml")
    if not document.problems:  # safe_dump leaves some words bare that we ask to quote
        assert document.data == data


def test_a_file_without_an_end_is_not_read_to_its_end() -> None:
    with pytest.raises(ConfigError, match="too large"):
        load_file("/dev/zero")
