"""A campaign that says the same as a shell line which launches a server: `gpurun init --from-command`. Pure.

What gpurun sets itself, and what a campaign has no word for, is named in comments. Values of secrets are never written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import PurePosixPath
from typing import Any

import yaml

from gpurun.catalogue import Catalogue, Option, nearest_version, shipped
from gpurun.check_flags import Part, Reading
from gpurun.engines import Engine, canonical, flag_argv, load_engine
from gpurun.fields import PINNED
from gpurun.find_launch import LAUNCHES, find_launch, image_at, read_as
from gpurun.redact import SECRET_VALUE, reveals
from gpurun.shell import ASSIGNMENT, OPEN
from gpurun.template import is_template

FILL_IN = "FILL-IN"
_NO_KEY = "gpurun's client sends no key, and the server would want it"
_DEVICES = re.compile(r"(?:\bdevice|nvidia\.com/gpu)=([^\s\"']+)")  # Docker's and Podman's way to say which GPUs
_TEMPLATE = resources.files("gpurun") / "data" / "init" / "from_command.yml.txt"


@dataclass
class Launch:
    """What the words around a launcher say: settings of `server`, comments by path, what is left out, what has to be
    filled in."""

    engine: Engine
    version: str | None
    prefix: list[str] = field(repr=False)  # as secrets may be in it
    rest: list[str] = field(repr=False)
    exported: dict[str, str] = field(repr=False)
    server: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    mounts: list[tuple[str, str]] = field(default_factory=list)
    comments: dict[tuple[str, ...], str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)

    def fill(self) -> None:
        engine = self.engine
        name = f"{engine.name}=={self.version}" if self.version else engine.name
        self.server["engine"] = name
        image = image_at(self.prefix)
        if image is not None:
            self.container(image)
        elif self.prefix and self.prefix[-1].startswith("/") and engine.command.binary and self.prefix[-1] != "-m":
            self.server["binary"] = self.prefix[-1]
        elif self.prefix and "/" in self.prefix[-1]:
            self.leave(self.prefix[-1], "`server.binary` takes the absolute path of a program")
        self.environment(image)
        self.flags()
        if not {"hf", "path"} & self.model.keys():
            self.fill_in("path", f"/{FILL_IN}", "the model, which the command does not name")
        order = ("hf", "revision", "path", "file", "name")
        if "hf" not in self.model and self.model.pop("revision", None):
            self.leave("--revision", "it goes with a model of the hub")
        self.server["model"] = {key: self.model[key] for key in order if key in self.model}
        keys = ("engine", "binary", "runtime", "image", "container", "model", "flags", "env", "secrets")
        self.server = {key: self.server[key] for key in keys if self.server.get(key)}

    def container(self, image: int) -> None:
        """`docker run` as runtime, image and container."""
        words, known = self.prefix, LAUNCHES["container"]
        server = self.server
        container: dict[str, Any] = {}
        args: list[str] = []
        server["runtime"] = "podman" if "podman" in " ".join(words[:3]) else "docker"
        server["image"] = words[image]
        self.open_value(("image",), words[image])
        if not PINNED.search(words[image]):
            container["allow_tags"] = True
            self.comments.setdefault(("image",), "a digest says which one: `docker image inspect` has it")
        at = words.index("run") + 1
        while at < image:
            option, equals, value = words[at].partition("=")
            at += 1
            if not equals and option not in known["switches"]:
                value, at = words[at], at + 1
            if option in ("-v", "--volume"):
                source, _, target = value.partition(":")
                self.mounts.append((source, target.partition(":")[0]))
                if OPEN.search(value) or source[:1] in ("~", "."):
                    self.leave(f"{option} {value}", "a mount has an absolute path (`container.mounts`)")
                elif re.fullmatch(r"/[^:]*:/[^:]*(:r[ow])?", value):
                    container.setdefault("mounts", []).append(value)
                else:  # a named volume, or with options of its own
                    args += ["-v", value]
            elif option == "--shm-size":
                container["shm_size"] = value.lower().removesuffix("b")
            elif option == "--ipc" and value in ("host", "private"):
                container["ipc"] = value
            elif option in ("--gpus", "--device") and (devices := _DEVICES.search(value)):
                if devices[1] != "all":
                    env = self.server.setdefault("env", {})
                    env["CUDA_VISIBLE_DEVICES"] = ",".join(filter(None, (env.get("CUDA_VISIBLE_DEVICES"), devices[1])))
                    self.open_value(("env", "CUDA_VISIBLE_DEVICES"), devices[1])
            elif option not in ("-e", "--env") and reveals(f"{option}={value}"):
                self.leave(option, "its value is a secret and is not written")
            elif option not in ("-e", "--env", *known["dropped"]):
                args += [option + equals + value] if equals or option in known["switches"] else [option, value]
        if args:
            container["args"] = args
        if "shm_size" in container and container.get("ipc") == "host":
            del container["shm_size"]  # the host's /dev/shm is taken, whatever the size
        server["container"] = container

    def environment(self, image: int | None) -> None:
        """Variables in front of the command, exported before it, or given to the container."""
        found, wrappers = dict(self.exported), []
        for at, word in enumerate(self.prefix[:-1]):
            before = self.prefix[at - 1] if at else ""
            inner = re.sub(r"^(-e|--env=)(?=\w+=)", "", word)
            given = ASSIGNMENT.fullmatch(inner)
            outside = image is not None and at < self.prefix.index("run")
            if outside and given:
                self.leave(given[1], "the container is not given it")
            elif given and (not before.startswith("-") or before in ("-e", "--env", "-x") or inner != word):
                found[given[1]] = given[2]
            elif before in ("-e", "--env", "-x") and re.fullmatch(r"[A-Za-z_]\w*", word):
                found[word] = f"${word}"
            elif image is None or at < self.prefix.index("run") - 1:
                name = PurePosixPath(word).name
                harmless = {name, PurePosixPath(before).name if word.startswith("-") else ""} & {*LAUNCHES["no_matter"]}
                # Without values of options: a password may be among them.
                if not harmless and (word.startswith("-") or not before.startswith("-")):
                    short = word[0] == "-" and word[:2] != "--"
                    wrappers.append(word[:2] if short else word.partition("=")[0])
        if wrappers and re.match(r"python[\d.]*$", PurePosixPath(wrappers[-1]).name):
            python = wrappers.pop()
            if python.startswith("/"):
                self.leave(
                    python, "gpurun makes an environment of its own; `server.binary` takes the program of another"
                )
        if wrappers:
            self.leave(" ".join(wrappers), "gpurun starts the server itself; what this does to it is not taken over")
        for name, value in found.items():
            if name in LAUNCHES["keys"]:
                self.leave(name, _NO_KEY)
            elif reveals(f"{name}={value}"):
                if re.fullmatch(r"[A-Z_][A-Z0-9_]*", name):
                    self.server.setdefault("secrets", []).append(name)
                else:
                    self.leave(name, "a secret has a name in capitals; its value is not written")
            elif name.startswith("GPURUN_") or value in (f"${name}", f"${{{name}}}"):
                self.leave(name, "its value is not in the command")
            else:
                self.server.setdefault("env", {})[name] = _verbatim(value)
                self.open_value(("env", name), value)

    def flags(self) -> None:
        """The words after the launcher: the model, flags of the engine, and those that are gpurun's own."""
        engine = self.engine
        version = nearest_version(engine.name, read_as(engine, self.version))
        catalogue = (
            shipped(engine.name, version) if version else Catalogue(engine=engine.name, version=None, options=[])
        )
        reading = Reading(catalogue, engine, self.rest)
        moved = LAUNCHES["models"].get(engine.name, {})
        found: dict[str, Any] = {}
        for part in reading.parts:
            part = _spelled_out(part, catalogue)
            values = [value for value in part.values if not re.fullmatch(r"\$\{\w+\[@\]\}|\$@", value)]
            for value in set(part.values) - set(values):
                self.leave(value, "flags that are not in the command")
            key = canonical(engine.flags, part.name.lstrip("-"))
            said = moved.get(key) or moved.get(part.name.lstrip("-"))
            if said and values:
                self.move(said, values[0])
                if values[1:]:
                    self.leave(f"{part.name} {' '.join(values[1:])}", "a model has one name here, the first is taken")
            elif values and key in LAUNCHES["keys"]:
                self.leave(part.name, _NO_KEY)
            elif values and reveals(f"{key}={' '.join(values)}"):
                self.leave(part.name, "its value is a secret and is not written")
            elif key in engine.flags.reserved:
                self.leave(" ".join([part.name, *values]), engine.flags.reserved[key])
            else:
                key, value = self.flag(part, key, values)
                if key in found:
                    self.several(part, key, found, value)
                else:
                    found[key] = value
        for at in filter(lambda at: self.rest[at].strip(), reading.strays):
            if re.fullmatch(r"\$\{\w+\[@\]\}|\$@", self.rest[at]):
                self.leave(self.rest[at], "flags that are not in the command")
            elif "model" not in moved.values() or {"hf", "path"} & set(self.model) or engine.model == "file":
                self.leave(self.rest[at], "it belongs to no flag")
            else:
                self.take_model(self.rest[at])
        self.server["flags"] = found
        for key, value in found.items():
            self.open_value(("flags", key), json.dumps(value, ensure_ascii=False))

    def flag(self, part: Part, key: str, values: Sequence[str]) -> tuple[str, Any]:
        """A flag as a key and value of the campaign."""
        rules, option = self.engine.flags, part.option
        if not values:
            positive = next((name for name, negative in rules.negative.items() if negative == key), None)
            if positive is None and rules.false_form == "no" and key.startswith("no-"):
                positive = key[3:]
            if positive is not None and flag_argv(rules, positive, False) == [f"--{key}"]:
                return positive, False
            return key, True
        read = [_scalar(value, option) for value in values]
        if len(read) == 1:
            return key, read[0]
        return key, read if rules.list_forms.get(key, rules.lists) == "after" else _verbatim(" ".join(values))

    def several(self, part: Part, key: str, found: dict[str, Any], value: Any) -> None:
        """A flag that is given again: one more value, or the one that counts."""
        if part.option is not None and part.option.repeats:
            before = found[key] if isinstance(found[key], list) else [found[key]]
            found[key] = [*before, value]
        elif found[key] != value:
            self.leave(f"{part.name} {found[key]}", "it is given again, and the last one counts")
            found[key] = value

    def move(self, key: str, value: str) -> None:
        value = _masked(value)
        if key == "model":
            self.take_model(value)
        elif key == "hf":
            repository, _, quant = value.partition(":")
            self.model |= {"hf": repository, "revision": self.model.get("revision", "main")}
            if quant and "file" not in self.model:
                self.fill_in("file", f"{FILL_IN}-{quant}.gguf", f"the file of {quant}")
        else:
            self.model[key] = value
            self.open_value(("model", key), value)

    def take_model(self, text: str) -> None:
        """The model by what it looks like: a path, a repository, or something that only the command's host knows."""
        text = _masked(text)
        for source, target in self.mounts:
            if target and (text == target or text.startswith(f"{target}/")):
                text = source + text[len(target) :]
        if re.fullmatch(r"[\w.-]+/[\w.-]+", text) and self.engine.model != "file" and not text.startswith("."):
            self.model |= {"hf": text, "revision": self.model.get("revision", "main")}
            self.comments[("model", "revision")] = "a commit says what is measured; `main` moves"
        elif text.startswith("/") and not OPEN.search(text):
            self.model["path"] = text
        else:
            place = f"/{FILL_IN}/{PurePosixPath(OPEN.sub('', text)).name}".rstrip("/")
            self.fill_in("path", place, f"the absolute path of {text} on the hosts")

    def fill_in(self, key: str, value: str, what: str) -> None:
        self.model[key] = value
        self.comments["model", key] = f"fill in: {what}"
        self.open.append(f"server.model.{key}")

    def open_value(self, path: tuple[str, ...], text: str) -> None:
        if OPEN.search(text):
            self.comments[path] = "fill in: the command takes it from elsewhere"
            self.open.append(".".join(["server", *path]))

    def leave(self, what: str, why: str) -> None:
        first, *rest = what.split() or [""]
        told = f"{_masked(first)} ..." if rest and reveals(" ".join(rest)) else _masked(what)
        self.left_out.append(f"{told}: {why}")


