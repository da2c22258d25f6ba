"""YAML with positions. Everything in a campaign file can be traced to its line and column, for complaints.

What is read is the part of YAML on which its two versions agree. Where YAML 1.1 (Ansible, AWX) and 1.2 (editors) read
one text as two values (`on`, `0777`, `12:30`, `1_000`), or a parser would hide something (duplicate keys, tags, merge
keys), that is a problem with a position. Anchors and aliases work, but cannot blow a small file up.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from gpurun.errors import ConfigError, Mark, Problem

KeyPath = tuple[str | int, ...]

MAX_BYTES = 1 << 20
MAX_NODES = 20_000  # after aliases are followed
MAX_DEPTH = 64

_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(0|[1-9][0-9]*)?\.[0-9]+([eE][-+][0-9]+)?|[-+]?(0|[1-9][0-9]*)\.([eE][-+][0-9]+)?")
_AMBIGUOUS = re.compile(
    r"(?P<word>yes|no|on|off)"
    r"|(?P<octal>[-+]?0o?[0-9_]+)"
    r"|(?P<sexagesimal>[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)"
    r"|(?P<base>[-+]?0[xb][0-9a-f_]+)"
    r"|(?P<underscore>[-+]?[0-9][0-9_]*_[0-9_]*(\.[0-9_]*)?)"
    r"|(?P<special>[-+]?\.(inf|nan))",
    re.IGNORECASE,
)
_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "timestamp", "value", "merge")}
_WHY = {
    "word": "is true or false to some YAML parsers and text to others",
    "octal": "is an octal number to some YAML parsers and a decimal one to others",
    "sexagesimal": "is a number of seconds to some YAML parsers and text to others",
    "base": "is a number to some YAML parsers and text to others",
    "underscore": "is a number to some YAML parsers and text to others",
    "special": "is not a number that gpurun can use",
}


@dataclass(frozen=True)
class Document:
    """A YAML file as plain Python data, and where each part of it stands.

    `problems` are complaints that did not keep the file from being read; who uses the data raises them together with
    its own.
    """

    name: str
    data: dict[str, Any]
    text: str = ""
    lines: tuple[str, ...] = ()
    keys: dict[KeyPath, Mark] = field(default_factory=dict)
    values: dict[KeyPath, Mark] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def mark(self, path: Sequence[str | int], key: bool = False) -> Mark:
        """Where the value at `path` is, or with `key` its key; else the nearest part above it that exists."""
        here = tuple(path)
        first, second = (self.keys, self.values) if key else (self.values, self.keys)
        while here:
            found = first.get(here) or second.get(here)
            if found is not None:
                return found
            here, first, second = here[:-1], self.keys, self.values
        return Mark(self.name, 1, 1, 1, self.lines[0] if self.lines else "")

    def has(self, path: Sequence[str | int]) -> bool:
        """Whether the file itself says something at `path`."""
        return tuple(path) in self.values

    def source(self, path: Sequence[str | int]) -> str:
        """The value at `path` as it is written, where that is on one line."""
        mark = self.values.get(tuple(path))
        return "" if mark is None else mark.text[mark.column - 1 : mark.column - 1 + mark.length]


def load_file(path: Path | str) -> Document:
    """Read a YAML file whose root is a mapping. ConfigError where that cannot be done, with the position."""
    try:
        raw = Path(path).read_bytes()
    except FileNotFoundError:
        raise ConfigError(
            f"there is no file `{path}`", hint="check the path; it is relative to where you are"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read `{path}`: {getattr(error, 'strerror', None) or error}") from None
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"`{path}` has {len(raw)} bytes; a campaign file has at most {MAX_BYTES}")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        good = raw[: error.start].decode("utf-8").split("\n")
        mark = Mark(str(path), len(good), len(good[-1]) + 1, 1, good[-1])
        problem = Problem("the file is not UTF-8 text", mark, hint="save it as UTF-8 in your editor")
        raise ConfigError([problem]) from None
    return load_text(text, str(path))


def load_text(text: str, name: str) -> Document:
    """The same for text that has been read already; `name` stands for the file in complaints."""
    reader = _Reader(name, text)
    data, keys, values = reader.read()
    return Document(name, data, text, reader.lines, keys, values, tuple(reader.problems))


def load_value(text: str, name: str) -> Document:
    """One value of any kind, such as that of `--set key=value`: it is `data["value"]`, its position `("value",)`."""
    reader = _Reader(name, text)
    data, keys, values = reader.read(root="value")
    return Document(name, data, text, reader.lines, keys, values, tuple(reader.problems))


class _Reader:
    """Turns YAML's node tree into data and positions."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.lines = tuple(line.rstrip("\r").replace("\t", " ") for line in text.split("\n"))
        self.problems: list[Problem] = []
        self.keys: dict[KeyPath, Mark] = {}
        self.values: dict[KeyPath, Mark] = {}
        self.nodes = 0

    def read(self, root: str | None = None) -> tuple[dict[str, Any], dict[KeyPath, Mark], dict[KeyPath, Mark]]:
        try:
            node = yaml.compose(self.text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            raise ConfigError([self._syntax(error)]) from None
        except yaml.reader.ReaderError as error:
            place = self._place(self.text[: error.position])
            code = error.character if isinstance(error.character, int) else ord(error.character)
            message, hint = f"the character U+{code:04X} is not allowed in YAML", r'"\u0007" works, in double quotes'
            raise ConfigError([Problem(message, place, hint=hint)]) from None
        except RecursionError:
            raise ConfigError([Problem("the file is nested too deeply", Mark(self.name, 1, 1))]) from None
        if root is not None:
            value = None if node is None else self._value(node, (root,))
            return {root: value}, self.keys, self.values
        if node is None:
            raise ConfigError(
                [Problem("the file is empty", self._place(""), hint="a campaign begins with `version: 1`")]
            )
        if not isinstance(node, yaml.MappingNode):
            found = "a list" if isinstance(node, yaml.SequenceNode) else "one value"
            raise ConfigError([Problem(f"the file must be a mapping of keys to values, not {found}", self._at(node))])
        data: dict[str, Any] = self._value(node, ())
        return data, self.keys, self.values

    def _value(self, node: yaml.Node, path: KeyPath) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES or len(path) > MAX_DEPTH:
            what = f"more than {MAX_NODES} values" if self.nodes > MAX_NODES else f"more than {MAX_DEPTH} levels"
            problem = Problem(f"{what}, once aliases are followed", self._at(node), hint="write it without aliases")
            raise ConfigError([*self.problems, problem])
        self.values[path] = self._at(node)
        if isinstance(node, yaml.MappingNode):
            self._check_tag(node, "tag:yaml.org,2002:map")
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            self._check_tag(node, "tag:yaml.org,2002:seq")
            return [self._value(item, (*path, number)) for number, item in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)  # composing leaves no other kind
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str):
                self._complain("a key must be text", key_node, hint="put it in quotes")
                continue
            if key == "<<" and key_node.style is None:
                hint = "baseline and variants already merge with `server`; write the rest out"
                self._complain("merge keys (`<<`) are not supported", key_node, hint=hint)
                continue
            here = (*path, key)
            if key in data:
                first = self.keys[here].line
                self._complain(f"duplicate key `{key}`", key_node, hint=f"it is first given in line {first}")
                continue
            self.keys[here] = self._at(key_node)
            data[key] = self._value(value_node, here)
        return data

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        text: str = node.value
        if max(text, default="") >= "\ud800" and node.style == '"':  # JSON writes some characters as two halves
            text = node.value = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
        if any("\ud800" <= char <= "\udfff" or char == "\0" for char in text):
            self._complain("text with a NUL or half a surrogate pair cannot be given to a program", node)
            return ""
        if node.tag not in _TAGS or (node.style is not None and not node.tag.endswith(":str")):
            self._complain(f"the tag `{node.tag}` is not supported", node, hint="leave the tag out")
            return text
        if node.style is not None or node.tag == "tag:yaml.org,2002:str":
            return self._plain_text(node)
        if text in ("", "~", "null", "Null", "NULL"):
            return None
        if text in ("true", "True", "TRUE", "false", "False", "FALSE"):
            return text.lower() == "true"
        if _INT.fullmatch(text):
            return int(text) if len(text) < 100 else text
        if _FLOAT.fullmatch(text):
            return float(text)
        return self._plain_text(node)

    def _plain_text(self, node: yaml.ScalarNode) -> str:
        """Text, unless it is unquoted and some parser would read it as something else."""
        text: str = node.value
        ambiguous = _AMBIGUOUS.fullmatch(text) if node.style is None else None
        if ambiguous is not None:
            why = _WHY[str(ambiguous.lastgroup)]
            true = text.lower() in ("yes", "on")
            other = f", or {str(true).lower()}" if ambiguous["word"] else ""
            self._complain(f"`{text}` {why}", node, hint=f'write "{text}" in quotes{other}')
        return text

    def _check_tag(self, node: yaml.Node, plain: str) -> None:
        if node.tag != plain:
            self._complain(f"the tag `{node.tag}` is not supported", node, hint="leave the tag out")

    def _complain(self, message: str, node: yaml.Node, hint: str | None = None) -> None:
        self.problems.append(Problem(message, self._at(node), hint=hint))

    def _at(self, node: yaml.Node) -> Mark:
        start, end = node.start_mark, node.end_mark
        text = self._line(start.line)
        length = (end.column if end.line == start.line else len(text.rstrip())) - start.column
        return Mark(self.name, start.line + 1, start.column + 1, max(1, length), text)

    def _place(self, before: str) -> Mark:
        """The position after the text `before`."""
        line, column = before.count("\n"), len(before) - (before.rfind("\n") + 1)
        return Mark(self.name, line + 1, column + 1, 1, self._line(line))

    def _line(self, number: int) -> str:
        return self.lines[number] if number < len(self.lines) else ""

    def _syntax(self, error: yaml.MarkedYAMLError) -> Problem:
        what, mark = error.problem or "it cannot be read", error.problem_mark or error.context_mark
        place = self._place("")
        if mark is not None:
            place = replace(place, line=mark.line + 1, column=mark.column + 1, text=self._line(mark.line))
        hint = None
        if "'\\t'" in what:
            what, hint = "a tab is used to indent", "YAML is indented with spaces"
        elif "undefined alias" in what:
            what = what.replace("found undefined alias", "there is no anchor for the alias")
        elif error.context and error.context_mark and error.context_mark.line != (mark.line if mark else -1):
            hint = f"{error.context} that begins in line {error.context_mark.line + 1}"
        return Problem(f"broken YAML: {what}", place, hint=hint)
