"""Results as tables: for every benchmark and axis point, what each variant measured and what that means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, JustifyMethod, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpurun import stats
from gpurun.assess import Assessment
from gpurun.compare import ByCase, Case, Effect, by_case, failed_altogether, failure_class, measured, values
from gpurun.samples import Sample
from gpurun.store import RunSummary
from gpurun.terminal.text import (
    MISSING,
    escape,
    limit,
    metric_name,
    metric_value,
    number,
    percent,
    plural,
    shorten,
    signed,
)

# A symbol and a word: colour only repeats them.
_LOOKS = {
    "better": ("▲", "green"),
    "worse": ("▼", "red"),
    "no difference found": ("=", ""),
    "cannot tell": ("?", "yellow"),
    "not comparable": ("≠", "yellow"),
    "failed": ("✗", "red"),
}


def results_table(report: Assessment) -> RenderableType:
    """Every benchmark and axis point, then the failures with their proof, then the notes."""
    points: dict[tuple[str, str], list[Case]] = {}
    for case in report.cases:
        points.setdefault(case.point, []).append(case)
    index = by_case(report.samples)
    effects: dict[str, list[Effect]] = {}
    for effect in report.effects:
        effects.setdefault(effect.case.id, []).append(effect)
    blocks: list[RenderableType] = []
    for cases in points.values():
        blocks += [_point(report, index, effects, cases), Text()]
    for block in _failures(report):
        blocks += [block, Text()]
    if report.notes:
        blocks += [notes_block(report.notes), Text()]
    return Group(*blocks[:-1])


def comparison_table(before: str, after: str, effects: Sequence[Effect], notes: Sequence[str]) -> RenderableType:
    """One run against another: each case's medians, the effect and the verdict."""
    blocks: list[RenderableType] = [Text(f"{escape(after)} against {escape(before)}", style="bold")]
    for label in dict.fromkeys((effect.case.label, effect.metric) for effect in effects if effect.primary):
        rows = [effect for effect in effects if (effect.case.label, effect.metric) == label]
        blocks += [Text(), Text(f"{escape(label[0])} · {_direction(rows[0])}", style="bold")]
        table = _table("variant", "before", "after", "change", "verdict")
        widths = _widths(rows)
        for effect in rows:
            cells = (number(effect.baseline), number(effect.median), _change(effect, widths))
            table.add_row(escape(effect.case.variant), *cells, _verdict(effect))
        blocks += [Padding(table, (0, 0, 0, 2)), *_others([e for e in effects if e.case.label == label[0]])]
    if notes:
        blocks += [Text(), notes_block(notes)]
    return Group(*blocks)


def notes_block(notes: Sequence[str]) -> RenderableType:
    """The notes, counted, one each line."""
    lines = [Text(f"{plural(len(notes), 'note')}:")]
    return Group(*lines, *(_hanging("  - ", Text(escape(note))) for note in notes))


def runs_table(runs: Sequence[RunSummary]) -> RenderableType:
    """Stored runs, newest first."""
    table = _table("run", "campaign", "status", "samples", "started (UTC)")
    for run in runs:
        started = run.started_at.replace("T", " ").removesuffix("Z")
        style = "" if run.status == "done" else "yellow"
        table.add_row(escape(run.run), escape(run.campaign), Text(run.status, style=style), str(run.samples), started)
    return table


def _point(
    report: Assessment, index: ByCase, effects: Mapping[str, Sequence[Effect]], cases: Sequence[Case]
) -> RenderableType:
    here = [effect for case in cases for effect in effects.get(case.id, ())]
    primary = {effect.case.id: effect for effect in here if effect.primary}
    widths = _widths(list(primary.values()))
    table = _table("variant", "median", "vs baseline", "verdict")
    for case in cases:
        numbers = list(values(index, case, report.rules.primary).values())
        median = number(stats.median(numbers)) if numbers else MISSING
        if case.id in primary:
            cells = _change(primary[case.id], widths), _verdict(primary[case.id])
        else:
            failed = failed_altogether(index, case)
            cells = "", Text(f"✗ failed: {failure_class(failed)}" if failed else "", style="red")
        table.add_row(escape(case.variant), median, *cells)
    return Group(_heading(report, index, cases), Padding(table, (0, 0, 0, 2)), *_others(here))


def _heading(report: Assessment, index: ByCase, cases: Sequence[Case]) -> Text:
    here = [sample for case in cases for sample in measured(index, case)]
    seen = len({sample.round for sample in here})
    rounds = plural(seen, "round") if seen >= report.rounds else f"{seen} of {plural(report.rounds, 'round')}"
    parts = [f"{rounds}, interleaved"]
    hosts = len({sample.host for sample in here})
    if hosts > 1:
        parts.append(plural(hosts, "host"))
    rule = report.rules.metrics.get(report.rules.primary)
    name = metric_name(report.rules.primary)
    if rule is not None:
        name += f" ({rule.better} is better)"
        parts.append(f"limit {limit(rule.threshold)}")
    return Text(" · ".join((escape(cases[0].label), name, *parts)), style="bold")


