"""A judged run as other programs read it: tables with a row for each sample, the result document, JUnit XML. Pure."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from typing import Any
from xml.etree import ElementTree

from gpurun import result, wording
from gpurun.assess import Assessment
from gpurun.compare import Effect, failed, measured
from gpurun.manifest import Manifest
from gpurun.samples import BASELINE, Sample

_TEXT = ("run", "campaign", "variant", "benchmark", "case", "label", "host", "status", "started_at", "engine",
         "engine_version", "failure_class", "failure_phase", "failure_proof", "taints", "content")  # fmt: skip
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


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
    suites = ElementTree.Element("testsuites", name=_xml(f"{manifest.campaign} {manifest.run}"))
    primary = {effect.case.id: effect for effect in report.effects if effect.primary}
    for case in report.cases:
        suite = next((one for one in suites if one.get("name") == case.label), None)
        suite = ElementTree.SubElement(suites, "testsuite", name=_xml(case.label)) if suite is None else suite
        samples = report.of[case.id]
        seconds = sum(sample.timing.wall_s or 0.0 for sample in samples)
        test = ElementTree.SubElement(
            suite, "testcase", name=case.variant, classname=f"{manifest.campaign}.{case.label}"
        )
        test.set("time", f"{seconds:.3f}")
        _outcome(test, samples, primary.get(case.id), strict, case.expect)
        if case.variant != BASELINE and case.id in primary:
            effect = primary[case.id]
            told = f"{effect.metric}: {wording.changes([effect])[0]}, {wording.verdict(effect)}"
            ElementTree.SubElement(test, "system-out").text = _xml(told)
    for suite in suites:
        suite.set("tests", str(len(suite)))
        for name, tag in (("failures", "failure"), ("skipped", "skipped")):
            suite.set(name, str(len(suite.findall(f"testcase/{tag}"))))
        suite.set("errors", "0")
    ElementTree.indent(suites)
    return bytes(ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)) + b"\n"


def _outcome(
    test: ElementTree.Element, samples: Sequence[Sample], effect: Effect | None, strict: bool, expect: str | None
) -> None:
    lost = [(sample, sample.failure) for sample in failed(samples) if sample.failure is not None]
    bad = next(((sample, failure) for sample, failure in lost if not failure.expected), None)
    if bad is not None:
        sample, failure = bad
        told = f"{failure.klass} ({failure.phase}) in round {sample.round} on {sample.host}"
        node = ElementTree.SubElement(test, "failure", type=failure.klass, message=_xml(told))
        node.text = _xml(f"{failure.proof}\n{failure.advice}")
    elif expect and measured(samples):
        message = f"was expected to fail ({expect}) and was measured"
        ElementTree.SubElement(test, "failure", type="unexpected", message=message)
    elif strict and effect is not None and result.regressed([effect]):
        message = f"{effect.metric} is worse: {wording.changes([effect])[0]}"
        ElementTree.SubElement(test, "failure", type="regression", message=_xml(message))
    elif not measured(samples):
        message = f"failed as expected: {lost[0][1].klass}" if lost else "not measured"
        ElementTree.SubElement(test, "skipped", message=message)


def _xml(text: str) -> str:
    """Text that XML can hold: control characters are no part of it."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)


FORMATS: dict[str, Callable[[Manifest, Assessment, bool], bytes]] = {
    "csv": as_csv,
    "parquet": as_parquet,
    "json": as_json,
    "junit": as_junit,
}
