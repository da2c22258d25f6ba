"""Samples -> effects -> verdict words. Pure: the same stored samples always give the same verdicts.

A variant is compared with the baseline at the same benchmark and axis values, in the same round, on the same host. Two
gates make a difference: the interval excludes zero, and the estimate is beyond the threshold that the campaign set.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gpurun import stats
from gpurun.samples import Sample

BASELINE = "baseline"
Verdict = Literal["better", "worse", "no difference found", "cannot tell", "not comparable", "failed"]
Key = tuple[str, int]  # host and round: what makes two samples a pair
ByCase = Mapping[str, Sequence[Sample]]


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
    def of(cls, source: Any) -> Rules:
        """From a mapping (plan.json) or an object with the same names (the campaign model)."""
        metrics = {
            str(name): Rule(_get(rule, "better"), float(_get(rule, "threshold")))
            for name, rule in _get(source, "metrics").items()
        }
        return cls(str(_get(source, "primary")), metrics)


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
    rounds: int = 0
    median: float | None = None
    baseline: float | None = None
    reason: str = ""
    further: int | None = None
    primary: bool = False
    expected: bool = False


def cases_of(planned: Iterable[Mapping[str, Any]]) -> list[Case]:
    """The distinct cases of a plan's samples, in their order of first appearance, the baseline first at each point."""
    seen: dict[str, Case] = {}
    for item in planned:
        fields = (item[name] for name in ("variant", "benchmark", "case", "label", "axes", "expect"))
        seen.setdefault(item["case"], Case(*fields))
    points: dict[tuple[str, str], list[Case]] = {}
    for case in seen.values():
        points.setdefault(case.point, []).append(case)
    return [case for group in points.values() for case in sorted(group, key=lambda case: case.variant != BASELINE)]


def judge(cases: Sequence[Case], samples: Sequence[Sample], rules: Rules) -> list[Effect]:
    """Every variant x benchmark x axis point x metric against the baseline, in the order of the cases.

    A secondary metric that neither side reports has no effect. Rounds in which only one of the two was measured are
    left out of the estimate, and are reported in `notes`.
    """
    baselines = {case.point: case for case in cases if case.variant == BASELINE}
    index = by_case(samples)
    found: list[Effect] = []
    for case in cases:
        if case.variant == BASELINE:
            continue
        baseline = baselines.get(case.point)
        for metric, rule in _primary_first(rules):
            effect = _against_baseline(case, baseline, index, metric, rule)
            if metric == rules.primary or effect.median is not None or effect.baseline is not None:
                found.append(replace(effect, primary=metric == rules.primary))
    return found


def by_case(samples: Iterable[Sample]) -> ByCase:
    """Samples grouped by the id of their case: what the functions below look them up in."""
    grouped: dict[str, list[Sample]] = {}
    for sample in samples:
        grouped.setdefault(sample.case, []).append(sample)
    return grouped


def measured(samples: ByCase, case: Case) -> list[Sample]:
    """The samples of a case that have numbers."""
    return [sample for sample in samples.get(case.id, ()) if sample.status == "measured"]


def values(samples: ByCase, case: Case, metric: str) -> dict[Key, float]:
    """What a case measured, by host and round."""
    return {(s.host, s.round): s.metrics[metric] for s in measured(samples, case) if metric in s.metrics}


def failures(samples: ByCase, case: Case) -> list[Sample]:
    """The failed samples of a case."""
    return [sample for sample in samples.get(case.id, ()) if sample.status == "failed"]


def failed_altogether(samples: ByCase, case: Case) -> list[Sample]:
    """The failed samples of a case that was never measured; nothing where it was."""
    return [] if measured(samples, case) else failures(samples, case)


def failure_class(samples: Sequence[Sample]) -> str:
    """The class that most of these failed samples have."""
    return Counter(sample.failure.klass if sample.failure else "unknown" for sample in samples).most_common(1)[0][0]


def _against_baseline(case: Case, baseline: Case | None, samples: ByCase, metric: str, rule: Rule) -> Effect:
    after = values(samples, case, metric)
    before = values(samples, baseline, metric) if baseline else {}
    blank = Effect(case, metric, rule, median=_median(after), baseline=_median(before))
    if failed := failed_altogether(samples, case):
        return replace(blank, verdict="failed", reason=failure_class(failed), expected=_all_expected(failed))
    if baseline is None:
        return replace(blank, verdict="not comparable", reason="no baseline at this point")
    if not measured(samples, baseline):
        lost = failures(samples, baseline)
        why = f"the baseline failed: {failure_class(lost)}" if lost else "the baseline was not measured"
        return replace(blank, verdict="not comparable", reason=why)
    for one in (baseline, case):
        versions = sorted({str(s.engine["version"]) for s in measured(samples, one) if s.engine.get("version")})
        if len(versions) > 1:
            why = f"{one.variant} was measured with several engine versions: {', '.join(versions)}"
            return replace(blank, verdict="not comparable", reason=why)
    if not after:
        return replace(blank, reason="not measured")
    return _weigh(blank, before, after)


