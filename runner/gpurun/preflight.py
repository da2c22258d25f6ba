"""Every server of a plan, held against what is known before a GPU second is spent. Pure.

A check is a function from a Subject to Findings; those that refuse keep the samples of that server from being tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpurun import rules, shipped_flags
from gpurun.cases import Case
from gpurun.changes import differences, untold
from gpurun.complaints import nearest
from gpurun.config import Campaign
from gpurun.doctor import look_at
from gpurun.engines import canonical
from gpurun.errors import ConfigError, Problem
from gpurun.findings import Finding, Subject, known_model
from gpurun.fit import check as fit
from gpurun.launch import Launch
from gpurun.redact import MASK
from gpurun.samples import AGAIN, BASELINE

CHECKS: tuple[Callable[[Subject], Iterable[Finding]], ...] = (rules.check, fit.check, shipped_flags.check)
Refusals = dict[tuple[str, str], dict[str, Any]]
"""By host and case: what a planned sample says about why it is not tried."""


def rule_names() -> tuple[str, ...]:
    """Whatever `--force` may name."""
    return (*rules.names(), *fit.NAMES)


def check_forced(forced: Iterable[str]) -> None:
    """ConfigError where `--force` names a rule that does not exist."""
    known = rule_names()
    problems = [
        Problem(f"`--force {name}`: there is no such rule", None, known, nearest(name, known))
        for name in forced
        if name not in known
    ]
    if problems:
        raise ConfigError(problems)


def look(
    campaign: Campaign,
    cases: Sequence[Case],
    launches: Mapping[tuple[str, str], Launch],
    facts: Mapping[str, Mapping[str, Any]],
    forced: Sequence[str] = (),
) -> tuple[list[Finding], Refusals]:
    """What speaks against the servers, each said once with its variants and hosts, and the cases that are refused."""
    found: dict[Finding, tuple[dict[str, None], dict[str, None]]] = {}
    refused: Refusals = {}
    for host, known in facts.items():
        seen: dict[tuple[str, str], list[Finding]] = {}  # one server may have many loads
        for case in cases:
            own = launches[host, case.id]
            if (case.variant, own.key) not in seen:
                base = _baseline(case, cases)
                baseline = None if base is None else _subject(base, launches[host, base.id], known)
                subject = _subject(case, own, known, baseline)
                same = [each.load.data for each in cases if launches[host, each.id].key == own.key]
                lengths = tuple(each.prompt_tokens + each.output_tokens for each in same if each.prompt_tokens)
                subject = replace(subject, lengths=lengths)
                found_here = (each for check in CHECKS for each in check(subject))
                seen[case.variant, own.key] = [_settled(each, campaign, case, forced) for each in found_here]
            for each in seen[case.variant, own.key]:
                variants, hosts = found.setdefault(each, ({}, {}))
                variants[case.variant] = hosts[host] = None
                if each.refuses:
                    proof = f"{each.message} ({each.rule}{', ' + each.where if each.where else ''})"
                    why = {"rule": each.rule, "class": each.klass, "proof": proof, "advice": each.advice}
                    refused.setdefault((host, case.id), why)
    told = [
        each.model_copy(update={"variants": tuple(variants), "hosts": tuple(hosts)})
        for each, (variants, hosts) in found.items()
    ]
    return [*_of_hosts(facts), *_of_scripts(campaign), *_untold(campaign, cases), *told], refused


def _settled(each: Finding, campaign: Campaign, case: Case, forced: Sequence[str]) -> Finding:
    """A check's finding with its place in the campaign; forced, where it would refuse and does not count."""
    known = {"forced": each.severity == "refuse" and each.rule in forced, "where": _where(campaign, case, each.flags)}
    return each.model_copy(update=known)


def _of_scripts(campaign: Campaign) -> list[Finding]:
    """Which of the metrics that the campaign compares a script of the user's own does not give."""
    found = []
    for name, benchmark in campaign.benchmarks.items():
        missing = [one for one in campaign.compare.metrics if benchmark.script and one not in benchmark.script.metrics]
        if missing:
            message = f"the script of `{name}` gives no {', '.join(missing)}, which the campaign compares"
            advice = "add it to `script.metrics`, or take it out of `compare.metrics`; there is no verdict on it"
            found.append(Finding(rule="script-metrics", severity="warn", message=message, advice=advice))
    return found


def _of_hosts(facts: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """What is wrong with the hosts themselves, as `gpurun doctor` says it."""
    return [
        Finding(rule=one.check, severity="warn", message=one.message, advice=one.fix, hosts=(host,))
        for host, known in facts.items()
        for one in look_at(host, known)
        if one.state != "ok"
    ]


def _untold(campaign: Campaign, cases: Sequence[Case]) -> list[Finding]:
    first = {case.variant: case.merged.plain for case in reversed(cases) if case.variant != AGAIN}
    base = first.pop(BASELINE, None)
    of = ((name, settings) for name, settings in reversed(first.items()) if base is not None)
    found = [untold(name, campaign.variants[name].tests, list(differences(base, settings))) for name, settings in of]
    return [each for each in found if each is not None]


def _subject(case: Case, launch: Launch, facts: Mapping[str, Any], baseline: Subject | None = None) -> Subject:
    server = launch.server
    return Subject(
        engine=case.engine.name,
        version=server["engine"]["version"],
        flags=launch.flags,
        env={**dict.fromkeys(server["secrets"], MASK), **server["env"]},
        argv=server["argv"],
        model={**server["model"], **known_model(server["model"], facts)},
        facts=facts,
        flags_from=server["flags_from"],
        image=server["engine"].get("image"),
        baseline=baseline,
    )


def _baseline(case: Case, cases: Sequence[Case]) -> Case | None:
    """The baseline's case at the same point."""
    same = (other for other in cases if (other.benchmark, other.axes) == (case.benchmark, case.axes))
    return None if case.variant == BASELINE else next((other for other in same if other.variant == BASELINE), None)


def _where(campaign: Campaign, case: Case, flags: Sequence[str]) -> str:
    """The place in the campaign of the first of these flags that the variant has, or removes."""
    own = campaign.document.root.at("variants", case.variant, "server")
    for node in (case.merged, *([own] if own is not None else ())):
        written = {canonical(case.engine.flags, flag).replace("-", "_"): flag for flag in node.items("flags")}
        for flag in flags:
            if flag in written:
                return str(node.mark(("flags", written[flag]), key=True))
    return ""
