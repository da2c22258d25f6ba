"""The report and the log: what they say, that nothing gets out of its place, equal bytes for equal results.

The Markdown log is golden: GPURUN_UPDATE_GOLDEN=1 rewrites it; look at the difference before committing it.
"""

from __future__ import annotations

import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit import stored

from gpurun import cli, report
from gpurun.report import charts
from gpurun.report.view import look
from gpurun.samples import Sample
from gpurun.store import RunStore

GOLDEN = Path(__file__).parent.parent / "golden" / "report"
SECRET = "hf_pl4nted-s3cret"
FEW = {name: series[:3] for name, series in stored.NUMBERS.items()}
HOSTILE = f"</script><script>document.title='taken'</script><img src=x onerror=alert(1)>\x1b[31m|`<b>{SECRET}"


class Reader(HTMLParser):
    """Collects tags, their attributes and the text between."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    return reader


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    return stored.run(tmp_path_factory.mktemp("results"), points=(1, 16), hosts=("gpu-1", "gpu-2"), requests=8)


@pytest.fixture(scope="module")
def page(store: RunStore) -> str:
    report.write(store)
    return (store.directory / "report.html").read_text()


def test_the_markdown_log(store: RunStore) -> None:
    said, path = report.markdown(look(store)), GOLDEN / "log.md"
    if os.environ.get("GPURUN_UPDATE_GOLDEN"):
        path.write_text(said, encoding="utf-8")
    assert said == path.read_text(encoding="utf-8")


def test_equal_results_make_equal_bytes(store: RunStore, page: str) -> None:
    """Also for a page that is not the first that this process draws."""
    assert report.page([look(store)]) == page
    assert report.page([look(RunStore.open(store.directory))]) == page


def test_one_page_has_every_section_with_table_before_chart(page: str) -> None:
    reader = read(page)
    told = ["Answer", "Effects", "Throughput and latency", "Latencies", "Rounds", "Telemetry", "Failures"]
    told += ["What each variant changed", "Fingerprint", "Run it again"]
    at = [reader.text.index(f"\n{title}\n") for title in told]
    assert at == sorted(at)
    tags = [tag for tag, _ in reader.tags]
    assert tags.count("table") == tags.count("caption") >= 8
    assert tags.count("svg") == 5
    assert tags.index("table") < tags.index("svg")
    assert all(attributes.get("scope") for tag, attributes in reader.tags if tag == "th")
    assert all("aria-labelledby" in attributes for tag, attributes in reader.tags if tag == "svg")
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = {str(attributes["href"]) for tag, attributes in reader.tags if tag == "a"}
    assert links and {link.removeprefix("#") for link in links} <= set(ids)


def test_no_address_leads_elsewhere(page: str) -> None:
    names = {"src", "href", "xlink:href", "action", "poster", "data", "srcset"}
    for tag, attributes in read(page).tags:
        for name in names & attributes.keys():
            assert str(attributes[name]).startswith(("#", "data:,")), (tag, attributes)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)


def test_hostile_text_stays_text_and_a_secret_is_in_nothing(tmp_path: Path) -> None:
    store = stored.run(tmp_path, FEW, requests=4, hostile=HOSTILE, secrets=[SECRET])
    report.write(store)
    run = CliRunner()
    for kind in ("csv", "json", "junit", "parquet"):
        done = run.invoke(
            cli.gpurun, ["export", "last", "--format", kind, "--results", str(tmp_path), "-o", str(tmp_path / kind)]
        )
        assert done.exit_code == 0, done.output
    outputs = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(outputs) > 60
    for path in outputs:
        assert SECRET.encode() not in path.read_bytes(), path
    page = (store.directory / "report.html").read_text()
    reader = read(page)
    tags = [tag for tag, _ in reader.tags]
    assert "img" not in tags
    assert tags.count("script") == 1
    assert "document.title='taken'" in reader.text  # it is shown, as text
    assert "[secret]" in reader.text
    assert "\x1b" not in (store.directory / "report.md").read_text() + page
    log = (store.directory / "report.md").read_text()
    outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", re.sub(r"```console.*?```", "", log, flags=re.DOTALL))
    assert not re.search(r"(?<!\\)<", outside)


def test_the_band_the_axis_and_what_is_beyond_it(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers that the chart of effects is drawn from."""
    drawn: dict[str, object] = {}
    monkeypatch.setattr(charts.Drawing, "_draw", lambda self, name, title, told, **values: drawn.update(values))
    charts.Drawing().effects(look(store), "")
    assert drawn["band"] == [{"from": 1 / 1.02, "to": 1.02}]
    low, high = drawn["domain"]  # type: ignore[misc]
    assert low * high == pytest.approx(1)  # half and double are equally far
    assert low < 0.636 < 1.2 < high
    assert 1.0 in drawn["ticks"]  # type: ignore[operator]
    assert [row["name"] for row in drawn["rows"]] == drawn["names"]  # type: ignore[attr-defined]


