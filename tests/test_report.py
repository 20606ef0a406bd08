"""`faperf report`: what the site says, that it needs nothing else, and how it is in a real browser."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.synthetic import Synthetic, make
from faperf.report.pages import _thinned
from tests.conftest import Answer, cli_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ATTACK = "<script>window.hacked=1</script><img src=x onerror='window.hacked=1'>"
PAGES = ["index.html", "series.html", "compare.html", "peers.html", "machines.html", "versions/v2.html"]
REPORTED = f"""\
schema: 1
title: "A publication {ATTACK}"
url: https://example.invalid/
published: 2026-07-30
gpu: B300
target: sm_103a
operation: attention_forward
layout: BSHD
shape: {{B: 1, H: 2, S: 128, D: 64}}
workload_inferred: no
unknown: [clocks]
rows:
  - {{version: v1, parent: null, change: the first, tflops: 200.0}}
  - {{version: v2, parent: v1, change: "the second {ATTACK}", tflops: 150.0, cause: "it waits {ATTACK}", verdict: slower}}
"""


@dataclass
class Site:
    made: Synthetic
    folder: Path
    answer: Answer

    def text(self, page: str) -> str:
        return (self.folder / page).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Three versions over 90 commits, each with a change of speed, and texts that attack whoever shows them."""
    made = make(tmp_path_factory.mktemp("report") / "project", 90, 3, step_every=15)
    (made.root / "history/reported").mkdir()
    (made.root / "history/reported/other.yaml").write_text(REPORTED)
    manifest = made.root / "manifests/v2.yaml"
    text = manifest.read_text().replace("change number 1", f"change {ATTACK}")
    manifest.write_text(text.replace("They did.", f"They did. {ATTACK}"))
    answer = cli_in(made.root)("report", "--output", str(made.root / "out"))
    assert answer.exit_code == 0, answer.output
    return Site(made, made.root / "out", answer)


# ── what it says ──


def test_it_names_the_page_and_counts_the_commits(site: Site) -> None:
    assert f"{site.folder / 'index.html'}: 90 recorded commits" in site.answer.stdout


@pytest.mark.parametrize("page", PAGES)
def test_it_needs_nothing_but_its_own_files(site: Site, page: str) -> None:
    here = (site.folder / page).parent
    text = re.sub(r'<script type="application/json".*?</script>|&lt;.*?&gt;', "", site.text(page), flags=re.DOTALL)
    named = re.findall(r"""(?:src|href)=["']?([^"' >]+)""", text)
    assert len(named) > 5
    for target in named:
        if not target.startswith(("#", "data:")):
            assert "//" not in target
            assert (here / target.partition("#")[0]).is_file(), target


@pytest.mark.parametrize("page", PAGES)
def test_what_strangers_wrote_is_escaped(site: Site, page: str) -> None:
    assert "<script>window" not in site.text(page)
    assert "<img" not in site.text(page)


def test_it_does_say_what_strangers_wrote(site: Site) -> None:
    assert "They did. &lt;script&gt;window.hacked=1" in site.text("versions/v2.html")
    assert "it waits &lt;script&gt;" in site.text("index.html")


def test_measured_and_reported_are_apart_and_a_regression_has_its_cause(site: Site) -> None:
    text = site.text("index.html")
    reported = text.partition('id="sm_103a"')[2].partition("</section>")[0]
    assert "Reported elsewhere, not measured here" in reported
    assert "<h3>Measured</h3>" not in reported
    assert "throughput -25.0% (reported)" in reported
    measured = text.partition('id="sm_90a"')[2]
    assert "<h3>Measured</h3>" in measured
    assert "Reported elsewhere" not in measured


def test_a_version_has_its_facts_its_notes_and_its_diff(site: Site) -> None:
    text = site.text("versions/v2.html")
    for said in ("Fewer registers let a second CTA in.", "limited by registers", "HMMA 16x8x16 × 128", "relative L2"):
        assert said in text
    assert '<span class="removed">-// v1</span>' in text
    assert '<span class="added">+// v2</span>' in text
    assert 'href="v1.html"' in text
    assert 'href="v3.html"' in text


def test_every_change_point_stands_in_a_table(site: Site) -> None:
    text = site.text("series.html").partition('id="all-changes"')[2]
    commits = [commit for steps in site.made.steps.values() for commit, _ in steps]
    assert len(commits) == 6
    for commit in commits:
        assert commit[:12] in text


def test_a_project_without_records_has_a_site_too(tmp_path: Path, site: Site) -> None:
    shutil.copytree(site.made.root / "manifests", tmp_path / "manifests")
    answer = cli_in(tmp_path)("report")
    assert answer.exit_code == 0, answer.output
    assert (tmp_path / ".faperf/report/index.html").is_file()
    assert "No machine has measured yet" in (tmp_path / ".faperf/report/machines.html").read_text()


def test_it_is_written_again_over_what_is_there(site: Site) -> None:
    before = site.text("series.html")
    assert cli_in(site.made.root)("report", "--output", str(site.folder)).exit_code == 0
    assert re.sub("20..-..-.. ..:..", "", site.text("series.html")) == re.sub("20..-..-.. ..:..", "", before)


@pytest.mark.parametrize("library", ["plotly", "jinja2", "ruptures"])
def test_a_missing_library_is_named_with_the_way_to_get_it(site: Site, tmp_path: Path, library: str) -> None:
    (tmp_path / f"{library}.py").write_text("raise ImportError('No module named here')\n")
    shutil.copytree(site.made.root, tmp_path / "project", ignore=shutil.ignore_patterns("out", ".faperf"))
    answer = cli_in(tmp_path / "project")("report", env={"PYTHONPATH": str(tmp_path)})
    assert answer.exit_code == 1
    assert "pip install 'faperf[report]'" in answer.stderr


