"""A comparison on the terminal: every number whole in 80 columns, and no certainty by luck."""

import io
import re

import pytest
from rich.console import Console

from hofl.cli.tables import show_table
from hofl.reporting.cells import Cell
from hofl.reporting.rows import table_of
from hofl.reporting.tables import plain_table
from support.cells import cell

GRID = {"method.optimizer.lr": 0.01, "method.optimizer.weight_decay": 0.25}


def shown(cells: list[Cell], width: int) -> str:
    file = io.StringIO()
    show_table(Console(width=width, file=file), table_of(cells), target=0.5)
    return file.getvalue()


@pytest.mark.parametrize("width", [80, 200])
def test_no_number_is_cut_off_or_broken(width: int) -> None:
    cells = [
        cell("frozen-bottom", seed, 0.7123 + 0.01 * seed, held_out=0.5, config={**GRID, key: rate})
        for seed in (1, 2)
        for key in GRID
        for rate in (0.125, 0.0625)
    ]
    cells += [
        cell("hofl", seed, 0.8 - 0.015 * seed**2, held_out=0.5, loss=0.5 * seed) for seed in (1, 2)
    ]
    text = shown(cells, width)
    assert "…" not in text
    tables = (line for line in text.splitlines() if not line.startswith("apart:"))
    assert max(map(len, tables)) <= width
    words = text.split()
    for number in ("72.73", "(0.71)", "0.7500", "(0.3536)", "0.5000", "optimizer.lr=0.0625"):
        assert number in words, number
    (interval,) = re.findall(r"apart: from (.+), paired by seed", text)
    assert interval.startswith("frozen-bottom")


def test_seeds_that_differ_alike_make_no_interval() -> None:
    """Two seeds, each with three answers more of 200: luck, and not a deviation of zero."""
    cells = [cell("hofl", seed, 0.5 + 0.1 * seed) for seed in (1, 2)]
    cells += [cell("fedavg", seed, 0.515 + 0.1 * seed) for seed in (1, 2)]
    found = plain_table(table_of(cells))["groups"][0]["rows"][1]["difference"]
    assert found["mean"] == pytest.approx(0.015)
    assert (found["low"], found["high"], found["p_value"]) == (None, None, None)
    assert "+1.50 in every seed" in shown(cells, 120)
