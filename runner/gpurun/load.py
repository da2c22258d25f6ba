"""YAML with positions. Everything in a campaign file can be traced to its line and column, for complaints.

What is read is the part of YAML on which its two versions agree. Where YAML 1.1 (Ansible, AWX) and 1.2 (editors) read
one text as two values (`on`, `0777`, `12:30`, `1_000`), or a parser would hide something (duplicate keys, tags, merge
keys), that is a problem with a position. Anchors and aliases work, but cannot blow a small file up.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpurun.errors import ConfigError, Mark, Problem
from gpurun.tree import KeyPath, Node

PORT_TOKEN = "@GPURUN_PORT@"  # noqa: S105 (the place of the port in argv and env, filled in on the host)
MAX_BYTES = 1 << 20
MAX_NODES = 20_000  # after aliases are followed
MAX_DEPTH = 64

_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(0|[1-9][0-9]*)?\.[0-9]+([eE][-+][0-9]+)?|[-+]?(0|[1-9][0-9]*)\.([eE][-+][0-9]+)?")
_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}
_TRAP = re.compile(r"[-+]?(0o?[0-9_]+|\.(inf|nan))", re.IGNORECASE)  # not the same to YAML 1.2 as to PyYAML
_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")  # what ends a line to YAML
_NO_CHARACTER = re.compile(r"\\U(?!00(?:0[0-9a-fA-F]|10))[0-9a-fA-F]{8}")
_PLAIN_TAGS = ("str", "int", "float", "bool", "null", "timestamp", "value", "merge")


@dataclass(frozen=True)
class Document:
    """A YAML file. `problems` are complaints that did not keep it from being read: who uses it raises them together
    with its own."""

    name: str
    root: Node
    text: str = ""
    problems: tuple[Problem, ...] = ()

    @property
    def data(self) -> Any:
        """What it says, as plain data."""
        return self.root.plain


def load_file(path: Path | str) -> Document:
    """Read a YAML file whose root is a mapping. ConfigError where that cannot be done, with the position."""
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MAX_BYTES + 1)  # no more: it may be a device, or somebody's model
    except FileNotFoundError:
        hint = "check the path; it is relative to where you are"
        raise ConfigError(f"there is no file `{path}`", hint=hint) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read `{path}`: {getattr(error, 'strerror', None) or error}") from None
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"`{path}` is too large: a campaign file has at most {MAX_BYTES} bytes")
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
    node = reader.compose()
    if node is None:
        problem = Problem("the file is empty", reader.mark(0, 0), hint="a campaign begins with `version: 1`")
        raise ConfigError([problem])
    if not isinstance(node, yaml.MappingNode):
        found = "a list" if isinstance(node, yaml.SequenceNode) else "one value"
        raise ConfigError([Problem(f"the file must be a mapping of keys to values, not {found}", reader.mark_of(node))])
    root = Node(reader.read(node, ()).value, reader.mark(0, 0))
    return Document(name, root, text, tuple(reader.problems))


def load_value(text: str, name: str, before: str = "", path: KeyPath = ()) -> Document:
    """One value of any kind, such as that of an option: `before` is what stands before it in that line."""
    reader = _Reader(name, text, before)
    node = reader.compose()
    root = Node(None, reader.mark(0, 0), path) if node is None else reader.read(node, path)
    return Document(name, root, text, tuple(reader.problems))


class _Reader:
    """Turns YAML's own nodes into ours."""

    def __init__(self, name: str, text: str, before: str = "") -> None:
        self.name, self.text, self.shift = name, text, len(before)
        self.lines = _BREAK.split(before + text)
        self.problems: list[Problem] = []
        self.nodes = 0

    def compose(self) -> yaml.Node | None:
        try:
            node: yaml.Node | None = yaml.compose(self.text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            problem = self.syntax(error)
        except yaml.reader.ReaderError as error:
            before = self.text[: error.position]
            mark = self.mark(before.count("\n"), len(before) - before.rfind("\n") - 1)
            code = error.character if isinstance(error.character, int) else ord(error.character)
            hint = r'"\u0007" works, in double quotes'
            problem = Problem(f"the character U+{code:04X} is not allowed in YAML", mark, hint=hint)
        except RecursionError:
            problem = Problem("the file is nested too deeply", self.mark(0, 0))
        except ValueError:  # PyYAML asks for such a character
            before = _NO_CHARACTER.split(self.text)[0]
            mark = self.mark(before.count("\n"), len(before) - before.rfind("\n") - 1)
            problem = Problem("there is no character of this number", mark, hint=r"the last one is `\U0010FFFF`")
        else:
            return node
        raise ConfigError([problem]) from None

    def read(self, node: yaml.Node, path: KeyPath, key: Mark | None = None) -> Node:
        self.nodes += 1
        if self.nodes > MAX_NODES or len(path) > MAX_DEPTH:
            what = f"more than {MAX_NODES} values" if self.nodes > MAX_NODES else f"more than {MAX_DEPTH} levels"
            self.complain(f"{what}, once aliases are followed", node, "write it without aliases")
            raise ConfigError(self.problems)
        if isinstance(node, yaml.ScalarNode):
            return Node(self.scalar(node), self.mark_of(node), path, key)
        if not node.tag.endswith((":map", ":seq")):
            self.complain(f"the tag `{node.tag}` is not supported", node, "leave the tag out")
        if isinstance(node, yaml.SequenceNode):
            items = [self.read(item, (*path, number)) for number, item in enumerate(node.value)]
            return Node(items, self.mark_of(node), path, key)
        return Node(self.mapping(node, path), self.mark_of(node), path, key)

    def mapping(self, node: yaml.Node, path: KeyPath) -> dict[str, Node]:
        found: dict[str, Node] = {}
        for key_node, value_node in node.value:
            key = self.scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str):
                braces = isinstance(key_node, yaml.MappingNode)
                hint = 'a template stands in quotes: "{{ host.cpus }}"' if braces else "put it in quotes"
                self.complain("a key must be text", key_node, hint)
            elif key == "<<" and key_node.style is None:
                hint = "baseline and variants already merge with `server`; write the rest out"
                self.complain("merge keys (`<<`) are not supported", key_node, hint)
            elif key in found:
                first = found[key].key
                self.complain(f"duplicate key `{key}`", key_node, f"it is first given in line {first and first.line}")
            else:
                found[key] = self.read(value_node, (*path, key), self.mark_of(key_node))
        return found

    def scalar(self, node: yaml.ScalarNode) -> Any:
        text: str = node.value
        if max(text, default="") >= "\ud800" and node.style == '"':  # JSON writes some characters as two halves
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
        if any("\ud800" <= char <= "\udfff" or char == "\0" for char in text):
            self.complain("text with a NUL or half a surrogate pair cannot be given to a program", node)
            return ""
        if PORT_TOKEN in text:
            self.complain(f"the text `{PORT_TOKEN}` has a meaning of its own to gpurun", node, "write `{{ port }}`")
        tag = node.tag.removeprefix("tag:yaml.org,2002:")
        if tag not in _PLAIN_TAGS or (node.style is not None and tag != "str"):
            self.complain(f"the tag `{node.tag}` is not supported", node, "leave the tag out")
            return text
        if node.style is not None or (tag == "str" and not _TRAP.fullmatch(text)):
            return text
        if text in (text.lower(), text.upper(), text.title()) and text.lower() in _WORDS:
            return _WORDS[text.lower()]
        if _INT.fullmatch(text) and len(text) < 100:
            return int(text)
        if _FLOAT.fullmatch(text) and math.isfinite(float(text)):
            return float(text)
        if tag not in ("timestamp", "value", "merge"):  # PyYAML, which reads YAML 1.1, sees something else in it
            kind, other = "a number", ""
            if tag == "bool":
                kind, other = "true or false", f", or {str(text.lower() in ('yes', 'on')).lower()}"
            message = f"`{text}` is {kind} to some YAML parsers and text to others"
            self.complain(message, node, f'write "{text}" in quotes{other}')
        return text

    def complain(self, message: str, node: yaml.Node, hint: str | None = None) -> None:
        self.problems.append(Problem(message, self.mark_of(node), hint=hint))

    def mark_of(self, node: yaml.Node) -> Mark:
        start, end = node.start_mark, node.end_mark
        mark = self.mark(start.line, start.column)
        last = end.column if end.line == start.line else len(mark.text.rstrip())
        return Mark(mark.file, mark.line, mark.column, max(1, last - start.column), mark.text)

    def mark(self, line: int, column: int) -> Mark:
        text = self.lines[line] if line < len(self.lines) else ""
        return Mark(self.name, line + 1, column + 1 + (self.shift if line == 0 else 0), 1, text)

    def syntax(self, error: yaml.MarkedYAMLError) -> Problem:
        what, at = error.problem or "it cannot be read", error.problem_mark or error.context_mark
        line, hint = at.line if at else 0, None
        if "'\\t'" in what:
            what, hint = "a tab is used to indent", "YAML is indented with spaces"
        elif "undefined alias" in what:
            what = what.replace("found undefined alias", "there is no anchor for the alias")
        elif error.context and error.context_mark and error.context_mark.line != line:
            hint = f"{error.context} that begins in line {error.context_mark.line + 1}"
        return Problem(f"broken YAML: {what}", self.mark(line, at.column if at else 0), hint=hint)
