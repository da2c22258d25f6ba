"""What gpurun knows about load tools. A tool is a data file, `data/tools/<name>.yml`: how it is installed, its argv,
what it can do, which file has its results and which parser reads that.

Templates in those files see `tool` (`version`, `dir`: its environment, `python`, `bin`), `base_url`, `endpoint`, `api`,
`model`, `tokenizer`, `load`, `data`, `extra_body` and `out`, the job's folder on the host that sends the load.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from gpurun.data import names, table
from gpurun.engines import Engine, Install, canonical
from gpurun.samples import Record

if TYPE_CHECKING:
    from gpurun.config import Benchmark, Server

SCRIPT_BYTES = 256 * 1024
Wrong = tuple[tuple[str, ...], str, str | None]
"""The place inside a benchmark, what is wrong there, and the next step."""


class Supports(Record):
    """What of a load a tool can do."""

    data: list[Literal["synthetic", "text", "file"]]
    arrival: list[Literal["poisson", "constant"]] = Field(["poisson", "constant"])  # with a request rate
    max_concurrency: bool = True  # with a request rate
    warmup: bool = True
    duration: bool = False  # a load that ends after a time


class Tool(Record):
    """One load tool."""

    name: str
    title: str
    docs: str
    version: str
    install: Install | None = None  # null: the host's own program
    argv: list[str]  # each item is a template; an empty result is left out
    env: dict[str, str] = Field({})
    in_environment: bool = False  # it runs with its environment as working folder, else with the job's
    engine: str | None = None  # the only engine that it works with
    flags: dict[str, str] = Field({})  # of that engine's flags, those that it is given -> what they are called there
    serves: bool = True  # false: it sends no requests, so that the server's counters say nothing about it
    output: str  # file in the job's folder
    parser: str
    supports: Supports
    notes: list[str] = Field([])  # what a reader of its numbers should know


def tool_names() -> tuple[str, ...]:
    """The tools that have a data file, sorted."""
    return names("tools")


@cache
def load_tool(name: str) -> Tool:
    """The tool of that name. KeyError where there is none (check `tool_names` first)."""
    if name not in tool_names():
        raise KeyError(name)
    return Tool.model_validate(table(f"tools/{name}"))


def misfits(load: Benchmark, server: Server, engine: Engine) -> Iterator[Wrong]:
    """What of a benchmark its tool cannot do, with this server."""
    tool, how = load_tool(load.tool), load.load
    can, name = tool.supports, f"`{tool.name}`"
    if load.data.kind not in can.data:
        yield ("data", "kind"), f"{name} has no `{load.data.kind}` data", f"`kind: {can.data[0]}`, or `tool: builtin`"
    if how.request_rate is not None and how.arrival is not None and how.arrival not in can.arrival:
        yield ("load", "arrival"), f"{name} knows `{can.arrival[0]}` arrivals only", None
    if how.max_concurrency is not None and not can.max_concurrency:
        yield ("load", "max_concurrency"), f"{name} cannot limit what is in flight at a rate", None
    if how.duration is not None and not can.duration:
        yield ("load", "duration"), f"{name} ends after a number of requests, not after a time", "use `requests`"
    if how.requests is None and not can.duration:
        yield ("load", "requests"), f"{name} needs `requests`", None
    if how.warmup and not can.warmup:
        yield ("load", "warmup"), f"{name} has no warm-up", "leave `warmup` out"
    if tool.engine not in (None, engine.name):
        yield ("tool",), f"{name} measures `{tool.engine}` only, and here the engine is `{engine.name}`", None
    elif tool.engine is not None and how.concurrency != 1:
        yield ("load", "concurrency"), f"{name} does one stream at a time", "`concurrency: 1`"
    elif needs_tokenizer(tool) and load.tokenizer is None and engine.model != "directory":
        hint = "name a folder with a tokenizer, on the host that sends the load"
        yield ("tool",), f"{name} counts tokens itself, so it needs `tokenizer`", hint
    ignored = [flag for flag in server.flags or {} if tool.flags and canonical(engine.flags, flag) not in tool.flags]
    if unknown := [flag for flag in ignored if flag not in engine.defaults]:
        yield ("tool",), f"{name} does not know the flag `{unknown[0]}`, so it cannot measure it", "use `tool: builtin`"


def needs_tokenizer(tool: Tool) -> bool:
    """Whether the tool is told where a tokenizer is."""
    return any("tokenizer" in word for word in tool.argv)


def read_script(campaign: str, file: str) -> str:
    """The text of a script that lies beside the campaign file. ValueError says why it cannot be had."""
    path = Path(campaign).parent / file
    try:
        with path.open("rb") as stream:
            raw = stream.read(SCRIPT_BYTES + 1)
        if len(raw) > SCRIPT_BYTES:
            raise ValueError(f"`{path}` is too large: a script has at most {SCRIPT_BYTES} bytes")
        return raw.decode()
    except UnicodeDecodeError:
        raise ValueError(f"`{path}` is not UTF-8 text") from None
    except OSError as error:
        raise ValueError(f"cannot read `{path}`: {error.strerror or error}") from None


def script_argv(file: str | None, args: list[str], command: list[str] | None, python: str, out: str) -> list[str]:
    """How a script is called: by its suffix, from where it was put."""
    if file is None:
        return list(command or [])
    return [python if file.endswith(".py") else "bash", f"{out}/{Path(file).name}", *args]


def tool_context(load: Benchmark, engine: Engine, model: dict[str, Any], base_url: str, out: str) -> dict[str, Any]:
    """What the templates of tools and scripts see; a tool's own place is added by who knows it."""
    how, api = load.load, load.api or engine.load.api
    return {
        "base_url": base_url,
        "endpoint": "/v1/chat/completions" if api == "chat" else "/v1/completions",
        "api": api,
        "model": {"path": model["path"], "name": model["name"]},
        "load": {
            **how.model_dump(exclude={"duration", "arrival"}),
            "arrival": how.arrival or "poisson",
            "duration_s": how.duration,
        },
        "data": load.data.model_dump(),
        "tokenizer": load.tokenizer or model["path"],
        "extra_body": engine.load.extra_body,
        "out": out,
    }
