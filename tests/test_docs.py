"""The documents: every relative link leads somewhere, and nothing is left to fill in."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


def test_nothing_is_left_to_fill_in() -> None:
    for page in PAGES:
        assert re.findall(r"\b(?:DEMO|BENCH)_[A-Z]+\b", page.read_text()) == []
