"""The arithmetic against independent values, and what the verdicts do over a few hundred simulated campaigns."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as reference

from gpurun import stats
from gpurun.compare import Case, Effect, Rule, Rules, judge
from gpurun.samples import Sample


def paired_effect(before: list[float], after: list[float]) -> stats.Ratio:
    """On one host."""
    return stats.blocked_effect({"h": stats.log_ratios(before, after)})


positive = st.floats(1e-3, 1e6, allow_nan=False)


def test_paired_effect_is_the_t_interval_on_log_ratios() -> None:
    before, after = [100.0, 104.0, 98.0, 101.0, 99.0], [110.0, 112.0, 109.0, 113.0, 108.0]
    logs = [math.log(b / a) for a, b in zip(before, after, strict=True)]
    independent = reference.ttest_rel([math.log(x) for x in after], [math.log(x) for x in before])
    low, high = independent.confidence_interval(0.99)
    effect = paired_effect(before, after)
    assert effect.change == pytest.approx(math.expm1(statistics.fmean(logs)))
    assert (effect.low, effect.high) == pytest.approx((math.expm1(low), math.expm1(high)))
    assert (effect.n, effect.df) == (5, 4)


def test_half_width_in_units_of_the_spread() -> None:
    """5.73 s at n = 3 and 2.06 s at n = 5: Student's quantile over the root of n."""
    for n, factor in ((3, 5.730), (5, 2.059)):
        logs = [0.01 * i for i in range(n)]
        effect = stats.blocked_effect({"h": logs})
        assert (math.log1p(effect.high) - math.log1p(effect.low)) / 2 / statistics.stdev(logs) == pytest.approx(
            factor, abs=1e-3
        )


def test_hosts_are_blocks_not_noise() -> None:
    """One host gains 10 %, another 20 %: the interval is about their mean, as narrow as the rounds are alike."""
    blocks = {
        "a": [math.log(1.10) + d for d in (-0.001, 0, 0.001)],
        "b": [math.log(1.20) + d for d in (-0.001, 0, 0.001)],
    }
    effect = stats.blocked_effect(blocks)
    assert effect.change == pytest.approx(math.sqrt(1.1 * 1.2) - 1)
    assert effect.high - effect.low < 0.01
    assert effect.df == 4
    assert not stats.blocks_agree(blocks)
    assert stats.blocks_agree({"a": [0.1, 0.12, 0.11], "b": [0.11, 0.1, 0.125]})


def test_unpaired_effect_is_welch() -> None:
    before, after = [100.0, 104.0, 98.0, 101.0], [110.0, 118.0, 104.0]
    independent = reference.ttest_ind([math.log(x) for x in after], [math.log(x) for x in before], equal_var=False)
    low, high = independent.confidence_interval(0.99)
    effect = stats.unpaired_effect({"h": (before, after)})
    assert (effect.low, effect.high) == pytest.approx((math.expm1(low), math.expm1(high)))


@given(st.lists(st.tuples(positive, positive), min_size=2, max_size=8))
def test_swapping_sides_inverts_the_effect(pairs: list[tuple[float, float]]) -> None:
    before, after = [a for a, _ in pairs], [b for _, b in pairs]
    forth, back = paired_effect(before, after), paired_effect(after, before)
    assert (1 + forth.change) * (1 + back.change) == pytest.approx(1)
    if forth.low > -0.99 and math.isfinite(forth.high):
        assert (1 + forth.low) * (1 + back.high) == pytest.approx(1, rel=1e-6)
    assert forth.low <= forth.change <= forth.high


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_what_has_no_logarithm_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        paired_effect([1.0, 2.0], [1.0, bad])


def test_no_interval_from_one_round() -> None:
    with pytest.raises(ValueError, match="two rounds"):
        paired_effect([1.0], [2.0])


def test_robust_summaries() -> None:
    assert stats.outliers([100.0, 101.0, 99.0, 100.5, 70.0]) == [4]
    assert stats.outliers([100.0, 101.0, 99.0, 70.0]) == []
    assert stats.spread([100.0, 102.0]) == pytest.approx(math.log(1.02) / math.sqrt(2))
    assert stats.spread([0.0, 1.0]) is None