def campaign_from(text: str) -> tuple[str, Launch]:
    """The campaign's YAML and what was understood. ConfigError where no server is launched."""
    found = find_launch(text)
    launch = Launch(load_engine(found.engine), found.version, found.before, found.rest, found.exported)
    launch.fill()
    if found.lost:
        launch.leave(" ".join(found.lost), "the line before ends the command: by a comment, or a blank behind its `\\`")
    return _written(launch), launch


def _masked(text: str) -> str:
    """A word without what looks like a secret, or what is called one in it."""
    text = SECRET_VALUE.sub("...", text)
    return text.partition("?")[0] if reveals(text) and "?" in text else text


def _spelled_out(part: Part, catalogue: Catalogue) -> Part:
    """A flag by its long name: a short one, which no campaign has, or an abbreviation that stands for only one."""
    if part.option is not None and not part.name.startswith("--"):
        short, dot, key = part.name.partition(".")
        names = part.option.negative if short in part.option.negative else part.option.names
        long = next((name for name in names if name.startswith("--")), short)
        return Part(part.at, long + dot + key, part.option, part.values)
    if part.option is not None or not part.name.startswith("--"):
        return part
    name, equals, value = part.name.partition("=")
    if equals:  # llama-server has no such form; what is meant is clear
        return Part(part.at, name, catalogue.by_name.get(name), [value, *part.values])
    found = {id(option): option for name, option in catalogue.by_name.items() if name.startswith(part.name)}
    if len(found) != 1:
        return part
    option = next(iter(found.values()))
    full = next(name for name in (*option.names, *option.negative) if name.startswith(part.name))
    return Part(part.at, full, option, part.values)


