"""From a campaign to its cases: baseline and variants, over the points of the matrix, under each benchmark.

Pure, and before any host is known: templates stay as they are written. Whatever would make the comparison meaningless
(an axis or variant that changes nothing, two that are the same) is found here, with its position.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpurun.changes import check_tests, differences
from gpurun.complaints import Complaints, nearest
from gpurun.config import Benchmark, Campaign, Server, apply_overrides
from gpurun.engines import Engine
from gpurun.errors import ConfigError, Problem
from gpurun.load import Document, load_file
from gpurun.matrix import Axis, Point, benchmark_at, points, read_axes, read_exclude, same
from gpurun.resolve import check_nulls, check_script, check_secrets, check_server, check_texts, fingerprint, resolve
from gpurun.samples import AGAIN, BASELINE
from gpurun.text import setting
from gpurun.tools import misfits
from gpurun.tree import Node, digest

MAX_CASES = 2000
MAX_SAMPLES = 100_000  # on one host; the plan holds each of them


@dataclass(frozen=True)
class Case:
    """One variant at one point of the axes under one benchmark.

    `id` is a slug and a hash of the resolved content, so it stays when the file is reordered. `server` is complete;
    `merged` is the same with the engine's defaults as it was written, where each part knows its place in the file.
    """

    id: str
    variant: str
    benchmark: str
    label: str
    axes: Mapping[str, Any]
    server: Server
    engine: Engine
    load: Benchmark
    merged: Node = field(repr=False)
    expect: str | None = None


def read_campaign(
    path: Path | str, overrides: Sequence[str] = (), only: Sequence[str] = ()
) -> tuple[Campaign, list[Case]]:
    """A campaign file, checked in every way that needs no host. ConfigError with all problems, of form and of sense."""
    return check(load_file(path), overrides, only)


def check(document: Document, overrides: Sequence[str] = (), only: Sequence[str] = ()) -> tuple[Campaign, list[Case]]:
    """The same for a document: the campaign with each `--set` value applied, and its cases: the baseline's, then its
    variants' (only these, if given)."""
    document = apply_overrides(document, overrides)
    complaints = Complaints(document.problems)
    campaign = complaints.read(Campaign, document.root)
    check_secrets(document.root, complaints)
    cases = _Expansion(complaints.leave_out(document.root), complaints).cases(only)
    samples = len(cases) * campaign.rounds * campaign.repeats if campaign else 0
    if samples > MAX_SAMPLES:
        message = f"these rounds make {samples} samples on each host; at most {MAX_SAMPLES} are planned"
        complaints.add(message, document.root, ("rounds",), key=True)
    if campaign is None or complaints.problems:
        raise ConfigError(complaints.sorted())
    campaign._document = document
    return campaign, cases


