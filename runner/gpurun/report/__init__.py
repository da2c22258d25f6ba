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

from gpurun import started, text, wording
from gpurun.assess import Assessment, compare_runs
from gpurun.data import FOLDER
from gpurun.report import charts
from gpurun.report.view import RunView, look
from gpurun.store import RunStore


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
    made = text.environment()
    made.filters |= {"code": _code, "ticks": _ticks, "md": _md}
    made.globals |= {"verdict": wording.verdict, "change": lambda effect: wording.changes([effect])[0]}
    made.globals |= {"answers": wording.answers, "memory_lines": started.memory_lines}
    made.globals |= {"circumstances": wording.circumstances, "confidence": wording.confidence}
    return made


def _data(name: str) -> str:
    return (FOLDER / "report" / name).read_text(encoding="utf-8")


def _ticks(told: str) -> Markup:
    """Text with code between backticks, for HTML."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text.harmless(told)))))  # noqa: S704 (escaped)


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
