"""The documentation as a site: it builds offline without a warning, and its pages hold together."""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import draw_concepts
import pytest
import write_cli_page
from markdown_it import MarkdownIt

from support.browser import CHROMIUM, browser

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
"""Tags that make a browser ask for something, and by which attribute."""
COUNTED = {"list_item_open": "li", "tr_open": "tr", "fence": "pre", "code_block": "pre"}
"""Tokens of CommonMark, in which the pages are written, and what they become."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without a network: every proxy leads nowhere."""
    folder = tmp_path_factory.mktemp("site")
    nowhere = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy")}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", **nowhere},
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


class Tags(HTMLParser):
    """Tags of a page: what they load, where they lead, and how many are in its article."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.leads: list[str] = []
        self.inside: Counter[str] = Counter()
        self._article = False
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self._article |= tag == "article"
        self.ids |= {values["id"] or ""} if "id" in values else set()
        if tag in LOADED and values.get(LOADED[tag]):
            self.loads.append(values[LOADED[tag]] or "")
        if tag == "a" and values.get("href"):
            self.leads.append(values["href"] or "")
        if self._article:
            self.inside[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        self._article &= tag != "article"


def pages(site: Path) -> Iterator[tuple[Path, Tags]]:
    for page in sorted(site.rglob("*.html")):
        yield page, Tags(page)


def test_no_page_asks_for_anything_elsewhere(site: Path) -> None:
    for page, tags in pages(site):
        assert [url for url in tags.loads if re.match(r"(\w+:)?//", url)] == [], page
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert re.findall(r"url\(['\"]?(?:https?:)?//[^)]*", styles) == []


def test_every_link_inside_the_site_leads_to_a_page_and_a_place_on_it(site: Path) -> None:
    found = dict(pages(site))
    assert len(found) > len(PAGES), "and the sources that they link to"
    for page, tags in found.items():
        for link in tags.leads:
            if "://" in link or page.name == "404.html":  # which is for servers
                continue
            target, _, anchor = link.partition("#")
            place = (page.parent / target).resolve() if target else page
            place = place / "index.html" if place.is_dir() else place
            assert place.is_file(), f"{page.name}: {link}"
            if anchor:
                assert anchor in found[place].ids, f"{page.name}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_laid_out_as_commonmark_says(page: Path, site: Path) -> None:
    """The generator's Markdown is another dialect: lists and code must not fall apart in it."""
    tokens = MarkdownIt("commonmark").enable("table").parse(page.read_text())
    expected = Counter(COUNTED[token.type] for token in tokens if token.type in COUNTED)
    name = page.relative_to(ROOT / "docs").with_suffix(".html")
    name = name.with_name("index.html") if name.stem == "README" else name
    shown = Tags(site / name).inside
    assert {tag: shown[tag] for tag in ("li", "tr", "pre")} == {
        tag: expected[tag] for tag in ("li", "tr", "pre")
    }


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_it_opens_from_disk_and_fits_a_phone(site: Path) -> None:
    with browser() as tab:
        for name in ("index", "tutorial", "concepts", "cli"):
            for width in (360, 1200):
                tab.open(site / f"{name}.html", width)
                assert tab.run("document.documentElement.scrollWidth") <= width, name
                assert all(url.startswith(("file:", "data:")) for url in tab.requests)
                assert tab.complaints == [], name
        pictures = "[...document.querySelectorAll('article img')].map(i => i.naturalWidth)"
        tab.open(site / "concepts.html")
        assert all(width > 300 for width in tab.run(pictures))
        tab.run("document.querySelector('.md-search__input').focus()")
        tab.call("Input.insertText", text="water-filling")
        found = "document.querySelector('.md-search-result__item a')"
        tab.wait_until(f"{found} !== null")
        assert "sampling.html" in tab.run(f"{found}.href"), "the search works without a server"


def test_generated_pages_and_pictures_are_up_to_date() -> None:
    assert write_cli_page.PAGE.read_text() == write_cli_page.page(), "tools/write_cli_page.py"
    for name, draw in draw_concepts.PICTURES.items():
        assert (draw_concepts.FIGURES / name).read_text() == draw(), "tools/draw_concepts.py"
