"""Results as tables: for every benchmark and axis point, what each variant measured and what that means."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, JustifyMethod, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpurun import wording
from gpurun.assess import Assessment
from gpurun.compare import Case, Effect, Rule, failed, failure_class, group, measured, values
from gpurun.references import RunSummary
from gpurun.text import escape, metric_value, number, plural, shorten

# Colour only repeats what a symbol and a word say.
_STYLES = {"better": "green", "worse": "red", "cannot tell": "yellow", "not comparable": "yellow", "failed": "red"}


def results_table(report: Assessment) -> RenderableType:
    """Every benchmark and axis point, then the failures with their proof, then the notes."""
    points = group(report.cases, lambda case: case.point).values()
    return _spaced([*(_point(report, cases) for cases in points), *_failures(report), *_notes(report.notes)])


def comparison_table(before: str, after: str, effects: Sequence[Effect], notes: Sequence[str]) -> RenderableType:
    """One run against another: each case's medians, the effect and the verdict."""
    blocks: list[RenderableType] = [Text(escape(f"{after} against {before}"), "bold")]
    for here in group(effects, lambda effect: effect.case.point).values():
        primary = [effect for effect in here if effect.primary]
        table = _table("variant", "before", "after", "change" + wording.confidence(primary), "verdict")
        for effect, change in zip(primary, wording.changes(primary), strict=True):
            medians = number(effect.baseline), number(effect.median)
            table.add_row(escape(effect.case.variant), *medians, change, _verdict(effect))
        title = _title(primary[0].case, primary[0].metric, primary[0].rule)
        blocks.append(Group(title, Padding(table, (0, 0, 0, 2)), *_others(here)))
    return _spaced([*blocks, *_notes(notes)])


def runs_table(runs: Sequence[RunSummary]) -> RenderableType:
    """Stored runs, newest first."""
    named = ["name"] if any(run.names for run in runs) else []
    table = _table("run", "campaign", "status", "samples", "started (UTC)", *named)
    for run in runs:
        started = (run.started_at or "").replace("T", " ").removesuffix("Z")
        status = Text(run.status, "" if run.status == "done" else "yellow")
        names = [escape(", ".join(run.names)) for _ in named]
        table.add_row(escape(run.id), escape(run.campaign), status, str(run.samples), started, *names)
    return table


def _point(report: Assessment, cases: Sequence[Case]) -> RenderableType:
    here = [effect for case in cases for effect in report.effects if effect.case.id == case.id]
    primary = [effect for effect in here if effect.primary]
    rows = {
        effect.case.id: (number(effect.median), change, _verdict(effect))
        for effect, change in zip(primary, wording.changes(primary), strict=True)
    }
    table = _table("variant", "median", "vs baseline" + wording.confidence(primary), "verdict")
    for case in cases:
        table.add_row(escape(case.variant), *(rows.get(case.id) or _baseline(report, case)))
    rule = report.rules.metrics[report.rules.primary]
    title = _title(cases[0], report.rules.primary, rule, *wording.circumstances(report, cases))
    return Group(title, Padding(table, (0, 0, 0, 2)), *_others(here))


def _baseline(report: Assessment, case: Case) -> tuple[str, str, Text]:
    samples = report.of[case.id]
    numbers = values(samples, report.rules.primary).values()
    lost = [] if measured(samples) else failed(samples)
    verdict = Text(f"✗ failed: {failure_class(lost)}" if lost else "", "red")
    return number(statistics.median(numbers) if numbers else None), "", verdict


def _title(case: Case, metric: str, rule: Rule, *told: str) -> Text:
    return Text(escape(wording.title(case, metric, rule, *told)), "bold")


def _verdict(effect: Effect) -> Text:
    return Text(escape(wording.verdict(effect)), "" if effect.expected else _STYLES.get(effect.verdict, ""))


def _others(effects: Sequence[Effect]) -> Iterator[RenderableType]:
    """Secondary metrics are information: only those that differ get a line, and none decides anything."""
    for effect in effects:
        if not effect.primary and effect.verdict in ("better", "worse"):
            told = (
                f"{effect.case.variant}: {metric_value(effect.metric, effect.median)}, {wording.changes([effect])[0]} "
            )
            yield _hanging(("  also ", Text(escape(told)).append_text(_verdict(effect))))


def _failures(report: Assessment) -> Iterator[RenderableType]:
    for alike in wording.failures(report):
        failure = alike.failure
        how, style = ("failed as expected", "") if failure.expected else ("failed", "red")
        lines: list[RenderableType] = [
            Text(f"✗ {escape(alike.sample.variant)} {how}: {failure.klass} ({failure.phase}), {alike.share}", style)
        ]
        told = (("  proof: ", shorten(failure.proof, 300)), ("  hint:  ", escape(failure.advice)))
        lines += [_hanging((lead, Text(text))) for lead, text in told if text]
        if report.directory is not None and alike.log is not None:  # whole, to be copied
            lines.append(Text(f"  log:   {report.directory / alike.log}", no_wrap=True, overflow="ignore"))
        yield Group(*lines)


def _notes(notes: Sequence[str]) -> Iterator[RenderableType]:
    if notes:
        yield Group(f"{plural(len(notes), 'note')}:", _hanging(*(("  - ", Text(escape(note))) for note in notes)))


def _table(*columns: str) -> Table:
    """No lines, two spaces to the left; numbers to the right; only the first and the last column wrap."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), show_edge=False, header_style="dim")
    for name in columns:
        justify: JustifyMethod = "right" if name in ("median", "before", "after", "samples") else "left"
        table.add_column(name, justify=justify, no_wrap=name not in (columns[0], columns[-1]), overflow="fold")
    return table


def _hanging(*rows: tuple[str, Text]) -> RenderableType:
    """Texts whose further lines stand below their first word."""
    grid = Table.grid(padding=0)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for row in rows:
        grid.add_row(*row)
    return grid


def _spaced(blocks: Iterable[RenderableType]) -> RenderableType:
    """Blocks with an empty line between them."""
    return Group(*[part for block in blocks for part in (Text(), block)][1:])
