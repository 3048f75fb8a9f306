"""``hofl sample``: what a sampling policy does to a fleet, without training anything."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from hofl.errors import HoflError
from hofl.sampling.audit import Audit, audit, verdict
from hofl.sampling.checks import check_cohort
from hofl.sampling.policies import Policy, draw_cohort
from hofl.sampling.schedules import Scheduled, beta_policy
from hofl.sampling.tiers import deal_tiers

EXAMPLE = """Examples:

`hofl sample --clients 30 --cohort 6 --boundaries 8,16,24 --blocks 28 --beta 0.75 --simulate`

`hofl sample --schedule coverage --beta 0.9 --beta-end 0.1 --min-participations 16 --json`
"""
LISTED = 100
"""Fleets larger than this are shown by tier; --json always has every client."""


@dataclass(frozen=True)
class Fleet:
    """N clients at their boundaries, K of them in each of T rounds."""

    boundaries: tuple[int, ...]
    cohort: int
    rounds: int
    seed: int

    def shares(self, policy: Policy) -> Iterator[np.ndarray]:
        """p(0), ..., p(T-1); blocks are taken to be equally large, so d_ZO goes as the boundary."""
        scores = np.array(self.boundaries, dtype=np.float64)
        changes = isinstance(policy, Scheduled)  # ranking a million clients once is enough
        p = policy.marginals(scores, self.cohort, self.seed, 0, self.rounds)
        for t in range(self.rounds):
            if changes:
                p = policy.marginals(scores, self.cohort, self.seed, t, self.rounds)
            yield p


def sample(
    clients: Annotated[int, typer.Option(min=1, help="N, devices in the fleet.")] = 30,
    cohort: Annotated[int, typer.Option(min=1, help="K, devices per round.")] = 6,
    boundaries: Annotated[
        str, typer.Option(help="Boundary of each tier (or of each client), separated by commas.")
    ] = "8,16,24",
    blocks: Annotated[int, typer.Option(min=1, help="L, blocks of the model.")] = 28,
    beta: Annotated[float, typer.Option(help="Preference for small zeroth-order parts.")] = 0.75,
    schedule: Annotated[
        str, typer.Option(help="constant, linear, cosine or coverage.")
    ] = "constant",
    beta_end: Annotated[float | None, typer.Option(help="Beta of the last round.")] = None,
    min_participations: Annotated[
        float | None, typer.Option(help="Expected participations of everyone (coverage).")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="T.")] = 160,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the run.")] = 42,
    simulate: Annotated[bool, typer.Option(help="Draw the cohorts and audit them.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as JSON.")] = False,
) -> None:
    """Show how often each tier and each client takes part, expected and drawn.

    The cohorts are those of a run with the same fleet, method.beta options, rounds and seed.
    """
    check_cohort(cohort, clients)
    own = deal_tiers(boundary_list(boundaries), clients, blocks, seed, "--boundaries")
    fleet = Fleet(own, cohort, rounds, seed)
    policy = beta_policy(beta, schedule, beta_end, min_participations)
    drawn = _simulated(fleet, policy) if simulate else None
    expected = _expected(fleet, policy) if drawn is None else drawn.expected
    if as_json:
        facts = {"boundaries": list(own), "expected": expected.round(6).tolist()}
        typer.echo(json.dumps(facts if drawn is None else {**facts, "audit": drawn.summary()}))
        return
    console = Console()
    realised = None if drawn is None else drawn.realised
    console.print(_tier_table(fleet, expected, realised))
    if clients <= LISTED:
        console.print(_client_table(fleet, expected, realised))
    else:
        console.print(f"{clients} clients: --json lists each of them.", highlight=False)
    if drawn is not None:
        console.print(verdict(drawn.summary()), highlight=False, soft_wrap=True)


def _simulated(fleet: Fleet, policy: Policy) -> Audit:
    """All cohorts, each against the shares it was drawn from."""
    shares = enumerate(fleet.shares(policy))
    return audit((draw_cohort(p, fleet.cohort, fleet.seed, t), p) for t, p in shares)


def _expected(fleet: Fleet, policy: Policy) -> np.ndarray:
    """Expected participations, sum_t K p(t), [N]."""
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


def boundary_list(text: str) -> tuple[int, ...]:
    """Whole numbers separated by commas, as --boundaries takes them."""
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise HoflError(f"--boundaries {text!r}: write whole numbers, such as 8,16,24.") from None
