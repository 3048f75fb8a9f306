"""``hofl sample``: what a sampling policy does to a fleet, without training anything."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from hofl.cli.display import say
from hofl.cli.options import (
    AsJson,
    Clients,
    Cohort,
    Rounds,
    Seed,
    Tiers,
    check_seed,
    whole_numbers,
)
from hofl.core.errors import HoflError
from hofl.core.secret import RunSecret
from hofl.core.vectors import check_cohort
from hofl.sampling.audit import Audit, audit, verdict
from hofl.sampling.policies import POLICIES, DimensionAware, Policy, changed_policy, draw_cohort
from hofl.sampling.statistics import fitted_options, load_statistics
from hofl.sampling.tiers import deal_tiers

EXAMPLES = {
    "sample": (
        "hofl sample --clients 30 --cohort 6 --boundaries 8,16,24 --simulate",
        "hofl sample --schedule coverage --beta 0.9 --min-participations 16 --json",
        "hofl sample --policy water-filling --weight 200 --dims-per-block 38912 --q 2",
    )
}
DEFAULT = DimensionAware(0.75)
LISTED = 100
"""Fleets larger than this are shown by tier; --json always has every client."""
SAME = (
    "A simulated run (hofl run) with this fleet, policy, rounds and seeds draws the same cohorts, "
    "as long as every device trains by zeroth order below its own boundary, no round is repeated "
    "and no device rests, is absent or changes its boundary. hofl server draws from a secret: "
    "its cohorts cannot be predicted."
)
OTHER = (
    "A run draws other cohorts: this policy depends on the size of d_ZO / q, for which boundaries "
    "stand here. Give --dims-per-block and --q."
)


@dataclass(frozen=True)
class Fleet:
    """The clients of a run and their rounds.

    Args:
        boundaries: b_i, [N].
        scores: d_ZO / q, or what stands for it, [N].
        cohort: K.
        rounds: T.
        seed: of the run: its draws.
        fleet_seed: of the fleet: order among equal clients.
    """

    boundaries: tuple[int, ...]
    scores: np.ndarray
    cohort: int
    rounds: int
    seed: int
    fleet_seed: int

    def shares(self, policy: Policy) -> Iterator[np.ndarray]:
        """Yield p(0), ..., p(T-1), [N] each."""
        for t in range(self.rounds):
            yield policy.marginals(self.scores, self.cohort, self.fleet_seed, t, self.rounds)

    def needs_scale(self, policy: Policy) -> bool:
        """Tell whether shares depend on how large scores are, and not only on their order."""
        ranks = np.unique(self.scores, return_inverse=True)[1] + 1.0
        by_rank, by_square, given = (
            [
                policy.marginals(scores, self.cohort, self.fleet_seed, t, self.rounds)
                for t in (0, self.rounds - 1)
            ]
            for scores in (ranks, 1e9 * ranks**2, self.scores)
        )
        return not (np.array_equal(given, by_rank) and np.array_equal(given, by_square))


def sample(
    clients: Clients = 30,
    cohort: Cohort = 6,
    boundaries: Tiers = "8,16,24",
    blocks: Annotated[int, typer.Option(min=1, help="L, blocks of the model.")] = 28,
    dims_per_block: Annotated[
        str | None,
        typer.Option(help="Trainable scalars of a block (or of each block, with commas)."),
    ] = None,
    q: Annotated[int, typer.Option(min=1, help="Directions per step, with --dims-per-block.")] = 2,
    policy: Annotated[
        str | None,
        typer.Option(help=f"{', '.join(POLICIES)}; by default the one with the options given."),
    ] = None,
    beta: Annotated[
        float | None,
        typer.Option(help="Preference for small zeroth-order parts.", show_default="0.75"),
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            help="Of beta: constant, linear, cosine or coverage.", show_default="constant"
        ),
    ] = None,
    beta_end: Annotated[float | None, typer.Option(help="Beta of the last round.")] = None,
    min_participations: Annotated[
        float | None, typer.Option(help="Expected participations of everyone (coverage).")
    ] = None,
    weight: Annotated[
        float | None, typer.Option(help="A of water-filling; d_ZO / q is a client's cost.")
    ] = None,
    floor: Annotated[
        float | None, typer.Option(help="Epsilon of water-filling: every share is at least it / N.")
    ] = None,
    statistics: Annotated[
        str | None,
        typer.Option(help="File of hofl beta measure: its boundaries, and its A and costs."),
    ] = None,
    rounds: Rounds = 160,
    seed: Seed = 42,
    fleet_seed: Annotated[
        int | None,
        typer.Option(callback=check_seed, help="fleet.seed of the run.", show_default="--seed"),
    ] = None,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Draw the cohorts and audit them.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show how often each tier and each client takes part, expected and drawn.

    The last line says whether a simulated run with the same settings draws the same cohorts.
    """
    check_cohort(cohort, clients)
    options: dict[str, Any] = {
        "name": policy,
        "beta": beta,
        "beta_schedule": schedule,
        "beta_end": beta_end,
        "min_participations": min_participations,
        "weight": weight,
        "floor": floor,
    }
    given = {key: value for key, value in options.items() if value is not None}
    fleet_seed = seed if fleet_seed is None else fleet_seed
    if statistics is None:
        tiers = whole_numbers("--boundaries", boundaries)
        dealt = deal_tiers(tiers, clients, blocks, fleet_seed, "--boundaries")
    else:
        dealt = _measured_boundaries(statistics, clients)
        given |= fitted_options(statistics, policy, given, cohort)
    dims = _dims_below(dims_per_block, max(blocks, *dealt))
    scores = dims[list(dealt)] / (1 if dims_per_block is None else q)
    fleet = Fleet(dealt, scores, cohort, rounds, seed, fleet_seed)
    chosen = changed_policy(DEFAULT, given)
    exact = dims_per_block is not None or not fleet.needs_scale(chosen)
    drawn = _simulated(fleet, chosen) if simulate else None
    expected = _expected(fleet, chosen) if drawn is None else drawn.audit.expected
    if as_json:
        facts: dict[str, Any] = {"boundaries": list(dealt), "expected": expected.round(6).tolist()}
        if drawn is not None:
            facts |= {"audit": drawn.audit.summary(), "cohorts": drawn.cohorts}
        typer.echo(json.dumps({**facts, "same_as_run": exact}))
        return
    console = Console()
    realised = None if drawn is None else drawn.audit.realised
    console.print(_tier_table(fleet, expected, realised))
    if clients <= LISTED:
        console.print(_client_table(fleet, expected, realised))
    else:
        say(console, f"{clients} clients: --json lists each of them.")
    if drawn is not None:
        say(console, verdict(drawn.audit.summary()))
    say(console, SAME if exact else OTHER)