def _verdict(effect: Effect) -> Text:
    symbol, style = _LOOKS[effect.verdict]
    text = f"{symbol} {effect.verdict}"
    if effect.verdict == "failed":
        text += f": {effect.reason}" + (" (expected)" if effect.expected else "")
        style = "" if effect.expected else style
    elif effect.verdict == "cannot tell":
        roughly = "about " if effect.rounds >= stats.MIN_ROUNDS else ""
        more = f"needs {roughly}{plural(effect.further, 'more round')}" if effect.further else ""
        told = "; ".join(part for part in (escape(effect.reason), more) if part)
        text += f" ({told})" if told else ""
    elif effect.reason:
        text += f": {escape(effect.reason)}"
    return Text(text, style=style)


def _others(effects: Sequence[Effect]) -> list[RenderableType]:
    """Secondary metrics are information: only those that differ get a line, and none decides anything."""
    lines: list[RenderableType] = []
    for effect in effects:
        if not effect.primary and effect.verdict in ("better", "worse") and effect.estimate is not None:
            told = f"{escape(effect.case.variant)}: {metric_value(effect.metric, effect.median)}, {_change(effect)} "
            lines.append(_hanging("  also ", Text(told).append_text(_verdict(effect))))
    return lines


def _failures(report: Assessment) -> list[RenderableType]:
    """Each variant's failures of one kind once, however many points and rounds they hit."""
    groups: dict[tuple[str, str, bool], list[Sample]] = {}
    for sample in report.samples:
        if sample.status == "failed" and sample.failure is not None:
            key = (sample.variant, sample.failure.klass, sample.failure.expected)
            groups.setdefault(key, []).append(sample)
    blocks: list[RenderableType] = []
    for (variant, klass, expected), samples in groups.items():
        failure = samples[0].failure
        assert failure is not None
        total = sum(sample.variant == variant for sample in report.samples)
        how = "failed as expected" if expected else "failed"
        head = f"✗ {escape(variant)} {how}: {klass} ({failure.phase}), {len(samples)} of {plural(total, 'sample')}"
        lines: list[RenderableType] = [Text(head, style="" if expected else "red")]
        if failure.proof:
            lines.append(_hanging("  proof: ", Text(shorten(failure.proof, 300))))
        if failure.advice:
            lines.append(_hanging("  hint:  ", Text(escape(failure.advice))))
        log = "server.log"
        if report.directory is not None and log in samples[0].files:
            first = samples[0]
            place = report.directory / "samples" / str(first.round) / first.case / first.host / log
            lines.append(Text(f"  log:   {place}", no_wrap=True, overflow="ignore"))  # whole, to be copied
        blocks.append(Group(*lines))
    return blocks


def _direction(effect: Effect) -> str:
    return f"{metric_name(effect.metric)} ({effect.rule.better} is better) · limit {limit(effect.rule.threshold)}"


def _widths(effects: Sequence[Effect]) -> tuple[int, int, int]:
    """How wide estimate, lower and upper end are in one table, so that decimal points stand below each other."""
    changes = [len(signed(e.estimate)) for e in effects if e.estimate is not None]
    ends = [(len(signed(e.interval[0])), len(signed(e.interval[1]))) for e in effects if e.interval is not None]
    return max(changes, default=0), max((a for a, _ in ends), default=0), max((b for _, b in ends), default=0)


def _change(effect: Effect, widths: tuple[int, int, int] = (0, 0, 0)) -> str:
    if effect.estimate is None:
        return MISSING
    text = percent(effect.estimate).rjust(widths[0] + 2)
    if effect.interval is not None:
        low, high = signed(effect.interval[0]).rjust(widths[1]), signed(effect.interval[1]).rjust(widths[2])
        text += f" [{low}, {high}]"
    return text


def _table(*columns: str) -> Table:
    """No lines, two spaces to the left; numbers to the right; only the last column wraps."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), show_edge=False, header_style="dim")
    for index, name in enumerate(columns):
        last = index == len(columns) - 1
        numeric = name in ("median", "before", "after", "samples")
        justify: JustifyMethod = "right" if numeric else "left"
        table.add_column(name, justify=justify, no_wrap=not last and index > 0, overflow="fold")
    return table


def _hanging(lead: str, text: Text) -> RenderableType:
    """Text whose further lines stand below its first word."""
    grid = Table.grid(padding=0)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(lead), text)
    return grid
