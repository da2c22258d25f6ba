"""One server out of layers: what stands at the top, the baseline, a variant, a point of the axes. And what is wrong
with the result, at the position of the layer that said it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pydantic import ValidationError

from gpurun.complaints import nearest, translate
from gpurun.config import MODEL_SOURCES, Model, Server
from gpurun.engines import Engine, canonical, flag_argv, load_engine
from gpurun.errors import Mark, Problem
from gpurun.load import Document, KeyPath
from gpurun.overrides import assign
from gpurun.template import FACTS, TemplateError, is_template, unknown_facts
from gpurun.tree import merge, texts

_TEMPLATED = ("flags", "env", "argv", "ready")


class Addressed(Protocol):
    """An axis: its name in the file and the keys that it addresses."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> KeyPath: ...


@dataclass(frozen=True)
class Layer:
    """A part of the file that says something about the server: where it stands, and what it says.

    For an axis `only` is the path under `server` that its value replaces.
    """

    place: KeyPath
    data: Mapping[str, Any]
    only: KeyPath | None = None

    def says(self, path: KeyPath) -> bool:
        here: Any = self.data
        for part in path:
            if isinstance(here, list) and isinstance(part, int):
                here = here[part] if part < len(here) else None
            elif isinstance(here, Mapping) and part in here:
                here = here[part]
            else:
                return False
        return True


@dataclass(frozen=True)
class Stack:
    """The layers of one server, the weakest first."""

    document: Document
    layers: tuple[Layer, ...]

    def merged(self) -> dict[str, Any]:
        """The server's settings as data, over its engine's defaults."""
        own = self.own()
        engine = _engine(own)
        if engine is None:
            return own
        defaults: dict[str, Any] = {"flags": engine.defaults, "env": engine.env}
        given = {canonical(engine.flags, flag) for layer in self.layers for flag in layer.data.get("flags") or {}}
        defaults["flags"] = {
            flag: value for flag, value in engine.defaults.items() if canonical(engine.flags, flag) not in given
        }
        return merge({key: value for key, value in defaults.items() if value}, own)

    def own(self) -> dict[str, Any]:
        """The same without the engine's defaults."""
        result: dict[str, Any] = {}
        for layer in self.layers:
            if layer.only is None:
                result = merge_server(result, layer.data)
            else:
                result = deepcopy(result)
                value: Any = layer.data
                for part in layer.only:
                    value = value[part]
                assign(result, layer.only, value)
                result = merge({}, result)
        return result

    def place(self, path: KeyPath) -> KeyPath:
        """Where in the file the value at `path` under `server` comes from."""
        for layer in reversed(self.layers):
            if layer.says(path):
                return layer.place if layer.only is not None else (*layer.place, *path)
        return ("server",)

    def mark(self, path: KeyPath, key: bool = False) -> Mark:
        return self.document.mark(self.place(path), key)


@dataclass(frozen=True)
class Layers:
    """All layers of a campaign."""

    document: Document

    def servers(self) -> list[Mapping[str, Any]]:
        """What the top, the baseline and every variant say about the server."""
        return [layer.data for layer in self._all()]

    def stack(self, variant: str, point: Sequence[tuple[Addressed, Any]]) -> Stack:
        """The layers of a variant (or of `baseline`) at a point of the axes."""
        named = [layer for layer in self._all() if layer.place[0] != "variants" or layer.place[1] == variant]
        for axis, value in point:
            data: dict[str, Any] = {}
            assign(data, axis.path[1:], value)
            named.append(Layer(("matrix", "axes", axis.name), data, axis.path[1:]))
        return Stack(self.document, tuple(named))

    def _all(self) -> list[Layer]:
        data = self.document.data
        layers = [Layer(("server",), data.get("server") or {})]
        layers.append(Layer(("baseline", "server"), (data.get("baseline") or {}).get("server") or {}))
        for name, variant in (data.get("variants") or {}).items():
            layers.append(Layer(("variants", name, "server"), variant.get("server") or {}))
        return layers