def _scalar(text: str, option: Option | None) -> Any:
    """A value as YAML would have it: what comes out again as the same text; JSON objects as maps."""
    if option is None or option.type in ("json", "text_or_json"):
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if isinstance(value, dict) and value and "null" not in text and not is_template(text):
            return value
    for kind in (int, float):
        try:
            if str(kind(text)) == text and text not in ("nan", "inf", "-inf"):
                return kind(text)
        except ValueError:
            continue
    return _verbatim(text)


def _verbatim(text: str) -> str:
    """Text that no template is found in."""
    return f"{{% raw %}}{text}{{% endraw %}}" if is_template(text) else text


def _written(launch: Launch) -> str:
    """The campaign file."""
    lines = list(_lines(launch.server, launch.comments))
    if launch.left_out:
        lines.append("  # Not taken over from the command:")
        lines += [f"  #   {' '.join(text.split())}" for text in launch.left_out]
    return _TEMPLATE.read_text(encoding="utf-8").replace("SERVER\n", "\n".join(lines) + "\n")


def _lines(mapping: dict[str, Any], comments: dict[tuple[str, ...], str], path: tuple[str, ...] = ()) -> Iterable[str]:
    indent = "  " * (len(path) + 1)
    for key, value in mapping.items():
        comment = f" # {' '.join(comments[*path, key].split())}" if (*path, key) in comments else ""
        if isinstance(value, dict) and not path and value:
            yield f"{indent}{key}:{comment}"
            yield from _lines(value, comments, (*path, key))
        else:
            entry = yaml.safe_dump(
                {key: value}, default_flow_style=True, allow_unicode=True, width=10**6, sort_keys=False
            )
            yield f"{indent}{entry.strip()[1:-1]}{comment}"
