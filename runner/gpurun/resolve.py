"""One server out of layers: what stands at the top, the baseline, a variant, a point of the axes. And what is wrong
with the result, at the position of the layer that said it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from gpurun.complaints import Complaints, nearest
from gpurun.config import CONTAINERS, MODEL_SOURCES, Model, Script, Server
from gpurun.engines import Engine, canonical, engine_names, flag_argv, load_engine
from gpurun.fields import PINNED
from gpurun.redact import MIN_LENGTH, SECRET_VALUE, is_dummy, names_secret, reveals
from gpurun.template import FACTS, SCRIPT_FACTS, Facts, TemplateError, is_template, unknown_facts
from gpurun.tools import read_script
from gpurun.tree import KeyPath, Node, digest, merge, node_of

_RUNTIME_HINT = "`runtime: docker` or `runtime: podman`"
_TAG_HINT = "`{{.Id}}`; or allow it with `container: {allow_tags: true}`"
_TEMPLATED = ("flags", "env", "argv", "ready")
_GIVEN = {"flags", "env", "argv", "args", "command", "dry_run", "matrix"}  # to a program, by names of its own
_TAKES = {"hf": ("revision", "file"), "path": (), "url": ("sha256",), "wheel": ("file",)}
_NEEDS = {"hf": "revision", "url": "sha256", "wheel": "file"}


def layers(root: Node, variant: str | None = None) -> list[Node]:
    """What the top, the baseline and a variant (None: every one) say about the server, the weakest first."""
    named = [("variants", name, "server") for name in root.items("variants") if variant in (None, name)]
    found = [root.at(*path) for path in (("server",), ("baseline", "server"), *named)]
    top = found[0] or Node({}, root.place, ("server",))
    return [top, *(node for node in found[1:] if node is not None and node.items())]


def resolve(root: Node, variant: str, point: Iterable[tuple[KeyPath, Node]] = ()) -> Node:
    """The settings of a variant's server, with values put at paths, over its engine's defaults."""
    own_layers = layers(root, variant)
    top = own_layers[0]
    own = nothing = node_of({}, top.place)
    for layer in own_layers:
        own = merge(_fitting(own, layer), layer)
    for path, value in point:
        own = own.put(path[1:], value)
        own_layers.append(nothing.put(path[1:], value))
    own = replace(merge(nothing, own), place=top.place, key=top.key, path=top.path)
    name = str(own.items()["engine"].value).partition("==")[0] if "engine" in own.items() else ""
    if name not in engine_names():
        return own
    engine = load_engine(name)
    given = {canonical(engine.flags, flag) for layer in own_layers for flag in layer.items("flags")}
    flags = {flag: value for flag, value in engine.defaults.items() if canonical(engine.flags, flag) not in given}
    defaults = {key: value for key, value in (("flags", flags), ("env", engine.env)) if value}
    return merge(node_of(defaults, top.place), own)


def _fitting(base: Node, change: Node) -> Node:
    """`base` without its model where `change` has one from another source, which replaces it as a whole."""
    given, inherited = change.items("model"), base.items("model")
    source = next((kind for kind in MODEL_SOURCES if kind in given and given[kind].value is not None), None)
    return base if source is None or source in inherited else base.without(("model",))


def engine_version(server: Server, engine: Engine) -> str | None:
    """The version that the campaign pins, else the one that this gpurun knows."""
    return (server.engine or "").partition("==")[2] or engine.default_version


def fingerprint(server: Server, engine: Engine) -> str:
    """The same for servers with the same settings, however they are written; empty where a flag cannot be said."""
    try:
        flags = [
            flag_argv(engine.flags, flag, value) for flag, value in (server.flags or {}).items() if value is not None
        ]
    except ValueError:  # check_server complains
        return ""
    data = server.model_dump(exclude={"flags", "engine"}, exclude_none=True)
    data["env"] = {**engine.env, **{key: value for key, value in (server.env or {}).items() if value is not None}}
    return digest({**data, "engine": [engine.name, engine_version(server, engine)], "flags": sorted(flags)})


def check_texts(root: Node, complaints: Complaints) -> None:
    """Complain about templates that use unknown facts or cannot be read, and where none are filled in."""
    parts = [(key, node) for layer in layers(root) for key, node in layer.items().items()]
    axes = root.items("matrix", "axes").items()
    parts += [(name.split(".")[1], node) for name, node in axes if name.startswith("server.")]
    for part, node in parts:
        for text in node.texts():
            if part in _TEMPLATED:
                _check_template(text, complaints)
            elif is_template(text.value):
                hint = f"templates work in {', '.join(_TEMPLATED)} of a server"
                complaints.add("no template is filled in here", text, hint=hint)


def check_secrets(root: Node, complaints: Complaints) -> None:
    """Complain about secrets, which would stand in every result, and hide them in whatever is complained about."""
    for text in root.texts():
        *above, last = text.path
        before = root.at(*above, last - 1) if isinstance(last, int) and last else None
        key = next(part for part in reversed(text.path) if isinstance(part, str)).rpartition(".")[2]
        name = str(before.value) if before and str(before.value).startswith("-") else key
        called, _, value = (text.value if text.value.startswith("-") else f"{name}={text.value}").partition("=")
        harmless = len(value) < MIN_LENGTH or is_dummy(value) or is_template(value)
        told = _GIVEN & set(text.path) and not harmless and names_secret(called)
        if told or SECRET_VALUE.search(text.value) or (text.path[-1] == "url" and reveals(text.value)):
            hint = "name a variable under `server.secrets` instead; its value comes from your environment"
            complaints.add("this looks like a secret, and would be in every result", text, hint=hint)
            complaints.hidden += [text.value, text.source]


def check_script(root: Node, benchmark: str, script: Script, complaints: Complaints) -> None:
    """Complain about a script that cannot be read, or whose arguments use unknown facts."""
    node = root.at("benchmarks", benchmark, "script")
    assert node is not None
    if script.file is not None:
        try:
            read_script(root.place.file, script.file)
        except ValueError as error:
            complaints.add(str(error), node, ("file",), hint="its path is relative to the campaign's folder")
    for key in ("args", "command", "dry_run"):
        for text in node.items()[key].texts() if key in node.items() else ():
            _check_template(text, complaints, SCRIPT_FACTS)


def _check_template(text: Node, complaints: Complaints, facts: Facts = FACTS) -> None:
    try:
        unknown = unknown_facts(text.value, facts)
    except TemplateError as error:
        complaints.add(f"broken template: {error}", text, hint="`{{ '{{' }}` writes `{{` itself")
        return
    for fact in unknown:
        base, _, attribute = fact.partition(".")
        names = (facts[base] or ()) if attribute else tuple(facts)
        near = nearest(attribute or base, names)
        near = f"{base}.{near}" if attribute and near else near
        complaints.add(f"the template uses the unknown fact `{fact}`", text, allowed=tuple(names), nearest=near)


def check_server(node: Node, complaints: Complaints) -> tuple[Server, Engine] | None:
    """A complete server and its engine, with complaints about it; None where it cannot even be put together."""
    server = complaints.read(Server, node, ("server",))
    if server is None or server.engine is None:
        if server is not None:
            complaints.add("no `engine` is given for the server", node, ("engine",), key=True)
        return None
    engine = load_engine(server.engine.partition("==")[0])
    _check_model(node, server.model, engine, complaints)
    _check_flags(node, server.flags or {}, engine, complaints)
    if (server.argv is None) == (engine.name == "command"):
        message = "engine `command` needs `argv`" if server.argv is None else "`argv` is for engine `command` only"
        complaints.add(message, node, ("engine" if server.argv is None else "argv",), hint="other engines take `flags`")
    if server.binary is not None and not engine.command.binary:
        complaints.add(f"engine `{engine.name}` has no program of its own", node, ("binary",))
    _check_container(node, server, engine, complaints)
    for number, secret in enumerate(server.secrets or []):
        if secret in (server.env or {}):
            message = f"`{secret}` is a secret, so its value cannot be in `env`"
            complaints.add(message, node, ("env", secret), key=True, hint="remove it there")
        if secret in (server.secrets or [])[:number]:
            complaints.add(f"secret `{secret}` is named twice", node, ("secrets", number))
    return server, engine


def _check_container(node: Node, server: Server, engine: Engine, complaints: Complaints) -> None:
    if server.runtime not in CONTAINERS:
        for key in ("image", "container"):
            if getattr(server, key) is not None:
                complaints.add(f"`{key}` is for a server in a container", node, (key,), key=True, hint=_RUNTIME_HINT)
        return
    if server.binary is not None:
        complaints.add("a container has its own program", node, ("binary",), key=True, hint="`image` says which")
    if engine.command.container is None and engine.name != "command":
        complaints.add(f"gpurun does not know how an image of `{engine.name}` is called", node, ("runtime",))
    if server.image is None:
        complaints.add(f"`runtime: {server.runtime}` needs an `image`", node, ("runtime",))
    elif not PINNED.search(server.image) and not (server.container and server.container.allow_tags):
        hint = (
            f"take what `{server.runtime} image inspect --format '{{{{.RepoDigests}}}}' {server.image}` says, or its "
        )
        complaints.add("a tag may be another image tomorrow", node, ("image",), hint=f"{hint}{_TAG_HINT}")


def _check_model(node: Node, model: Model | None, engine: Engine, complaints: Complaints) -> None:
    given = [kind for kind in MODEL_SOURCES if model is not None and getattr(model, kind) is not None]
    if complaints.about(node.nearest(("model",))[0].path) or (not given and engine.model == "optional"):
        return
    if model is None or len(given) != 1:
        found = f"this has {' and '.join(given)}" if given else "this has none"
        needs = f"engine `{engine.name}` needs a `model`"
        message = needs if model is None else f"a model has exactly one source; {found}"
        complaints.add(message, node, ("model",), key=True, allowed=MODEL_SOURCES)
        return
    kind = given[0]
    if kind in _NEEDS and getattr(model, _NEEDS[kind]) is None:
        complaints.add(f"a model from `{kind}` needs `{_NEEDS[kind]}`", node, ("model", kind))
    for key in ("revision", "sha256", "file"):
        if key not in _TAKES[kind] and getattr(model, key) is not None:
            complaints.add(f"`{key}` does not go with `{kind}`", node, ("model", key), key=True)
    if model.path is not None and not model.path.startswith("/"):
        complaints.add("the path of a model is absolute", node, ("model", "path"))
    pattern = model.file is not None and any(char in model.file for char in "*?[")
    if pattern and kind != "hf":
        complaints.add("a pattern works with `hf` only", node, ("model", "file"))
    elif engine.model == "file" and kind == "hf" and (pattern or model.file is None):
        message = f"engine `{engine.name}` serves one file of a repository"
        complaints.add(message, node, ("model", "hf"), hint="name it with `file`")


def _check_flags(node: Node, flags: dict[str, Any], engine: Engine, complaints: Complaints) -> None:
    seen: dict[str, str] = {}
    for flag, value in flags.items():
        name = canonical(engine.flags, flag)
        if name in engine.flags.reserved:
            hint = engine.flags.reserved[name]
            complaints.add(f"`{flag}` is set by gpurun", node, ("flags", flag), key=True, hint=hint)
            continue
        if name in seen:
            message = f"`{flag}` and `{seen[name]}` are the same flag to {engine.title}"
            complaints.add(message, node, ("flags", flag), key=True, hint="use one spelling")
        seen[name] = flag
        try:
            flag_argv(engine.flags, flag, value)
        except ValueError as error:
            complaints.add(str(error), node, ("flags", flag), hint="`null` removes an inherited flag")


def check_nulls(root: Node, variant: str, engine: Engine, complaints: Complaints) -> None:
    """Complain about `null` for something that nobody set: most likely a misspelt name."""
    below = node_of({"flags": engine.defaults, "env": engine.env}, root.place)
    for layer in layers(root, variant):
        for section in ("flags", "env"):
            inherited = tuple(below.items(section))
            for key, node in layer.items(section).items():
                if node.value is None and key not in inherited:
                    message = f"`{key}: null` removes nothing"
                    complaints.add(message, layer, (section, key), key=True, allowed=inherited, word=key)
        below = merge(below, layer)