def merge_server(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Maps merge; a model from another source replaces the inherited model as a whole."""
    model, inherited = change.get("model") or {}, base.get("model") or {}
    source = next((kind for kind in MODEL_SOURCES if model.get(kind) is not None), None)
    if source is not None and source not in inherited:
        base = {key: value for key, value in base.items() if key != "model"}
    return merge(base, change)


def engine_version(server: Server, engine: Engine) -> str | None:
    """The version that the campaign pins, else the one that this gpurun knows."""
    pinned = (server.engine or "").partition("==")[2]
    return pinned or engine.default_version


def settings(server: Server, engine: Engine) -> dict[str, Any]:
    """All that makes one server different from another, in a form that compares: spelling and order do not matter."""
    flags = (_comparable(engine, flag, value) for flag, value in (server.flags or {}).items() if value is not None)
    data = server.model_dump(exclude={"flags", "engine"}, exclude_none=True)
    data["env"] = {**engine.env, **{key: value for key, value in (server.env or {}).items() if value is not None}}
    return {**data, "engine": [engine.name, engine_version(server, engine)], "flags": sorted(flags)}


def _comparable(engine: Engine, flag: str, value: Any) -> list[str]:
    try:
        return flag_argv(engine.flags, flag, value)
    except ValueError:  # reported by check_server
        return [flag, repr(value)]


def check_texts(document: Document) -> Iterator[tuple[KeyPath, Problem]]:
    """Templates that use unknown facts or cannot be read, and templates where none are filled in."""
    roots: list[tuple[KeyPath, Any, bool]] = []
    for layer in Layers(document)._all():
        roots += [((*layer.place, key), value, key in _TEMPLATED) for key, value in layer.data.items()]
    for name, values in ((document.data.get("matrix") or {}).get("axes") or {}).items():
        parts = name.split(".")
        if parts[0] == "server" and len(parts) > 1:
            roots.append((("matrix", "axes", name), values, parts[1] in _TEMPLATED))
    for place, value, filled_in in roots:
        for path, text in texts(value, place):
            mark = document.mark(path)
            if not filled_in:
                if is_template(text):
                    hint = f"templates work in {', '.join(_TEMPLATED)} of a server"
                    yield path, Problem("no template is filled in here", mark, hint=hint)
                continue
            try:
                unknown = unknown_facts(text)
            except TemplateError as error:
                yield path, Problem(f"broken template: {error}", mark, hint="`{{ '{{' }}` writes `{{` itself")
                continue
            for fact in unknown:
                root, _, attribute = fact.partition(".")
                names = (FACTS[root] or ()) if attribute else tuple(FACTS)
                near = nearest(attribute or root, names)
                full = f"{root}.{near}" if attribute and near else near
                yield path, Problem(f"the template uses the unknown fact `{fact}`", mark, names, full)


def check_server(stack: Stack) -> tuple[Server | None, list[tuple[KeyPath, Problem]]]:
    """The complete server, and what is wrong with it: each complaint with the path of what it is about. No server where
    it cannot even be put together."""
    try:
        server = Server.model_validate(stack.merged())
    except ValidationError as error:
        found = translate(error, Server, stack.document)
        return None, [(stack.place(path), replace(problem, mark=stack.mark(path))) for path, problem in found]
    if server.engine is None:
        mark = stack.document.mark(("server",), key=True)
        return None, [(("server", "engine"), Problem("no `engine` is given for the server", mark))]
    engine = _engine({"engine": server.engine})
    assert engine is not None
    return server, list(_problems(stack, server, engine))


def _problems(stack: Stack, server: Server, engine: Engine) -> Iterator[tuple[KeyPath, Problem]]:
    yield from _model_problems(stack, server.model, engine)
    yield from _flag_problems(stack, server.flags or {}, engine)
    yield from _null_problems(stack, engine)
    if (server.argv is None) == (engine.name == "command"):
        message = "engine `command` needs `argv`" if server.argv is None else "`argv` is for engine `command` only"
        path: KeyPath = ("engine",) if server.argv is None else ("argv",)
        yield stack.place(path), Problem(message, stack.mark(path), hint="other engines take `flags`")
    if server.binary is not None and not engine.command.binary:
        yield (
            stack.place(("binary",)),
            Problem(f"engine `{engine.name}` has no program of its own", stack.mark(("binary",))),
        )
    for number, secret in enumerate(server.secrets or []):
        if secret in (server.env or {}):
            mark = stack.mark(("env", secret), key=True)
            problem = Problem(f"`{secret}` is a secret, so its value cannot be in `env`", mark, hint="remove it there")
            yield stack.place(("env", secret)), problem
        if secret in (server.secrets or [])[:number]:
            yield (
                stack.place(("secrets",)),
                Problem(f"secret `{secret}` is named twice", stack.mark(("secrets", number))),
            )


def _model_problems(stack: Stack, model: Model | None, engine: Engine) -> Iterator[tuple[KeyPath, Problem]]:
    place, mark = stack.place(("model",)), stack.mark(("model",), key=True)
    given = [kind for kind in MODEL_SOURCES if model is not None and getattr(model, kind) is not None]
    if not given and engine.model == "optional":
        return
    if model is None:
        yield place, Problem(f"engine `{engine.name}` needs a `model`", mark, MODEL_SOURCES)
        return
    if len(given) != 1:
        found = f"this has {' and '.join(given)}" if given else "this has none"
        yield place, Problem(f"a model has exactly one source; {found}", mark, MODEL_SOURCES)
        return
    kind = given[0]
    needs = {"hf": ("revision",), "url": ("sha256",), "wheel": ("file",)}.get(kind, ())
    takes = {"hf": ("revision", "file"), "url": ("sha256",), "wheel": ("file",)}.get(kind, ())
    for key in ("revision", "sha256", "file"):
        if key in needs and getattr(model, key) is None:
            yield place, Problem(f"a model from `{kind}` needs `{key}`", stack.mark(("model", kind)))
        if key not in takes and getattr(model, key) is not None:
            yield place, Problem(f"`{key}` does not go with `{kind}`", stack.mark(("model", key), key=True))
    if model.path is not None and not model.path.startswith("/"):
        yield place, Problem("the path of a model is absolute", stack.mark(("model", "path")))
    pattern = model.file is not None and any(char in model.file for char in "*?[")
    if pattern and kind != "hf":
        yield place, Problem("a pattern works with `hf` only", stack.mark(("model", "file")))
    elif engine.model == "file" and kind == "hf" and (pattern or model.file is None):
        hint = "name it with `file`"
        yield (
            place,
            Problem(f"engine `{engine.name}` serves one file of a repository", stack.mark(("model", "hf")), hint=hint),
        )


def _flag_problems(stack: Stack, flags: Mapping[str, Any], engine: Engine) -> Iterator[tuple[KeyPath, Problem]]:
    seen: dict[str, str] = {}
    for flag, value in flags.items():
        path: KeyPath = ("flags", flag)
        name = canonical(engine.flags, flag)
        if name in engine.flags.reserved:
            reason = engine.flags.reserved[name]
            yield stack.place(path), Problem(f"`{flag}` is set by gpurun", stack.mark(path, key=True), hint=reason)
            continue
        if name in seen:
            message = f"`{flag}` and `{seen[name]}` are the same flag to {engine.title}"
            yield stack.place(path), Problem(message, stack.mark(path, key=True), hint="use one spelling")
        seen[name] = flag
        try:
            flag_argv(engine.flags, flag, value)
        except ValueError as error:
            yield stack.place(path), Problem(str(error), stack.mark(path), hint="`null` removes an inherited flag")


def _null_problems(stack: Stack, engine: Engine) -> Iterator[tuple[KeyPath, Problem]]:
    """`null` for something that nobody set: most likely a misspelt name. (On an axis it means: not set here.)"""
    below: dict[str, Any] = {"flags": dict(engine.defaults), "env": dict(engine.env)}
    for layer in stack.layers:
        for section in ("flags", "env") if layer.only is None else ():
            for key, value in (layer.data.get(section) or {}).items():
                inherited = below.get(section) or {}
                if value is None and key not in inherited:
                    path = (*layer.place, section, key)
                    mark, names = stack.document.mark(path, key=True), tuple(inherited)
                    yield path, Problem(f"`{key}: null` removes nothing", mark, names, nearest(key, names))
        below = merge(below, layer.data)


def _engine(data: Mapping[str, Any]) -> Engine | None:
    name = str(data.get("engine") or "").partition("==")[0]
    try:
        return load_engine(name)
    except KeyError:
        return None
