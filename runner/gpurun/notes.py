"""What a reader should know before trusting a table: a closed set of notes, each only where it applies.

Advice depends on what the campaign already does: nobody is told to add a warm-up that is there.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpurun import stats
from gpurun.compare import BASELINE, Case, Effect, Rules, failure_class, failures, values
from gpurun.samples import Sample


def notes(
    cases: Sequence[Case],
    samples: Sequence[Sample],
    effects: Sequence[Effect],
    rules: Rules,
    *,
    rounds: int,
    loads: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[str]:
    """Every note that applies. `rounds` is how many were planned, `loads` each benchmark's load settings (`warmup`)."""
    found = [
        *_too_few_rounds(effects, samples, rounds),
        *_unexpected_success(cases, samples),
        *_partial_failures(cases, samples),
        *_no_warmup(cases, samples, loads or {}),
        *_outliers(cases, samples, rules),
        *_spread(cases, samples, rules),
        *_errors(cases, samples),
        *_taints(samples),
    ]
    return list(dict.fromkeys(found))


def _too_few_rounds(effects: Sequence[Effect], samples: Sequence[Sample], rounds: int) -> Iterator[str]:
    short = [e for e in effects if e.primary and e.verdict == "cannot tell" and e.rounds < stats.MIN_ROUNDS]
    if not short:
        return
    if rounds < stats.MIN_ROUNDS:
        yield f"too few rounds for a verdict: `rounds` is {rounds}, at least {stats.MIN_ROUNDS} are needed, 5 are usual"
    elif max((sample.round for sample in samples), default=0) < rounds:
        yield f"the run ended before its {rounds} rounds were measured: `gpurun bench --resume RUN` goes on"


def _unexpected_success(cases: Sequence[Case], samples: Sequence[Sample]) -> Iterator[str]:
    for case in cases:
        if case.expect and any(s.case == case.case and s.status == "measured" for s in samples):
            yield f"{_at(case)} was expected to fail ({case.expect}) and was measured: remove its `expect:`"


def _partial_failures(cases: Sequence[Case], samples: Sequence[Sample]) -> Iterator[str]:
    for case in cases:
        failed = failures(samples, case.case)
        good = sum(s.case == case.case and s.status == "measured" for s in samples)
        if failed and good:
            total = good + len(failed)
            klass = failure_class(failed)
            yield f"{_at(case)} failed in {len(failed)} of {total} samples ({klass}): judged on the rest"


def _no_warmup(
    cases: Sequence[Case], samples: Sequence[Sample], loads: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    for benchmark in dict.fromkeys(case.benchmark for case in cases):
        load = loads.get(benchmark)
        if load is not None and not load.get("warmup") and any(s.benchmark == benchmark for s in samples):
            yield f"{benchmark} has no warm-up, so a server's first requests count: `warmup: 4` sets them apart"


def _outliers(cases: Sequence[Case], samples: Sequence[Sample], rules: Rules) -> Iterator[str]:
    rule = rules.metrics.get(rules.primary)
    for case in cases:
        for host, numbers in _by_host(values(samples, case.case, rules.primary)).items():
            middle = stats.median(list(numbers.values()))
            for index in stats.outliers(list(numbers.values())):
                number, value = list(numbers.items())[index]
                off = value / middle - 1 if middle else 0.0
                if rule is not None and abs(off) > rule.threshold:
                    side = "above" if off > 0 else "below"
                    where = f"{_at(case)} round {number} on {host}"
                    yield f"{where} was {_pc(abs(off))} {side} its median: an outlier, kept in the estimate"


def _spread(cases: Sequence[Case], samples: Sequence[Sample], rules: Rules) -> Iterator[str]:
    rule = rules.metrics.get(rules.primary)
    for case in cases:
        if case.variant != BASELINE or rule is None:
            continue
        by_host = _by_host(values(samples, case.case, rules.primary))
        spreads = [s for numbers in by_host.values() if (s := stats.spread(list(numbers.values()))) is not None]
        if spreads and statistics.fmean(spreads) > rule.threshold / 2:
            varies = f"{_at(case)} varies by {_pc(statistics.fmean(spreads))} from round to round"
            limit = f"the threshold is {_pc(rule.threshold)}"
            yield f"{varies}, {limit}: longer samples or more rounds give narrower intervals"


def _errors(cases: Sequence[Case], samples: Sequence[Sample]) -> Iterator[str]:
    for case in cases:
        worst = max(values(samples, case.case, "error_rate").values(), default=0.0)
        if worst > 0:
            yield f"{_at(case)}: up to {_pc(worst)} of the requests of a sample failed (within the limit)"


def _taints(samples: Sequence[Sample]) -> Iterator[str]:
    counted = Counter((taint, sample.variant) for sample in samples for taint in sample.taints)
    for (taint, variant), count in counted.items():
        yield f"{variant}: {count} sample{'s' if count > 1 else ''} tainted: {taint}"


def _by_host(measured: Mapping[tuple[str, int], float]) -> dict[str, dict[int, float]]:
    grouped: dict[str, dict[int, float]] = {}
    for (host, number), value in sorted(measured.items()):
        grouped.setdefault(host, {})[number] = value
    return grouped


def _pc(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def _at(case: Case) -> str:
    return f"{case.variant} at {case.label}"
