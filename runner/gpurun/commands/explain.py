"""`gpurun explain`: say why a server failed, from its log."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from pathlib import Path

import click

from gpurun.commands import options
from gpurun.diagnose import classify
from gpurun.signatures import markers
from gpurun.text import fill

_HEAD_BYTES = 1 << 16
_MOST_BYTES = 256 << 20
_ODD_SHARE = 0.2  # of what is no character, or controls nothing that a terminal knows


def _read(path: str) -> str:
    try:
        with sys.stdin.buffer if path == "-" else Path(path).open("rb") as file:
            data = file.read(_HEAD_BYTES)
            text = _decoded(path, data)
            data += file.read(_MOST_BYTES - len(data))
            if file.read(1):
                click.echo(f"note: only the first {_MOST_BYTES >> 20} MiB were read; `tail` gives its end", err=True)
    except OSError as error:
        raise click.UsageError(f"cannot read {path}: {error.strerror or error}") from error
    return text if len(data) < _HEAD_BYTES else _decoded(path, data)


def _decoded(path: str, data: bytes) -> str:
    """The text of a log. A usage error where it is none: a program, an archive, noise."""
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"  # PowerShell redirects as UTF-16
    text = data.decode(encoding, errors="replace")
    head = text[:_HEAD_BYTES].replace("\0", "")  # a log that was cut while its server wrote begins with zeros
    odd = len(re.findall(r"[\x01-\x07\x0e-\x1a\x1c-\x1f\x7f\ufffd]", head))
    if odd > _ODD_SHARE * len(head) or (data and not head):
        raise click.UsageError(f"{path} is not the text of a log (an archive? then unpack it first)")
    return text


def _engine(name: str | None) -> str | None:
    """The engine by any usual spelling (`llama.cpp`, `TensorRT-LLM`); None, with a note, for one that is not known."""
    if not name:
        return None
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    plain = {"tensorrtllm": "trtllm", "llamaserver": "llamacpp", "hf": "transformers"}.get(plain, plain)
    if plain in markers().engines:
        return plain
    known = ", ".join(sorted(markers().engines))
    click.echo(f"note: no engine is named {name}; known: {known}. Looking at the log instead.", err=True)
    return None


@click.command(name="explain")
@click.argument("logfile")
@click.option("--engine", help="The engine that wrote the log; found out from the log if not given.")
@click.option("--exit-code", type=int, help="How the server's process ended (137 and -9 both mean SIGKILL).")
@options.as_json
def command(logfile: str, engine: str | None, exit_code: int | None, as_json: bool) -> None:
    """Say why a server failed, from its log (`-` reads standard input).

    Class, phase, the line that proves it and what to do next; class `none` for a healthy log. The exit code is 0
    whatever the answer is, and 2 if the log cannot be read.
    """
    told = classify(_read(logfile), engine=_engine(engine), exit_code=exit_code)
    document = asdict(told)
    document |= {"schema": "gpurun.explain/1", "class": document.pop("klass")}
    if as_json:
        options.print_json(document)
    else:
        click.echo(fill("explain.txt.j2", path=logfile, told=told))
