"""Estimates with intervals. Pure functions of numbers; which numbers belong together is decided in `compare`.

The unit of replication is a round: one start of the server, one number. What happens within a round (thousands of
requests) is already summarised in that number and adds no degrees of freedom. Effects on rates and latencies are
multiplicative, so all arithmetic is on logarithms.

Intervals have 99 % confidence, because verdicts rest on them. Where servers differ from start to start by more than the
threshold, confidence alone sets how often a difference is claimed that is none: with 95 %, one comparison of a thing
with itself in twenty would be called better or worse. Simulated with 1 % noise a sample, five rounds still find a true
5 % in 95 of 100 campaigns. See `family` for many variants.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

CONFIDENCE = 0.99
FAMILY_ERROR = 0.05  # the most chance of any false claim in a whole campaign
MIN_ROUNDS = 3  # below this an interval is too wide to say anything and too easily believed
MAX_FURTHER_ROUNDS = 100  # beyond this, more rounds are not the answer


@dataclass(frozen=True)
class Ratio:
    """How a variant's number relates to the baseline's, as relative change: 0.12 means 12 % more.

    `low` and `high` bound it; `n` counts the numbers it rests on; `sd` is the standard deviation of one difference on
    the log scale, `df` its degrees of freedom.
    """

    change: float
    low: float
    high: float
    n: int
    sd: float
    df: float


def family(comparisons: int) -> float:
    """The confidence of each of so many comparisons with one baseline: 0.99, and more where there are more than five,
    so that all of them together hold with 95 %. Source: O. J. Dunn, JASA 56 (1961), after Bonferroni."""
    return max(CONFIDENCE, 1 - FAMILY_ERROR / max(1, comparisons))


def spread(values: Sequence[float]) -> float | None:
    """Standard deviation of the logarithms: the relative spread, 0.01 for 1 %. None for fewer than 2 or values <= 0."""
    return statistics.stdev(map(math.log, values)) if len(values) > 1 and min(values) > 0 else None


def outliers(values: Sequence[float]) -> list[int]:
    """Indices of values outside Tukey's outer fences: more than 3 interquartile ranges from the quartiles.

    Outer fences, because the inner ones (1.5) point at something in every third to fourth clean set of 5 to 10 normal
    values (simulated), the outer ones in every seventh of 5 and every twentieth of 10. Fewer than 5 values: none.
    Source: J. W. Tukey, Exploratory Data Analysis (1977), section 2D; quartiles by linear interpolation.
    """
    if len(values) < 5:
        return []
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    reach = 3.0 * (third - first)
    return [i for i, value in enumerate(values) if not first - reach <= value <= third + reach]


def log_ratios(baseline: Sequence[float], variant: Sequence[float]) -> list[float]:
    """ln(variant / baseline), pair by pair. ValueError where a value is not positive or a partner is missing."""
    return [after - before for before, after in zip(_logs(baseline), _logs(variant), strict=True)]


def blocked_effect(blocks: Mapping[str, Sequence[float]], confidence: float = CONFIDENCE) -> Ratio:
    """Geometric mean of ratios measured side by side, with Student's t interval; per host the logarithms of its ratios.

    Each host counts once; the variance is pooled within hosts (fixed block effects, N - H degrees of freedom), so that
    one host being slower, or gaining more, is not noise. The interval speaks about these hosts, not about hosts in
    general. With one host it is the paired t interval (Student 1908). ValueError where no host has two rounds.
    Source: G. E. P. Box, J. S. Hunter, W. G. Hunter, Statistics for Experimenters (2005), chapter 4, on blocking.
    """
    total, df = sum(map(len, blocks.values())), _freedom(blocks)
    if df < 1:
        raise ValueError("an interval needs at least two rounds on one host")
    sd = math.sqrt(_within(blocks) / df)
    error = sd * math.sqrt(sum(1 / len(values) for values in blocks.values())) / len(blocks)
    return _ratio(map(statistics.fmean, blocks.values()), error, total, sd, df, confidence)


def unpaired_effect(
    blocks: Mapping[str, tuple[Sequence[float], Sequence[float]]], confidence: float = CONFIDENCE
) -> Ratio:
    """Two sets of numbers that were not measured side by side, such as two runs: per host (before, after).

    Ratio of geometric means with Welch's interval; hosts are blocks, each counting once, and their variances add up.
    ValueError for fewer than two values on a side, or values that are not positive.
    Source: B. L. Welch, Biometrika 34 (1947); degrees of freedom after Satterthwaite (1946).
    """
    sides = [(_logs(before), _logs(after)) for before, after in blocks.values()]
    if not sides or any(len(side) < 2 for pair in sides for side in pair):
        raise ValueError("an interval needs at least two values on each side")
    # The variance of each mean, and the degrees of freedom behind it.
    parts = [(statistics.variance(side) / len(side), len(side) - 1) for pair in sides for side in pair]
    variance, total = sum(part for part, _ in parts), sum(min(map(len, pair)) for pair in sides)
    df = variance**2 / sum(part**2 / n for part, n in parts) if variance > 0 else float(min(n for _, n in parts))
    error = math.sqrt(variance) / len(sides)
    shifts = [statistics.fmean(after) - statistics.fmean(before) for before, after in sides]
    return _ratio(shifts, error, total, error * math.sqrt(total), df, confidence)


def rounds_needed(effect: Ratio, threshold: float, confidence: float = CONFIDENCE) -> int | None:
    """How many further rounds would settle the verdict, if estimate and spread stay as they are.

    Settled means: the interval excludes 0 where the estimate is beyond the threshold, or lies within the threshold
    where it is not. None where it would take more than `MAX_FURTHER_ROUNDS`: the effect is as large as the threshold.
    An estimate from few rounds is itself uncertain, so this is an order of magnitude, not a promise.
    """
    mean = math.log1p(effect.change)
    if abs(effect.change) > threshold:
        room = abs(mean)
    else:
        room = min(math.log1p(threshold) - mean, mean - math.log1p(-threshold)) if threshold < 1 else math.inf
    hosts = max(1, round(effect.n - effect.df))  # each round adds one pair a host
    for further in range(1, MAX_FURTHER_ROUNDS + 1):
        n = effect.n + further * hosts
        if n >= MIN_ROUNDS * hosts and _student(n - hosts, confidence) * effect.sd / math.sqrt(n) < room:
            return further
    return None


def blocks_agree(blocks: Mapping[str, Sequence[float]], level: float = 0.01) -> bool:
    """Whether the hosts' effects are alike: one-way analysis of variance, F test at `level` (Fisher 1925)."""
    above, below, within = len(blocks) - 1, _freedom(blocks), _within(blocks)
    if above < 1 or below < 1:
        return True
    grand = statistics.fmean(value for values in blocks.values() for value in values)
    between = sum(len(values) * (statistics.fmean(values) - grand) ** 2 for values in blocks.values())
    if within == 0:
        return between == 0
    from scipy.special import fdtrc

    return float(fdtrc(above, below, (between / above) / (within / below))) >= level


def _logs(values: Sequence[float]) -> list[float]:
    for value in values:
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"a ratio needs positive numbers, not {value:g}")
    return [math.log(value) for value in values]


def _freedom(blocks: Mapping[str, Sequence[float]]) -> int:
    return sum(len(values) - 1 for values in blocks.values())


def _within(blocks: Mapping[str, Sequence[float]]) -> float:
    """The sum of squares within the blocks."""
    return sum(statistics.variance(values) * (len(values) - 1) for values in blocks.values() if len(values) > 1)


def _ratio(means: Iterable[float], error: float, n: int, sd: float, df: float, confidence: float) -> Ratio:
    mean, reach = statistics.fmean(means), _student(df, confidence) * error
    highest = min(mean + reach, 700.0)  # e to the 710 is more than a float holds
    return Ratio(math.expm1(mean), math.expm1(mean - reach), math.expm1(highest), n, sd, df)


def _student(df: float, confidence: float) -> float:
    """Student's quantile: between its negative and it lies `confidence`."""
    from scipy.special import stdtrit  # a third of a second, which most of what imports this need not pay

    return float(stdtrit(df, (1 + confidence) / 2))
