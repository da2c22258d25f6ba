"""A server's argv against the options of its engine's command line in one version. Pure.

It reads words as the engine's parser does, and is stricter in two ways: an option is spelled out (argparse takes any
prefix that is unique today), and a number is a number to its end (llama-server takes `4k` for 4).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpurun.catalogue import Catalogue, Option, elsewhere, nearest_version, renames, shipped, versions
from gpurun.complaints import Complaints, nearest
from gpurun.config import CONTAINERS, Server
from gpurun.engines import Engine, canonical, flag_argv
from gpurun.errors import ConfigError, Problem
from gpurun.template import is_template
from gpurun.tree import Node

_SIZE = re.compile(r"\d+(\.\d+)?[kmgt]|\d+[KMGT]")  # vLLM: 25.6k is 25600, 16K is 16384
_SWITCHED = {"on": ("enabled", "true", "1"), "off": ("disabled", "false", "0"), "auto": ("-1",)}
_SIZES = "a whole number, also as 16k (16000) or 16K (16384)"
_BRACES = re.compile(r"(?s)\s*\{.*\}\s*")
_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")


@dataclass(frozen=True)
class Remark(Problem):
    """What is wrong with a word of an argv (`at` is its place), or, with `note`, only worth knowing."""

    at: int = 0
    note: bool = False

    @property
    def advice(self) -> str:
        """What to do, in one line."""
        meant = f"did you mean `{self.nearest}`?" if self.nearest else ""
        listed = f"expected one of: {', '.join(self.allowed)}" if self.allowed else ""
        return "; ".join(part for part in (self.hint, meant, listed) if part)


def check_argv(catalogue: Catalogue, engine: Engine, argv: Sequence[str]) -> list[Remark]:
    """What the engine's parser would refuse, or take for something else, in the flags `argv`; notes on what is old."""
    return Reading(catalogue, engine, argv).findings


def check_flags(node: Node, engine: Engine, catalogue: Catalogue, complaints: Complaints) -> list[str]:
    """The same for the flags of a server in a campaign (`node`), at their places there. Values that are templates are
    taken as they come. Returns the notes."""
    argv: list[str] = []
    owners: list[tuple[str | int, ...]] = []
    for flag, value in node.items("flags").items():
        if value.value is None or canonical(engine.flags, flag) in engine.flags.reserved:
            continue
        try:
            words = flag_argv(engine.flags, flag, value.plain)
        except ValueError:  # said already
            continue
        listed = isinstance(value.value, list) and len(words) == 1 + len(value.value)
        owners += [
            ("flags", flag, number - 1) if listed and number else ("flags", flag) for number in range(len(words))
        ]
        argv += words
    notes = []
    for finding in check_argv(catalogue, engine, argv):
        if finding.note:
            notes.append(f"{finding.message}{'; ' if finding.advice else ''}{finding.advice}")
            continue
        path = owners[finding.at]
        more: dict[str, Any] = {"hint": finding.hint, "allowed": finding.allowed, "nearest": finding.nearest}
        complaints.add(finding.message, node, path, key=argv[finding.at].startswith("-") and len(path) == 2, **more)
    return list(dict.fromkeys(notes))


def choose_catalogues(
    servers: Iterable[tuple[Server, Engine]], asked: Sequence[str] = ()
) -> tuple[dict[tuple[str, str | None], list[Catalogue]], list[str]]:
    """The shipped catalogues that a campaign's servers are checked against, by the engine's name and what the campaign
    says of it, with notes; `asked` are `name==version`, each for its engine in place of the campaign's own version.

    ConfigError where one asked for is of no use.
    """
    wanted: dict[str, list[str]] = {}
    for text in asked:
        name, _, version = text.replace(" ", "").partition("==")
        if not any(map(str.isdigit, version)):
            hint = f"write `{name.partition('=')[0]}==VERSION`"
            raise ConfigError(f"`--engine {text}` names no version", hint=hint)
        wanted.setdefault(name, []).append(version)
    used = {engine.name: engine for _, engine in servers}
    for name in wanted:
        if name not in used:
            message = f"`--engine {name}==...`: the campaign does not use it"
            raise ConfigError([Problem(message, None, tuple(used), nearest(name, used))])
        if not versions(name):
            raise ConfigError(f"gpurun has no list of the options of `{name}`", hint="leave `--engine` out")
    chosen: dict[tuple[str, str | None], dict[str, Catalogue]] = {}
    notes: list[str] = []
    for server, engine in servers:
        pinned = (server.engine or "").partition("==")[2]
        own = pinned or (None if server.binary or server.runtime in CONTAINERS else engine.default_version)
        for version in wanted.get(engine.name, [own] if own else []):
            found = nearest_version(engine.name, version)
            if found is None:
                continue
            if found != version:
                notes.append(
                    f"flags are checked against {engine.title} {found}, the nearest to {version} that is known"
                )
            chosen.setdefault((engine.name, server.engine), {})[found] = shipped(engine.name, found)
        if (engine.name, server.engine) not in chosen and engine.name != "command":
            why = "its version is not known here" if versions(engine.name) else "no list of its options is shipped"
            hint = "; `--engine` names one" if versions(engine.name) else ""
            notes.append(f"the flags of {engine.title} are not checked: {why}{hint}")
    return {of: list(found.values()) for of, found in chosen.items()}, list(dict.fromkeys(notes))


