"""The table of failure signatures and log markers (data/signatures/*.yml, data/log_markers.yml), checked and compiled.

A signature recognises one failure by the text that a server writes. Adding one needs no Python.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

from gpurun.data import table
from gpurun.samples import FailureClass, Phase, Record, klass

# Engine files come before the common one: of two signatures that match at the same place the first listed is chosen.
_FILES = ("sglang", "vllm", "llamacpp", "trtllm", "kernel", "common")
_SHORTEST_NEEDLE = 5
Klass = FailureClass | Literal["crash"]


class Signature(Record):
    """One kind of failure, as data/signatures/README.md describes it."""

    id: str
    patterns: list[str]
    klass: Klass = klass()
    phase: Phase | None = None
    usual: Phase | None = None
    rank: Literal["root", "generic", "echo", "wrapper"] = "root"
    exception: bool = False
    frames: str | None = None
    unless: str | None = None
    killed: bool = False
    proof: Literal["match", "exception"] = "match"
    advice: str | dict[str, str]
    source: str

    def advise(self, engine: str | None, phase: str, found: dict[str, str | None]) -> str:
        """The advice for this engine and phase with the numbers of the line in it; a missing number reads as `?`."""
        text = self.advice
        if isinstance(text, dict):
            text = text.get(f"{engine}/{phase}") or text.get(engine or "") or text["default"]
        known = {name: value for name, value in found.items() if value is not None}
        return re.sub(r"\{(\w+)\}", lambda m: known.get(m[1], "?").strip(), text)


@dataclass(frozen=True)
class Matcher:
    """A compiled pattern; `needle` is plain text that every match contains, so that most of a log is only searched."""

    signature: Signature
    needle: str
    regex: re.Pattern[str]


class End(Record):
    """What a way to end means where the log names no cause, and `message` (a regex) in the starter's sentence."""

    klass: Klass = klass()
    phase: Phase | None = None
    message: str = ""
    advice: str


class Markers(Record):
    """What log_markers.yml holds; see there."""

    engines: dict[str, list[str]]
    ready: dict[str, list[str]]
    of_serving: list[Klass]
    stopping: list[str]
    phases: dict[Phase, list[str]]
    frames: dict[Phase, list[str]]
    harmless: list[str]
    not_causes: list[str]
    ends: dict[str, End]


def needle(pattern: str) -> str:
    """The longest plain text outside groups that every match of `pattern` contains.

    Raises ValueError where that is shorter than five characters, or where the pattern has a top-level alternative:
    such a pattern would have to be tried at every character of a log.
    """
    # A class of characters, or a group, is like any character.
    rest = re.sub(r"\\[A-Za-z0-9]|(?<!\\)\[\^?.(?:\\.|[^\]\\])*\]", ".", pattern)
    groups = 1
    while groups:  # from the innermost outwards
        rest, groups = re.subn(r"(?<!\\)\((?:\\.|[^()\\])*\)", ".", rest)
    if re.search(r"(?<!\\)\|", rest):
        raise ValueError(f"write alternatives as separate patterns: {pattern}")
    runs = re.split(r"(?:\\.|[^\\])(?:[?*]|\{[^}]*\})|(?<!\\)[.+^$?*]", rest)
    longest = max((re.sub(r"\\(.)", r"\1", run) for run in runs), key=len)
    if len(longest) < _SHORTEST_NEEDLE:
        raise ValueError(f"needs {_SHORTEST_NEEDLE} plain characters in a row outside groups: {pattern}")
    return longest


def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace(" ?", r"\s?").replace(" ", r"\s+"), re.MULTILINE)


@cache
def signatures() -> tuple[Signature, ...]:
    """Every signature, in the order in which they are preferred."""
    return tuple(Signature.model_validate(one) for name in _FILES for one in table(f"signatures/{name}"))


@cache
def matchers() -> tuple[Matcher, ...]:
    """Every pattern of every signature, compiled."""
    return tuple(Matcher(one, needle(text), _compile(text)) for one in signatures() for text in one.patterns)


@cache
def markers() -> Markers:
    """The log markers."""
    return Markers.model_validate(table("log_markers"))


@cache
def harmless() -> re.Pattern[str]:
    """Matches lines that never prove a failure."""
    return re.compile("|".join(f"(?:{pattern})" for pattern in markers().harmless))


@cache
def frame_patterns() -> dict[Phase, re.Pattern[str]]:
    """Stack frames that tell a phase."""
    return {phase: re.compile("|".join(patterns)) for phase, patterns in markers().frames.items()}