def test_a_folder_that_cannot_be_written(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answer = cli_in(site.made.root)("report", "--output", str(tmp_path / "file" / "site"))
    assert answer.exit_code == 1
    assert "cannot write" in answer.stderr
    assert "--output" in answer.stderr


def test_a_long_series_is_thinned_but_not_at_its_changes() -> None:
    kept = _thinned(10_001, [5_003])
    assert len(kept) < 2_010
    assert {0, 5_000, 5_001, 5_002, 5_003, 5_004, 5_005, 5_006, 10_000} <= set(kept)
    assert _thinned(2_000, []) == list(range(2_000))


# ── in a browser ──

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = os.environ.get("FAPERF_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("no Chromium here: apt-get install chromium, or name one in FAPERF_BROWSER")
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield launched
        launched.close()


class Visitor:
    """A page that keeps what went wrong on it, and whether anything was fetched from elsewhere."""

    def __init__(self, browser: Browser, site: Site, width: int, scheme: str = "light") -> None:
        assert scheme in ("light", "dark")
        self.site = site
        self.page: Page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
        self.wrong: list[str] = []
        self.page.on("console", lambda message: self.wrong.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on(
            "request", lambda r: None if r.url.startswith(("file:", "data:", "blob:")) else self.wrong.append(r.url)
        )

    def open(self, page: str) -> Page:
        self.page.goto((self.site.folder / page).as_uri())
        self.page.wait_for_function("document.readyState === 'complete'")
        return self.page


@pytest.fixture
def visitor(browser: Browser, site: Site) -> Iterator[Visitor]:
    opened = Visitor(browser, site, 1440)
    yield opened
    opened.page.close()
    assert opened.wrong == []


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_every_page_loads_cleanly_and_fits(browser: Browser, site: Site, width: int, scheme: str) -> None:
    visitor = Visitor(browser, site, width, scheme)
    for name in PAGES:
        page = visitor.open(name)
        if page.locator(".chart").count():
            page.locator(".chart .main-svg").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert page.evaluate("window.hacked") is None
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 28)"
        assert dark == (scheme == "dark")
    visitor.page.close()
    assert visitor.wrong == []


@pytest.mark.browser
def test_the_filters_of_the_ladder(visitor: Visitor) -> None:
    page = visitor.open("index.html")
    rows = page.locator("#t-sm_90a tbody tr:visible")
    assert rows.count() == 3
    page.locator("[data-filter='t-sm_90a']").fill("v3")
    assert rows.count() == 1
    assert page.locator("[data-count='t-sm_90a']").inner_text() == "1 of 3"
    page.locator("[data-filter='t-sm_90a']").fill("")
    page.locator("[data-flagged='t-sm_103a']").check()
    assert page.locator("#t-sm_103a tbody tr:visible").all_inner_texts()[0].startswith("v2")


@pytest.mark.browser
def test_a_bar_tells_its_change_and_its_cause_when_pointed_at(visitor: Visitor) -> None:
    page = visitor.open("index.html")
    page.locator("#reported-sm_103a").scroll_into_view_if_needed()
    box = page.locator("#reported-sm_103a .point").nth(1).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=3)
    said = page.locator("#reported-sm_103a .hovertext").text_content() or ""
    assert "v2: the second" in said
    assert "SLOWER -25.0% against v1" in said
    assert "it waits <script>" in said
    assert page.evaluate("window.hacked") is None


@pytest.mark.browser
def test_a_series_is_chosen_and_its_changes_are_marked(visitor: Visitor) -> None:
    page = visitor.open("series.html")
    for name in ("v2", "v1"):
        page.locator("select[name=version]").select_option(name)
        expected = [commit[:12] for commit, _ in visitor.site.made.steps[name]]
        page.wait_for_function(
            "commit => document.querySelector('#changes tbody th')?.textContent === commit", arg=expected[0]
        )
        assert page.locator("#changes tbody th").all_inner_texts() == expected
        assert page.locator("#points tbody tr").count() == 30
        assert "30 measurements, 2 change points" in page.locator("#series-note").inner_text()
        assert f"#{name}" in page.url
    page.reload()
    page.wait_for_function("document.querySelector('#changes tbody th')")
    assert page.locator("select[name=version]").input_value() == "v1"


@pytest.mark.browser
def test_two_commits_are_compared(visitor: Visitor) -> None:
    page, commits = visitor.open("compare.html"), visitor.site.made.commits
    page.locator("#pick-commits [name=a]").fill(commits[60])
    page.locator("#pick-commits [name=b]").fill(commits[62][:8])
    rows = page.locator("#commits-table tbody tr")
    page.wait_for_function("document.querySelectorAll('#commits-table tbody tr').length === 2")
    assert [text.split("\t")[0] for text in rows.all_inner_texts()] == ["v2 sm_90a", "v3 sm_90a"]
    page.locator("#pick-commits [name=b]").fill("nosuchcommit")
    assert "No recorded commit begins with nosuchcommit" in page.locator("#commits-note").inner_text()


@pytest.mark.browser
def test_two_versions_are_compared(visitor: Visitor) -> None:
    page = visitor.open("compare.html")
    page.locator("#pick-versions [name=a]").select_option("v1")
    page.locator("#pick-versions [name=b]").select_option("v3")
    heads = page.locator("#versions-table thead th")
    assert heads.all_inner_texts() == ["target", "fact", "v1", "v3"]
    assert "CTAs/SM" in page.locator("#versions-table").inner_text()


@pytest.mark.browser
def test_the_keyboard_suffices(visitor: Visitor) -> None:
    page = visitor.open("index.html")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.tagName + '.' + document.activeElement.className"))
    assert {"A.", "INPUT.", "DIV.scroll"} <= reached
