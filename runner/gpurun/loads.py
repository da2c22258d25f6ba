"""What one case's load is on one host: the tool's exact argv, its environment, its specification, its files."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpurun.cases import Case
from gpurun.engines import canonical, flag_argv
from gpurun.errors import ConfigError, Problem
from gpurun.launch import BIND, Launch
from gpurun.load import PORT_TOKEN
from gpurun.template import TemplateError, render, render_tree
from gpurun.tools import Tool, load_tool, read_script, script_argv, tool_context
from gpurun.tree import digest

BEFORE, AFTER = "metrics.before.txt", "metrics.after.txt"


def load_spec(
    case: Case, model_name: str, port: int | None, timeout_s: float, progress: str, address: str = BIND, repeat: int = 1
) -> dict[str, Any]:
    """What the builtin load tool is told (SPEC.json in docs/design.md). `address`: where it finds the server's host.

    Loads on one server have different prompts, also where they differ in nothing but an axis, or are repeats: else the
    second finds the first one's in the prefix cache. Every variant gets the same.
    """
    load, hints = case.load.load, case.engine.load
    how: dict[str, Any] = {"concurrency": load.concurrency}
    if load.request_rate is not None:
        how = {"request_rate": load.request_rate, "arrival": load.arrival or "poisson"}
        how |= {"max_concurrency": load.max_concurrency} if load.max_concurrency is not None else {}
    return {
        "base_url": f"http://{address}:{PORT_TOKEN if port is None else port}",
        "api": case.load.api or hints.api,
        "model": model_name,
        "load": how,
        "requests": load.requests,
        "duration_s": load.duration,
        "warmup": load.warmup,
        "data": {**case.load.data.model_dump(exclude_none=True), "seed": seed_of(case, repeat)},
        "extra_body": hints.extra_body,
        "tokenize": hints.tokenize,
        "timeout_s": timeout_s,
        "progress": progress,
    }


def seed_of(case: Case, repeat: int) -> int:
    """The campaign's seed, made another for each load (31 bits: some tools take no more)."""
    own = {name: value for name, value in case.axes.items() if not name.startswith("server.")}
    own |= {"repeat": repeat} if repeat > 1 else {}
    return (case.load.data.seed + (zlib.crc32(digest([case.benchmark, own]).encode()) if own else 0)) % (1 << 31)


def plan_load(
    case: Case, found: Launch, host: str, home: str, folder: str, spec: Mapping[str, Any], scripts: Mapping[str, str]
) -> dict[str, Any]:
    """The tool's part of a planned sample's `load`. `folder` is the job's on the host that sends the load, `home`
    gpurun's there; `scripts` are the campaign's scripts by file. ConfigError if a template does not fit."""
    tool, script = load_tool(case.load.tool), case.load.script
    version, metrics = tool_version(case), found.server["metrics_path"]
    place = f"{home}/tools/{tool.name}-{version}"
    own = {"version": version, "dir": place, "bin": f"{place}/bin", "python": f"{place}/bin/python"}
    context = tool_context(case.load, case.engine, found.server["model"], spec["base_url"], folder)
    context["data"]["seed"] = spec["data"]["seed"]
    planned: dict[str, Any] = {"files": {}, "output": tool.output, "parse": None}
    if script is not None:
        words = script_argv(script.file, script.args, script.command, own["python"], folder)
        try:
            argv = [render(word, context) for word in words]
            planned["dry_run"] = [render(word, context) for word in script.dry_run] or None
        except TemplateError as error:
            message = f"host `{host}`: the script's arguments cannot be filled in: {error}"
            raise ConfigError([Problem(message, None)]) from None
        if script.file is not None:
            planned["files"] = {Path(script.file).name: hashlib.sha256(scripts[script.file].encode()).hexdigest()}
        planned["output"] = script.output or tool.output
        planned["parse"] = script.model_dump(include={"format", "metrics", "scale"})
    else:
        argv = [word for item in tool.argv if (word := render(item, {**context, "tool": own}))]
        argv += _engine_flags(tool, case, found)
    return {
        "tool": tool.name,
        "version": version,
        "argv": argv,
        "env": dict(tool.env),
        "cwd": place if tool.in_environment else None,
        "parser": tool.parser,
        "serves": tool.serves,
        **planned,
        "raw": raw_name(planned["output"]),
        "left": {"client.log": "log", raw_name(planned["output"]): planned["output"], BEFORE: BEFORE},
        "reset": case.engine.reset
        and {"base_url": spec["base_url"], **case.engine.reset.model_dump(exclude={"needs"})},
        "scrape": {BEFORE: f"{spec['base_url']}{metrics}"} if metrics else {},
    }


def raw_name(output: str) -> str:
    """What a tool's output is called in the sample's directory."""
    return "client.log" if output == "log" else f"raw{Path(output).suffix}"


def _engine_flags(tool: Tool, case: Case, found: Launch) -> list[str]:
    """The server's flags that the tool knows too, with the values that the server has on this host."""
    argv: list[str] = []
    for flag in found.flags:
        name = canonical(case.engine.flags, flag.replace("_", "-"))
        if name in tool.flags:
            argv += [f"--{tool.flags[name]}", *flag_argv(case.engine.flags, name, found.flags[flag])[1:]]
    return argv


def tool_version(case: Case) -> str:
    """The version of a case's tool; of a script, what it is installed with."""
    script = case.load.script
    return digest(script.packages)[:8] if script is not None else load_tool(case.load.tool).version


def tool_needs(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """What the role `load_tool` installs for these cases (its arguments)."""
    needs: dict[tuple[str, str], dict[str, Any]] = {}
    for case in cases:
        tool, version = load_tool(case.load.tool), tool_version(case)
        own = {"version": version, "dir": ".", "bin": "bin", "python": "bin/python"}  # checks run in its folder
        script, one = case.load.script, {"name": tool.name, "version": version}
        if script is not None and (script.file or "").endswith(".py"):
            needs[tool.name, version] = {**one, "packages": script.packages, "python": None, "check": []}
        elif tool.install is not None:
            filled = {key: render_tree(value, {"tool": own}) for key, value in tool.install.model_dump().items()}
            needs[tool.name, version] = {**one, **filled}
    return list(needs.values())


def read_scripts(campaign: str, cases: Sequence[Case]) -> dict[str, str]:
    """The texts of the scripts that the cases run, by file. ConfigError where one cannot be read."""
    files = {script.file for case in cases if (script := case.load.script) is not None and script.file is not None}
    try:
        return {file: read_script(campaign, file) for file in sorted(files)}
    except ValueError as error:
        raise ConfigError(str(error)) from None
