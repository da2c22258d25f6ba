"""Where a shell text launches an inference server, through whatever stands around it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from gpurun.container_spec import as_shell
from gpurun.data import table
from gpurun.engines import Engine
from gpurun.errors import ConfigError
from gpurun.shell import ASSIGNMENT, commands

LAUNCHES: dict[str, Any] = table("from_command")
# Lines of a unit of systemd, as the shell would say them.
_UNIT = {re.compile(r"(?m)^\s*ExecStart=[-@:+!|]*"): "", re.compile(r"(?m)^\s*Environment=(?=\S)"): "export "}


def read_as(engine: Engine, version: str | None) -> str:
    """The version with whose options a command is read, where it may tell none."""
    return version or str(LAUNCHES["reads"].get(engine.name, engine.default_version))


@dataclass
class Found:
    """A launch: `before` ends with the program, `rest` is for the engine, `exported` are variables set before it."""

    engine: str
    version: str | None
    before: list[str]
    rest: list[str]
    exported: dict[str, str]
    lost: tuple[str, ...] = ()  # flags that the shell takes for another command


def find_launch(text: str) -> Found:
    """Where a shell text, or a container in YAML, launches a server. ConfigError where it does not."""
    for pattern, command in _UNIT.items():
        text = pattern.sub(command, text)
    try:
        lines = (_find(commands(line)) for line in as_shell(text))
        found = next(filter(None, lines), None) or _find(commands(text))
    except ValueError as error:
        raise ConfigError(f"this is no shell command: {error}") from None
    if found is None:
        known = ", ".join(f"`{' '.join(one['words'])}`" for one in LAUNCHES["launchers"])
        raise ConfigError("no server is launched here that gpurun knows", hint=f"it looks for {known}")
    return found


def _find(simple: Sequence[Sequence[str]]) -> Found | None:
    """The first launch, also inside a word, as in `bash -c '...'` or `ssh HOST '...'`, or in an image's entrypoint."""
    exported: dict[str, str] = {}
    versions: dict[str, str] = {}
    for number, words in enumerate(simple):
        if words[0] == "env" and all(ASSIGNMENT.fullmatch(word) for word in words[1:]):
            exported |= dict(ASSIGNMENT.fullmatch(word).groups() for word in words[1:])  # type: ignore[union-attr, misc]
        versions |= dict(pin for word in words for pin in re.findall(r"\b(vllm|sglang)(?:\[\w+\])?==([\w.]+)", word))
        begin = image_at(words) or 0
        outer = {} if begin else exported  # a container gets only what it is given
        for at, word in enumerate(words):
            for one in LAUNCHES["launchers"]:
                if _starts(words[at:], one["words"]):
                    version = versions.get(one["engine"]) or _version_of_image(words[:at])
                    rest = list(words[at + len(one["words"]) :])
                    return Found(one["engine"], version, list(words[: at + 1]), rest, outer, _lost(simple, number))
            inside = _inside(word) if " " in word else None
            if inside is not None:
                inside.version = inside.version or versions.get(inside.engine) or _version_of_image(words[:at])
                inside.before = [*words[:at], "env", *inside.before]
                inside.exported = outer | inside.exported
                return inside
        for one in LAUNCHES["images"] if begin else ():
            if f"/{one['name']}" in f"/{words[begin]}":  # of whatever registry
                before, rest = list(words[: begin + 1]), list(words[begin + 1 :])
                return Found(one["engine"], _version_of_image(words), before, rest, {}, _lost(simple, number))
    return None


def _lost(simple: Sequence[Sequence[str]], number: int) -> tuple[str, ...]:
    """The command behind that one, if it is none: a comment or a blank behind a backslash cut its flags off."""
    behind = simple[number + 1] if number + 1 < len(simple) else [""]
    return tuple(behind) if behind[0].startswith("--") else ()


def _inside(word: str) -> Found | None:
    try:
        simple = commands(word)
        return None if simple == [[word]] else _find(simple)  # `...` and $(...) stay one word
    except ValueError:
        return None


def _starts(words: Sequence[str], wanted: Sequence[str]) -> bool:
    return bool(words) and [PurePosixPath(words[0]).name, *words[1 : len(wanted)]] == list(wanted)


def image_at(words: Sequence[str]) -> int | None:
    """The place of the image in `docker run ... IMAGE`."""
    names = [PurePosixPath(word).name for word in words]
    engines = (at for at, name in enumerate(names) if name in LAUNCHES["containers"])
    begin = next((at for at in engines if "run" in words[at + 1 : at + 3] and words[at + 1] != "compose"), None)
    if begin is None:
        return None
    at = words.index("run", begin) + 1
    while at < len(words) and words[at].startswith("-"):
        alone = "=" in words[at] or words[at] in LAUNCHES["container"]["switches"]
        at += 1 if alone else 2
    return at if at < len(words) else None


def _version_of_image(words: Sequence[str]) -> str | None:
    image = image_at(words)
    found = re.search(r":v(\d+\.\d+[\w.]*)$", words[image]) if image is not None else None
    return found.group(1) if found else None
