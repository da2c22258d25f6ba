"""A plan and the samples that came of it -> all that is said about them: effects, and what to know besides. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gpurun import compare, started, stats
from gpurun.compare import Case, failed, group, measured, values
from gpurun.engines import load_engine
from gpurun.samples import AGAIN, BASELINE, REPEATED, Sample

# What of a load's specification belongs to the place where it runs, not to what is measured.
_DIFFERENT = "different: "
_LOCAL = ("base_url", "progress", "tokenize", "timeout_s", "model")


@dataclass(frozen=True)
class Assessment:
    """A judged run: what tables, documents and the comparison of runs are made of.

    `rounds` is how many were planned, in an order that is `interleaved` or not; `directory` is the run's, for paths to
    logs; `hosts` their facts. `of` are the samples, `fingerprints` what was measured with what, by the case's id.
    """

    run: str
    cases: Sequence[Case]
    samples: Sequence[Sample]
    effects: Sequence[compare.Effect]
    rules: compare.Rules
    rounds: int
    interleaved: bool
    directory: Path | None
    hosts: Mapping[str, Any]
    of: Mapping[str, Sequence[Sample]]
    fingerprints: Mapping[str, Mapping[str, Any]]
    notes: Sequence[str] = ()


def assess(
    plan: Mapping[str, Any],
    samples: Sequence[Sample],
    directory: Path | None = None,
    run: str = "",
    hosts: Mapping[str, Any] = MappingProxyType({}),
    settings: Mapping[str, started.Settings] = MappingProxyType({}),
) -> Assessment:
    """Judge a run by its stored plan; samples that the plan does not name (of an earlier plan) are left out.

    `settings`: what servers resolved to, by the id of the sample that they started for."""
    planned, rounds, rules = plan["samples"], int(plan["rounds"]), compare.Rules.of(plan["compare"])
    # In the campaign's order: a round's is another one.
    place = {case.get("case"): number for number, case in enumerate(plan.get("cases", ()))}
    cases = compare.cases_of(sorted(planned, key=lambda item: place.get(item["case"], 0)))
    of: dict[str, list[Sample]] = {case.id: [] for case in cases}
    samples = [sample for sample in samples if sample.case in of]
    of |= group(samples, lambda sample: sample.case)
    effects, interleaved = compare.judge(cases, samples, rules), rounds > 1 and plan.get("order") != "fixed"
    prints = {item["case"]: _fingerprint(item) for item in reversed(planned)}  # of repeats, the first one's
    report = Assessment(
        run, cases, samples, effects, rules, rounds, interleaved, directory, hosts, of, fingerprints=prints
    )
    loads = {item["benchmark"]: _spec(item) for item in planned}
    return replace(report, notes=[*started.changed_nothing(planned, settings), *_notes(report, loads)])


def compare_runs(before: Assessment, after: Assessment, *, force: bool = False) -> list[compare.Effect]:
    """Each case of `after` against the case of `before` with the same variant, benchmark and axis values.

    The runs were not interleaved, so the interval is an unpaired one, and whatever changed in between (temperature,
    other load) is part of the effect. Not comparable where tool, data, model or the hosts' hardware differ; with
    `force` the numbers are compared all the same, and the effect's reason says what differs.
    """
    partners = {(case.variant, case.point): case for case in before.cases}
    confidence = stats.family(sum(bool(measured(after.of[case.id])) for case in after.cases))
    effects: list[compare.Effect] = []
    for case in after.cases:
        partner = partners.get((case.variant, case.point))
        old, new = before.of[partner.id] if partner else [], after.of[case.id]
        unlike = _unlike(before, after, partner, case) if partner else f"not in {before.run}"
        if not (force and unlike.startswith(_DIFFERENT)):
            effects += compare.effects_on(case, old, new, after.rules, unlike, confidence, paired=False)
        else:
            forced = compare.effects_on(case, old, new, after.rules, "", confidence, paired=False)
            effects += [replace(effect, reason="; ".join(filter(None, (unlike, effect.reason)))) for effect in forced]
    return effects


def _unlike(before: Assessment, after: Assessment, partner: Case, case: Case) -> str:
    """Why a case cannot be compared with that of another run."""
    old, new = before.fingerprints[partner.id], after.fingerprints[case.id]
    different = [name for name in sorted(old) if old[name] != new[name]]
    common = sorted(before.hosts.keys() & after.hosts.keys())
    different += [f"host {host}" for host in common if _hardware(before.hosts[host]) != _hardware(after.hosts[host])]
    if different:
        return f"{_DIFFERENT}{', '.join(different)}"
    places = [{sample.host for sample in measured(run.of[one.id])} for run, one in ((before, partner), (after, case))]
    if not places[0]:
        return f"not measured in {before.run}"
    return "" if places[0] & places[1] or not places[1] else "no host in common"


def _fingerprint(item: Mapping[str, Any]) -> dict[str, Any]:
    """What must be alike in two runs for their numbers to be compared."""
    spec, model = _spec(item), dict(item.get("server", {}).get("model") or {})
    model.pop("path", None)  # which model it is, wherever it lies
    data = {name: value for name, value in spec.items() if name not in _LOCAL}
    tool = f"{item['load']['tool']} {item['load'].get('version', '')}".strip()
    return {"tool": tool, "data": data, "model": model or spec.get("model")}


def _spec(item: Mapping[str, Any]) -> Mapping[str, Any]:
    return item["load"]["spec"] or {}


def _hardware(facts: Mapping[str, Any]) -> Any:
    """The facts that make two measurements comparable: processors, architecture and GPUs, not what is free or busy."""
    host, gpus = facts.get("host", facts), facts.get("gpus") or []
    return host.get("cpus"), host.get("arch"), [(gpu.get("name"), gpu.get("memory_total_mib")) for gpu in gpus]


def _notes(report: Assessment, loads: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """What a reader should know before trusting the table, each only where it applies.

    Advice depends on what the campaign already does: nobody is told to add a warm-up that is there.
    """
    of, variants = report.of, group(report.cases, lambda case: case.variant)
    unclear = [effect for effect in report.effects if effect.primary and effect.verdict == "cannot tell"]
    if any(effect.rounds < stats.MIN_ROUNDS for effect in unclear):
        if report.rounds < stats.MIN_ROUNDS:
            least = f"at least {stats.MIN_ROUNDS} are needed, 5 are usual"
            yield f"too few rounds for a verdict: `rounds` is {report.rounds}, {least}"
        elif max((sample.round for sample in report.samples), default=0) < report.rounds:
            yield f"the run ended before its {report.rounds} rounds were measured: `gpurun bench --resume RUN` goes on"
    for variant, mine in variants.items():
        if odd := [case for case in mine if case.expect and measured(of[case.id])]:
            was = f"was expected to fail ({odd[0].expect}) and was measured at {_labels(odd)}"
            yield f"{variant} {was}: remove its `expect:`"
    for variant, mine in variants.items():
        if partial := [case for case in mine if measured(of[case.id]) and failed(of[case.id])]:
            samples = [sample for case in partial for sample in of[case.id]]
            lost = failed(samples)
            share = f"{len(lost)} of {len(samples)} samples ({compare.failure_class(lost)})"
            yield f"{variant} at {_labels(partial)} failed in {share}: judged on the rest"
    if (repeats := max((sample.repeat for sample in report.samples), default=1)) > 1:
        yield REPEATED.format(repeats)
    filled = Counter(
        (str(sample.engine.get("name")), sample.caches) for sample in report.samples if sample.caches != "emptied"
    )
    for (engine, why), count in filled.items():
        if why:
            reset = load_engine(engine).reset
            needs = f"; it takes {reset.needs}" if reset and reset.needs else ""
            yield f"{engine}: caches were {why}, before {count} loads on a server that had others before{needs}"
    for benchmark, mine in group(report.cases, lambda case: case.benchmark).items():
        load = loads.get(benchmark)
        if load and not load.get("warmup") and any(of[case.id] for case in mine):
            yield f"{benchmark} has no warm-up, so a server's first requests count: `warmup: 4` sets them apart"
    for variant, mine in variants.items():
        if far := list(_outliers(report, mine)):
            off, where = max(far, key=lambda found: abs(found[0]))
            place = f"{_percent(abs(off))} {'above' if off > 0 else 'below'} the median ({where})"
            what = f"an outlier {place} is" if len(far) == 1 else f"{len(far)} outliers, the farthest {place}, are"
            yield f"{variant}: {what} kept in the estimate"
    # Only where it keeps a verdict open: a clear difference needs no quieter baseline.
    if noisy := dict(_noisy(report, {effect.case.point for effect in unclear if effect.interval})):
        varies = f"the baseline varies by {_percent(max(noisy.values()))} from round to round at {', '.join(noisy)}"
        yield f"{varies}: longer samples or more rounds narrow the intervals"
    for effect in report.effects:
        if effect.case.variant == AGAIN and effect.primary and effect.interval:
            low, high = (f"{100 * bound:+.1f}" for bound in effect.interval)
            yield f"noise floor at {effect.case.label}: the baseline against itself differs by {low} to {high} %"
    for variant, mine in variants.items():
        worst = max((v for case in mine for v in values(of[case.id], "error_rate").values()), default=0.0)
        if worst > 0:
            yield f"{variant}: up to {_percent(worst)} of the requests of a sample failed, within the limit"
    taints = Counter((sample.variant, taint) for sample in report.samples for taint in sample.taints)
    for (variant, taint), count in taints.items():
        yield f"{variant}: {count} sample{'s' * (count > 1)} tainted: {taint}"


def _outliers(report: Assessment, cases: Sequence[Case]) -> Iterator[tuple[float, str]]:
    """How far off its median on that host, and where, each outlier is that is beyond the threshold."""
    for case in cases:
        for host, numbers in _by_host(report, case).items():
            middle = statistics.median(numbers.values())
            for number in (list(numbers)[index] for index in stats.outliers(list(numbers.values()))):
                off = numbers[number] / middle - 1 if middle else 0.0
                if abs(off) > report.rules.metrics[report.rules.primary].threshold:
                    yield off, f"{case.label}, round {number} on {host}"


def _noisy(report: Assessment, points: set[tuple[str, str]]) -> Iterator[tuple[str, float]]:
    """The points where the baseline varies by more than half the threshold, and by how much."""
    for case in report.cases:
        if case.variant == BASELINE and case.point in points:
            spreads = [stats.spread(list(numbers.values())) for numbers in _by_host(report, case).values()]
            known = [spread for spread in spreads if spread is not None]
            if known and statistics.fmean(known) > report.rules.metrics[report.rules.primary].threshold / 2:
                yield case.label, statistics.fmean(known)


def _by_host(report: Assessment, case: Case) -> dict[str, dict[int, float]]:
    """The primary metric by host and round."""
    by_host = group(sorted(values(report.of[case.id], report.rules.primary).items()), lambda item: item[0][0])
    return {host: {number: value for (_, number), value in items} for host, items in by_host.items()}


def _labels(cases: Sequence[Case]) -> str:
    return ", ".join(dict.fromkeys(case.label for case in cases))


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"
