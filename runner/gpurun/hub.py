"""A model's description without the model: from its folder, its GGUF file, or the headers of its files on the hub.

The reader is the one that hosts use, so that both say the same: a module of the role `facts`, loaded from there.
"""

from __future__ import annotations

import importlib.util
import io
import os
import re
import urllib.error
import urllib.request
from functools import cache
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlsplit

from gpurun.errors import ConfigError
from gpurun.paths import content

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")
_TIMEOUT_S = 20
_HINT = "a model is a folder with config.json, a .gguf file, a hub id such as `org/model`, or `none`"


@cache
def headers() -> Any:
    """The module that reads headers."""
    place = content() / "roles" / "facts" / "module_utils" / "gpurun_model_headers.py"
    spec = importlib.util.spec_from_file_location("gpurun_model_headers", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def describe(model: str) -> dict[str, Any]:
    """The description of a local model or one on the hub (`org/model[@revision]`). ConfigError if there is none."""
    place = Path(model).expanduser()
    try:
        if place.exists():
            return dict(headers().describe(place))
        if _HUB_ID.fullmatch(model) and not model.endswith(".gguf") and not model.startswith("."):
            return _from_hub(*model.partition("@")[::2])
    except (ValueError, OSError) as error:
        raise ConfigError(f"cannot read the sizes of `{model}`: {error}", hint=_HINT) from None
    raise ConfigError(f"there is no model `{model}`", hint=_HINT)


def _from_hub(repository: str, revision: str) -> dict[str, Any]:
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    if urlsplit(endpoint).scheme not in ("http", "https"):
        raise ConfigError(f"HF_ENDPOINT is no web address: `{endpoint}`")
    base = f"{endpoint}/{quote(repository)}/resolve/{quote(revision or 'main', safe='')}"
    token = os.environ.get("HF_TOKEN")

    def open_file(name: str) -> IO[bytes]:
        request = urllib.request.Request(f"{base}/{quote(name)}", headers={"User-Agent": "gpurun"})  # noqa: S310
        if token:  # which a redirection elsewhere does not get
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        try:
            answer: IO[bytes] = urllib.request.urlopen(request, timeout=_TIMEOUT_S)  # noqa: S310
        except urllib.error.HTTPError as error:
            if name == headers().QUANTIZATION and error.code == 404:
                return io.BytesIO(b"{}")
            raise
        return answer

    for weights in ("model.safetensors.index.json", "model.safetensors"):
        try:
            return dict(headers().describe_safetensors(["config.json", headers().QUANTIZATION, weights], open_file))
        except urllib.error.HTTPError as error:
            file = urlsplit(error.url).path.rpartition("/")[2]
            if file == "config.json":
                hint = "check the name and the revision (`org/model@revision`)"
                if error.code in (401, 403):
                    hint = "it is gated, private or not there: accept its licence, and set HF_TOKEN"
                message = f"the hub has no `{repository}` to read: {error.code} at {endpoint}"
                raise ConfigError(message, hint=hint) from None
            if error.code != 404 or file != "model.safetensors.index.json":
                raise ValueError(f"{error.code} for {file}: it has no safetensors?") from None
        except OSError as error:
            reason = getattr(error, "reason", error)
            hint = "without network, name a local copy of the model, or set HF_ENDPOINT to a mirror"
            raise ConfigError(f"cannot reach the hub at {endpoint} for `{repository}`: {reason}", hint=hint) from None
    raise AssertionError("the last of the files is there, or that was an error")