def test_the_pareto_line_has_what_nothing_beats(store: RunStore) -> None:
    points = look(store).tradeoff()["chat"]
    for point in points:
        beaten = any(
            other["latency"] <= point["latency"] and other["throughput"] > point["throughput"] for other in points
        )
        assert point["pareto"] is not beaten
    assert {point["variant"] for point in points if point["pareto"]} == {"ngram"}


def test_a_run_without_charts_to_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing measured, no plan of cases, no campaign text, no Vega: there is a page all the same."""
    none = stored.run(tmp_path, {"baseline": [None] * 3, "other": [None] * 3})
    (none.directory / "campaign.yml").write_text("{")
    page = report.page([look(none)])
    assert "<svg" not in page
    assert "No variant could be measured" in page or "Nothing can be compared" in page
    monkeypatch.setitem(__import__("sys").modules, "vl_convert", None)
    some = stored.run(tmp_path / "b", FEW)
    assert "could not be drawn here" in report.page([look(some)])


def test_sensors_of_all_gpus_are_one_and_no_mask_is_averaged(store: RunStore) -> None:
    table = {name: told for host, name, *told in look(store).sensors_table() if host == "gpu-1"}
    assert list(table) == ["GPU power_w", "GPU sm_mhz", "GPU temperature_c", "cpu_percent"]
    assert table["GPU temperature_c"] == [{1: 54, 2: 60, 3: 66, 4: 72, 5: 78}, 54, 78]


def test_damaged_files_of_a_sample_do_no_harm(tmp_path: Path) -> None:
    store = stored.run(tmp_path, requests=4)
    damaged: list[Sample] = [sample for sample in store.samples() if sample.variant == "ngram"]
    for sample, content in zip(
        damaged, ("{", "[]", '{"schema": "gpurun.load/1"}', "\x00", '{"schema": 3}'), strict=True
    ):
        store.file(sample, "raw.json").write_text(content)
        store.file(sample, "telemetry.csv").write_bytes(b"\xff\x00time,gpu\n1\n")
    assert {point["variant"] for point in look(store).requests.points} == {"baseline", "one-thread", "flash-attn"}


def test_the_verb_writes_one_run_or_a_page_on_several(tmp_path: Path, store: RunStore) -> None:
    other = stored.run(tmp_path, FEW, requests=4)
    manifest = (other.directory / "manifest.json").read_text().replace("20261130-1204-a1f3", "20261130-1300-b2e4")
    moved = other.directory.rename(other.directory.with_name("20261130-1300-b2e4"))
    (moved / "manifest.json").write_text(manifest)
    run = CliRunner()
    done = run.invoke(cli.gpurun, ["report", "last", "--results", str(tmp_path)])
    assert done.output.strip() == str(moved / "report.html")
    assert (moved / "report.md").is_file()
    done = run.invoke(cli.gpurun, ["report", str(store.directory), "last", "--results", str(tmp_path)])
    assert done.output.strip() == str(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "20261130-1300-b2e4 against 20261130-1204-a1f3" in page
    assert len({attributes["id"] for _, attributes in read(page).tags if "id" in attributes}) == page.count(' id="')
    assert run.invoke(cli.gpurun, ["report", "last", "-o", "x.pdf", "--results", str(tmp_path)]).exit_code == 2
    target = tmp_path / "both.md"
    assert run.invoke(cli.gpurun, ["report", "last", "-o", str(target), "--results", str(tmp_path)]).exit_code == 0
    assert target.read_text().startswith("# quickstart: run 20261130-1300-b2e4")
