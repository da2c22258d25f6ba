"""Texts and pages from templates (data/text, data/report), escaped for what they are, controls spelled out."""

from __future__ import annotations

import re
import shlex
import time
from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup

from gpurun import text
from gpurun.data import FOLDER

_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@cache
def environment() -> jinja2.Environment:
    """Where all of gpurun's own templates are loaded from."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader([FOLDER / "text", FOLDER / "report"]),
        autoescape=jinja2.select_autoescape(["html.j2", "xml.j2"]),
        finalize=harmless,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "number": text.number,
        "percent": lambda share: f"{text.percent(share)} %",
        "metric": text.metric_name,
        "plural": text.plural,
        "duration": text.duration,
        "line": text.shorten,
        "shell": shlex.quote,
        "argv": shlex.join,
        "local": lambda at: time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)),
        "xml": lambda told: _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", told),
    }
    return made


def fill(name: str, **values: Any) -> str:
    """A template of data/text, filled in, without a line feed at its end."""
    return environment().get_template(name).render(values).rstrip("\n")


def harmless(told: object) -> object:
    """Whatever a template inserts, with control characters spelled out and lines kept."""
    if isinstance(told, Markup) or not isinstance(told, str):
        return told
    return "\n".join(map(text.escape, told.split("\n")))
