"""Figures of commands as pages, opened in a real Chromium: their numbers, and no request."""

from pathlib import Path

import pytest

from hofl.reporting.figures import Bars, Line, Panel, write_bars, write_panels
from support.browser import CHROMIUM, browser

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
CELLS = """[...document.querySelectorAll("#ID tbody tr")]
    .map(line => [...line.children].map(cell => cell.textContent))"""


def test_pages_of_lines_and_bars_show_what_they_were_given(tmp_path: Path) -> None:
    lines = [Line("a </script>", [0.0, 1.0], [2.0, 3.5], mark=1), Line("b", [0.0, 2.0], [1.0, 4.0])]
    write_panels([Panel("scores", "round", "%", lines)] * 2, tmp_path / "lines.html")
    counts = [[3, 1], [0, 4], [2, 2]]
    write_bars(Bars("shares", "client", "examples", ["x", "y"], counts), tmp_path / "bars.html")
    with browser() as tab:
        for width in (360, 1200):
            tab.open(tmp_path / "lines.html", width)
            for name in ("panel-0", "panel-1"):
                assert tab.run(CELLS.replace("ID", name)) == [
                    ["a </script>", "0", "2", "false"],
                    ["a </script>", "1", "3.5000", "true"],
                    ["b", "0", "1", "false"],
                    ["b", "2", "4", "false"],
                ]
                paths = f"#{name} svg [aria-label=line] path"
                assert tab.run(f"document.querySelectorAll('{paths}').length") == 2
            assert tab.run("document.documentElement.scrollWidth") <= width
            assert len(tab.requests) == 1
            assert tab.complaints == []
            tab.open(tmp_path / "bars.html", width)
            heights = tab.run("""[...document.querySelectorAll("#bars svg [aria-label=bar] rect")]
                .map(bar => Number(bar.getAttribute("height")))""")
            shown = [count for row in counts for count in row]
            drawn = sorted(height / max(heights) * max(shown) for height in heights)
            assert drawn == pytest.approx(sorted(shown), abs=0.35), "a pixel of inset at most"
            assert tab.run("document.documentElement.scrollWidth") <= width
            assert tab.complaints == []
