"""Estimates with intervals. Pure functions of numbers; which numbers belong together is decided in `compare`.

The unit of replication is a round: one start of the server, one number. What happens within a round (thousands of
requests) is already summarised in that number and adds no degrees of freedom.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MIN_ROUNDS = 3  # below this an interval is too wide to say anything and too easily believed
MAX_FURTHER_ROUNDS = 100  # beyond this, more rounds are not the answer


@dataclass(frozen=True)
class Ratio:
    """How a variant's number relates to the baseline's, as relative change: 0.12 means 12 % more.

    `low` and `high` bound it with the given confidence; `n` counts the numbers it rests on; `sd` is the standard
    deviation of one difference on the log scale, `df` its degrees of freedom.
    """

    change: float
    low: float
    high: float
    n: int
    sd: float
    df: float


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two middle values."""
    return float(statistics.median(values))


def mad(values: Sequence[float]) -> float:
    """Median absolute deviation from the median, unscaled, in the unit of the values."""
    centre = statistics.median(values)
    return float(statistics.median(abs(value - centre) for value in values))


def spread(values: Sequence[float]) -> float | None:
    """Standard deviation of the logarithms: the relative spread, 0.01 for 1 %. None for fewer than 2 or values <= 0."""
    if len(values) < 2 or min(values) <= 0:
        return None
    return statistics.stdev([math.log(value) for value in values])


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
    if len(baseline) != len(variant):
        raise ValueError(f"{len(baseline)} baseline values cannot be paired with {len(variant)}")
    for value in (*baseline, *variant):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"a ratio needs positive numbers, not {value:g}")
    return [math.log(after / before) for before, after in zip(baseline, variant, strict=True)]


def paired_effect(baseline: Sequence[float], variant: Sequence[float], confidence: float = 0.95) -> Ratio:
    """Geometric mean of the per-round ratios with Student's t interval on their logarithms.

    Source: the one-sample t interval on paired differences (Student 1908), taken on the log scale because effects on
    rates and latencies are multiplicative. ValueError for fewer than 2 pairs or values that are not positive.
    """
    return blocked_effect({"": log_ratios(baseline, variant)}, confidence)


def blocked_effect(blocks: Mapping[str, Sequence[float]], confidence: float = 0.95) -> Ratio:
    """The same over several hosts: log ratios were formed within each host, never across hosts.

    The estimate is the mean of the hosts' means, each host counting once; the variance is pooled within hosts
    (fixed block effects, N - H degrees of freedom), so that one host being slower, or gaining more, is not noise.
    The interval speaks about these hosts, not about hosts in general. With one host it is the paired t interval.
    Source: G. E. P. Box, J. S. Hunter, W. G. Hunter, Statistics for Experimenters (2005), chapter 4, on blocking.
    """
    groups = [list(values) for values in blocks.values() if values]
    total = sum(map(len, groups))
    df = total - len(groups)
    if df < 1:
        raise ValueError("an interval needs at least two rounds on one host")
    means = [statistics.fmean(values) for values in groups]
    residual = sum((value - mean) ** 2 for values, mean in zip(groups, means, strict=True) for value in values)
    sd = math.sqrt(residual / df)
    error = sd * math.sqrt(sum(1 / len(values) for values in groups)) / len(groups)
    return _on_ratio_scale(statistics.fmean(means), error, total, sd, df, confidence)


def unpaired_effect(blocks: Mapping[str, tuple[Sequence[float], Sequence[float]]], confidence: float = 0.95) -> Ratio:
    """Two sets of numbers that were not measured side by side, such as two runs: per host (before, after).

    Ratio of geometric means with Welch's interval; hosts are blocks, each counting once, and their variances add up.
    Source: B. L. Welch, Biometrika 34 (1947); degrees of freedom after Satterthwaite (1946).
    """
    shifts: list[float] = []
    parts: list[tuple[float, int]] = []  # variance of each mean, and the degrees of freedom behind it
    total = 0
    for before, after in blocks.values():
        sides = [[math.log(value) for value in side] for side in (before, after) if min(side, default=0) > 0]
        if len(sides) < 2 or min(map(len, sides)) < 2:
            raise ValueError("an interval needs at least two positive values on each side")
        shifts.append(statistics.fmean(sides[1]) - statistics.fmean(sides[0]))
        parts += [(statistics.variance(side) / len(side), len(side) - 1) for side in sides]
        total += min(map(len, sides))
    if not shifts:
        raise ValueError("an interval needs at least two positive values on each side")
    variance = sum(part for part, _ in parts)
    df = variance**2 / sum(part**2 / n for part, n in parts) if variance > 0 else float(min(n for _, n in parts))
    error = math.sqrt(variance) / len(shifts)
    sd = error * math.sqrt(total)
    return _on_ratio_scale(statistics.fmean(shifts), error, total, sd, df, confidence)


def _on_ratio_scale(mean: float, error: float, n: int, sd: float, df: float, confidence: float) -> Ratio:
    reach = _student(df, confidence) * error
    highest = min(mean + reach, 700.0)  # e to the 710 is more than a float holds
    return Ratio(math.expm1(mean), math.expm1(mean - reach), math.expm1(highest), n, sd, df)


def _student(df: float, confidence: float) -> float:
    """Student's quantile that leaves half of what `confidence` leaves out above it."""
    from scipy.special import stdtrit  # a third of a second, which `--help` need not pay

    return float(stdtrit(df, 0.5 + confidence / 2))


def rounds_needed(effect: Ratio, threshold: float, confidence: float = 0.95) -> int | None:
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
        reach = _student(n - hosts, confidence) * effect.sd / math.sqrt(n)
        if n >= MIN_ROUNDS * hosts and reach < room:
            return further
    return None


def blocks_agree(blocks: Mapping[str, Sequence[float]], level: float = 0.01) -> bool:
    """Whether the hosts' effects are alike: one-way analysis of variance, F test at `level` (Fisher 1925)."""
    groups = [list(values) for values in blocks.values() if values]
    total = sum(map(len, groups))
    df = total - len(groups)
    if len(groups) < 2 or df < 1:
        return True
    grand = statistics.fmean([value for values in groups for value in values])
    means = [statistics.fmean(values) for values in groups]
    between = sum(len(values) * (mean - grand) ** 2 for values, mean in zip(groups, means, strict=True))
    within = sum((value - mean) ** 2 for values, mean in zip(groups, means, strict=True) for value in values)
    if within == 0:
        return between == 0
    from scipy.special import fdtrc

    return float(fdtrc(len(groups) - 1, df, (between / (len(groups) - 1)) / (within / df))) >= level
