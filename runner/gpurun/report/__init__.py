"""The record of a run: one page to forward (report.html), one log to keep with the code (report.md).

Both are made from what is stored, and equal results make equal bytes. Templates, styles and chart specifications are
data (data/report/).
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from itertools import combinations
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from gpurun import text, wording
from gpurun.assess import Assessment, compare_runs
from gpurun.report import charts
from gpurun.report.view import RunView, look
from gpurun.store import RunStore

_DATA = Path(__file__).resolve().parents[1] / "data" / "report"


def write(store: RunStore, report: Assessment | None = None) -> Path:
    """Write report.html and report.md beside a run's results, in place of earlier ones. Returns the page's path."""
    run = look(store, report)
    store.write_derived("report.md", markdown(run))
    return store.write_derived("report.html", page([run]))


def page(runs: Sequence[RunView]) -> str:
    """One self-contained HTML page about one run or several: no address in it leads anywhere else."""
    pairs = [(one.report, other.report) for one, other in combinations(runs, 2)] if len(runs) < 5 else []
    against = [(before.run, after.run, compare_runs(before, after)) for before, after in pairs]
    script = _data("sort.js")
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        _templates()
        .get_template("page.html.j2")
        .render(
            runs=runs,
            against=against,
            style=Markup(_data("style.css")),  # noqa: S704 (our own file)
            script=Markup(script),  # noqa: S704 (our own file)
            script_hash=allowed,
            draw=charts.Drawing(),
        )
    )


def markdown(run: RunView) -> str:
    """The campaign log of one run, for a pull request or a wiki."""
    return _templates().get_template("log.md.j2").render(run=run)


@cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_DATA),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        finalize=_harmless,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": text.number,
        "percent": lambda share: f"{text.percent(share)} %",
        "metric": text.metric_name,
        "plural": text.plural,
        "duration": text.duration,
        "line": text.shorten,
        "code": _code,
        "ticks": _ticks,
        "md": _md,
    }
    environment.globals |= {"verdict": wording.verdict, "change": lambda effect: wording.changes([effect])[0]}
    return environment


def _harmless(told: object) -> object:
    """Whatever a template inserts, with control characters spelled out and lines kept."""
    if isinstance(told, Markup) or not isinstance(told, str):
        return told
    return "\n".join(map(text.escape, told.split("\n")))


def _data(name: str) -> str:
    return (_DATA / name).read_text(encoding="utf-8")


def _ticks(told: str) -> Markup:
    """Text with code between backticks, for HTML."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(_harmless(told)))))  # noqa: S704 (escaped)


def _code(told: object) -> str:
    """A span of code in Markdown that holds whatever it is given, also in a table."""
    plain = text.shorten(str(told), 400).replace("|", "\N{BROKEN BAR}")
    fence = "`" * (1 + max(map(len, "".join(c if c == "`" else " " for c in plain).split()), default=0))
    space = " " if "`" in plain else ""
    return f"{fence}{space}{plain}{space}{fence}" if plain else ""


def _md(told: object) -> str:
    """Text of ours or of a log in Markdown: one line that opens no table cell, tag or link."""
    plain = " ".join(str(told).split("\n")).strip()
    return re.sub(r"([|<]|(?<=\])[(:])", r"\\\1", plain)
