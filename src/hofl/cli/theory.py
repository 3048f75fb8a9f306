"""``hofl theory``: the convergence bound of a fleet against beta."""

import json
import math
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hofl.cli.display import say
from hofl.cli.options import AsJson, Plot, numbers, whole_numbers
from hofl.core.errors import HoflError
from hofl.reporting.figures import Line, Panel, write_panels
from hofl.sampling.policies import DimensionAware
from hofl.theory.assumptions import Constants, at_least, checked_coverage, checked_dims
from hofl.theory.rate import bound, c_0_coverage_free
from hofl.theory.study import Study
from hofl.theory.tradeoff import BoundCurve, Point, point, special_cases

EXAMPLES = {
    "theory": (
        "hofl theory --boundaries 8,16,24 --clients 30 --cohort 6 --zeta2 0,0.01,0.1",
        "hofl theory --dims 0,400,900 --clients 12 --cohort 3 --plot bound.html",
    )
}
STEP = 0.01  # of beta
_LEVELS = "▁▂▃▄▅▆▇█"
_EVERY = 10  # policies between two rows of the table
_CELLS = 4  # policies per character of a chart; everything fits into 80 columns


def theory(
    boundaries: Annotated[str, typer.Option(help="Order boundaries, dealt out in turn.")] = (
        "8,16,24"
    ),
    clients: Annotated[int, typer.Option(help="N.")] = 30,
    cohort: Annotated[int, typer.Option(help="K, clients per round.")] = 6,
    blocks: Annotated[int, typer.Option(help="Blocks of the model.")] = 28,
    dims_per_block: Annotated[
        int, typer.Option(help="Trainable scalars per block (Qwen2.5-1.5B, LoRA rank 8: 38912).")
    ] = 38_912,
    dims: Annotated[
        str | None,
        typer.Option(help="d_ZO instead of boundaries, dealt out in turn; the largest is d."),
    ] = None,
    q: Annotated[int, typer.Option(help="Directions per step.")] = 2,
    rounds: Annotated[int, typer.Option(help="T.")] = 160,
    local_steps: Annotated[int, typer.Option(help="E.")] = 5,
    mu: Annotated[float, typer.Option(help="Radius a run would use.")] = 1e-3,
    zeta2: Annotated[str, typer.Option(help="zeta^2, residual heterogeneity.")] = "0,0.1,1",
    smoothness: Annotated[float, typer.Option(help="L.")] = 1.0,
    surrogate_smoothness: Annotated[float, typer.Option(help="L_s.")] = 1.0,
    sigma2: Annotated[float, typer.Option(help="sigma^2, minibatch noise.")] = 1.0,
    affine: Annotated[float, typer.Option(help="a_H, heterogeneity beside the gradient.")] = 0.05,
    gap: Annotated[float, typer.Option(help="Delta = f(w_0) - f_inf.")] = 1.0,
    epsilon: Annotated[float, typer.Option(help="Coverage floor: beta <= 1 - epsilon.")] = 0.1,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Print the convergence bound against beta, the best beta, and where the assumptions fail."""
    at_least(1, clients=clients, blocks=blocks, dims_per_block=dims_per_block, q=q)
    if dims is None:
        sizes = dims_per_block * np.array(whole_numbers("--boundaries", boundaries, blocks), float)
        total = blocks * dims_per_block
    else:
        sizes = checked_dims(np.array(numbers("--dims", dims, "0,400,900")))
        total = int(sizes.max())
    if len(sizes) > clients:
        raise HoflError(f"{len(sizes)} kinds of device need as many clients, got {clients}.")
    fleet = np.resize(sizes, clients)
    constants = Constants(
        smoothness=smoothness,
        surrogate_smoothness=surrogate_smoothness,
        noise=sigma2,
        affine=affine,
        gap=gap,
    )
    study = Study(
        points=_points(fleet, q, cohort, checked_coverage(epsilon)),
        num_clients=clients,
        constants=constants,
        zetas=numbers("--zeta2", zeta2, "0,0.01,0.1"),
        rounds=rounds,
        local_steps=local_steps,
        epsilon=epsilon,
        mu=mu,
    )
    uniform = np.full(clients, 1 / clients)
    special = {
        name: [bound(study.at(z), uniform, d, q, rounds, epsilon) for z in study.zetas]
        for name, d in special_cases(fleet, total).items()
    }
    if plot is not None:
        write_panels(_panels(study), plot)
    if as_json:
        typer.echo(json.dumps({**study.summary(), "special_cases": special}))
        return
    console = Console()
    _show(console, study, special)
    if plot is not None:
        say(console, f"figure: {plot}")


def _points(dims: np.ndarray, q: int, cohort: int, epsilon: float) -> list[Point]:
    """Return the policies from uniform to the largest beta that the floor allows."""
    if not 1 <= cohort <= len(dims):
        raise HoflError(f"--cohort must lie in 1..{len(dims)} (--clients), got {cohort}.")
    top = 1 - epsilon
    betas = [min(k * STEP, top) for k in range(math.ceil(top / STEP - 1e-9) + 1)]
    # p is linear in beta, Eq. (practical-policy): ranking a million clients once is enough
    uniform = np.full(len(dims), 1 / len(dims))
    tilt = DimensionAware(top).marginals(dims / q, cohort, 0) - uniform
    shares = (uniform + (beta / top if beta else 0.0) * tilt for beta in betas)
    return [point(beta, p, dims, q, cohort) for beta, p in zip(betas, shares, strict=True)]


def _show(console: Console, study: Study, special: dict[str, list[float]]) -> None:
    """Print the whole study."""
    free = c_0_coverage_free(study.constants, study.num_clients)
    say(
        console,
        f"C_0 = {study.zero:.4g} (without the coverage floor {free:.4g}), "
        f"shortest horizon T = {study.horizon:.3g}",
    )
    console.print(_policies(study))
    console.print(_charts(study))
    console.print(_best(study))
    console.print(_special(study, special))
    failures = study.failures()
    for line in failures:
        say(console, f"fails: {line}", "yellow")
    if failures:
        say(
            console,
            "Where an assumption fails, the figures are the formula's values, not a guarantee.",
        )


def _panels(study: Study) -> list[Panel]:
    """Return a chart per reading: the bound relative to uniform sampling, the best beta marked."""
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
    """Return a line of bars from the least value to the most, the least one coloured."""
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


def _relative(curve: BoundCurve) -> np.ndarray:
    return curve.total / curve.total[0]
