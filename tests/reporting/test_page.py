"""Reports opened in a real Chromium: what is drawn, switched, saved, and never asked for."""

import base64
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hofl.core.errors import HoflError
from hofl.reporting.html import report as write_report
from support.browser import CHROMIUM, Browser, browser
from support.written_runs import write_run

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
FIGURES = ["curves", "pareto", "memory", "participation", "boundaries", "signal"]
SEEDS = (5, 6, 7)
HOSTILE = "</script><script>document.title = 'taken over'</script>"
LEVELS = {"fedavg": 0.75, "hofl": 0.68, "frozen-bottom": 0.6}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods x three seeds, one unfinished, one damaged, one that is not comparable."""
    runs = tmp_path_factory.mktemp("runs")
    for method, level in LEVELS.items():
        for seed in SEEDS:
            write_run(runs / f"a-{method}-{seed}", method, seed, level)
    write_run(runs / "a-fedavg-8", "fedavg", 8, rounds=2)
    write_run(runs / "b", "recompute", 5, rounds=3)
    damaged = write_run(runs / "c", "decomfl", 5)
    text = (damaged / "metrics.jsonl").read_text()
    (damaged / "metrics.jsonl").write_text(text.replace('"round": 2,', '"round": 7,', 1))
    write_run(runs / "d", "hofl", 5, task={"batch_size": 8})
    answer = {"prompt": "Say it.", "expected": "it", "before": HOSTILE, "after": "it\nis said"}
    (runs / "a-hofl-5" / "samples.json").write_text(json.dumps({"answers": [answer]}))
    (runs / "a-hofl-6" / "samples.json").write_text('{"answers": 3}')
    return runs


@pytest.fixture(scope="module")
def report(folder: Path) -> Path:
    path = folder.parent / "report.html"
    write_report([folder], path, title=HOSTILE)
    return path


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as one:
        yield one


def shown(tab: Browser, figure: str) -> list[dict[str, str]]:
    """The rows of the table behind a figure."""
    return tab.run(f"""(() => {{
        const lines = [...document.querySelectorAll("#{figure} table tr")]
            .map(line => [...line.children].map(cell => cell.textContent));
        return lines.slice(1).map(l => Object.fromEntries(l.map((t, k) => [lines[0][k], t])));
    }})()""")


def choose(tab: Browser, figure: str, name: str, value: str) -> None:
    tab.run(f"""(() => {{
        const select = document.querySelector("#{figure} select[name={name}]");
        select.value = "{value}";
        select.dispatchEvent(new Event("change"));
    }})()""")


def rounds_of(folder: Path, method: str) -> list[list[dict[str, Any]]]:
    """The lines of the metrics of each seed, by the standard library alone."""
    files = [folder / f"a-{method}-{seed}" / "metrics.jsonl" for seed in SEEDS]
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def test_every_figure_is_drawn_without_network_or_complaint(tab: Browser, report: Path) -> None:
    tab.open(report)
    for name in FIGURES:
        label = tab.run(f"document.querySelector('#{name} svg[role=img]').ariaLabel")
        assert "The data follow as a table" in label
        shapes = f"document.querySelectorAll('#{name} svg :is(path, rect, circle)').length"
        assert tab.run(shapes) > 5
    assert tab.requests == [report.resolve().as_uri()]
    assert tab.complaints == []
    assert tab.run("document.title") == HOSTILE, "names are text, never markup"
    assert report.stat().st_size < 700_000


def test_sample_answers_are_shown_as_text(tab: Browser, report: Path) -> None:
    tab.open(report)
    shown = tab.run("[...document.querySelectorAll('.answers td')].map(cell => cell.textContent)")
    assert shown == ["Say it.", "it", HOSTILE, "it\nis said"]
    assert tab.run("document.querySelector('.answers summary').textContent").startswith("hofl")
    assert tab.run("document.title") == HOSTILE


def test_curves_are_means_and_deviations_of_the_runs(
    tab: Browser, report: Path, folder: Path
) -> None:
    tab.open(report)
    points = [point for point in shown(tab, "curves") if point["row"] == "fedavg"]
    scores = np.array([[r["eval"]["accuracy"] for r in run] for run in rounds_of(folder, "fedavg")])
    mean, spread = 100 * scores.mean(axis=0), 100 * scores.std(axis=0, ddof=1)
    assert {point["seeds"] for point in points} == {"3"}, "the unfinished seed is left out"
    assert [float(point["mean"]) for point in points] == pytest.approx(mean, rel=1e-4)
    assert [float(point["high"]) for point in points] == pytest.approx(mean + spread, rel=1e-4)
    assert [float(point["low"]) for point in points] == pytest.approx(mean - spread, rel=1e-4)


@pytest.mark.parametrize(
    ("axis", "key"), [("examples", "examples"), ("uplink", "uplink_bytes"), ("seconds", "seconds")]
)
def test_the_axis_of_curves_can_be_switched(
    axis: str, key: str, tab: Browser, report: Path, folder: Path
) -> None:
    tab.open(report)
    before = tab.run("document.querySelector('#curves svg').outerHTML")
    choose(tab, "curves", "x", axis)
    assert tab.run("document.querySelector('#curves svg').outerHTML") != before
    points = [point for point in shown(tab, "curves") if point["row"] == "hofl (table 1)"]
    sums = np.cumsum([[r[key] for r in run] for run in rounds_of(folder, "hofl")], axis=1)
    assert [float(point["x"]) for point in points] == pytest.approx(sums.mean(axis=0), rel=1e-4)
    assert tab.complaints == []


def test_the_frontier_is_that_of_trying_all_pairs(tab: Browser, report: Path) -> None:
    tab.open(report)
    choose(tab, "pareto", "x", "uplink")
    points = {p["row"]: (float(p["x"]), float(p["y"])) for p in shown(tab, "pareto")}
    assert len(points) == len(LEVELS), "rows of the other table are left out"
    found = {p["row"] for p in shown(tab, "pareto") if p["frontier"] == "true"}
    best = {
        name
        for name, (x, y) in points.items()
        if not any(a <= x and b >= y and (a, b) != (x, y) for a, b in points.values())
    }
    assert found == best
    assert best != set(points)


def test_the_table_says_what_is_sure_what_failed_and_what_is_not_comparable(
    tab: Browser, report: Path
) -> None:
    tab.open(report)
    text = tab.run("document.body.innerText")
    assert "recompute, seed 5: unfinished, 3 of 6 rounds" in text
    assert "decomfl, seed 5: failed" in text
    assert "is damaged in line 3, round 2" in text
    assert "Not comparable with table 1 (task.batch_size: 8 instead of 4)" in text
    cells = tab.run("[...document.querySelectorAll('.scores td')].map(c => c.textContent)")
    assert any("[" in cell and cell.endswith("*") for cell in cells)
    keys = tab.run("[...document.querySelectorAll('td')].map(c => c.textContent)")
    assert {"method.name", "task.batch_size"} <= set(keys)
    origin = tab.run("document.querySelector('.origin').textContent")
    assert "digest" in origin
    assert "method.name = " in origin
    assert '"packages"' in origin


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_runs_over_the_edge_and_text_can_be_read(
    width: int, dark: bool, tab: Browser, report: Path
) -> None:
    tab.open(report, width, dark=dark)
    tab.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    tab.settle()
    assert tab.run("document.documentElement.scrollWidth") <= width
    wide = tab.run("""[...document.querySelectorAll("main *")]
        .filter(e => !e.closest(".scroll, pre") && e.getBoundingClientRect().width > 0)
        .filter(e => e.getBoundingClientRect().right > innerWidth + 1)
        .map(e => e.outerHTML.slice(0, 80))""")
    assert wide == []
    for selector in ("body", ".soft", ".bad", "figure p", "button"):
        ink, ground = tab.run(f"""(() => {{
            let node = document.querySelector("{selector}");
            const ink = getComputedStyle(node).color;
            const ground = () => getComputedStyle(node).backgroundColor;
            while (ground() === "rgba(0, 0, 0, 0)") node = node.parentElement;
            return [ink, ground()];
        }})()""")
        assert contrast(ink, ground) >= 4.5, selector
    assert tab.complaints == []


def test_fleets_that_differ_are_named_in_a_few_words_that_fit_a_phone(
    tab: Browser, tmp_path: Path
) -> None:
    """A fleet's list has an entry for every client, and no place to break a line."""
    for name, boundary in (("a", 1), ("b", 2)):
        fleet = {"clients": 60, "cohort": 3, "boundaries": [boundary] * 60}
        write_run(tmp_path / name, "hofl", 5, fleet=fleet)
    write_report([tmp_path], tmp_path / "r.html")
    tab.open(tmp_path / "r.html", 360)
    assert tab.run("document.documentElement.scrollWidth") <= 360
    (reason,) = tab.run("[...document.querySelectorAll('p.bad')].map(p => p.textContent)")
    assert "fleet.boundaries: 60 entries, [2,2,2" in reason
    assert "... instead of 60 entries, [1,1,1" in reason
    assert len(reason) < 250


