"""What one case is on one host: the exact argv, environment and readiness of its server, and the load against it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any
from urllib.parse import unquote, urlsplit

from gpurun.cases import Case
from gpurun.config import CONTAINERS, MODEL_SOURCES, Model, Server
from gpurun.engines import Engine, canonical, flags_argv
from gpurun.errors import ConfigError, Problem
from gpurun.load import PORT_TOKEN
from gpurun.resolve import engine_version
from gpurun.template import TemplateError, render, render_tree
from gpurun.tree import KeyPath, digest
from gpurun.validity import ask

BIND = "127.0.0.1"
BIND_FOR_OTHERS = "0.0.0.0"  # noqa: S104 (another host sends the load, and readiness is asked on the host itself)
OTHER_PYTHON = "3.12"
UNNAMED_MODEL = "default"


@dataclass(frozen=True)
class Launch:
    """A server on one host: a planned sample's `server` without the run's part, and what the role `engine` installs.

    `flags` are as checks want them: main spelling, `_` for `-`, templates filled in, without those that are removed.
    """

    server: dict[str, Any]
    install: dict[str, Any] | None
    flags: dict[str, Any]

    @property
    def content(self) -> list[Any]:
        """All that makes what it serves what it is."""
        model = {key: value for key, value in self.server["model"].items() if key != "key"}
        container = [self.server["container"]] if self.server["container"] else []
        return [*(self.server[key] for key in ("argv", "env", "engine", "secrets")), model, *container]

    @cached_property
    def key(self) -> str:
        """Equal for cases that one server can serve."""
        return digest([self.content, *(self.server[key] for key in ("ready", "port", "cwd"))])[:8]


def home_of(facts: Mapping[str, Any]) -> str:
    """gpurun's folder on a host."""
    return str(facts.get("host", {}).get("home") or "~/.gpurun")


