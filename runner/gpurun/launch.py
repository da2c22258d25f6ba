"""What one case is on one host: the exact argv, environment and readiness of its server, and the load against it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from gpurun.cases import Case
from gpurun.config import MODEL_SOURCES, Model
from gpurun.engines import flags_argv
from gpurun.errors import Problem
from gpurun.fields import PORT_TOKEN
from gpurun.load import KeyPath
from gpurun.resolve import engine_version
from gpurun.template import TemplateError, facts_for, render, render_tree
from gpurun.tree import digest

BIND = "127.0.0.1"
TOOL_VERSION = "1.0"  # of the builtin load tool; the same as loadgen.__version__
UNNAMED_MODEL = "default"


class LaunchError(Exception):
    """A template cannot be filled in on this host; `problem` says where."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


@dataclass(frozen=True)
class Launch:
    """A server as it is started on one host, and what must be installed there first (None: nothing)."""

    argv: list[str]
    env: dict[str, str]
    ready: dict[str, Any]
    engine: dict[str, Any]
    model: dict[str, Any]
    install: dict[str, Any] | None

    def content(self) -> list[Any]:
        """All that makes what it serves what it is."""
        return [self.argv, self.env, self.engine, {key: value for key, value in self.model.items() if key != "key"}]


def launch(case: Case, host: str, facts: Mapping[str, Any]) -> Launch:
    """The server of `case` on a host with these facts (`host` and `gpus` of the facts module). LaunchError if a
    template does not fit them."""
    server, engine = case.server, case.engine
    home = str(facts.get("host", {}).get("home") or "~/.gpurun")
    model = model_on_host(server.model or Model(), home)
    program = _program(case, facts)
    version = None if program else engine_version(server, engine)
    place = f"{home}/engines/{engine.name}-{version}"
    installed: dict[str, Any] = {
        "version": version,
        "dir": place,
        "bin": f"{place}/bin",
        "python": f"{place}/bin/python",
        "launcher": f"{place}/{engine.launcher}",
        "binary": program,
    }
    named = {
        key: model[key] for key in ("path", "name") if model[key] is not None
    }  # a fact that is not there: an error
    context = facts_for(facts, named, case.axes, server.port)
    own = {**context, "engine": installed, "bind": BIND}

    def at(path: KeyPath) -> _Filler:
        return _Filler(case, host, path, context)

    command = engine.command.binary if program else engine.command.env
    argv = [word for item in command if (word := render(item, own))]
    argv += [at(("argv", number)).text(item) for number, item in enumerate(server.argv or [])]
    for flag, value in (server.flags or {}).items():
        argv += flags_argv(engine.flags, {flag: value}, at(("flags", flag)).text)
    env = {key: render(value, own) for key, value in engine.env.items()}
    env |= {key: at(("env", key)).text(value) for key, value in (server.env or {}).items() if value is not None}
    install = None
    if engine.install is not None and program is None:
        install = {
            "name": engine.name,
            "version": version,
            "packages": [render(item, own) for item in engine.install.packages],
            "launcher": engine.launcher,
            "python": engine.install.python,
            "check": [render(item, own) for item in engine.install.check],
        }
    about = {"name": engine.name, "version": version}
    about |= {"binary": program} if program else {}
    return Launch(argv, env, _ready(case, own, at(("ready",))), about, model, install)