@dataclass
class _Expansion:
    """Takes apart what is right with a campaign's form; `root` is the document without the rest."""

    root: Node
    complaints: Complaints

    def __post_init__(self) -> None:
        self.variants = [BASELINE]
        self.variants += [name for name in self.root.items("variants") if not self.complaints.about(("variants", name))]
        if self._noise_floor and AGAIN in self.variants:
            message = f"`{AGAIN}` is the name of the second baseline of `compare.noise_floor`"
            self.complaints.add(message, self.root, ("variants", AGAIN), key=True)
        elif self._noise_floor:
            self.variants.append(AGAIN)

    @property
    def _noise_floor(self) -> bool:
        asked = self.root.at("compare", "noise_floor")
        return asked is not None and asked.value is True

    def cases(self, only: Sequence[str]) -> list[Case]:
        known = tuple(self.root.items("variants"))
        unknown = [name for name in only if name not in (BASELINE, *known)]
        self.complaints.problems += [
            Problem(f"there is no variant `{name}`", None, known, nearest(name, known)) for name in unknown
        ]
        check_texts(self.root, self.complaints)
        axes = read_axes(self.root, self.complaints)
        of_server = [axis for axis in axes if axis.benchmark is None]
        of_load = {name: [axis for axis in axes if axis.benchmark == name] for name in self.root.items("benchmarks")}
        total = len(self.variants) * _size(of_server) * sum(_size(own) for own in of_load.values())
        if total > MAX_CASES:
            message = f"the matrix makes {total} cases; at most {MAX_CASES} are measured"
            self.complaints.add(message, self.root, ("matrix", "axes"), key=True)
            return []
        loads = [(name, point, self.load(name, point)) for name, own in of_load.items() for point in points(own)]
        cases: list[Case] = []
        prints: dict[str, list[str]] = {}
        for variant in self.variants:
            for point in points(of_server):
                merged = self.merged(variant, point)
                resolved = check_server(merged, self.complaints)
                prints.setdefault(variant, []).append(fingerprint(*resolved) if resolved else "")
                if resolved is not None:
                    check_nulls(self.root, variant, resolved[1], self.complaints)
                    made = [(name, (*point, *at), load) for name, at, load in loads if load is not None]
                    for name, _, load in made:
                        self.check_tool(name, load, *resolved)
                    cases += [self.case(variant, name, load, at, resolved, merged) for name, at, load in made]
        self.compare_variants(prints)
        base = self.merged(BASELINE).plain
        for name in self.variants[1:]:
            check_tests(self.root, name, list(differences(base, self.merged(name).plain)), self.complaints)
        for axis in axes:
            self.compare_values(axis)
        kept = self.without_excluded(cases, axes)
        return [case for case in kept if not only or case.variant in (BASELINE, AGAIN, *only)]

    def merged(self, variant: str, point: Point = ()) -> Node:
        return resolve(self.root, variant, [(axis.path, axis.values[number]) for axis, number in point])

    def load(self, name: str, point: Point = ()) -> Benchmark | None:
        return benchmark_at(self.root, name, point, self.complaints)

    def check_tool(self, name: str, load: Benchmark, server: Server, engine: Engine) -> None:
        """A benchmark asks its tool for what that can do."""
        for path, message, hint in misfits(load, server, engine):
            self.complaints.add(message, self.root, ("benchmarks", name, *path), hint=hint)
        if load.script is not None:
            check_script(self.root, name, load.script, self.complaints)

    def compare_variants(self, prints: Mapping[str, list[str]]) -> None:
        """Every variant must differ from the baseline and from every other one."""
        seen: dict[tuple[str, ...], str] = {}
        for name, found in prints.items():
            if name == AGAIN and self._noise_floor:
                continue
            first = seen.setdefault(tuple(found), name) if all(found) else name
            if first != name:
                message = f"variants `{first}` and `{name}` resolve to the same settings"
                if first == BASELINE:
                    message = f"variant `{name}` changes nothing: it is the same as the baseline"
                self.complaints.add(message, self.root, ("variants", name), key=True)

    def compare_values(self, axis: Axis) -> None:
        """An axis must change something, and each of its values something else."""
        at = [((axis, number),) for number in range(len(axis.values))]
        if axis.benchmark is None:
            prints = [self.print(BASELINE, point) for point in at]
            changes = any(self.print(name) != self.print(name, at[0]) for name in self.variants)
        else:
            loads = [self.load(axis.benchmark, point) for point in ((), *at)]
            before, *prints = [digest(load.model_dump()) if load else "" for load in loads]
            changes = before not in prints
        if len(prints) == 1 and prints[0] and not changes:
            message = f"axis `{axis.name}` changes nothing: its only value is what stands there already"
            self.complaints.add(message, axis.node, key=True)
        for number, found in enumerate(prints):
            if found and found in prints[:number]:
                first = axis.values[prints.index(found)].plain
                message = f"axis `{axis.name}`: this value and {first!r} give the same settings"
                self.complaints.add(message, axis.values[number])

    def print(self, variant: str, point: Point = ()) -> str:
        resolved = check_server(self.merged(variant, point), Complaints())
        return fingerprint(*resolved) if resolved else ""

    def case(
        self, variant: str, benchmark: str, load: Benchmark, point: Point, resolved: tuple[Server, Engine], merged: Node
    ) -> Case:
        axes = {axis.name: axis.values[number].plain for axis, number in point}
        short = [
            (name.rpartition(".")[2], setting(digest(value)[:6] if isinstance(value, (Mapping, list)) else value))
            for name, value in axes.items()
        ]
        content = digest([fingerprint(*resolved), benchmark, load.model_dump(exclude_none=True), axes])
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", "-".join([variant, benchmark, *(value for _, value in short)]))
        label = ",".join(value if len(short) == 1 else f"{key}={value}" for key, value in short)
        expect = self.root.at("variants", variant, "expect")
        return Case(
            id=f"{slug.strip('-.')[:60]}-{content[:8]}",
            variant=variant,
            benchmark=benchmark,
            label=f"{benchmark}@{label}" if label else benchmark,
            axes=axes,
            server=resolved[0],
            engine=resolved[1],
            load=load,
            merged=merged,
            expect=expect.value if expect else None,
        )

    def without_excluded(self, cases: list[Case], axes: Sequence[Axis]) -> list[Case]:
        """Without the points that `exclude` names; complaints only where nothing else is wrong, for they may follow."""
        kept = cases
        excluded = read_exclude(self.root, axes, self.complaints)
        right = not self.complaints.problems
        for point in excluded:
            left = [case for case in kept if not _matches(case, point.plain)]
            if right and len(left) == len(kept) > 0:
                self.complaints.add("this excludes nothing", point)
            kept = left
        if right and not kept:
            self.complaints.add("every case is excluded", self.root, ("matrix", "exclude"), key=True)
        measured = {(case.benchmark, repr(case.axes)) for case in kept if case.variant == BASELINE}
        alone = [case for case in kept if (case.benchmark, repr(case.axes)) not in measured]
        if right and alone:
            message = f"the baseline is excluded at `{alone[0].label}`, where `{alone[0].variant}` is still measured"
            hint = "exclude that point without naming a variant"
            self.complaints.add(message, self.root, ("matrix", "exclude"), key=True, hint=hint)
        return kept


def _size(axes: Sequence[Axis]) -> int:
    return math.prod(len(axis.values) for axis in axes)


def _matches(case: Case, point: Mapping[str, Any]) -> bool:
    at: dict[str, Any] = {"variant": case.variant, "benchmark": case.benchmark, **case.axes}
    return all(key in at and same(at[key], value) for key, value in point.items())
