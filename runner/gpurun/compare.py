"""Samples -> effects -> verdict words. Pure: the same stored samples always give the same verdicts.

A variant is compared with the baseline at the same benchmark and axis values, in the same round, on the same host. Two
gates make a difference: the interval excludes zero, and the estimate is beyond the threshold that the campaign set.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from gpurun import stats
from gpurun.samples import BASELINE, Sample

Verdict = Literal["better", "worse", "no difference found", "cannot tell", "not comparable", "failed"]
Numbers = Mapping[tuple[str, int], float]  # by host and round: what makes two samples a pair
_Item = TypeVar("_Item")
_Key = TypeVar("_Key")


@dataclass(frozen=True)
class Rule:
    """How to read one metric: the better direction, and the relative change (0.02 is 2 %) that begins to matter."""

    better: Literal["higher", "lower"]
    threshold: float


@dataclass(frozen=True)
class Rules:
    """A campaign's `compare:` section. Only the primary metric decides exit codes."""

    primary: str
    metrics: Mapping[str, Rule]

    @classmethod
    def of(cls, compare: Mapping[str, Any]) -> Rules:
        """As plan.json has them."""
        rules = {name: Rule(rule["better"], rule["threshold"]) for name, rule in compare["metrics"].items()}
        return cls(compare["primary"], rules)


@dataclass(frozen=True)
class Case:
    """A variant at one benchmark and one point of the axes. `expect` is the failure class that it declares."""

    variant: str
    benchmark: str
    id: str
    label: str
    axes: Mapping[str, Any] = field(default_factory=dict)
    expect: str | None = None

    @property
    def point(self) -> tuple[str, str]:
        """What two cases must share to be compared: benchmark and axis values."""
        return self.benchmark, repr(sorted(self.axes.items()))


@dataclass(frozen=True)
class Effect:
    """One metric of one variant against the baseline.

    `estimate` and `interval` are relative changes (0.12 is 12 % more); None where there is nothing to estimate from.
    `confidence` is the interval's: 0.99 for 99 %.
    `rounds` counts the rounds in which both were measured. `reason` says why the verdict is not a plain one;
    `further` is how many more rounds would probably settle it. Medians are over everything that was measured.
    `expected` marks a failure that the variant declared.
    """

    case: Case
    metric: str
    rule: Rule
    verdict: Verdict = "cannot tell"
    estimate: float | None = None
    interval: tuple[float, float] | None = None
    confidence: float = stats.CONFIDENCE
    rounds: int = 0
    median: float | None = None
    baseline: float | None = None
    reason: str = ""
    further: int | None = None
    primary: bool = False
    expected: bool = False


