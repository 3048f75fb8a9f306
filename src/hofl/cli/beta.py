"""``hofl beta``: choose the preference, by scenario, by coverage, by pilot runs, by measurement."""

import json
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from hofl.cli import measure, pilot
from hofl.cli.sample import boundary_list
from hofl.errors import HoflError
from hofl.sampling.checks import check_cohort
from hofl.sampling.guidance import (
    CANDIDATES,
    DATA,
    advise,
    allowed,
    coverage_cap,
    expected_participations,
)
from hofl.sampling.policies import DimensionAware
from hofl.sampling.tiers import deal_tiers

EXAMPLE = """Examples:

`hofl beta guide --data skewed`

`hofl beta coverage --clients 30 --cohort 6 --rounds 160 --min-participations 16`

`hofl beta pilot demo --rounds 8 --out runs/pilot`

`hofl beta measure demo --out runs/measured`
"""
GUIDE_EXAMPLE = "Examples:\n\n`hofl beta guide`\n\n`hofl beta guide --data same --preferred narrow`"
COVERAGE_EXAMPLE = (
    "Example:\n\n`hofl beta coverage --clients 30 --cohort 6 --rounds 160 --min-participations 16`"
)


def guide(
    data: Annotated[
        str | None, typer.Option(help="Clients' data: same (population), unknown or skewed.")
    ] = None,
    dimensions: Annotated[
        str, typer.Option(help="Zeroth-order dimensions of the devices: differ or equal.")
    ] = "differ",
    preferred: Annotated[
        str, typer.Option(help="Preferred clients' part of the population: broad or narrow.")
    ] = "broad",
) -> None:
    """Give the paper's starting value for a scenario; a table when nothing is said."""
    differ = _choice("--dimensions", dimensions, "differ", "equal")
    broad = _choice("--preferred", preferred, "broad", "narrow")
    console = Console()
    if data is not None:
        advice = advise(data, dimensions_differ=differ, narrow=not broad)
        console.print(f"beta = {advice.beta:g}", highlight=False)
        console.print(advice.reason, highlight=False, soft_wrap=True)
        return
    table = Table("data", "preferred clients", "beta", "reason")
    for kind in DATA:
        for narrow in (False, True):
            advice = advise(kind, narrow=narrow)
            table.add_row(kind, "narrow" if narrow else "broad", f"{advice.beta:g}", advice.reason)
    flat = advise("same", dimensions_differ=False)
    table.add_row("any", "-", f"{flat.beta:g}", flat.reason)
    console.print(table)
    console.print(
        "Starting points, not thresholds; beta = 0 is uniform sampling. hofl beta pilot compares.",
        highlight=False,
    )


def coverage(
    clients: Annotated[int, typer.Option(min=1, help="N, devices in the fleet.")] = 30,
    cohort: Annotated[int, typer.Option(min=1, help="K, devices per round.")] = 6,
    rounds: Annotated[int, typer.Option(min=1, help="T.")] = 160,
    min_participations: Annotated[
        float | None, typer.Option(help="m, expected participations that everyone shall keep.")
    ] = None,
    boundaries: Annotated[
        str, typer.Option(help="Boundary of each tier (or of each client), separated by commas.")
    ] = "8,16,24",
    blocks: Annotated[int, typer.Option(min=1, help="L, blocks of the model.")] = 28,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the run.")] = 42,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as JSON.")] = False,
) -> None:
    """Show what beta leaves to each client and tier, and the largest one within a budget.

    Counts are expectations: a client's own count varies from run to run.
    """
    check_cohort(cohort, clients)
    own = np.array(deal_tiers(boundary_list(boundaries), clients, blocks, seed, "--boundaries"))
    fleet = {"clients": clients, "cohort": cohort, "rounds": rounds}
    cap = None if min_participations is None else coverage_cap(min_participations, **fleet)
    within = allowed(CANDIDATES, min_participations, **fleet)
    betas = sorted({*CANDIDATES, *([] if cap is None or cap == 1 else [cap])})
    expected = {
        beta: expected_participations(
            DimensionAware(beta).marginals(own.astype(np.float64), cohort, seed), cohort, rounds
        )
        for beta in betas
    }
    if as_json:
        facts: dict[str, Any] = {"cap": cap, "allowed": list(within), "boundaries": own.tolist()}
        counts = [{"beta": b, "expected": e.round(6).tolist()} for b, e in expected.items()]
        typer.echo(json.dumps({**facts, "participations": counts}))
        return
    console = Console()
    console.print(_coverage_table(expected, own, rounds, min_participations))
    if cap is not None:
        reach = "any beta < 1" if cap == 1 else f"beta <= {cap:.4g}"
        console.print(
            f"{min_participations:g} expected participations of everyone: {reach}", highlight=False
        )


def _coverage_table(
    expected: dict[float, np.ndarray], boundaries: np.ndarray, rounds: int, least: float | None
) -> Table:
    table = Table("beta", "least preferred client", "most preferred client")
    tiers = np.unique(boundaries).tolist()
    for tier in tiers:
        table.add_column(f"tier {tier}, seats per round")
    if least is not None:
        table.add_column("within budget")
    for column in table.columns:
        column.justify = "right"
    for beta, counts in expected.items():
        seats = [counts[boundaries == tier].sum() / rounds for tier in tiers]
        cells = [f"{beta:.4g}", f"{counts.min():.4g}", f"{counts.max():.4g}"]
        verdict = [] if least is None else ["yes" if counts.min() >= least - 1e-9 else "no"]
        table.add_row(*cells, *(f"{seat:.3g}" for seat in seats), *verdict)
    return table


def _choice(option: str, value: str, yes: str, no: str) -> bool:
    if value not in (yes, no):
        raise HoflError(f"{option} is {yes} or {no}, got {value!r}.")
    return value == yes


app = typer.Typer(
    name="beta",
    help="Choose beta, the preference for devices with small zeroth-order parts.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    epilog=EXAMPLE,
)
app.command("guide", epilog=GUIDE_EXAMPLE)(guide)
app.command("coverage", epilog=COVERAGE_EXAMPLE)(coverage)
app.command("pilot", epilog=pilot.EXAMPLE)(pilot.pilot)
app.command("measure", epilog=measure.EXAMPLE)(measure.measure)
