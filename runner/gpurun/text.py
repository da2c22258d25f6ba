"""Numbers, durations and foreign text as people read them, and templates of whole texts (data/text, data/report)."""

from __future__ import annotations

import codecs
import io
import math
import re
import shlex
import time
from functools import cache
from typing import Any, TextIO

import jinja2
from markupsafe import Markup

from gpurun.data import FOLDER

MISSING = "—"
MINUS = "\N{MINUS SIGN}"
# C0 and C1 controls, and the characters that reorder or hide text (bidirectional controls, line separators).
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ACRONYMS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E", "cpu": "CPU", "sm": "SM clock"}
_UNITS = {
    "tok_per_s": "tok/s",
    "per_s": "1/s",
    "ms": "ms",
    "s": "s",
    "mib": "MiB",
    "w": "W",
    "mhz": "MHz",
    "c": "°C",
    "percent": "%",
}
_METRIC = re.compile(rf"(.+?)(?:_({'|'.join(_UNITS)}))?")
_ASCII = {"—": "-", MINUS: "-", "·": "-", "±": "+/-", "▲": "^", "▼": "v", "≠": "!=", "✗": "x", "…": "..."}


def escape(text: str) -> str:
    """Text from a log or a server, harmless to a terminal: control characters are spelled out, tabs become a space."""
    return _CONTROL.sub(lambda match: f"\\{'xu'[match[0] > 'ÿ']}{ord(match[0]):02x}", text.replace("\t", " "))


def shorten(text: str, limit: int) -> str:
    """The first line of `text`, escaped, at most `limit` characters."""
    line = escape(next((line.strip() for line in text.splitlines() if line.strip()), ""))
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def tolerate(stream: TextIO) -> None:
    """Where the stream's encoding lacks one of our few symbols, write something like it in ASCII."""
    codecs.register_error("gpurun", _in_ascii)
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="gpurun")


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    text = "".join(_ASCII.get(character, character) for character in error.object[error.start : error.end])
    return text.encode("ascii", "backslashreplace").decode(), error.end


def number(value: float | None) -> str:
    """A measured number, thousands set apart by a space: 4 812, 100.3, 81.5, 5.00, 0.0123."""
    if value is None or not math.isfinite(value):
        return MISSING
    size = abs(value)
    decimals = 0 if size >= 1000 or size == 0 else 1 if size >= 10 else min(6, 2 - math.floor(math.log10(size)))
    return f"{value:,.{decimals}f}".replace(",", " ").replace("-", MINUS)


def percent(change: float) -> str:
    """A relative change as a percentage without its symbol, such as +12.0; beyond 1000 % without decimals."""
    text = f"{100 * change:+.{int(abs(change) < 9.9995)}f}"
    return ("+0.0" if text == "-0.0" else text).replace("-", MINUS)


def numbers(version: str) -> tuple[int, ...]:
    """A version's numbers, in their order, for comparison."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def to_number(text: object) -> float | None:
    """What a file says as a number that counts; None where it is none."""
    try:
        value = float(str(text))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def setting(value: object) -> str:
    """A single value as a campaign has it."""
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def plural(count: int, noun: str) -> str:
    """`1 round`, `2 rounds`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def duration(seconds: float) -> str:
    """1.4 s, 48 s, 2 min 05 s, 3 h 07 min."""
    seconds = max(0.0, seconds)
    if seconds < 99.5:
        return f"{seconds:.{int(seconds < 9.95)}f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def about(seconds: float) -> str:
    """A time left, as coarse as it is certain: 5 s steps below a minute and a half, then minutes, then hours."""
    if seconds < 90:
        return f"about {max(5, 5 * round(seconds / 5))} s"
    return f"about {round(seconds / 60)} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"


def metric_name(metric: str) -> str:
    """A metric for a heading: `output_tok_per_s` is output tok/s, `ttft_p99_ms` is TTFT p99 (ms)."""
    words, unit = _words_and_unit(metric)
    return f"{words} ({unit})" if unit and "/" not in unit else f"{words} {unit}".rstrip()


def metric_value(metric: str, value: float | None) -> str:
    """A metric with its number, such as TTFT p99 172 ms."""
    words, unit = _words_and_unit(metric)
    return f"{words} {number(value)} {unit}".rstrip()


def _words_and_unit(metric: str) -> tuple[str, str]:
    match = _METRIC.fullmatch(metric)
    name, unit = match.groups() if match else (metric, None)
    return " ".join(_ACRONYMS.get(word, word) for word in re.split("[_ ]", name)), _UNITS.get(unit or "", "")


@cache
def environment() -> jinja2.Environment:
    """Where all of gpurun's own templates are loaded from: escaped for what they are, controls spelled out."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader([FOLDER / "text", FOLDER / "report"]),
        autoescape=jinja2.select_autoescape(["html.j2", "xml.j2"]),
        finalize=harmless,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "number": number,
        "percent": lambda share: f"{percent(share)} %",
        "metric": metric_name,
        "plural": plural,
        "duration": duration,
        "line": shorten,
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
    return "\n".join(map(escape, told.split("\n")))
