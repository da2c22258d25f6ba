"""What other programs read: CSV, Parquet, JUnit; and the filters of `gpurun runs`."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from arro3.io import read_parquet
from click.testing import CliRunner
from tests.unit import stored

from gpurun import cli
from gpurun.assess import assess
from gpurun.export import FORMATS
from gpurun.manifest import Controller, Manifest
from gpurun.samples import AGAIN, Sample
from gpurun.store import RunStore
from gpurun.wording import answers

MANIFEST = Manifest(
    run="20261130-1204-a1f3", campaign="q", started_at="2026-11-30T12:04:31Z", controller=Controller(host="h", pid=1)
)


def export(kind: str, samples: list[Sample] | None = None, strict: bool = False) -> bytes:
    report = assess(stored.plan(points=(1, 4)), samples or stored.samples(points=(1, 4)), Path("results/q/r"))
    return FORMATS[kind](MANIFEST, report, strict)


def test_csv_has_a_row_for_each_sample() -> None:
    rows = list(csv.DictReader(io.StringIO(export("csv").decode())))
    assert len(rows) == 50
    one = next(row for row in rows if row["variant"] == "ngram" and row["round"] == "2" and row["label"] == "chat@4")
    assert float(one["output_tok_per_s"]) == 96.9
    assert one["axis.benchmarks.chat.load.concurrency"] == "4"
    lost = next(row for row in rows if row["variant"] == "too-many")
    assert (lost["output_tok_per_s"], lost["failure_class"], lost["failure_expected"]) == ("", "bad_flag", "True")


def test_parquet_is_the_same_table_with_types(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(export("parquet"))
    table = read_parquet(str(path)).read_all()
    names, rows = table.schema.names, list(csv.DictReader(io.StringIO(export("csv").decode())))
    assert names == list(rows[0])
    for name in ("output_tok_per_s", "round"):
        values = [value.as_py() for value in table[name]]
        assert values == [float(row[name]) if row[name] else None for row in rows]
    assert {value.as_py() for value in table["failure_expected"]} == {True, None}


def having(kind: dict[str, ElementTree.Element], tag: str) -> set[str]:
    return {name for name, test in kind.items() if test.find(tag) is not None}


def test_the_baseline_measured_again_is_no_regression() -> None:
    numbers: dict[str, list[float | None]] = {"baseline": [81.9, 82.4, 81.2, 82.0, 81.7]}
    numbers |= {name: [52.1, 52.6, 51.9, 52.3, 52.4] for name in (AGAIN, "one-thread")}
    report = assess(stored.plan(numbers), stored.samples(numbers))
    tests = ElementTree.fromstring(FORMATS["junit"](MANIFEST, report, True)).iter("testcase")
    assert having({str(test.get("name")): test for test in tests}, "failure") == {"one-thread"}
    assert list(answers(report)) == [("chat@4", "No variant is better than the baseline; worse: one-thread.")]


@pytest.mark.parametrize("strict", [False, True])
def test_junit_shows_variants_as_tests(strict: bool) -> None:
    samples = stored.samples(points=(1, 4))
    broken = samples[0].model_validate({
        **samples[-1].model_dump(by_alias=True), "case": "ngram-chat-4", "variant": "ngram", "round": 5,
        "failure": {**stored.FAILURE, "class": "oom_gpu", "proof": "out of \x1b memory <&>", "expected": False},
    })  # fmt: skip
    samples = [s for s in samples if (s.case, s.round) != ("ngram-chat-4", 5)] + [broken]
    suites = ElementTree.fromstring(export("junit", samples, strict))
    assert [suite.get("name") for suite in suites] == ["chat@1", "chat@4"]
    at = [{str(test.get("name")): test for test in suite.iter("testcase")} for suite in suites]
    assert list(at[0]) == list(stored.NUMBERS)
    worse = {"one-thread"} if strict else set()
    assert having(at[0], "failure") == worse
    assert having(at[1], "failure") == worse | {"ngram"}
    assert having(at[0], "skipped") == {"too-many"}
    failure = at[1]["ngram"].find("failure")
    assert failure is not None and failure.get("type") == "oom_gpu"
    assert failure.text and "out of � memory <&>" in failure.text
    for suite in suites:
        assert int(str(suite.get("failures"))) == len(suite.findall("testcase/failure"))


def test_json_is_the_result_document() -> None:
    assert json.loads(export("json"))["schema"] == "gpurun.result/1"


def test_runs_are_filtered(tmp_path: Path) -> None:
    for campaign, day, status in (("nightly-a", 28, "done"), ("nightly-b", 29, "failed"), ("other", 30, "done")):
        known = {"campaign": campaign, "run": f"202611{day}-0300-a1f3", "status": status}
        manifest = MANIFEST.model_copy(update={**known, "started_at": f"2026-11-{day}T03:00:00Z"})
        RunStore.create(tmp_path, "", manifest)

    def listed(*words: str) -> list[str]:
        done = CliRunner().invoke(cli.gpurun, ["runs", "--results", str(tmp_path), "--json", *words])
        assert done.exit_code == 0, done.output
        return [run["campaign"] for run in json.loads(done.output)["runs"]]

    assert listed() == ["other", "nightly-b", "nightly-a"]
    assert listed("--campaign", "nightly*") == ["nightly-b", "nightly-a"]
    assert listed("--campaign", "nightly*", "--status", "done") == ["nightly-a"]
    assert listed("--since", "2026-11-29") == ["other", "nightly-b"]
    assert listed("--last", "1") == ["other"]
    assert listed("--status", "running") == []
