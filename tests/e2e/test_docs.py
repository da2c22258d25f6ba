"""The documentation holds: its campaigns are right, every command in it runs, what is made from the code is up to date.

Commands run as they stand, one after the other. Hosts and engines are not here: `inventory.yml` names this machine, and
once a campaign of the docs has been checked and planned as it is, it is made small and its engine is the small server.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner
from tests.e2e.program import ROOT, SERVER, Place
from tests.unit import stored

from gpurun import cli

DOCS = ROOT / "docs"
CONTEXT = click.Context(cli.gpurun)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FACTS = ROOT / "campaigns" / "hosts" / "8x-h100.json"
OTHER_CODES = {"gpurun doctor": {3, 4}, "--fail-on regression": {6}}  # of commands that are right, too


def blocks(document: str) -> list[tuple[str, str]]:
    """Language and text of each fenced block."""
    return [(match[1], match[2]) for match in FENCE.finditer((DOCS / document).read_text(encoding="utf-8"))]


def small(text: str) -> dict[str, Any]:
    """The same campaign with one round, few requests, and the small server as its engine."""
    campaign: dict[str, Any] = yaml.safe_load(text)
    argv = [sys.executable, str(SERVER), "--port", "{{ port }}", "--token-delay", "0.05"]
    campaign["server"] = {"engine": "command", "argv": argv}
    campaign["variants"] = {name: {"server": {"argv": [*argv, "--note", name]}} for name in campaign["variants"]}
    campaign.pop("baseline", None)
    for path, values in campaign.get("matrix", {}).get("axes", {}).items():
        campaign["matrix"]["axes"][path] = values[:2]
    for benchmark in campaign["benchmarks"].values():
        benchmark["load"] |= {"concurrency": 2, "requests": 8, "warmup": 0}
        benchmark["data"] |= {"prompt_tokens": 8, "output_tokens": 8}
    return {**campaign, "rounds": 1, "timeouts": {"start": "2m", "sample": "2m", "stop": "5s"}}


class Reader:
    """Somebody who does what a document says, in a folder of their own."""

    def __init__(self, place: Place) -> None:
        self.here = place.folder
        self.inventory = (place.folder / "inventory.yml").read_text()
        tools = place.folder / "tools"
        tools.mkdir()
        (tools / "xdg-open").write_text(f'#!/bin/sh\necho "$1" >> {str(place.folder / "opened")!r}\n')
        (tools / "xdg-open").chmod(0o755)
        path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
        self.env = {**os.environ, "PATH": path, "TMPDIR": str(place.temporary), "NO_COLOR": "1"}
        self.env.pop("CI", None)
        self.runner = CliRunner()

    def write(self, text: str) -> None:
        """A file of the document, named in its first line: right as it is, then made small."""
        name = text.split("\n", 1)[0].removeprefix("# ")
        (self.here / name).write_text(text)
        self.run(f"gpurun validate {name}")
        self.run(f"gpurun plan -c {name} --facts '{FACTS}'")
        (self.here / name).write_text(yaml.safe_dump(small(text), sort_keys=False))

    def run(self, command: str) -> None:
        """One command, as it stands."""
        if command.startswith("cd "):
            self.here /= command.removeprefix("cd ")
            return
        (self.here / "server.log").write_text("error: invalid argument: --no-such-flag\n")
        words = shlex.split(command)
        own = ("bench", "doctor", "stop", "--open")  # what takes over the whole process, or leaves one behind
        if words[0] == "gpurun" and not any(word in own for word in words):
            with contextlib.chdir(self.here):
                done = self.runner.invoke(cli.gpurun, words[1:], env=self.env, standalone_mode=False)
            code, said = (done.return_value or 0) if done.exception is None else 1, f"{done.output}\n{done.exc_info}"
        else:
            argv = ["bash", "-euo", "pipefail", "-c", command]
            ran = subprocess.run(argv, cwd=self.here, env=self.env, capture_output=True, text=True, check=False)
            code, said = ran.returncode, f"{ran.stdout}\n{ran.stderr}"
        codes = {0}.union(*(more for part, more in OTHER_CODES.items() if part in command))
        assert code in codes, f"{command}\n{said}"
        if (self.here / "inventory.yml").exists():
            (self.here / "inventory.yml").write_text(self.inventory)


@pytest.mark.slow
@pytest.mark.timeout(600)  # the recipes are six runs
@pytest.mark.parametrize("document", ["guide.md", "concepts.md", "recipes.md"])
def test_every_command_runs(document: str, place: Place) -> None:
    reader = Reader(place)
    numbers: dict[str, list[float | None]] = {"baseline": [80.0], "other": [81.0]}
    for earlier in ("20261130-1204-a1f3", "20261130-1304-b2e4"):
        stored.run(place.folder / "results", numbers, requests=2, run=earlier)
    ran = 0
    for language, text in blocks(document):
        if language == "python":
            (reader.here / text.split("\n", 1)[0].removeprefix("# ")).write_text(text)
        elif language == "yaml" and text.startswith("# "):
            reader.write(text)
        elif language == "console":
            for command in re.findall(r"^\$ (.*)$", text, re.MULTILINE):
                reader.run(command)
                ran += 1
    assert ran == len(re.findall(r"^\$ ", (DOCS / document).read_text(), re.MULTILINE)) > 0
    if "--open" in (DOCS / document).read_text():
        (opened,) = (place.folder / "opened").read_text().splitlines()
        assert Path(opened.removeprefix("file://").replace("%20", " ")).name == "report.html"


def named(document: Path) -> Iterator[list[str]]:
    """The words of each command of gpurun that a document names, in a sentence or a block."""
    text = document.read_text(encoding="utf-8")
    for line in re.findall(r"`(gpurun [^`]+)`|^(?: {4}|\$ )(gpurun .*?)(?: {3}.*)?$", text, re.MULTILINE):
        yield shlex.split("".join(line).replace("...", ""))[1:]


@pytest.mark.parametrize("document", [ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda path: path.stem)
def test_every_verb_and_option_that_is_named_exists(document: Path) -> None:
    for words in named(document):
        if words[0] not in cli.VERBS and document.stem == "awx":
            continue  # the name of a job template
        command: click.Command | None = cli.gpurun
        options = {"--help", "--version"}
        for word in words:
            if isinstance(command, click.Group) and (word in command.list_commands(CONTEXT) or word == words[0]):
                command = command.get_command(CONTEXT, word)
            assert command is not None, f"there is no {word}: {words}"
            options |= {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
            if command.name != "fit":  # an engine's flags stand among its options
                assert not word.startswith("-") or word in options, f"there is no {word}: {words}"


def test_what_is_made_from_the_code_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(DOCS / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_links_lead_somewhere() -> None:
    for document in (ROOT / "README.md", *DOCS.glob("*.md")):
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text(encoding="utf-8")):
            assert target.startswith("https://") or (document.parent / target).exists(), f"{document.name}: {target}"
