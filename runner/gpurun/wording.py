"""What a judged run says, in words: shared by the terminal's tables, the report and the log. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from gpurun import stats
from gpurun.assess import Assessment
from gpurun.compare import Case, Effect, Rule, failed, group, measured
from gpurun.samples import AGAIN, BASELINE, Failure, Sample
from gpurun.text import MISSING, metric_name, percent, plural

# A symbol and a word: colour only repeats them.
SYMBOLS: Final = {
    "better": "▲",
    "worse": "▼",
    "no difference found": "=",
    "cannot tell": "?",
    "not comparable": "≠",
    "failed": "✗",
}


@dataclass(frozen=True)
class FailureGroup:
    """A variant's failures of one kind: the first sample that has it, how many of the variant's samples do, its log."""

    sample: Sample
    failure: Failure
    count: int
    total: int

    @property
    def share(self) -> str:
        """Such as `5 of 5 samples`."""
        return f"{self.count} of {plural(self.total, 'sample')}"

    @property
    def log(self) -> str | None:
        """The log that tells of it, the load client's or the server's, within the run's directory."""
        name = "client.log" if self.failure.klass == "client_error" else "server.log"
        return f"samples/{self.sample.id}/{name}" if name in self.sample.files else None


def failures(report: Assessment) -> list[FailureGroup]:
    """Each variant's failures of one kind once, however many points and rounds they hit."""
    lost = [(sample, sample.failure) for sample in failed(report.samples) if sample.failure is not None]
    return [
        FailureGroup(*alike[0], len(alike), sum(sample.variant == alike[0][0].variant for sample in report.samples))
        for alike in group(lost, lambda one: (one[0].variant, one[1].klass, one[1].expected)).values()
    ]


def verdict(effect: Effect) -> str:
    """Symbol, word, and why it is not a plain one: `? cannot tell (needs about 3 more rounds)`."""
    told = f": {effect.reason}" if effect.reason else ""
    if effect.verdict == "cannot tell":
        more = ""
        if effect.further:
            roughly = "about " if effect.rounds >= stats.MIN_ROUNDS else ""
            more = f"needs {roughly}{plural(effect.further, 'more round')}"
        told = "; ".join(part for part in (effect.reason, more) if part)
        told = f" ({told})" if told else ""
    elif effect.expected:
        told = f"{told} (expected)"
    elif effect.estimate is not None and effect.reason:  # compared although it should not be
        told = f" ({effect.reason})"
    return f"{SYMBOLS[effect.verdict]} {effect.verdict}{told}"


def confidence(effects: Sequence[Effect]) -> str:
    """Of the intervals, for the head of their column."""
    told = {f" [{100 * effect.confidence:.4g} %]" for effect in effects if effect.interval}
    return told.pop() if told else ""


def changes(effects: Sequence[Effect]) -> list[str]:
    """Each estimate with its interval, padded so that decimal points stand below each other."""
    rows = [[percent(value) for value in (e.estimate, *(e.interval or ())) if value is not None] for e in effects]
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    padded = [[text.rjust(width) for text, width in zip(row, widths, strict=False)] for row in rows]
    ends = [f" [{row[1]}, {row[2]}]" if row[1:] else "" for row in padded]
    return [f"{row[0]} %{end}" if row else MISSING for row, end in zip(padded, ends, strict=True)]


def title(case: Case, metric: str, rule: Rule, *told: str) -> str:
    """The heading of a table: `chat@4 · output tok/s (higher is better) · 5 rounds · limit ±2 %`."""
    name = f"{metric_name(metric)} ({rule.better} is better)"
    return " · ".join((case.label, name, *told, f"limit ±{100 * rule.threshold:g} %"))


def circumstances(report: Assessment, cases: Sequence[Case]) -> list[str]:
    """How the cases of one point were measured: rounds, order, hosts."""
    done = [sample for case in cases for sample in measured(report.of[case.id])]
    seen, hosts = len({sample.round for sample in done}), len({sample.host for sample in done})
    rounds = ("" if seen >= report.rounds else f"{seen} of ") + plural(report.rounds, "round")
    return [rounds + ", interleaved" * report.interleaved, *([plural(hosts, "host")] if hosts > 1 else [])]


def answers(report: Assessment) -> Iterator[tuple[str, str]]:
    """What came out, in one sentence, and the labels of the points at which it did."""
    told = []
    for cases in group(report.cases, lambda case: case.point).values():
        ids = {case.id for case in cases if case.variant != AGAIN}
        told.append((cases[0].label, _answer(report, [e for e in report.effects if e.primary and e.case.id in ids])))
    for sentence, alike in group(told, lambda one: one[1]).items():
        yield ", ".join(label for label, _ in alike), sentence


def _answer(report: Assessment, effects: Sequence[Effect]) -> str:
    by = group(effects, lambda effect: effect.verdict)
    what = metric_name(report.rules.primary)
    if not effects:
        return f"Only the {BASELINE} was measured: there is nothing to compare."
    sign = 1 if effects[0].rule.better == "higher" else -1
    ranked = sorted(by.get("better", []), key=lambda effect: -sign * (effect.estimate or 0))
    parts = []
    if ranked:
        parts.append(f"{ranked[0].case.variant} is better: {what} {changes(ranked[:1])[0].strip()}")
        if ranked[1:]:
            parts.append(f"so are {_names(ranked[1:])}" if ranked[2:] else f"so is {_names(ranked[1:])}")
    elif len(by.get("not comparable", [])) == len(effects):
        return f"Nothing can be compared: {effects[0].reason}."
    elif len(by.get("failed", [])) == len(effects):
        return "No variant could be measured: each one failed."
    elif set(by) <= {"worse", "failed", "no difference found"}:
        parts.append("no variant is better than the baseline")
    else:
        parts.append("no variant is shown to be better than the baseline")
    told = {word: "undecided" if word == "cannot tell" else word for word in SYMBOLS if word in by and word != "better"}
    parts += [f"{name}: {_names(by[word])}" for word, name in told.items()]
    text = "; ".join(parts)
    return f"{text[0].upper() if not ranked else text[0]}{text[1:]}."


def _names(effects: Sequence[Effect]) -> str:
    return ", ".join(effect.case.variant for effect in effects)
