"""Secrets are replaced in whatever gpurun writes down; those that stand in a text are told by their form or name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from gpurun.data import table

MASK = "[secret]"
MIN_LENGTH = 4  # replacing shorter values would spell them out by what is missing elsewhere, and wreck every file
_DUMMY = "(?i:" + "|".join(map(re.escape, table("secrets")["dummies"])) + ")"
SECRET_VALUE = re.compile(table("secrets")["values"].replace("DUMMY", _DUMMY))
_SECRET_NAME = re.compile(table("secrets")["names"])
# What has a value that may be one: in JSON, a URL's query, a header, a label.
_NAMED = re.compile(rf"""([A-Za-z_][\w.-]*)["']?\s*[:=](?!\s*["']?{_DUMMY}["']?(?:[\s,;&}}]|$))""")


def redact(text: str, secrets: Sequence[str]) -> str:
    """`text` with every secret of at least 4 characters replaced by a mask: as it is, in JSON, and in a URL. A dummy
    (`EMPTY`) is none."""
    forms = {
        form
        for secret in secrets
        if len(secret) >= MIN_LENGTH and not is_dummy(secret)
        for form in (secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], quote(secret, ""))
    }
    for form in sorted(forms, key=len, reverse=True):  # the longest first: one inside another leaves no remainder
        text = text.replace(form, MASK)
    return text


def redact_bytes(content: bytes, secrets: Sequence[str]) -> bytes:
    """The same for a file's content, whatever its encoding."""
    return redact(content.decode(errors="surrogateescape"), secrets).encode(errors="surrogateescape")


def redact_tree(document: Any, secrets: Sequence[str]) -> Any:
    """The same for a JSON document, in keys and values; its structure stays."""
    if isinstance(document, str):
        return redact(document, secrets)
    if isinstance(document, Mapping):
        return {redact_tree(key, secrets): redact_tree(value, secrets) for key, value in document.items()}
    if isinstance(document, (list, tuple)):
        return [redact_tree(item, secrets) for item in document]
    return document


def names_secret(name: str) -> bool:
    """Whether a flag, variable or key of this name has a secret as its value."""
    return _SECRET_NAME.search(re.sub(r"[-.]", "_", name.lstrip("-")).upper()) is not None


def is_dummy(value: str) -> bool:
    """Whether this is what people write where no key is needed."""
    return re.fullmatch(_DUMMY, value) is not None


def reveals(text: str) -> bool:
    """Whether there is a secret in `NAME=VALUE` words: one that looks like it, or is called so."""
    return SECRET_VALUE.search(text) is not None or any(map(names_secret, _NAMED.findall(text)))
