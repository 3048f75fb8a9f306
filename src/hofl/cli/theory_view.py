"""What ``hofl theory`` shows: tables, small charts of the bound against beta, and a figure."""

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hofl.report.panels import Line, Panel
from hofl.theory.rate import c_0_coverage_free
from hofl.theory.study import Study
from hofl.theory.tradeoff import Curve

_LEVELS = "▁▂▃▄▅▆▇█"
_EVERY = 10  # policies between two rows of the table
_CELLS = 4  # policies per character of a chart; everything fits into 80 columns


def show(console: Console, study: Study, special: dict[str, list[float]]) -> None:
    """Print the whole study."""
    console.print(
        f"C_0 = {study.zero:.4g} (without the coverage floor "
        f"{c_0_coverage_free(study.constants, study.num_clients):.4g}), "
        f"shortest horizon T = {study.horizon:.3g}",
        highlight=False,
    )
    console.print(_policies(study))
    console.print(_charts(study))
    console.print(_best(study))
    console.print(_special(study, special))
    failures = study.failures()
    for line in failures:
        console.print(f"fails: {line}", style="yellow", highlight=False, soft_wrap=True)
    if failures:
        console.print(
            "Where an assumption fails, the figures are the formula's values and no guarantee.",
            highlight=False,
        )


def bound_panels(study: Study) -> list[Panel]:
    """One chart per reading: the bound relative to uniform sampling, the best beta marked."""
    return [
        Panel(
            title=name,
            x_label="beta",
            y_label="bound / bound at beta = 0",
            lines=[
                Line(
                    name=f"zeta^2 = {zeta:g}",
                    x=curve.betas.tolist(),
                    y=_relative(curve).tolist(),
                    mark=int(np.argmin(curve.total)),
                )
                for zeta, curve in zip(study.zetas, curves, strict=True)
            ],
        )
        for name, curves in study.readings(study.points).items()
    ]


def _policies(study: Study) -> Table:
    name, curves = next(iter(study.readings(study.points).items()))
    table = Table("beta", "D", "chi^2", "eta", "mu at most", title=name, box=None)
    for zeta in study.zetas:
        table.add_column(f"zeta^2 = {zeta:g}")
    for column in table.columns:
        column.justify, column.overflow = "right", "fold"
    for k, x in list(enumerate(study.points))[::_EVERY]:
        row = study.row(x)
        largest = row["mu_max"]
        table.add_row(
            f"{x.beta:.2f}",
            f"{x.dimension:,.0f}",
            f"{x.skew:.3f}",
            f"{row['eta']:.3g}",
            "any" if largest is None else f"{largest:.3g}",
            *(f"{curve.total[k]:.4g}" for curve in curves),
        )
    return table


def _charts(study: Study) -> Table:
    top = study.points[-1].beta
    table = Table("bound / uniform", "zeta^2", f"beta = 0 ... {top:g}", "least ... most", box=None)
    for name, curves in study.readings(study.points).items():
        for zeta, curve in zip(study.zetas, curves, strict=True):
            ratios = _relative(curve)
            ends = f"{ratios.min():.3g} ... {ratios.max():.3g}"
            table.add_row(name, f"{zeta:g}", _chart(ratios), ends)
            name = ""
    return table


def _chart(values: np.ndarray) -> Text:
    """A line of bars from the least value to the most, the least one coloured."""
    shown = values[::_CELLS]
    spread = float(np.ptp(shown))
    heights = (shown - shown.min()) / spread if spread > 0 else np.zeros(len(shown))
    line = Text("".join(_LEVELS[round(7 * float(height))] for height in heights))
    lowest = int(np.argmin(shown))
    line.stylize("bold green", lowest, lowest + 1)
    return line


def _best(study: Study) -> Table:
    table = Table("best beta", title="Best beta among those with a_H chi^2 <= 1/12")
    for zeta in study.zetas:
        table.add_column(f"zeta^2 = {zeta:g}", justify="right")
    for name, betas in study.best().items():
        table.add_row(name, *(f"{beta:.2f}" for beta in betas))
    return table


def _special(study: Study, special: dict[str, list[float]]) -> Table:
    table = Table("case", title=f"Uniform sampling and one boundary, T = {study.rounds:,}")
    for zeta in study.zetas:
        table.add_column(f"zeta^2 = {zeta:g}", justify="right")
    for name, values in special.items():
        table.add_row(name, *(f"{value:.5g}" for value in values))
    return table


def _relative(curve: Curve) -> np.ndarray:
    return curve.total / curve.total[0]