def _measured_boundaries(file: str, clients: int) -> tuple[int, ...]:
    _, boundaries = load_statistics(file)
    if len(boundaries) != clients:
        raise HoflError(
            f"{file!r} holds {len(boundaries)} clients: give --clients {len(boundaries)}."
        )
    return boundaries


def _dims_below(text: str | None, blocks: int) -> np.ndarray:
    """Return d_ZO of every boundary 0..L; without sizes the boundary, which has the same order."""
    sizes = (1,) if text is None else whole_numbers("--dims-per-block", text)
    if len(sizes) not in (1, blocks) or min(sizes) < 1:
        raise HoflError(
            f"--dims-per-block {text!r}: give one number for all blocks or {blocks}, one for each, "
            "of at least 1."
        )
    return np.concatenate(([0], np.cumsum(np.resize(sizes, blocks))))


@dataclass(frozen=True)
class Draws:
    """S_0, ..., S_{T-1}, and their audit."""

    cohorts: list[list[int]]
    audit: Audit


def _simulated(fleet: Fleet, policy: Policy) -> Draws:
    """Draw all cohorts and audit each against the shares it was drawn from."""
    cohorts: list[list[int]] = []
    drawn_from = RunSecret.from_seed(fleet.seed).cohorts()

    def drawn() -> Iterator[tuple[list[int], np.ndarray]]:
        for t, p in enumerate(fleet.shares(policy)):
            cohorts.append(draw_cohort(p, fleet.cohort, drawn_from, t))
            yield cohorts[t], p

    return Draws(cohorts=cohorts, audit=audit(drawn()))


def _expected(fleet: Fleet, policy: Policy) -> np.ndarray:
    """Return expected participations, sum_t K p(t), [N]."""
    total = np.zeros(len(fleet.boundaries))
    for p in fleet.shares(policy):
        total += fleet.cohort * p
    return total


def _tier_table(fleet: Fleet, expected: np.ndarray, realised: np.ndarray | None) -> Table:
    table = _table("boundary", "clients", "expected per round", "expected", realised=realised)
    boundaries = np.array(fleet.boundaries)
    for tier in sorted(set(fleet.boundaries)):
        members = boundaries == tier
        total = expected[members].sum()
        cells = [str(tier), str(members.sum()), f"{total / fleet.rounds:.3g}", f"{total:.1f}"]
        table.add_row(*cells, *([] if realised is None else [str(realised[members].sum())]))
    return table


def _client_table(fleet: Fleet, expected: np.ndarray, realised: np.ndarray | None) -> Table:
    table = _table("client", "boundary", "expected", realised=realised)
    for client, boundary in enumerate(fleet.boundaries):
        cells = [str(client), str(boundary), f"{expected[client]:.1f}"]
        table.add_row(*cells, *([] if realised is None else [str(realised[client])]))
    return table


def _table(*columns: str, realised: np.ndarray | None) -> Table:
    table = Table()
    for column in (*columns, *(() if realised is None else ("realised",))):
        table.add_column(column, justify="right")
    return table
