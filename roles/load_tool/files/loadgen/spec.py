"""SPEC.json: what to send, how fast, where to. Unknown keys and wrong values are errors that name the key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from urllib.parse import urlsplit


class SpecError(Exception):
    """The spec cannot be used. The text names the key, what is wrong with it, and what would be right."""


class Data(NamedTuple):
    """What the prompts are. `kind`: "synthetic" (random words: nothing to predict), "text" (simple repetitive English,
    where speculative decoding has something to find), "file" (`path`: JSON lines with "prompt")."""

    kind: str
    prompt_tokens: int
    output_tokens: int
    seed: int
    path: str | None


class Spec(NamedTuple):
    """A valid spec. Exactly one of `concurrency` (closed loop) and `request_rate` (per second, open loop) is set."""

    host: str
    port: int
    path: str  # of the generation endpoint
    root: str  # path prefix of the other endpoints
    api: str
    model: str
    concurrency: int | None
    request_rate: float | None
    arrival: str
    max_concurrency: int | None
    requests: int | None
    duration_s: float | None
    warmup: int
    data: Data
    extra_body: dict[str, Any]
    tokenize: str | None
    timeout_s: float
    progress: str | None
    source: dict[str, Any]  # as read, for RAW


_KEYS = {
    "base_url", "api", "model", "load", "requests", "duration_s", "warmup", "data", "extra_body", "tokenize",
    "timeout_s", "progress",
}  # fmt: skip
_LOAD_KEYS = {"concurrency", "request_rate", "arrival", "max_concurrency"}
_DATA_KEYS = {"kind", "prompt_tokens", "output_tokens", "seed", "path"}
_OWN_BODY_KEYS = {"model", "prompt", "messages", "stream", "stream_options"}  # ours to set: measuring depends on them
_ENDPOINTS = {"chat": "/chat/completions", "completions": "/completions"}


def read_spec(path: str) -> Spec:
    """The spec in this file. Raises SpecError, also when the file is missing or not JSON."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            source = json.load(file)
    except (OSError, ValueError) as error:
        raise SpecError(f"{path}: cannot be read as JSON: {error}") from None
    return parse_spec(source)


def parse_spec(source: Any) -> Spec:
    """Validate a decoded spec. Raises SpecError with the name of the first wrong key."""
    spec = _mapping("spec", source, _KEYS)
    host, port, prefix = _address(spec.get("base_url"))
    api = _choice("api", spec.get("api", "chat"), _ENDPOINTS)
    load = _mapping("load", spec.get("load"), _LOAD_KEYS)
    concurrency = _number("load.concurrency", load.get("concurrency"), int, 1)
    rate = _number("load.request_rate", load.get("request_rate"), float, 0, above=True)
    if (concurrency is None) == (rate is None):
        _wrong("load", "needs exactly one of concurrency and request_rate")
    requests = _number("requests", spec.get("requests"), int, 1)
    duration_s = _number("duration_s", spec.get("duration_s"), float, 0, above=True)
    if requests is None and duration_s is None:
        _wrong("requests", "is needed, unless duration_s is given")
    return Spec(
        host=host,
        port=port,
        path=(prefix if prefix.endswith("/v1") else prefix + "/v1") + _ENDPOINTS[api],
        root=prefix[: -len("/v1")] if prefix.endswith("/v1") else prefix,
        api=api,
        model=_text("model", spec.get("model")),
        concurrency=concurrency,
        request_rate=rate,
        arrival=_choice("load.arrival", load.get("arrival", "poisson"), ("poisson", "constant")),
        max_concurrency=_number("load.max_concurrency", load.get("max_concurrency"), int, 1),
        requests=requests,
        duration_s=duration_s,
        warmup=_number("warmup", spec.get("warmup", 0), int, 0) or 0,
        data=_data(spec.get("data")),
        extra_body=_extra_body(spec.get("extra_body") or {}),
        tokenize=None if spec.get("tokenize") is None else _text("tokenize", spec["tokenize"]),
        timeout_s=_number("timeout_s", spec.get("timeout_s", 600), float, 0, above=True) or 600.0,
        progress=None if spec.get("progress") is None else _text("progress", spec["progress"]),
        source=spec,
    )


def _data(value: Any) -> Data:
    data = _mapping("data", value, _DATA_KEYS)
    kind = _choice("data.kind", data.get("kind", "synthetic"), ("synthetic", "text", "file"))
    prompt_tokens = _number("data.prompt_tokens", data.get("prompt_tokens"), int, 1)
    output_tokens = _number("data.output_tokens", data.get("output_tokens"), int, 1)
    if output_tokens is None:
        _wrong("data.output_tokens", "is needed")
    if prompt_tokens is None and kind != "file":
        _wrong("data.prompt_tokens", f"is needed for kind {kind}")
    path = _text("data.path", data.get("path")) if kind == "file" else None
    return Data(kind, prompt_tokens or 0, output_tokens, _number("data.seed", data.get("seed", 0), int, 0) or 0, path)


def _extra_body(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        _wrong("extra_body", "must be an object")
    for key in sorted(_OWN_BODY_KEYS & set(value)):
        _wrong(f"extra_body.{key}", "is set by the client itself")
    return value


def _address(value: Any) -> tuple[str, int, str]:
    url = _text("base_url", value)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        _wrong("base_url", f"is not a URL ({error}): {url}")
    if parts.scheme == "https":
        _wrong("base_url", f"is https, which this client does not speak: name the server's own http port, not {url}")
    if parts.scheme != "http" or not parts.hostname:
        _wrong("base_url", f"must look like http://host:port, not {url}")
    return parts.hostname, port or 80, parts.path.rstrip("/")


def _wrong(key: str, what: str) -> NoReturn:
    raise SpecError(f"{key} {what}")


def _mapping(key: str, value: Any, known: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        _wrong(key, "must be an object")
    for name in value:
        if name not in known:
            _wrong(name if key == "spec" else f"{key}.{name}", f"is not known; allowed: {', '.join(sorted(known))}")
    return value


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        _wrong(key, f"must be a text that is not empty, not {value!r}")
    return value


def _choice(key: str, value: Any, allowed: Any) -> str:
    if value not in tuple(allowed):
        _wrong(key, f"must be one of {', '.join(allowed)}, not {value!r}")
    return str(value)


def _number(key: str, value: Any, kind: Any, least: int, above: bool = False) -> Any:
    if value is None:
        return None
    good = isinstance(value, (int, float) if kind is float else int) and not isinstance(value, bool)
    if not good or not value < float("inf") or value < least or (above and value == least):
        noun = "a number" if kind is float else "a whole number"
        _wrong(key, f"must be {noun} {'above' if above else 'of at least'} {least}, not {value!r}")
    return kind(value)