def load_host(host: str, facts: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What preflight found about the other machine that sends the load to `host`: `host`, `home`, and `address`, which
    is this host's own as seen from there. None where the load comes from the server's host. ConfigError if the address
    is none that another machine can use."""
    known: Mapping[str, Any] = facts.get("load") or {}
    if known.get("host") in (None, host):
        return None
    address = str(known["address"])
    if not address or ":" in address or address == "localhost" or address.startswith("127."):
        message = f"host `{host}`: its load comes from `{known['host']}`, which cannot reach it at `{address}`"
        raise ConfigError(message, hint=f"set `gpurun_address` of {host} in the inventory: an IPv4 address or a name")
    return known


def facts_for(
    host: Mapping[str, Any], model: Mapping[str, Any], axes: Mapping[str, Any], port: int | None, bind: str = BIND
) -> dict[str, Any]:
    """What a campaign's templates see on one host. `host` is what the facts module found: `host` and `gpus`."""
    own = {"host": host.get("host", {}), "gpus": host.get("gpus", [])}
    return {**own, "model": model, "axes": axes, "port": PORT_TOKEN if port is None else port, "bind": bind}


def launch(case: Case, host: str, facts: Mapping[str, Any]) -> Launch:
    """The server of `case` on a host with these facts. ConfigError if a template does not fit them."""
    server, engine = case.server, case.engine
    model = model_on_host(server.model or Model(), home_of(facts))
    known = {key: model[key] for key in ("path", "name") if model[key] is not None}  # else: not a fact
    context = facts_for(facts, known, case.axes, server.port, BIND_FOR_OTHERS if load_host(host, facts) else BIND)
    program = _program(case, facts)
    version = None if program else engine_version(server, engine)
    own = {**context, "engine": {**place_of(engine, version, home_of(facts)), "binary": program}}

    def fill(value: Any, path: KeyPath) -> Any:
        try:
            return render_tree(value, context)
        except TemplateError as error:
            message = f"host `{host}`: the template does not fit its facts: {error}"
            raise ConfigError([Problem(message, case.merged.mark(path))]) from None

    container = _container(server, model)
    command = engine.command.container if container else engine.command.binary if program else engine.command.env
    argv = [word for item in command or [] if (word := render(item, own))]
    argv += [fill(item, ("argv", number)) for number, item in enumerate(server.argv or [])]
    flags = {}
    flags_from = len(argv)
    for flag, value in (server.flags or {}).items():
        argv += flags_argv(engine.flags, {flag: value}, partial(fill, path=("flags", flag)))
        if value is not None:
            flags[canonical(engine.flags, flag).replace("-", "_")] = fill(value, ("flags", flag))
    installs = engine.install if program is None and container is None else None
    env = {key: text for key, value in (installs.env if installs else {}).items() if (text := render(value, own))}
    env |= {key: render(value, own) for key, value in engine.env.items()}
    env |= {key: fill(value, ("env", key)) for key, value in (server.env or {}).items() if value is not None}

    rule, given = engine.ready, server.ready
    ready = rule.model_dump() | {"generate": rule.generate and render_tree(rule.generate, own)}
    if given is not None:
        ready |= {key: value or None for key in ("health", "models") if (value := getattr(given, key)) is not None}
        if given.generate is not None:
            ready |= {"generate": fill(given.generate.model_dump(), ("ready",)), "answer": None}
        ready["answer"] = given.answer or ready["answer"]
    named = server.model is not None and (server.model.name is not None or model["kind"] is not None)
    if engine.asks and given is None:
        ready["ask"] = ask(model["name"])
    ready["model"] = model["name"] if named and ready["models"] else None

    install = None
    if installs is not None:
        install = to_install(engine, version, context["host"])
        install["prefetch"] = install["prefetch"] if context["gpus"] else []
    about = {"name": engine.name, "version": version}
    if program:
        found = facts.get("host", {})
        usual = program == (found.get("commands") or {}).get(engine.binary)
        told = (found.get("engine_versions") or {}).get(engine.binary) if usual else None
        about |= {"version": told, "binary": program}
    if container is not None:
        about |= {"version": (server.engine or "").partition("==")[2] or None, "image": container["image"]}
    planned = {
        "engine": about,
        "model": model,
        "argv": argv,
        "flags_from": flags_from,
        "env": env,
        "secrets": list(server.secrets or []),
        "port": server.port,
        "cwd": server.cwd,
        "container": container,
        "ready": ready,
        "effective": {"path": engine.effective.path} if engine.effective and engine.effective.path else None,
        "metrics_path": engine.metrics.path if engine.metrics else None,
    }
    return Launch(planned, install, flags)


def place_of(engine: Engine, version: str | None, home: str) -> dict[str, Any]:
    """Where a version of an engine is on a host, as the templates of its data file see it."""
    place = f"{home}/engines/{engine.name}-{version}"
    paths = {"bin": f"{place}/bin", "python": f"{place}/bin/python", "launcher": f"{place}/{engine.launcher}"}
    return {"version": version, "dir": place, **paths}


def to_install(engine: Engine, version: str | None, host: Mapping[str, Any]) -> dict[str, Any]:
    """What the role `engine` is told about an engine that gpurun installs (one with `install`) on a host.

    Locks are for Python 3.11 and later: where the host's own is older, uv brings one.
    """
    assert engine.install is not None
    own = {"engine": place_of(engine, version, home_of({"host": host}))}
    told = {key: render_tree(getattr(engine.install, key), own) for key in ("packages", "python", "check", "prefetch")}
    lock = f"{engine.name}-{version}.txt" if version in engine.install.locked else None
    if lock and tuple(map(int, str(host.get("python", {}).get("version", "3.11")).split(".")[:2])) < (3, 11):
        told["python"] = told["python"] or OTHER_PYTHON
    return {"name": engine.name, "version": version, "launcher": engine.launcher, "lock": lock, **told}


def _program(case: Case, facts: Mapping[str, Any]) -> str | None:
    """The host's own program for the engine: what the campaign names, else the engine's usual one where the host has it
    and the campaign pins no version. None: gpurun installs the engine."""
    commands = facts.get("host", {}).get("commands") or {}
    if case.server.runtime in CONTAINERS:
        return None
    if case.server.binary is not None:
        return str(commands.get(case.server.binary) or case.server.binary)
    if case.engine.binary is None or "==" in (case.server.engine or ""):
        return None
    return commands.get(case.engine.binary)


def _container(server: Server, model: Mapping[str, Any]) -> dict[str, Any] | None:
    """What gpurun_job is told about the container; None where there is none."""
    if server.runtime not in CONTAINERS:
        return None
    place = model["path"]
    if model["key"] is not None:  # the whole folder: a file may be one of several parts
        place = f"{place.partition(model['key'])[0]}{model['key']}"
    own = server.container.model_dump(exclude_none=True, exclude={"allow_tags"}) if server.container else {}
    return {"runtime": server.runtime, "image": server.image, "read_only": [place] if place else [], **own}


def model_on_host(model: Model, home: str) -> dict[str, Any]:
    """Where a model lies on a host (`path`), what it is called when served, and where it comes from.

    `key` names its folder under `<home>/models`; it depends on the source alone, so that runs share what is fetched.
    """
    source = model.model_dump(exclude={"name"}, exclude_none=True)
    kind = next((kind for kind in MODEL_SOURCES if kind in source), None)
    if kind is None:
        return {"kind": None, "key": None, "path": None, "name": model.name or UNNAMED_MODEL}
    origin, file = str(source[kind]), source.get("file")
    if kind == "url":
        file = posixpath.basename(unquote(urlsplit(origin).path)) or "model"
    last = posixpath.basename((file or origin).partition("==")[0].rstrip("/")) or "model"
    name = model.name or (origin if kind == "hf" else posixpath.splitext(last)[0])
    if kind == "path":
        return {"kind": kind, "key": None, "name": name, **source}
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", last if kind == "url" else origin).strip("-.")[:60]
    key = f"{slug}-{digest(source)[:8]}"
    path = f"{home}/models/{key}"
    if file and not (kind == "hf" and re.search(r"[*?\[]", file)):
        path += f"/{file}"
    return {"kind": kind, "key": key, "name": name, **source, "path": path}
