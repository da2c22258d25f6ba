"""Results as tables: for every benchmark and axis point, what each variant measured and what that means."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from rich.console import Group, JustifyMethod, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpurun import stats
from gpurun.assess import Assessment
from gpurun.compare import Case, Effect, Rule, failed, failure_class, group, measured, values
from gpurun.store import RunSummary
from gpurun.terminal.text import MISSING, escape, metric_name, metric_value, number, percent, plural, shorten

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
    points = group(report.cases, lambda case: case.point).values()
    return _spaced([*(_point(report, cases) for cases in points), *_failures(report), *_notes(report.notes)])


def comparison_table(before: str, after: str, effects: Sequence[Effect], notes: Sequence[str]) -> RenderableType:
    """One run against another: each case's medians, the effect and the verdict."""
    blocks: list[RenderableType] = [Text(escape(f"{after} against {before}"), "bold")]
    for here in group(effects, lambda effect: effect.case.point).values():
        primary = [effect for effect in here if effect.primary]
        table = _table("variant", "before", "after", "change", "verdict")
        for effect, change in zip(primary, _changes(primary), strict=True):
            medians = number(effect.baseline), number(effect.median)
            table.add_row(escape(effect.case.variant), *medians, change, _verdict(effect))
        title = _title(primary[0].case, primary[0].metric, primary[0].rule)
        blocks.append(Group(title, Padding(table, (0, 0, 0, 2)), *_others(here)))
    return _spaced([*blocks, *_notes(notes)])


def runs_table(runs: Sequence[RunSummary]) -> RenderableType:
    """Stored runs, newest first."""
    table = _table("run", "campaign", "status", "samples", "started (UTC)")
    for run in runs:
        started = (run.started_at or "").replace("T", " ").removesuffix("Z")
        status = Text(run.status, "" if run.status == "done" else "yellow")
        table.add_row(escape(run.id), escape(run.campaign), status, str(run.samples), started)
    return table


def _point(report: Assessment, cases: Sequence[Case]) -> RenderableType:
    here = [effect for case in cases for effect in report.effects if effect.case.id == case.id]
    primary = [effect for effect in here if effect.primary]
    rows = {
        effect.case.id: (number(effect.median), change, _verdict(effect))
        for effect, change in zip(primary, _changes(primary), strict=True)
    }
    table = _table("variant", "median", "vs baseline", "verdict")
    for case in cases:
        table.add_row(escape(case.variant), *(rows.get(case.id) or _baseline(report, case)))
    done = [sample for case in cases for sample in measured(report.of[case.id])]
    seen, hosts = len({sample.round for sample in done}), len({sample.host for sample in done})
    rounds = ("" if seen >= report.rounds else f"{seen} of ") + plural(report.rounds, "round")
    told = [rounds + ", interleaved" * report.interleaved, *([plural(hosts, "host")] if hosts > 1 else [])]
    title = _title(cases[0], report.rules.primary, report.rules.metrics[report.rules.primary], *told)
    return Group(title, Padding(table, (0, 0, 0, 2)), *_others(here))


def _baseline(report: Assessment, case: Case) -> tuple[str, str, Text]:
    samples = report.of[case.id]
    numbers = values(samples, report.rules.primary).values()
    lost = [] if measured(samples) else failed(samples)
    verdict = Text(f"✗ failed: {failure_class(lost)}" if lost else "", "red")
    return number(statistics.median(numbers) if numbers else None), "", verdict


def _title(case: Case, metric: str, rule: Rule, *told: str) -> Text:
    name = f"{metric_name(metric)} ({rule.better} is better)"
    return Text(escape(" · ".join((case.label, name, *told, f"limit ±{100 * rule.threshold:g} %"))), "bold")


def _verdict(effect: Effect) -> Text:
    symbol, style = _LOOKS[effect.verdict]
    more, told = "", f": {effect.reason}" if effect.reason else ""
    if effect.verdict == "cannot tell":
        if effect.further:
            roughly = "about " if effect.rounds >= stats.MIN_ROUNDS else ""
            more = f"needs {roughly}{plural(effect.further, 'more round')}"
        told = "; ".join(part for part in (effect.reason, more) if part)
        told = f" ({told})" if told else ""
    elif effect.expected:
        told, style = f"{told} (expected)", ""
    return Text(escape(f"{symbol} {effect.verdict}{told}"), style)


def _others(effects: Sequence[Effect]) -> Iterator[RenderableType]:
    """Secondary metrics are information: only those that differ get a line, and none decides anything."""
    for effect in effects:
        if not effect.primary and effect.verdict in ("better", "worse"):
            told = f"{effect.case.variant}: {metric_value(effect.metric, effect.median)}, {_changes([effect])[0]} "
            yield _hanging(("  also ", Text(escape(told)).append_text(_verdict(effect))))


def _failures(report: Assessment) -> Iterator[RenderableType]:
    """Each variant's failures of one kind once, however many points and rounds they hit."""
    lost = [(sample, sample.failure) for sample in failed(report.samples) if sample.failure is not None]
    for alike in group(lost, lambda one: (one[0].variant, one[1].klass, one[1].expected)).values():
        first, failure = alike[0]
        total = sum(sample.variant == first.variant for sample in report.samples)
        how, style = ("failed as expected", "") if failure.expected else ("failed", "red")
        share = f"{len(alike)} of {plural(total, 'sample')}"
        lines: list[RenderableType] = [
            Text(f"✗ {escape(first.variant)} {how}: {failure.klass} ({failure.phase}), {share}", style)
        ]
        told = (("  proof: ", shorten(failure.proof, 300)), ("  hint:  ", escape(failure.advice)))
        lines += [_hanging((lead, Text(text))) for lead, text in told if text]
        if report.directory is not None and "server.log" in first.files:
            place = report.directory / "samples" / str(first.round) / first.case / first.host / "server.log"
            lines.append(Text(f"  log:   {place}", no_wrap=True, overflow="ignore"))  # whole, to be copied
        yield Group(*lines)


def _notes(notes: Sequence[str]) -> Iterator[RenderableType]:
    if notes:
        yield Group(f"{plural(len(notes), 'note')}:", _hanging(*(("  - ", Text(escape(note))) for note in notes)))


def _changes(effects: Sequence[Effect]) -> list[str]:
    """Each estimate with its interval, padded so that decimal points stand below each other."""
    rows = [[percent(value) for value in (e.estimate, *(e.interval or ())) if value is not None] for e in effects]
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    padded = [[text.rjust(width) for text, width in zip(row, widths, strict=False)] for row in rows]
    ends = [f" [{row[1]}, {row[2]}]" if row[1:] else "" for row in padded]
    return [f"{row[0]} %{end}" if row else MISSING for row, end in zip(padded, ends, strict=True)]


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