def test_long_names_fit_a_phone_and_ticks_are_round(tab: Browser, tmp_path: Path) -> None:
    """A grid's labels are long, and a run is chosen by one; numbers stay in sight beside them."""
    for rate in (0.0125, 0.0375):
        options = {"name": "frozen-bottom", "optimizer": {"lr": rate, "weight_decay": rate}}
        write_run(tmp_path / f"run-{rate}", "frozen-bottom", 5, method=options)
    write_report([tmp_path], tmp_path / "r.html")
    tab.open(tmp_path / "r.html", 360)
    longest = tab.run("document.querySelector('#participation option').textContent")
    assert len(longest) > 40
    assert tab.run("document.documentElement.scrollWidth") <= 360
    assert tab.run("document.querySelector('.scores th[scope=row]').offsetWidth") < 220
    tab.open(tmp_path / "r.html", 1200)
    labels = "#memory svg [aria-label*='x-axis tick label'] text"
    ticks = tab.run(f"""[...document.querySelectorAll("{labels}")].map(one => one.textContent)""")
    assert ticks == [f"{size} MiB" for size in range(0, 801, 200)]


def contrast(first: str, second: str) -> float:
    """The ratio of the Web Content Accessibility Guidelines, of colours such as rgb(1, 2, 3)."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in colour[4:-1].split(",")]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))

    low, high = sorted([luminance(first), luminance(second)])
    return (high + 0.05) / (low + 0.05)


def test_controls_can_be_reached_by_keyboard_and_have_names(tab: Browser, report: Path) -> None:
    tab.open(report)
    unnamed = tab.run("""[...document.querySelectorAll("select, button")]
        .filter(e => !(e.ariaLabel || e.closest("label")?.textContent.trim())).length""")
    assert unnamed == 0
    tags = set()
    for _ in range(12):
        for kind in ("keyDown", "keyUp"):
            tab.call(
                "Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9
            )
        tags.add(tab.run("document.activeElement.tagName"))
    assert {"SELECT", "BUTTON"} <= tags
    assert tab.run("document.querySelectorAll('h1').length") == 1
    assert tab.run("document.documentElement.lang") == "en"


def test_figures_can_be_saved(tab: Browser, report: Path) -> None:
    tab.open(report)
    for name in FIGURES:
        text = tab.run(f"svgText(document.querySelector('#{name} svg[role=img]'))")
        assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
        image = tab.run(f"""pngOf(document.querySelector('#{name} svg[role=img]'))
            .then(blob => new Promise(go => {{
                const reader = new FileReader();
                reader.onload = () => go(reader.result);
                reader.readAsDataURL(blob);
            }}))""")
        assert base64.b64decode(image.split(",")[1]).startswith(b"\x89PNG")
    rows = [{"a": 'x, "y"', "b": None, "c": "=1+1", "d": -1.5}]
    assert tab.run(f"csv({json.dumps(rows)})") == 'a,b,c,d\n"x, ""y""",,\'=1+1,-1.5\n'
    assert tab.complaints == []


