"""``hofl theory``: the convergence bound of a fleet against beta."""

import json
import math
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from hofl.cli.theory_view import bound_panels, show
from hofl.errors import HoflError
from hofl.report.panels import write_panels
from hofl.sampling.policies import DimensionAware
from hofl.theory.assumptions import Constants, at_least, checked_coverage, checked_dims
from hofl.theory.rate import bound
from hofl.theory.study import Study
from hofl.theory.tradeoff import Point, point, special_cases

EXAMPLE = """Examples:

`hofl theory --boundaries 8,16,24 --clients 30 --cohort 6 --zeta2 0,0.01,0.1`

`hofl theory --dims 0,400,900 --clients 12 --cohort 3 --plot bound.html`
"""
STEP = 0.01  # of beta


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
    plot: Annotated[Path | None, typer.Option(help="Figure: .html, .png or .svg.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Print the convergence bound against beta, the best beta, and where the assumptions fail."""
    at_least(1, clients=clients, blocks=blocks, dims_per_block=dims_per_block, q=q)
    if dims is None:
        sizes = dims_per_block * _boundaries(boundaries, blocks)
        total = blocks * dims_per_block
    else:
        sizes = checked_dims(_numbers("--dims", dims))
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
        zetas=_numbers("--zeta2", zeta2).tolist(),
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
        write_panels(bound_panels(study), plot)
    if as_json:
        typer.echo(json.dumps({**study.summary(), "special_cases": special}))
        return
    console = Console()
    show(console, study, special)
    if plot is not None:
        console.print(f"figure: {plot}", highlight=False, soft_wrap=True)


def _points(dims: np.ndarray, q: int, cohort: int, epsilon: float) -> list[Point]:
    """The dimension-aware policies from uniform to the largest beta that the floor allows."""
    if not 1 <= cohort <= len(dims):
        raise HoflError(f"--cohort must lie in 1..{len(dims)} (--clients), got {cohort}.")
    top = 1 - epsilon
    betas = [min(k * STEP, top) for k in range(math.ceil(top / STEP - 1e-9) + 1)]
    # p is linear in beta, Eq. (practical-policy): ranking a million clients once is enough
    uniform = np.full(len(dims), 1 / len(dims))
    tilt = DimensionAware(top).marginals(dims / q, cohort, 0) - uniform
    shares = (uniform + (beta / top if beta else 0.0) * tilt for beta in betas)
    return [point(beta, p, dims, q, cohort) for beta, p in zip(betas, shares, strict=True)]


def _numbers(option: str, text: str) -> np.ndarray:
    values = []
    for entry in text.split(","):
        try:
            values.append(float(entry))
        except ValueError:
            raise HoflError(f"{option} takes numbers with commas, got {entry.strip()!r}.") from None
    return np.array(values)


def _boundaries(text: str, blocks: int) -> np.ndarray:
    values = _numbers("--boundaries", text)
    for value in values:
        if not (0 <= value <= blocks and value == int(value)):
            raise HoflError(
                f"--boundaries must be whole, from 0 to {blocks} blocks, got {value:g}."
            )
    return values
