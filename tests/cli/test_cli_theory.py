"""``hofl theory``: what it prints, its JSON and figures, and one line for every mistake."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hofl.cli.commands import app
from hofl.core.errors import HoflError

SMALL = ["theory", "--clients", "6", "--cohort", "2", "--dims", "0,4,12", "--q", "1"]


def output(*words: str) -> str:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def study(*words: str) -> dict[str, Any]:
    return json.loads(output(*words, "--json"))


def test_paper_fleet_shows_bound_best_beta_special_cases_and_failed_assumptions():
    text = output("theory")
    for piece in (
        "311,297",  # 1 + 16 blocks * 38,912 / 2
        "Best beta among those with",
        "HO-SFL: equal boundaries",
        "FedAvg: d_ZO = 0",
        "pure ZO: d_ZO = d",
        "fails: horizon T >= C_star D: 160",
        "fails: radius mu",
        "fails: skew a_H chi^2 <= 1/12: 0.0845, limit 0.08333 (beta = 0.65 to 0.90)",
    ):
        assert piece in text


def test_nothing_is_cut_off_on_a_terminal_of_80_columns():
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["theory"], catch_exceptions=False)
    assert "…" not in result.output
    shown = next(line for line in result.output.splitlines() if line.split()[:1] == ["0.50"])
    expected = ["0.50", "233,473", "1.000", "3.27e-05", "1.4e-08"]
    assert shown.split()[:5] == expected
    assert len(shown.split()) == 8


def test_the_largest_beta_that_the_floor_allows_is_included():
    for epsilon in ("0.106", "0.1", "0.994", "1"):
        rows = study(*SMALL, "--epsilon", epsilon)["policies"]
        assert rows[-1]["beta"] == pytest.approx(1 - float(epsilon))


def test_json_holds_what_a_small_fleet_gives_by_hand():
    """Dims 0, 4, 12 twice over, q = 1: D = 1 + 16/3 at beta = 0; the K = 2 clients of d = 0 win."""
    found = study(*SMALL, "--epsilon", "0.5", "--rounds", "100")
    rows = found["policies"]
    assert [rows[0]["beta"], rows[-1]["beta"]] == [0, 0.5]
    assert rows[0]["D"] == pytest.approx(1 + 16 / 3)
    assert rows[-1]["D"] == pytest.approx(1 + 8 / 3)
    assert rows[-1]["chi2"] == pytest.approx(0.25 * (6 / 2 - 1))
    assert rows[0]["eta"] == pytest.approx(1 / (5 * (100 * (1 + 16 / 3)) ** 0.5))
    assert found["C_0"] == 1 + (30 + 24) * (32 * 6 + 8 + 2) + 54 * 6 + 12
    fedavg = found["special_cases"]["FedAvg: d_ZO = 0"][0]
    assert fedavg == pytest.approx((4 + 8 * found["C_0"]) / 10)


def test_best_beta_falls_as_zeta_rises():
    best = study(*SMALL, "--zeta2", "0,0.001,0.01,0.1,1", "--affine", "0")["best_beta"]
    theorem = next(betas for name, betas in best.items() if name.startswith("theorem at"))
    assert theorem == sorted(theorem, reverse=True)
    assert theorem[0] == pytest.approx(0.9)
    assert theorem[-1] < 0.1


def test_best_beta_keeps_to_the_skew_the_theorem_allows():
    """a_H = 0.05, N/K = 5: 0.05 * 4 beta^2 <= 1/12 means beta <= 0.645."""
    best = study("theory", "--zeta2", "0", "--affine", "0.05")["best_beta"]
    *common, own_floor = best.values()
    assert common == [[pytest.approx(0.64)]] * 3
    assert own_floor == [0]


def test_a_first_order_fleet_needs_no_radius_and_prefers_nobody():
    found = study("theory", "--boundaries", "0")
    assert found["policies"][0]["mu_max"] is None
    assert not any("radius" in line for line in found["failures"])
    assert all(beta == 0 for betas in found["best_beta"].values() for beta in betas)


@pytest.mark.parametrize(
    ("name", "opening"),
    [("b.html", b"<!doctype html>"), ("b.png", b"\x89png"), ("b.svg", b"<?xml")],
)
def test_figure_is_written_in_the_kind_its_name_says(name: str, opening: bytes, tmp_path: Path):
    text = output(*SMALL, "--plot", str(tmp_path / name))
    assert f"figure: {tmp_path / name}" in text
    data = (tmp_path / name).read_bytes()
    assert data[:15].lower().startswith(opening)
    if name == "b.html":
        assert b"zeta^2 = 0.1" in data
        assert b"<script src=" not in data  # it opens without a network


def test_a_missing_plotting_library_is_one_line_and_pages_need_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for module in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(HoflError, match=r"need matplotlib: run pip install 'hofl\[report\]'"):
        output(*SMALL, "--plot", str(tmp_path / "b.png"))
    output(*SMALL, "--plot", str(tmp_path / "b.html"))
    assert (tmp_path / "b.html").stat().st_size < 700_000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--boundaries", "8,99"], "--boundaries '8,99': write whole numbers from 0 to 28"),
        (["--boundaries", "8,x"], "--boundaries '8,x': write whole numbers from 0 to 28"),
        (["--boundaries", "nan"], "--boundaries 'nan': write whole numbers from 0 to 28"),
        (["--zeta2", "0,x"], "--zeta2 '0,x': write numbers, such as 0,0.01,0.1"),
        (["--dims", "5,-1"], "entry 1 is -1"),
        (["--dims", "1,2,3", "--clients", "2", "--cohort", "1"], "3 kinds of device need"),
        (["--cohort", "31"], r"--cohort must lie in 1..30 \(--clients\), got 31"),
        (["--q", "0"], "q must be at least 1, got 0"),
        (["--rounds", "0"], "rounds must be at least 1, got 0"),
        (["--epsilon", "0"], r"epsilon must lie in \(0, 1\], got 0"),
        (["--zeta2", "0,-1"], "heterogeneity must be finite and >= 0, got -1"),
        (["--smoothness", "1e200"], r"smoothness must be at most 1e\+30, got 1e\+200"),
        (["--zeta2", "1e308"], r"heterogeneity must be at most 1e\+30"),
        (["--sigma2", "nan"], "noise must be finite and >= 0, got nan"),
        (["--mu", "0"], "mu must be positive, got 0"),
        (["--plot", "x.pdf"], "cannot plot to 'x.pdf': end it in .html, .png, .svg"),
        (["--plot", "/no/such/folder/x.svg"], "cannot write /no/such/folder/x.svg"),
    ],
)
def test_a_mistake_says_what_was_got_and_what_is_allowed(words: list[str], message: str):
    with pytest.raises(HoflError, match=message):
        output("theory", *words)