def test_a_folder_of_comparisons_is_one_page_with_the_names_of_their_runs(
    tab: Browser, tmp_path: Path
) -> None:
    """As a scaled recipe of the paper leaves them."""
    cells = '[[cells]]\nname = "default-seed-5"\nlabel = "default"\nseed = 5\n'
    for block in ("first", "second"):
        run = tmp_path / "study" / block / "cells" / "default-seed-5"
        write_run(run, "hofl", 5, name=f"{block}, scaled", task={"max_length": 9 + len(block)})
        (tmp_path / "study" / block / "comparison.toml").write_text(cells)
    write_report([tmp_path / "study"], tmp_path / "r.html")
    tab.open(tmp_path / "r.html")
    heads = tab.run("[...document.querySelectorAll('#results h3')].map(one => one.textContent)")
    assert heads == ["Table 1: first, scaled", "Table 2: second, scaled"]


@pytest.mark.parametrize(
    ("out", "message"),
    [("r.txt", "end it in .html"), ("no/where/r.html", "is not a folder")],
)
def test_a_target_that_cannot_be_written_is_one_line(
    out: str, message: str, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(HoflError, match=message):
        write_report([folder], tmp_path / out)
    with pytest.raises(HoflError, match="and holds none"):
        write_report([tmp_path], tmp_path / "r.html")
    assert list(tmp_path.iterdir()) == []
