"""A container that launches a server, as Kubernetes or Compose has it in YAML: as the `docker run` that says the same.

Pure. Also a bare list of words, `["vllm", "serve", ...]`, as Dockerfiles have it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import yaml


def as_shell(text: str) -> Iterator[str]:
    """A shell line for each container with an image, or for a list of words; nothing where the text is no such YAML."""
    try:
        documents = list(yaml.load_all(text, yaml.BaseLoader))
    except (yaml.YAMLError, ValueError, RecursionError):
        return
    for document in documents:
        if isinstance(document, list) and all(isinstance(word, str) for word in document):
            yield shlex.join(document)
        yield from (_line(each) for each in _containers(document))


def _containers(document: Any) -> Iterator[dict[str, Any]]:
    if isinstance(document, dict) and isinstance(document.get("image"), str):
        yield document
    inside = document.values() if isinstance(document, dict) else document if isinstance(document, list) else ()
    for each in inside:
        yield from _containers(each)


def _line(container: dict[str, Any]) -> str:
    options = [word for name, value in _variables(container) for word in ("-e", f"{name}={value}")]
    for volume in container.get("volumes") or ():
        options += ["-v", volume] if isinstance(volume, str) else []
    for key in ("shm_size", "ipc"):
        options += [f"--{key.replace('_', '-')}", str(container[key])] if key in container else []
    if devices := ",".join(_devices(container)):
        options += ["--gpus", f"device={devices}"]
    parts = (container.get(key) for key in ("entrypoint", "command", "args"))
    words = [word for part in parts for word in _words(part)]
    return shlex.join(["docker", "run", *options, container["image"], *words])


def _devices(container: dict[str, Any]) -> Iterator[str]:
    """The GPUs that Compose reserves by their ids."""
    found: Any = container
    for key in ("deploy", "resources", "reservations", "devices"):
        found = found.get(key) if isinstance(found, dict) else None
    for each in found if isinstance(found, list) else ():
        yield from map(str, (each.get("device_ids") or ()) if isinstance(each, dict) else ())


def _words(part: Any) -> list[str]:
    if isinstance(part, str):  # Compose splits it as a shell does
        return shlex.split(part.replace("\n", " "))
    return [word.replace("$$", "$") for word in part or ()]


def _variables(container: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Kubernetes' `env` and Compose's `environment`; one whose value is elsewhere stands for itself."""
    for each in container.get("env") or ():
        if isinstance(each, dict) and "name" in each:
            yield str(each["name"]), str(each.get("value", f"${each['name']}"))
    found = container.get("environment") or {}
    pairs = found.items() if isinstance(found, dict) else (str(each).partition("=")[::2] for each in found)
    for name, value in pairs:
        yield str(name), f"${name}" if value in (None, "") else str(value)