def model_on_host(model: Model, home: str) -> dict[str, Any]:
    """Where a model lies on a host (`path`), what it is called when served, and where it comes from.

    `key` names its folder under `<home>/models`; it depends on the source alone, so that runs share what is fetched.
    """
    source = {key: value for key, value in model.model_dump(exclude={"name"}).items() if value is not None}
    kind = next((kind for kind in MODEL_SOURCES if kind in source), None)
    if kind is None:
        return {"kind": None, "key": None, "path": None, "name": model.name or UNNAMED_MODEL}
    origin = str(source[kind])
    file = source.get("file")
    if kind == "url":
        file = posixpath.basename(unquote(urlsplit(origin).path)) or "model"
    last = posixpath.basename((file or origin).partition("==")[0].rstrip("/")) or "model"
    name = model.name or (origin if kind == "hf" else posixpath.splitext(last)[0])
    if kind == "path":
        return {"kind": kind, "key": None, "path": origin, "name": name, **source}
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", origin if kind in ("hf", "wheel") else last).strip("-.")[:60]
    key = f"{slug}-{digest(source)[:8]}"
    path = f"{home}/models/{key}"
    if file and not (kind == "hf" and re.search(r"[*?\[]", file)):
        path += f"/{file}"
    return {"kind": kind, "key": key, "name": name, **source, "path": path}


def load_spec(case: Case, model_name: str, port: int | None, timeout_s: float, progress: str) -> dict[str, Any]:
    """What the builtin load tool is told (SPEC.json in docs/design.md)."""
    load, data, hints = case.load.load, case.load.data, case.engine.load
    how: dict[str, Any] = {"concurrency": load.concurrency}
    if load.request_rate is not None:
        how = {"request_rate": load.request_rate, "arrival": load.arrival or "poisson"}
        how |= {"max_concurrency": load.max_concurrency} if load.max_concurrency is not None else {}
    return {
        "base_url": f"http://{BIND}:{PORT_TOKEN if port is None else port}",
        "api": case.load.api or hints.api,
        "model": model_name,
        "load": how,
        "requests": load.requests,
        "duration_s": load.duration,
        "warmup": load.warmup,
        "data": data.model_dump(exclude_none=True),
        "extra_body": hints.extra_body,
        "tokenize": hints.tokenize,
        "timeout_s": timeout_s,
        "progress": progress,
    }


@dataclass(frozen=True)
class _Filler:
    """Fills in the texts at one place of a case's server; what does not fit is a LaunchError with its position."""

    case: Case
    host: str
    path: KeyPath
    context: Mapping[str, Any]

    def text(self, text: str) -> str:
        try:
            return render(text, self.context)
        except TemplateError as error:
            mark = self.case.stack.mark(self.path)
            raise LaunchError(
                Problem(f"host `{self.host}`: the template does not fit its facts: {error}", mark)
            ) from None


def _program(case: Case, facts: Mapping[str, Any]) -> str | None:
    """The host's own program for the engine; None where gpurun installs it.

    A program that the campaign names is used as it is. Else the engine's usual one is, if the host has it and the
    campaign pins no version.
    """
    commands = facts.get("host", {}).get("commands") or {}
    if case.server.binary is not None:
        return str(commands.get(case.server.binary) or case.server.binary)
    if case.engine.binary is None or "==" in (case.server.engine or ""):
        return None
    return commands.get(case.engine.binary)


def _ready(case: Case, own: Mapping[str, Any], filler: _Filler) -> dict[str, Any]:
    rule, given = case.engine.ready, case.server.ready
    generate = render_tree(rule.generate.model_dump(), own) if rule.generate else None
    answer = rule.answer
    health: Any = rule.health
    models: Any = rule.models
    if given is not None:
        health = health if given.health is None else given.health or None
        models = models if given.models is None else given.models or None
        if given.generate is not None:
            body = _filled(given.generate.body, filler)
            generate, answer = {"path": given.generate.path, "body": body}, given.answer
        answer = given.answer or answer
    model = case.server.model
    named = model is not None and (model.name is not None or any(getattr(model, kind) for kind in MODEL_SOURCES))
    name = own["model"]["name"] if named and models else None
    return {"health": health, "models": models, "model": name, "generate": generate, "answer": answer}


def _filled(value: Any, filler: _Filler) -> Any:
    if isinstance(value, str):
        return filler.text(value)
    if isinstance(value, Mapping):
        return {key: _filled(item, filler) for key, item in value.items()}
    return [_filled(item, filler) for item in value] if isinstance(value, list) else value
