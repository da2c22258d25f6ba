"""The report in a real browser: nothing is loaded, nothing is logged, tables sort, it prints, anyone can read it."""

from __future__ import annotations

import os
import re
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit import stored

from gpurun import report
from gpurun.store import RunStore

RUN = Path(__file__).parents[1] / "fixtures" / "runs" / "cache.tar.xz"
HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Root (as in CI) has no sandbox; what is opened is our own file.
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"] * (os.geteuid() == 0))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a real run."""
    folder = tmp_path_factory.mktemp("real")
    with tarfile.open(RUN) as archive:
        archive.extractall(folder, filter="data")
    (directory,) = folder.iterdir()
    return report.write(RunStore.open(directory))


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run with GPUs, sensors, two hosts, and text that would like to be code."""
    folder, hosts = tmp_path_factory.mktemp("made-up"), ("gpu-1", "gpu-2")
    few = {name: series[:3] for name, series in stored.NUMBERS.items()}
    return report.write(stored.run(folder, few, (1, 16), hosts, requests=8, hostile=HOSTILE))


class Opened:
    """The page in a context of its own; what it requests and what it logs is kept."""

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **options})
        self.page, self.requests, self.logged = self.context.new_page(), list[str](), list[str]()
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.logged.append(message.text))
        self.page.on("pageerror", lambda error: self.logged.append(str(error)))
        self.page.goto(file.as_uri())

    def __enter__(self) -> Any:
        return self.page

    def __exit__(self, *_: object) -> None:
        self.context.close()


def column(page: Any, number: int) -> list[str]:
    texts = page.locator("table").first.locator(f"tbody tr > :nth-child({number})").all_inner_texts()
    return [text.strip() for text in texts]


def numbers(texts: list[str]) -> list[float]:
    return [float(text.replace("\N{MINUS SIGN}", "-").replace(" ", "")) for text in texts if text != "—"]


def test_nothing_is_loaded_or_logged_and_no_text_becomes_code(browser: Any, file: Path, made_up: Path) -> None:
    for each, name in ((file, "cache"), (made_up, "quickstart")):
        opened = Opened(browser, each)
        with opened as page:
            assert [url for url in opened.requests if not url.startswith("data:")] == [each.as_uri()]
            assert opened.logged == []
            assert page.title().startswith(f"{name}: ")
            assert page.locator("img").count() == 0
            if each is made_up:
                assert HOSTILE in page.inner_text(".lead")


def test_tables_sort_by_what_they_mean(browser: Any, file: Path) -> None:
    with Opened(browser, file) as page:
        button = page.locator("table").first.get_by_role("button", name="output tok/s")
        before = numbers(column(page, 4))
        button.click()
        texts = column(page, 4)
        assert numbers(texts) == sorted(before) != before
        assert texts[-1] == "—"
        button.press("Enter")
        texts = column(page, 4)
        assert numbers(texts) == sorted(before, reverse=True)
        assert texts[-1] == "—"
        assert page.locator("table").first.locator("th[aria-sort=descending]").count() == 1


def test_everything_is_there_without_scripts(browser: Any, file: Path) -> None:
    with Opened(browser, file, java_script_enabled=False) as page:
        assert page.locator("table caption").count() == page.locator("table").count() >= 7
        assert page.locator("svg").count() == 4
        assert page.locator("th button").count() == 0


def test_dark_mode(browser: Any, file: Path) -> None:
    seen = {}
    for scheme in ("light", "dark"):
        with Opened(browser, file, color_scheme=scheme) as page:
            seen[scheme] = [
                page.evaluate("getComputedStyle(document.body).backgroundColor"),
                page.evaluate("getComputedStyle(document.querySelector('svg text')).fill"),
            ]
    assert all(light != dark for light, dark in zip(*seen.values(), strict=True))


def test_it_prints(browser: Any, file: Path, tmp_path: Path) -> None:
    with Opened(browser, file, color_scheme="dark") as page:
        page.pdf(path=tmp_path / "report.pdf", format="A4", print_background=True)
        page.emulate_media(media="print", color_scheme="dark")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not page.locator("nav").first.is_visible()
    pages = len(re.findall(rb"/Type\s*/Page\b", (tmp_path / "report.pdf").read_bytes()))
    assert 3 <= pages <= 30


@pytest.mark.parametrize("width", [350, 420, 1400])  # 1400 pixels at 400 % are 350
def test_only_tables_and_charts_scroll_sideways(browser: Any, file: Path, width: int) -> None:
    with Opened(browser, file, viewport={"width": width, "height": 900}) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        # Nothing sticks out of the page but what lies in a region of its own that can be focused and scrolled.
        script = """[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, details:not([open])')
          && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"""
        assert page.evaluate(script) == []


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (420, "dark")])
def test_axe_finds_nothing_serious(browser: Any, file: Path, made_up: Path, width: int, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    each = file if scheme == "light" else made_up
    with Opened(browser, each, color_scheme=scheme, viewport={"width": width, "height": 900}, bypass_csp=True) as page:
        page.evaluate("document.querySelectorAll('details').forEach(e => e.open = true)")
        found = Axe().run(page).response
    assert len(found["passes"]) > 20
    serious = [
        (one["id"], [node["html"][:120] for node in one["nodes"][:3]])
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]
    assert serious == []