def group(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    """Items by their key, the keys in order of first appearance."""
    found: dict[_Key, list[_Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def measured(samples: Iterable[Sample]) -> list[Sample]:
    """Those that have numbers."""
    return [sample for sample in samples if sample.status == "measured"]


def failed(samples: Iterable[Sample]) -> list[Sample]:
    """Those that failed."""
    return [sample for sample in samples if sample.status == "failed"]


def values(samples: Iterable[Sample], metric: str) -> dict[tuple[str, int], float]:
    """What a case's samples measured, by host and round; of repeats on one server, their mean: they are one number."""
    having = [sample for sample in measured(samples) if metric in sample.metrics]
    rounds = group(having, lambda sample: (sample.host, sample.round))
    return {key: statistics.fmean(sample.metrics[metric] for sample in alike) for key, alike in rounds.items()}


def failure_class(samples: Iterable[Sample]) -> str:
    """The class that most of these failed samples have."""
    return Counter(sample.failure.klass if sample.failure else "unknown" for sample in samples).most_common(1)[0][0]


def cases_of(planned: Iterable[Mapping[str, Any]]) -> list[Case]:
    """The distinct cases of a plan's samples, in their order of first appearance, the baseline first at each point."""
    names = ("variant", "benchmark", "case", "label", "axes", "expect")
    seen = {item["case"]: Case(*(item[name] for name in names)) for item in planned}
    points = group(seen.values(), lambda case: case.point).values()
    return [case for cases in points for case in sorted(cases, key=lambda case: case.variant != BASELINE)]


def judge(cases: Sequence[Case], samples: Iterable[Sample], rules: Rules) -> list[Effect]:
    """Every variant x benchmark x axis point x metric against the baseline, in the order of the cases.

    A secondary metric that neither side reports has no effect. Rounds in which only one of the two was measured are
    left out of the estimate, and are reported in the notes.
    """
    index = group(samples, lambda sample: sample.case)
    confidence = stats.family(
        sum(case.variant != BASELINE and bool(measured(index.get(case.id, []))) for case in cases)
    )
    baselines = {case.point: case.id for case in cases if case.variant == BASELINE}
    effects: list[Effect] = []
    for case in cases:
        if case.variant != BASELINE:
            before, after = index.get(baselines.get(case.point, ""), []), index.get(case.id, [])
            obstacle = _obstacle(case, before, after) if case.point in baselines else "no baseline at this point"
            effects += effects_on(case, before, after, rules, obstacle, confidence, paired=True)
    return effects


def _obstacle(case: Case, before: Sequence[Sample], after: Sequence[Sample]) -> str:
    """Why a case cannot be compared with the baseline of its run."""
    if not measured(before):
        lost = failed(before)
        return f"the baseline failed: {failure_class(lost)}" if lost else "the baseline was not measured"
    for variant, samples in ((BASELINE, before), (case.variant, after)):
        versions = sorted({str(s.engine["version"]) for s in measured(samples) if s.engine.get("version")})
        if len(versions) > 1:
            return f"{variant} was measured with several engine versions: {', '.join(versions)}"
    return ""


def effects_on(
    case: Case,
    before: Sequence[Sample],
    after: Sequence[Sample],
    rules: Rules,
    obstacle: str,
    confidence: float = stats.CONFIDENCE,
    *,
    paired: bool,
) -> Iterator[Effect]:
    """The effect on each metric, the primary one first. `obstacle` says why the two sides cannot be compared."""
    for metric, rule in sorted(rules.metrics.items(), key=lambda item: item[0] != rules.primary):
        old, new = values(before, metric), values(after, metric)
        new_median, old_median = (statistics.median(side.values()) if side else None for side in (new, old))
        primary = metric == rules.primary
        effect = Effect(
            case, metric, rule, confidence=confidence, median=new_median, baseline=old_median, primary=primary
        )
        if not (primary or old or new):
            continue
        if (lost := failed(after)) and not measured(after):
            expected = all(sample.failure is not None and sample.failure.expected for sample in lost)
            yield replace(effect, verdict="failed", reason=failure_class(lost), expected=expected)
        elif obstacle:
            yield replace(effect, verdict="not comparable", reason=obstacle)
        else:
            yield _weigh(effect, old, new, paired) if new else replace(effect, reason="not measured")


def _weigh(effect: Effect, old: Numbers, new: Numbers, paired: bool) -> Effect:
    """The effect with estimate, interval and verdict. `paired`: only what both measured in the same round counts."""
    if paired:
        both = sorted(old.keys() & new.keys())
        old, new = {key: old[key] for key in both}, {key: new[key] for key in both}
    rounds = min(len({number for _, number in side}) for side in (old, new))
    missing = max(0, stats.MIN_ROUNDS - rounds) or None
    if not rounds:
        return replace(effect, reason="no round in which both were measured", further=missing)
    hosts = sorted({host for host, _ in old} & {host for host, _ in new})
    before, after = ([[side[key] for key in side if key[0] == host] for host in hosts] for side in (old, new))
    few, threshold = f"{rounds} round{'s' * (rounds > 1)} only", effect.rule.threshold
    effect, logs = replace(effect, rounds=rounds), {}
    try:
        if paired:
            logs = dict(zip(hosts, map(stats.log_ratios, before, after), strict=True))
            effect = replace(effect, estimate=math.expm1(statistics.fmean(map(statistics.fmean, logs.values()))))
            ratio = stats.blocked_effect(logs, effect.confidence)
        else:
            ratio = stats.unpaired_effect(
                dict(zip(hosts, zip(before, after, strict=True), strict=True)), effect.confidence
            )
    except ValueError as error:
        return replace(effect, reason=few if missing else str(error), further=missing)
    effect = replace(effect, estimate=ratio.change, interval=(ratio.low, ratio.high))
    if missing or ratio.df < stats.MIN_ROUNDS - 1.5:  # three rounds have 2, Welch's but for rounding errors
        return replace(effect, reason=few, further=missing or 1)
    each = {host: math.expm1(statistics.fmean(ratios)) for host, ratios in logs.items()}
    if not stats.blocks_agree(logs) and min(each.values()) < -threshold and max(each.values()) > threshold:
        told = ", ".join(f"{host} {change:+.1%}" for host, change in each.items())
        return replace(effect, reason=f"the hosts disagree: {told}")
    if (ratio.low > 0 or ratio.high < 0) and abs(ratio.change) > threshold:
        gained = (ratio.change > 0) == (effect.rule.better == "higher")
        return replace(effect, verdict="better" if gained else "worse")
    if -threshold <= ratio.low and ratio.high <= threshold:
        return replace(effect, verdict="no difference found")
    further = stats.rounds_needed(ratio, threshold, effect.confidence)
    hopeless = "too close to the threshold, or too noisy, for more rounds to settle it"
    return replace(effect, further=further, reason="" if further is not None else hopeless)
