"""Secrets are replaced in whatever gpurun writes down."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

MASK = "[secret]"
_MIN_LENGTH = 4  # replacing shorter values would spell them out by what is missing elsewhere, and wreck every file


def redact(text: str, secrets: Sequence[str]) -> str:
    """`text` with every secret of at least 4 characters replaced by a mask: as it is, in JSON, and in a URL."""
    forms = {
        form
        for secret in secrets
        if len(secret) >= _MIN_LENGTH
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
