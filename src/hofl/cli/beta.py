"""``hofl beta guide`` and ``hofl beta coverage``: a first beta, by scenario or by coverage."""

import json
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from hofl.choosing.guide import (
    CANDIDATES,
    DATA,
    advise,
    allowed,
    coverage_cap,
    expected_participations,
)
from hofl.cli.display import say
from hofl.cli.options import AsJson, Clients, Cohort, Rounds, Seed, Tiers, whole_numbers
from hofl.core.errors import HoflError
from hofl.core.vectors import check_cohort
from hofl.sampling.policies import DimensionAware
from hofl.sampling.tiers import deal_tiers

EXAMPLES = {
    "guide": ("hofl beta guide", "hofl beta guide --data same --preferred narrow"),
    "coverage": ("hofl beta coverage --clients 30 --cohort 6 --min-participations 16",),
}


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
    """Print the paper's starting value for a scenario; without --data, the whole table."""
    differ = _choice("--dimensions", dimensions, "differ", "equal")
    broad = _choice("--preferred", preferred, "broad", "narrow")
    console = Console()
    if data is not None:
        advice = advise(data, dimensions_differ=differ, narrow=not broad)
        say(console, f"beta = {advice.beta:g}")
        say(console, advice.reason)
        return
    table = Table("data", "preferred clients", "beta", "reason")
    for kind in DATA:
        for narrow in (False, True):
            advice = advise(kind, narrow=narrow)
            table.add_row(kind, "narrow" if narrow else "broad", f"{advice.beta:g}", advice.reason)
    flat = advise("same", dimensions_differ=False)
    table.add_row("any", "-", f"{flat.beta:g}", flat.reason)
    console.print(table)
    say(console, "Starting points, not thresholds; beta = 0 is uniform sampling.")
    say(console, "hofl beta pilot compares them by short runs.")


def coverage(
    clients: Clients = 30,
    cohort: Cohort = 6,
    rounds: Rounds = 160,
    min_participations: Annotated[
        float | None, typer.Option(help="m, expected participations of every client.")
    ] = None,
    boundaries: Tiers = "8,16,24",
    blocks: Annotated[int, typer.Option(min=1, help="L, blocks of the model.")] = 28,
    seed: Seed = 42,
    as_json: AsJson = False,
) -> None:
    """Show the expected participations under each beta, and the largest beta within a budget.

    Counts are expectations: a client's count varies from run to run.
    """
    check_cohort(cohort, clients)
    tiers = whole_numbers("--boundaries", boundaries)
    dealt = np.array(deal_tiers(tiers, clients, blocks, seed, "--boundaries"))
    fleet = {"clients": clients, "cohort": cohort, "rounds": rounds}
    cap = None if min_participations is None else coverage_cap(min_participations, **fleet)
    within = allowed(CANDIDATES, min_participations, **fleet)
    betas = sorted({*CANDIDATES, *([] if cap is None or cap == 1 else [cap])})
    expected = {
        beta: expected_participations(
            DimensionAware(beta).marginals(dealt.astype(np.float64), cohort, seed), cohort, rounds
        )
        for beta in betas
    }
    if as_json:
        facts: dict[str, Any] = {"cap": cap, "allowed": list(within), "boundaries": dealt.tolist()}
        counts = [{"beta": b, "expected": e.round(6).tolist()} for b, e in expected.items()]
        typer.echo(json.dumps({**facts, "participations": counts}))
        return
    console = Console()
    console.print(_coverage_table(expected, dealt, rounds, min_participations))
    if cap is not None:
        reach = "any beta < 1" if cap == 1 else f"beta <= {cap:.4g}"
        say(console, f"{min_participations:g} expected participations of everyone: {reach}")


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