@dataclass(frozen=True)
class Part:
    """A flag of an argv with its values; `option` is None where the engine has none of that name."""

    at: int
    name: str
    option: Option | None
    values: Sequence[str]


@dataclass
class Reading:
    """An argv as the engine's parser takes it apart: `parts`, words that belong to no flag, and what was found."""

    catalogue: Catalogue
    engine: Engine
    argv: Sequence[str]
    findings: list[Remark] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    strays: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.title = f"{self.engine.title} {self.catalogue.version or ''}".rstrip()
        self.greedy = self.engine.options.help  # a C++ parser: the next word is the value, whatever it is
        at = 0
        while at < len(self.argv):
            at = self.flag(at) if self.split(self.argv[at])[0] else self.stray(at)

    def stray(self, at: int) -> int:
        """A word that is no flag; returns the place of the next."""
        self.strays.append(at)
        before = self.parts[-1] if self.parts else None
        if before is not None and before.option is not None and before.option.takes == 0 and before.at == at - 1:
            message = f"`{before.name}` is a switch of {self.title}: it takes no value such as `{self.argv[at]}`"
            self.find(at, message, f"it is given alone{_negative_of(before.option)}")
        else:
            self.find(at, f"`{self.argv[at]}` belongs to no flag")
        return at + 1

    def flag(self, at: int) -> int:
        """A flag and its values; returns the place of what follows them."""
        name, given = self.split(self.argv[at])
        assert name is not None
        option = self.option(at, name)
        count = 0 if given is not None else self.count(option, at + 1)
        values = self.argv[at + 1 : at + 1 + count] if given is None else [given]
        if option is not None:
            self.arity(option, at, name, values, given is not None)
            others = [part.name for part in self.parts if part.option is option]
            if others and "." not in name and not option.repeats:
                self.find(at, f"`{others[0]}` and `{name}` are one option; the last one counts", note=True)
            for number, value in enumerate(values):
                self.value(option, at if given is not None else at + 1 + number, name, value)
        self.parts.append(Part(at, name, option, values))
        return at + 1 + count

    def find(self, at: int, message: str, hint: str | None = None, **more: Any) -> None:
        self.findings.append(Remark(message, hint=hint, at=at, **more))

    def split(self, word: str) -> tuple[str | None, str | None]:
        """The name of an option as the engine has it and a value after `=`; None for what is no option."""
        if not re.match(r"--?[A-Za-z_]|-\d", word):
            return None, None
        known = self.catalogue.by_name
        name, equals, given = word.partition("=")
        name = self.plain(name)
        if word in known or self.greedy or not equals:
            name, equals = self.plain(word), ""
        if name not in known and (_NEGATIVE_NUMBER.fullmatch(word) or " " in name):
            return None, None
        if self.engine.options.dotted and (level := re.fullmatch(r"-O=?(\w+)", word)):
            return "--optimization-level", level.group(1)
        return name, given if equals else None

    def plain(self, name: str) -> str:
        """The spelling that the engine knows. Short forms that a campaign may use are written out when it is launched
        (SGLang's `--tp` is none of its options: argparse takes it as the beginning of one)."""
        base, dot, rest = name.partition(".")
        if self.engine.options.underscores and name.startswith("--"):
            base = base.replace("_", "-")
        full = f"--{self.engine.flags.aliases.get(base[2:])}" if name.startswith("--") else ""
        return (full if base not in self.catalogue.by_name and full in self.catalogue.by_name else base) + dot + rest

    def option(self, at: int, name: str) -> Option | None:
        known = self.catalogue.by_name
        option = known.get(name)
        if option is None and self.engine.options.dotted and "." in name:
            base, _, key = name.partition(".")
            option = known.get(base)
            if option is not None and option.type not in ("json", "text_or_json"):
                self.find(at, f"`{base}` takes no keys: its value is no JSON")
            elif option is not None:
                self.key(option, at, base, key.rstrip("+").partition(".")[0])
        if option is None:
            self.unknown(at, name)
        elif option.removed:
            self.find(at, f"{self.title} no longer has `{name}`: {option.removed}", _use(option.instead))
        elif option.deprecated:
            self.find(
                at, f"`{name}` is deprecated in {self.title}", _use(option.instead) or option.deprecated, note=True
            )
        return option

    def unknown(self, at: int, name: str) -> None:
        known = self.catalogue.by_name
        gone = renames(self.catalogue.engine).get(name)
        longer = sorted({known[full].name for full in known if full.startswith(name) and name.startswith("--")})
        longer = [] if self.greedy else longer
        switch = known.get(f"--{name[5:]}") if name.startswith("--no-") else None
        if gone is not None:
            said = gone.said or _use(gone.new) or "it has no successor"
            since = f" (since {gone.since} at the latest)" if gone.since else ""
            self.find(at, f"{self.title} has no `{name}`: it was removed{since}", said)
        elif longer:
            message = f"{self.title} has no `{name}`: a flag is spelled out, as a prefix may mean another one tomorrow"
            one = len(longer) == 1
            self.find(at, message, f"write `{longer[0]}`" if one else None, allowed=() if one else tuple(longer))
        elif switch is not None:
            hint = "leave it out" if switch.takes == 0 else None
            self.find(at, f"{self.title} has no `{name}`: `{switch.name}` has no negative form", hint)
        else:
            others = elsewhere(name, self.catalogue.engine, self.catalogue.version)
            also = f"{self.engine.title} {', '.join(others)} has it" if others else None
            near = nearest(name, [full for full in known if full.startswith("--")])
            self.find(at, f"{self.title} has no flag `{name}`", also, nearest=None if also else near)

    def is_value(self, at: int) -> bool:
        return self.split(self.argv[at])[0] is None

    def count(self, option: Option | None, at: int) -> int:
        """How many of the words from `at` on are the option's values."""
        free = 0
        while at + free < len(self.argv) and self.is_value(at + free):
            free += 1
        if option is None:  # an unknown flag takes what follows it, so that this is not complained about as well
            return free
        if self.greedy:
            return min(1 if option.takes is None else int(option.takes), len(self.argv) - at)
        most = {None: 1, "?": 1, "*": free, "+": free}.get(option.takes, option.takes)  # type: ignore[arg-type]
        if option.type in ("json", "text_or_json") and "." in self.argv[at - 1] and at < len(self.argv):
            return 1  # vLLM takes the next word for a dotted key, whatever it is
        return min(free, int(most or 0))

    def arity(self, option: Option, at: int, name: str, values: Sequence[str], joined: bool) -> None:
        least = {None: 1, "?": 0, "*": 0, "+": 1}.get(option.takes, option.takes)  # type: ignore[arg-type]
        if joined and option.takes == 0:
            message = f"`{name}` is a switch of {self.title}: it takes no value"
            self.find(at, message, f"it is given alone{_negative_of(option)}")
        elif len(values) < int(least or 0):
            wanted = "a value" if least == 1 else f"{least} values"
            self.find(at, f"`{name}` needs {wanted}", allowed=tuple(str(choice) for choice in option.choices or ()))

    def value(self, option: Option, at: int, name: str, text: str) -> None:
        if is_template(text) or option.takes == 0 or "." in name:
            return
        if option.none and text in ("", "None"):
            return
        kind = option.type
        if kind is None and isinstance(option.default, str) and option.default.startswith("{"):
            kind = "json"  # SGLang reads such a text itself
        read, wanted = _KINDS.get(kind, (str, "text"))
        try:
            value = read(text)
        except (ValueError, RecursionError):
            if text not in option.words:
                also = f", or {' or '.join(f'`{word}`' for word in option.words)}" if option.words else ""
                self.find(at, f"`{name}` takes {wanted}{also}, not {text!r}")
            return
        parts = text.split(",") if option.commas else [value]
        choices = option.choices
        for part in parts if choices is not None else ():
            assert choices is not None
            if part not in choices and part not in _said_otherwise(self.greedy, choices):
                allowed = tuple(str(choice) for choice in choices)
                near = nearest(str(part), allowed)
                self.find(at, f"`{name}` does not take {str(part)!r}", allowed=allowed, nearest=near)
        for key in value if isinstance(value, dict) else ():
            self.key(option, at, name, key)

    def key(self, option: Option, at: int, name: str, key: str) -> None:
        if option.keys is not None and key not in option.keys:
            near = nearest(key, option.keys)
            self.find(at, f"`{name}` has no key `{key}`", allowed=() if near else tuple(option.keys), nearest=near)


def _said_otherwise(greedy: bool, choices: Sequence[Any]) -> tuple[str, ...]:
    """Other words for on, off and auto, which llama-server takes wherever it lists these (is_truthy in arg.cpp)."""
    if not greedy or not set(choices) <= _SWITCHED.keys():
        return ()
    return tuple(word for choice in choices for word in _SWITCHED[choice])


def _use(names: Sequence[str]) -> str | None:
    return f"use {' or '.join(f'`{name}`' for name in names)}" if names else None


def _negative_of(option: Option) -> str:
    return f"; `{option.negative[0]}` says no" if option.negative else ""


def _size(text: str) -> Any:
    return text if _SIZE.fullmatch(text.strip()) else int(text)


_KINDS: dict[str | None, tuple[Callable[[str], Any], str]] = {
    "int": (int, "a whole number"),
    "float": (float, "a number"),
    "number": (float, "a number"),
    "size": (_size, _SIZES),
    "size_or_auto": (lambda text: text if text.strip().lower() == "auto" else _size(text), _SIZES + ", or `auto`"),
    "json": (json.loads, "JSON"),
    "text_or_json": (lambda text: json.loads(text) if _BRACES.fullmatch(text) else text, "text, or JSON in braces"),
}