def _weigh(blank: Effect, before: Mapping[Key, float], after: Mapping[Key, float]) -> Effect:
    shared = sorted(before.keys() & after.keys())
    rounds = len({number for _, number in shared})
    blocks: dict[str, list[float]] = {}
    try:
        for host, number in shared:
            blocks.setdefault(host, []).extend(stats.log_ratios([before[host, number]], [after[host, number]]))
    except ValueError as error:
        return replace(blank, rounds=rounds, reason=str(error))
    if not shared:
        return replace(blank, reason="no round in which both were measured", further=stats.MIN_ROUNDS)
    estimate = math.expm1(statistics.fmean(statistics.fmean(group) for group in blocks.values()))
    blank = replace(blank, estimate=estimate, rounds=rounds)
    if len(shared) == len(blocks):  # one pair a host: an estimate without an interval
        return replace(blank, reason=f"{_rounds(rounds)} only", further=stats.MIN_ROUNDS - rounds)
    ratio = stats.blocked_effect(blocks)
    blank = replace(blank, estimate=ratio.change, interval=(ratio.low, ratio.high))
    if rounds < stats.MIN_ROUNDS or ratio.df < stats.MIN_ROUNDS - 1:
        return replace(blank, reason=f"{_rounds(rounds)} only", further=max(1, stats.MIN_ROUNDS - rounds))
    if not stats.blocks_agree(blocks):
        each = {host: math.expm1(statistics.fmean(group)) for host, group in blocks.items()}
        if min(each.values()) < -blank.rule.threshold and max(each.values()) > blank.rule.threshold:
            told = ", ".join(f"{host} {change:+.1%}" for host, change in each.items())
            return replace(blank, reason=f"the hosts disagree: {told}")
    return _decide(blank, ratio)


def _decide(blank: Effect, ratio: stats.Ratio) -> Effect:
    """The verdict word for an estimate with its interval."""
    threshold = blank.rule.threshold
    if (ratio.low > 0 or ratio.high < 0) and abs(ratio.change) > threshold:
        gained = (ratio.change > 0) == (blank.rule.better == "higher")
        return replace(blank, verdict="better" if gained else "worse")
    if -threshold <= ratio.low and ratio.high <= threshold:
        return replace(blank, verdict="no difference found")
    further = stats.rounds_needed(ratio, threshold)
    reason = "" if further is not None else "too close to the threshold, or too noisy, for more rounds to settle it"
    return replace(blank, further=further, reason=reason)


@dataclass(frozen=True)
class RunView:
    """What the comparison of two runs needs of each: its cases, samples and fingerprints.

    `fingerprints` holds, by case id, what must be alike ("tool", "data", "model") as anything comparable; `hosts` the
    same for each host's hardware. A host that only one of the runs had is left out.
    """

    run: str
    cases: Sequence[Case]
    samples: Sequence[Sample]
    fingerprints: Mapping[str, Mapping[str, Any]]
    hosts: Mapping[str, Any]


def compare_runs(before: RunView, after: RunView, rules: Rules) -> list[Effect]:
    """Each case of `after` against the case of `before` with the same variant, benchmark and axis values.

    The runs were not interleaved, so the interval is an unpaired one, and whatever changed in between (temperature,
    other load) is part of the effect. Not comparable where tool, data, model or hosts differ.
    """
    earlier = {(case.variant, *case.point): case for case in before.cases}
    indices = by_case(before.samples), by_case(after.samples)
    found: list[Effect] = []
    for case in after.cases:
        partner = earlier.get((case.variant, *case.point))
        for metric, rule in _primary_first(rules):
            effect = _across_runs(before, after, partner, case, metric, rule, indices)
            if metric == rules.primary or effect.median is not None:
                found.append(replace(effect, primary=metric == rules.primary))
    return found


def _across_runs(
    before: RunView,
    after: RunView,
    partner: Case | None,
    case: Case,
    metric: str,
    rule: Rule,
    samples: tuple[ByCase, ByCase],
) -> Effect:
    old = values(samples[0], partner, metric) if partner else {}
    new = values(samples[1], case, metric)
    rounds = min(len({number for _, number in old}), len({number for _, number in new}))
    blank = Effect(case, metric, rule, median=_median(new), baseline=_median(old), rounds=rounds)
    if failed := failed_altogether(samples[1], case):
        return replace(blank, verdict="failed", reason=failure_class(failed), expected=_all_expected(failed))
    if partner is None:
        return replace(blank, verdict="not comparable", reason=f"not in {before.run}")
    differing = _differing(before.fingerprints.get(partner.id, {}), after.fingerprints.get(case.id, {}))
    shared = before.hosts.keys() & after.hosts.keys()
    differing += [f"host {host}" for host in sorted(shared) if before.hosts[host] != after.hosts[host]]
    if differing:
        return replace(blank, verdict="not comparable", reason=f"different: {', '.join(differing)}")
    if not old:
        return replace(blank, verdict="not comparable", reason=f"not measured in {before.run}")
    if not new:
        return replace(blank, reason=f"not measured in {after.run}")
    hosts = sorted({host for host, _ in old} & {host for host, _ in new})
    if not hosts:
        return replace(blank, verdict="not comparable", reason="no host in common")
    blocks = {
        host: ([v for (h, _), v in old.items() if h == host], [v for (h, _), v in new.items() if h == host])
        for host in hosts
    }
    try:
        ratio = stats.unpaired_effect(blocks)
    except ValueError as error:
        return replace(blank, reason=str(error), further=max(1, stats.MIN_ROUNDS - blank.rounds))
    blank = replace(blank, estimate=ratio.change, interval=(ratio.low, ratio.high))
    if blank.rounds < stats.MIN_ROUNDS:
        return replace(blank, reason=f"{_rounds(blank.rounds)} only", further=stats.MIN_ROUNDS - blank.rounds)
    return _decide(blank, ratio)


def _median(numbers: Mapping[Key, float]) -> float | None:
    return stats.median(list(numbers.values())) if numbers else None


def _all_expected(failed: Sequence[Sample]) -> bool:
    return all(sample.failure is not None and sample.failure.expected for sample in failed)


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))


def _primary_first(rules: Rules) -> list[tuple[str, Rule]]:
    return sorted(rules.metrics.items(), key=lambda item: item[0] != rules.primary)


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"


def _get(source: Any, name: str) -> Any:
    return source[name] if isinstance(source, Mapping) else getattr(source, name)
