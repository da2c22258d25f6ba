"""What the report shows of one run: the assessment, and what is read from its directory besides."""

from __future__ import annotations

import hashlib
import shlex
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import yaml

from gpurun import started, stats, wording
from gpurun.assess import Assessment
from gpurun.compare import Case, Effect, group, measured, values
from gpurun.data import table
from gpurun.manifest import Manifest
from gpurun.report.files import Series, latencies, telemetry
from gpurun.samples import BASELINE
from gpurun.started import Difference
from gpurun.store import RunStore
from gpurun.text import duration, metric_name, metric_value, number, percent, plural
from gpurun.tree import differences

_TIMES = "\N{MULTIPLICATION SIGN}"
_QUANTILES = ("p50", "p90", "p99")
LATENCIES = ("ttft", "tpot", "e2e")


@dataclass(frozen=True)
class Row:
    """A case in the first table: its effects by metric, and the median of each metric that has a rule."""

    case: Case
    effects: Mapping[str, Effect]
    medians: Mapping[str, float | None]
    verdict: str
    word: str


@dataclass(frozen=True)
class RunView:
    """One run, as templates and charts need it. `descriptions` by variant, the campaign's by the empty name."""

    manifest: Manifest
    plan: Mapping[str, Any]
    campaign_text: str
    descriptions: Mapping[str, str]
    report: Assessment
    resolved: Mapping[str, Sequence[Difference]]
    requests: Series
    sensors: Series

    @property
    def id(self) -> str:
        return self.manifest.run

    @property
    def metrics(self) -> list[str]:
        """Those that have a rule, the primary one first."""
        rules = self.report.rules
        return sorted(rules.metrics, key=lambda name: name != rules.primary)

    @property
    def variants(self) -> list[str]:
        """In the order of the campaign, the baseline first."""
        return sorted({case.variant: None for case in self.report.cases}, key=lambda name: name != BASELINE)

    @property
    def labels(self) -> list[str]:
        """Of the points at which variants were compared."""
        return list(dict.fromkeys(case.label for case in self.report.cases))

    def rows(self) -> list[Row]:
        """Every case, point by point."""
        effects = group(self.report.effects, lambda effect: effect.case.id)
        found = []
        for case in self.report.cases:
            mine = {effect.metric: effect for effect in effects.get(case.id, ())}
            samples = self.report.of[case.id]
            medians = {name: _median(values(samples, name).values()) for name in self.metrics}
            primary = mine.get(self.report.rules.primary)
            if primary is not None:
                told, word = wording.verdict(primary), primary.verdict + " expected" * primary.expected
            else:
                alone = samples and not measured(samples)
                told, word = ("✗ failed", "failed") if alone else ("", "")
            found.append(Row(case, mine, medians, told, word))
        return found

    def hosts(self) -> list[tuple[str, str]]:
        """Each host in a line: GPUs, or else its processors."""
        known = {host: dict(host_facts(facts)) for host, facts in sorted(self.manifest.hosts.items())}
        return [(host, facts.get("GPUs") or facts["processors"]) for host, facts in known.items()]

    def took(self) -> str:
        """How long the run lasted, as far as it has ended."""
        begin, end = self.manifest.started_at, self.manifest.ended_at
        return duration((datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()) if end else ""

    def effects(self) -> list[Effect]:
        """What has an estimate on the primary metric."""
        return [effect for effect in self.report.effects if effect.primary and effect.estimate is not None]

    def effects_sentence(self) -> str:
        """What the chart of effects shows."""
        known = self.effects()
        beyond = [effect for effect in known if effect.verdict in ("better", "worse")]
        farthest = max(known, key=lambda effect: abs(effect.estimate or 0))
        where = f"{farthest.case.variant} at {farthest.case.label}"
        return (
            f"{len(beyond)} of {plural(len(known), 'effect')} {'is' if len(beyond) == 1 else 'are'} a difference that "
            f"matters; the largest change is {percent(farthest.estimate or 0)} %, of {where}."
        )

    def tradeoff(self) -> dict[str, list[dict[str, Any]]]:
        """For each benchmark, where every measured case lies: throughput and latency (medians), and what beats it.

        A point is on the Pareto line where no other has more throughput at no more latency.
        """
        latency, found = self.latency(), {}
        for benchmark, cases in group(self.report.cases, lambda case: case.benchmark).items():
            points: list[dict[str, Any]] = []
            for case in cases:
                samples = self.report.of[case.id]
                x, y = (_median(values(samples, name).values()) for name in (latency, self.throughput()))
                if x is not None and y is not None:
                    points.append({"variant": case.variant, "label": case.label, "latency": x, "throughput": y})
            best = 0.0
            for point in sorted(points, key=lambda point: (point["latency"], -point["throughput"])):
                point["pareto"] = point["throughput"] > best
                best = max(best, point["throughput"])
            if len(points) > 1:
                found[benchmark] = points
        return found

    def latency(self) -> str:
        """The latency that the campaign judges, else the median of the whole answer."""
        return next((name for name in self.metrics if name.endswith("_ms")), "e2e_p50_ms")

    def throughput(self) -> str:
        return next((name for name in self.metrics if name.endswith("_per_s")), "output_tok_per_s")

    def latency_rows(self) -> list[tuple[Case, list[float | None]]]:
        """For each measured case, the medians over its samples of each latency's percentiles."""
        names = [f"{name}_{part}_ms" for name in LATENCIES for part in _QUANTILES]
        rows = [
            (case, [_median(values(self.report.of[case.id], name).values()) for name in names])
            for case in self._measured()
        ]
        return [(case, numbers) for case, numbers in rows if any(value is not None for value in numbers)]

    def rounds(self) -> list[dict[str, Any]]:
        """The primary metric of every sample that has it, in the order of the rounds."""
        return [
            {"variant": case.variant, "label": case.label, "host": host, "round": number, "value": value}
            for case, host, by_round, _ in self.rounds_table()
            for number, value in by_round.items()
        ]

    def rounds_table(self) -> list[tuple[Case, str, dict[int, float], float | None]]:
        """Each case on each host: its primary metric by round, and how far that varies."""
        found = []
        for case in self._measured():
            numbers = values(self.report.of[case.id], self.report.rules.primary)
            for host, items in group(sorted(numbers.items()), lambda item: item[0][0]).items():
                by_round = {number: value for (_, number), value in items}
                found.append((case, host, by_round, stats.spread(list(by_round.values()))))
        return found

    def sensor_sentence(self) -> str:
        """Which sensor moved most from the first round to the last."""
        moved = []
        for host, name, means, *_ in self.sensors_table():
            if first := means[min(means)]:
                last = means[max(means)]
                moved.append(
                    (abs(last - first) / (100 if name.endswith("_percent") else first), host, name, first, last)
                )
        if not moved or max(moved)[0] == 0:
            return "From the first round to the last, no sensor moved."
        _, host, name, first, last = max(moved)
        what = f"{metric_name(name)} of {host}"
        return f"From the first round to the last, {what} moved most: from {number(first)} to {number(last)}."

    def sensors_table(self) -> list[tuple[str, str, dict[int, float], float, float]]:
        """Each sensor of each host: its mean by round, the least and the most of its samples."""
        found = []
        for (host, name), points in group(self.sensors.points, lambda p: (p["host"], p["name"])).items():
            means = {
                n: statistics.fmean(p["value"] for p in mine) for n, mine in group(points, lambda p: p["round"]).items()
            }
            each = [point["value"] for point in points]
            found.append((host, name, means, min(each), max(each)))
        return found

    def failures(self) -> list[tuple[wording.FailureGroup, str]]:
        """Each kind of failure of each variant, and what its class means."""
        return [(one, failure_classes()[one.failure.klass]["why"]) for one in wording.failures(self.report)]

    def settings(self) -> dict[str, list[tuple[str, Any, Any]]]:
        """For each variant, what it asks for that the baseline does not: path, the baseline's value, its own."""
        server = {case["variant"]: case["settings"]["server"] for case in reversed(self.plan.get("cases", ()))}
        base = server.pop(BASELINE, {})
        changed = {name: differences(base, server[name]) for name in self.variants if name in server}
        return {name: sorted((path, *_unlike(old, new)) for path, old, new in rows) for name, rows in changed.items()}

    def fingerprint(self) -> list[tuple[str, str]]:
        """What was measured, with what, on what."""
        loads = {item["label"]: _load(item) for item in self.plan["samples"]}
        engines = ", ".join(f"{name} {version}" for name, version in sorted(self.manifest.engines.items()))
        known = [
            ("gpurun", self.manifest.gpurun),
            ("engines", engines),
            *((f"model of {variants}", told) for told, variants in self._models().items()),
            ("load", "; ".join(loads[label] for label in self.labels)),
            ("order", str(self.plan.get("order", ""))),
            ("campaign", f"sha256 {hashlib.sha256(self.campaign_text.encode()).hexdigest()[:16]}"),
        ]
        for host, facts in sorted(self.manifest.hosts.items()):
            known += [(f"{host}: {name}", told) for name, told in host_facts(facts)]
        return [(name, told) for name, told in known if told]

    def _models(self) -> dict[str, str]:
        found: dict[str, dict[str, None]] = {}
        for item in self.plan["samples"]:
            model = (item.get("server") or {}).get("model") or {}
            names = ("hf", "revision", "wheel", "file", "url", "sha256", "path")
            told = " ".join(str(model[name]) for name in names[:-1] if model.get(name)) or str(model.get("path") or "")
            if told:
                found.setdefault(told, {})[item["variant"]] = None
        return {told: ", ".join(variants) if len(found) > 1 else "all" for told, variants in found.items()}

    def command(self) -> str:
        """The command line that made this run."""
        return shlex.join(self.manifest.command) if self.manifest.command else "gpurun bench --config campaign.yml"

    def next_steps(self) -> list[str]:
        """What is worth trying next: advice of failures that nobody expected first, then the notes."""
        groups = sorted(wording.failures(self.report), key=lambda one: one.failure.expected)
        advice = [f"{one.sample.variant}: {one.failure.advice}" for one in groups if one.failure.advice]
        return list(dict.fromkeys([*advice, *self.report.notes]))

    def numbers(self, row: Row) -> str:
        """A row's medians and changes in short: `TTFT p50 115 ms (−32.5 % [−50.3, −8.4])`."""
        told = []
        for name in self.metrics:
            effect = row.effects.get(name)
            change = f" ({wording.changes([effect])[0]})" if effect and effect.estimate is not None else ""
            told += [metric_value(name, row.medians[name]) + change] if row.medians[name] is not None else []
        return "; ".join(told)

    def _measured(self) -> list[Case]:
        return [case for case in self.report.cases if measured(self.report.of[case.id])]


def look(store: RunStore, report: Assessment | None = None) -> RunView:
    """Everything about a stored run."""
    manifest, plan = store.manifest, store.plan
    report = report or store.judged()
    resolved = started.settings_rows(plan["samples"], store.settings())
    try:
        text = (store.directory / "campaign.yml").read_text(encoding="utf-8", errors="replace")
        campaign = yaml.safe_load(text)
    except (OSError, yaml.YAMLError):
        text, campaign = "", None
    campaign = campaign if isinstance(campaign, dict) else {}
    variants = campaign.get("variants")
    told = defaultdict(str, {"": str(campaign.get("description") or "")})
    for name, one in variants.items() if isinstance(variants, dict) else ():
        told[str(name)] = str(one.get("description") or "") if isinstance(one, dict) else ""
    return RunView(manifest, plan, text, told, report, resolved, latencies(store, report), telemetry(store, report))


def failure_classes() -> dict[str, dict[str, str]]:
    """Each failure class: what it looks like, why it happens, what to do."""
    classes: dict[str, dict[str, str]] = table("failures")
    return classes


def host_facts(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What a reader wants to know of a host."""
    host, driver = facts.get("host") or {}, facts.get("driver")
    cards = group(facts.get("gpus") or (), lambda gpu: (gpu.get("name"), gpu.get("memory_total_mib")))
    for (name, memory), gpus in cards.items():
        yield "GPUs", f"{len(gpus)} {_TIMES} {name}, {number(memory)} MiB"
    yield "driver", str(driver.get("version", driver) if isinstance(driver, dict) else driver or "")
    cpus = f"{host.get('cpus', '?')} {_TIMES} {host.get('cpu_model') or host.get('arch') or 'processor'}"
    memory = host.get("memory_bytes")
    yield "processors", cpus + (f", {memory / 2**30:.0f} GiB" if memory else "")
    system = host.get("os")
    name = (system or {}).get("name") if isinstance(system, dict) else system
    yield "system", ", ".join(str(told) for told in (name, host.get("kernel")) if told)


def _load(item: Mapping[str, Any]) -> str:
    load, spec = item["load"], item["load"].get("spec") or {}
    pace = ", ".join(f"{name} {value}" for name, value in (spec.get("load") or {}).items() if value is not None)
    data = spec.get("data") or {}
    sizes = " → ".join(
        f"{data[name]} {name.replace('_', ' ')}" for name in ("prompt_tokens", "output_tokens") if name in data
    )
    many = f"{spec['requests']} requests" if spec.get("requests") else ""
    tool = f"{load.get('tool', '')} {load.get('version') or ''}".strip()
    return f"{item['label']}: " + ", ".join(part for part in (tool, pace, many, sizes) if part)


def _unlike(before: Any, after: Any) -> tuple[Any, Any]:
    """Two values; of two lists, such as command lines, only the words from the first that differs."""
    if not (isinstance(before, list) and isinstance(after, list)):
        return before, after
    pairs = zip(before, after, strict=False)
    same = next((n for n, (one, other) in enumerate(pairs) if one != other), min(len(before), len(after)))
    old, new = (" ".join(["…"] * bool(same) + [str(word) for word in words[same:]]) for words in (before, after))
    return old, new


def _median(numbers: Any) -> float | None:
    known = list(numbers)
    return statistics.median(known) if known else None
