"""A judged run as other programs read it: tables with a row for each sample, the result document, JUnit XML. Pure."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

from gpurun import result, wording
from gpurun.assess import Assessment
from gpurun.compare import failed, measured
from gpurun.manifest import Manifest
from gpurun.samples import BASELINE
from gpurun.text import fill

_TEXT = ("run", "campaign", "variant", "benchmark", "case", "label", "host", "status", "started_at", "engine",
         "engine_version", "failure_class", "failure_phase", "failure_proof", "taints", "content")  # fmt: skip


def rows(manifest: Manifest, report: Assessment) -> list[dict[str, Any]]:
    """One flat row for each sample: what it is, `axis.<path>` for each axis, how it ended, its metrics."""
    labels = {case.id: case.label for case in report.cases}
    found = []
    for sample in report.samples:
        failure = sample.failure
        row: dict[str, Any] = {name: getattr(sample, name, "") for name in _TEXT}
        row |= {
            "campaign": manifest.campaign,
            "label": labels[sample.case],
            "engine": sample.engine.get("name", ""),
            "engine_version": sample.engine.get("version", ""),
            "failure_class": failure.klass if failure else "",
            "failure_phase": failure.phase if failure else "",
            "failure_proof": failure.proof if failure else "",
            "taints": "; ".join(sample.taints),
            "round": sample.round,
            "repeat": sample.repeat,
            "failure_expected": failure.expected if failure else None,
        }
        row |= {f"axis.{path}": str(value) for path, value in sample.axes.items()}
        found.append(row | sample.metrics)
    return found


def _columns(table: Sequence[dict[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for row in table for name in row)
    own = [*_TEXT, "round", "repeat", "failure_expected"]
    axes = [name for name in names if name.startswith("axis.")]
    return [*own, *axes, *sorted(set(names) - set(own) - set(axes))]


def as_csv(manifest: Manifest, report: Assessment, strict: bool = False) -> bytes:
    """RFC 4180, UTF-8, with a header; what a sample does not have is empty."""
    table, text = rows(manifest, report), io.StringIO()
    writer = csv.DictWriter(text, _columns(table), restval="")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue().encode(errors="backslashreplace")


def as_parquet(manifest: Manifest, report: Assessment, strict: bool = False) -> bytes:
    """The same table; metrics are doubles, what a sample does not have is null."""
    from arro3.core import Array, DataType, Table
    from arro3.io import write_parquet

    table = rows(manifest, report)
    kinds = {"round": DataType.int64(), "repeat": DataType.int64(), "failure_expected": DataType.bool()}
    columns: dict[str, Any] = {}
    for name in _columns(table):
        text = name in _TEXT or name.startswith("axis.")
        kind = kinds.get(name, DataType.string() if text else DataType.float64())
        columns[name] = Array([row.get(name) for row in table], type=kind)
    target = io.BytesIO()
    write_parquet(Table.from_pydict(columns), target)
    return target.getvalue()


def as_json(manifest: Manifest, report: Assessment, strict: bool = False) -> bytes:
    """`gpurun.result/1`, as `bench --json` prints it."""
    told = result.document(manifest.run, str(report.directory), manifest.status_now, report.samples, report.effects)
    return (json.dumps(told, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n").encode()


def as_junit(manifest: Manifest, report: Assessment, strict: bool = False) -> bytes:
    """A suite for each point, a test for each variant. A variant fails by a failure that it did not expect, and where
    it is worse if `strict`; an expected failure is skipped, and so is what was not measured."""
    primary = {effect.case.id: effect for effect in report.effects if effect.primary}
    suites: dict[str, list[dict[str, Any]]] = {}
    for case in report.cases:
        samples, effect = report.of[case.id], primary.get(case.id)
        change = wording.changes([effect])[0] if effect else ""
        told = f"{effect.metric}: {change}, {wording.verdict(effect)}" if effect and case.variant != BASELINE else ""
        seconds = sum(sample.timing.wall_s or 0.0 for sample in samples)
        test: dict[str, Any] = {"name": case.variant, "seconds": seconds, "told": told}
        lost = [(sample, sample.failure) for sample in failed(samples) if sample.failure is not None]
        if bad := next((one for one in lost if not one[1].expected), None):
            what = f"{bad[1].klass} ({bad[1].phase}) in round {bad[0].round} on {bad[0].host}"
            test["failure"] = bad[1].klass, what, f"{bad[1].proof}\n{bad[1].advice}"
        elif case.expect and measured(samples):
            test["failure"] = "unexpected", f"was expected to fail ({case.expect}) and was measured", ""
        elif strict and effect is not None and result.regressed([effect]):
            test["failure"] = "regression", f"{effect.metric} is worse: {change}", ""
        elif not measured(samples):
            test["skipped"] = f"failed as expected: {lost[0][1].klass}" if lost else "not measured"
        suites.setdefault(case.label, []).append(test)
    return f"{fill('junit.xml.j2', manifest=manifest, suites=suites)}\n".encode(errors="backslashreplace")


_ALL: tuple[Callable[[Manifest, Assessment, bool], bytes], ...] = (as_csv, as_parquet, as_json, as_junit)
FORMATS = {each.__name__.removeprefix("as_"): each for each in _ALL}