def test_rounds_needed_really_settle_it() -> None:
    """With the same spread and that many more rounds the interval does what it should, and not with one fewer."""
    logs = [0.01, 0.09, 0.05, 0.02]
    effect = stats.blocked_effect({"h": logs})
    assert effect.low < 0
    further = stats.rounds_needed(effect, 0.02)
    assert further is not None
    for n, settled in ((4 + further, True), (4 + further - 1, False)):
        half = float(reference.t.ppf(0.995, n - 1)) * effect.sd / math.sqrt(n)
        assert (math.log1p(effect.change) > half) is settled
    exactly = stats.Ratio(change=0.02, low=-0.01, high=0.05, n=5, sd=0.02, df=4)
    assert stats.rounds_needed(exactly, 0.02) is None


RULES = Rules("output_tok_per_s", {"output_tok_per_s": Rule("higher", 0.02)})
CASES = [Case("baseline", "chat", "base", "chat"), Case("other", "chat", "other", "chat")]


def sample(variant: str, case: str, number: int, value: float = 1.0) -> Sample:
    return Sample(
        run="r",
        variant=variant,
        benchmark="chat",
        case=case,
        round=number,
        host="h",
        status="measured",
        metrics={"output_tok_per_s": value},
    )


def simulate(rng: random.Random, effect: float, rounds: int, noise: float = 0.01, drift: float = 0.03) -> Effect:
    """A campaign on a host that slows down by `drift` while it runs, interleaved with alternating order."""
    samples = []
    for number in range(1, rounds + 1):
        order = ("base", "other") if number % 2 else ("other", "base")
        for slot, case in enumerate(order):
            position = (2 * (number - 1) + slot) / (2 * rounds - 1)
            value = 100 * math.exp(rng.gauss(0, noise) - drift * position) * (1 + effect * (case == "other"))
            samples.append(sample("other" if case == "other" else "baseline", case, number, value))
    return judge(CASES, samples, RULES)[0]


@pytest.mark.parametrize("rounds", [3, 5])
@pytest.mark.parametrize("noise", [0.01, 0.1])
def test_a_difference_is_rarely_claimed_where_there_is_none(rounds: int, noise: float) -> None:
    """However much servers differ from start to start."""
    rng = random.Random(20261130)
    claimed = sum(simulate(rng, 0.0, rounds, noise).verdict in ("better", "worse") for _ in range(2000))
    assert claimed <= 20  # 1 %


def test_five_percent_is_found_in_five_rounds() -> None:
    """In 95.6 % by Student's noncentral distribution: 94.7 % of what is 5 % more, 96.4 % of what is 5 % less."""
    rng, found = random.Random(7), {"better": 0, "worse": 0}
    for _ in range(1000):
        for effect, word, opposite in ((0.05, "better", "worse"), (-0.05, "worse", "better")):
            said = simulate(rng, effect, 5).verdict
            found[word] += said == word
            assert said != opposite
    assert sum(found.values()) >= 1881  # 95 %, less what chance takes from it: twice 9.7


def test_many_variants_are_held_to_more() -> None:
    """So that a campaign of twenty claims something false as rarely as one in twenty, not one in five."""
    assert stats.family(1) == stats.family(5) == stats.CONFIDENCE
    assert stats.family(20) == pytest.approx(0.9975)
    cases = [CASES[0], *(Case(f"v{i}", "chat", f"v{i}", "chat") for i in range(20))]
    rng, false = random.Random(11), 0
    for _ in range(100):
        samples = [
            one.model_copy(update={"metrics": {"output_tok_per_s": 100 * math.exp(rng.gauss(0, 0.1))}})
            for case in cases
            for one in (sample(case.variant, case.id, number) for number in range(1, 6))
        ]
        effects = judge(cases, samples, RULES)
        assert {effect.confidence for effect in effects} == {stats.family(20)}
        false += any(effect.verdict in ("better", "worse") for effect in effects)
    assert false <= 10


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = random.Random(3)
    covered = 0
    for _ in range(400):
        interval = simulate(rng, 0.05, 5, drift=0.0).interval
        assert interval is not None
        covered += interval[0] <= 0.05 <= interval[1]
    assert 0.975 <= covered / 400 <= 1
