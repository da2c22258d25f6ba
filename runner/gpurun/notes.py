"""What a reader should know before trusting a table: a closed set of notes, each only where it applies.

Advice depends on what the campaign already does: nobody is told to add a warm-up that is there.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpurun import stats
from gpurun.compare import BASELINE, ByCase, Case, Effect, Rules, by_case, failure_class, failures, measured, values
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
    index = by_case(samples)
    found = [
        *_too_few_rounds(effects, samples, rounds),
        *_unexpected_success(cases, index),
        *_partial_failures(cases, index),
        *_no_warmup(cases, index, loads or {}),
        *_outliers(cases, index, rules),
        *_spread(cases, index, effects, rules),
        *_errors(cases, index),
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


def _unexpected_success(cases: Sequence[Case], samples: ByCase) -> Iterator[str]:
    for variant, mine in _by_variant(cases).items():
        odd = [c for c in mine if c.expect and measured(samples, c)]
        if odd:
            where = _labels(odd)
            yield f"{variant} was expected to fail ({odd[0].expect}) and was measured at {where}: remove its `expect:`"


def _partial_failures(cases: Sequence[Case], samples: ByCase) -> Iterator[str]:
    for variant, mine in _by_variant(cases).items():
        partial = []
        for case in mine:
            if measured(samples, case) and failures(samples, case):
                partial.append(case)
        failed = [sample for case in partial for sample in failures(samples, case)]
        if failed:
            share = f"{len(failed)} of {sum(len(samples[case.id]) for case in partial)} samples"
            yield f"{variant} at {_labels(partial)} failed in {share} ({failure_class(failed)}): judged on the rest"


def _no_warmup(cases: Sequence[Case], samples: ByCase, loads: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for benchmark in dict.fromkeys(case.benchmark for case in cases):
        load = loads.get(benchmark)
        if (
            load is not None
            and not load.get("warmup")
            and any(case.id in samples for case in cases if case.benchmark == benchmark)
        ):
            yield f"{benchmark} has no warm-up, so a server's first requests count: `warmup: 4` sets them apart"


def _outliers(cases: Sequence[Case], samples: ByCase, rules: Rules) -> Iterator[str]:
    rule = rules.metrics[rules.primary]
    for variant, mine in _by_variant(cases).items():
        found: list[tuple[float, str]] = []
        for case in mine:
            for host, numbers in _by_host(values(samples, case, rules.primary)).items():
                middle = stats.median(list(numbers.values()))
                for number in (list(numbers)[index] for index in stats.outliers(list(numbers.values()))):
                    off = numbers[number] / middle - 1 if middle else 0.0
                    found += [(off, f"{case.label}, round {number} on {host}")] if abs(off) > rule.threshold else []
        if found:
            off, where = max(found, key=lambda item: abs(item[0]))
            far = f"{_percent(abs(off))} {'above' if off > 0 else 'below'} the median ({where})"
            what = f"an outlier {far} is" if len(found) == 1 else f"{len(found)} outliers, the farthest {far}, are"
            yield f"{variant}: {what} kept in the estimate"


def _spread(cases: Sequence[Case], samples: ByCase, effects: Sequence[Effect], rules: Rules) -> Iterator[str]:
    """Only where it keeps a verdict open: a clear difference needs no quieter baseline."""
    threshold = rules.metrics[rules.primary].threshold
    unclear = {e.case.label for e in effects if e.primary and e.verdict == "cannot tell" and e.interval is not None}
    noisy: dict[str, float] = {}
    for case in cases:
        if case.variant == BASELINE and case.label in unclear:
            by_host = _by_host(values(samples, case, rules.primary))
            spreads = [s for numbers in by_host.values() if (s := stats.spread(list(numbers.values()))) is not None]
            if spreads and statistics.fmean(spreads) > threshold / 2:
                noisy[case.label] = statistics.fmean(spreads)
    if noisy:
        varies = f"the baseline varies by {_percent(max(noisy.values()))} from round to round at {', '.join(noisy)}"
        yield f"{varies}: longer samples or more rounds narrow the intervals"


def _errors(cases: Sequence[Case], samples: ByCase) -> Iterator[str]:
    for variant, mine in _by_variant(cases).items():
        worst = max((v for case in mine for v in values(samples, case, "error_rate").values()), default=0.0)
        if worst > 0:
            yield f"{variant}: up to {_percent(worst)} of the requests of a sample failed, within the limit"


def _taints(samples: Sequence[Sample]) -> Iterator[str]:
    counted = Counter((taint, sample.variant) for sample in samples for taint in sample.taints)
    for (taint, variant), count in counted.items():
        yield f"{variant}: {count} sample{'s' if count > 1 else ''} tainted: {taint}"


def _by_host(numbers: Mapping[tuple[str, int], float]) -> dict[str, dict[int, float]]:
    grouped: dict[str, dict[int, float]] = {}
    for (host, number), value in sorted(numbers.items()):
        grouped.setdefault(host, {})[number] = value
    return grouped


def _by_variant(cases: Sequence[Case]) -> dict[str, list[Case]]:
    grouped: dict[str, list[Case]] = {}
    for case in cases:
        grouped.setdefault(case.variant, []).append(case)
    return grouped


def _labels(cases: Sequence[Case]) -> str:
    return ", ".join(dict.fromkeys(case.label for case in cases))


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"
