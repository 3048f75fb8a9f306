"""``hofl memory``: what the devices of a round need together."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from hofl.errors import HoflError
from hofl.methods import METHODS, method
from hofl.planning.sizes import parse_bytes, show_bytes
from hofl.report.panels import Line, Panel, write_panels
from hofl.sampling.checks import check_cohort
from hofl.sampling.policies import DimensionAware
from hofl.sampling.tiers import deal_tiers

if TYPE_CHECKING:  # the model libraries take seconds to load
    from hofl.planning.cohort import Demand
    from hofl.planning.plan import MemoryPlan

EXAMPLE = """Examples:

`hofl memory --model Qwen/Qwen2.5-1.5B --fleet 8,16,24 --plot memory.png`

`hofl memory --model Qwen/Qwen2.5-1.5B --fleet 12GiB,24GiB,48GiB`
"""
GIB = 2**30


def memory(
    model: Annotated[
        str, typer.Option(help="Built-in model, folder or hub id; only its configuration is read.")
    ],
    fleet: Annotated[
        str, typer.Option(help="Tiers: boundaries (8,16,24) or budgets (12GiB,24GiB).")
    ] = "8,16,24",
    clients: Annotated[int, typer.Option(min=1, help="N, devices in the fleet.")] = 30,
    cohort: Annotated[int, typer.Option(min=1, help="K, devices per round.")] = 6,
    betas: Annotated[str, typer.Option(help="Preferences for small ZO parts.")] = "0,0.25,0.5,0.75",
    rounds: Annotated[int, typer.Option(min=1, help="T.")] = 160,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the run.")] = 42,
    batch_size: Annotated[int, typer.Option(min=1, help="B, examples per step.")] = 16,
    seq_len: Annotated[int, typer.Option(min=2, help="T, tokens per example.")] = 1024,
    storage_dtype: Annotated[str, typer.Option(help="Of the frozen weights.")] = "bfloat16",
    compute_dtype: Annotated[str, typer.Option(help="Of the activations.")] = "bfloat16",
    plot: Annotated[Path | None, typer.Option(help="Figure: .html, .png or .svg.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Predict the memory of a round's cohort under HO-FL for several beta, FedAvg and DeComFL.

    Cohorts are drawn as in a run with the same fleet, rounds and seed; no model is trained.
    """
    from hofl.planning.plan import memory_plan

    check_cohort(cohort, clients)
    policies = {beta: DimensionAware(beta) for beta in _numbers(betas)}
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "seq_len": seq_len,
        "storage_dtype": storage_dtype,
        "compute_dtype": compute_dtype,
    }
    plan = memory_plan(model, method("hofl").local, **options)
    pure = memory_plan(model, METHODS["decomfl"].local, **options)
    own = deal_tiers(_tiers(fleet, plan), clients, plan.model.num_blocks, seed, "--fleet")
    demands = _demands(plan, pure, own, policies, cohort=cohort, rounds=rounds, seed=seed)
    if plot is not None:
        write_panels(_panels(plan, demands, list(policies), cohort), plot)
    if as_json:
        facts = {"model": model, "boundaries": list(own), "demands": [asdict(d) for d in demands]}
        typer.echo(json.dumps(facts))
        return
    console = Console()
    console.print(_tier_table(plan, own))
    console.print(_demand_table(demands))
    if plot is not None:
        console.print(f"figure: {plot}", highlight=False, soft_wrap=True)


def _demands(
    plan: "MemoryPlan",
    pure: "MemoryPlan",
    own: tuple[int, ...],
    policies: dict[float, DimensionAware],
    *,
    cohort: int,
    rounds: int,
    seed: int,
) -> list["Demand"]:
    from hofl.planning.cohort import cohort_demand, equal_demand

    dimensions = [plan.plain[b].zo_params for b in own]
    peaks = [plan.plain[b].peak_bytes for b in own]
    draws: dict[str, int] = {"cohort": cohort, "rounds": rounds, "seed": seed}
    return [
        *(
            cohort_demand(f"HO-FL, beta {beta:g}", policy, dimensions, peaks, **draws)
            for beta, policy in policies.items()
        ),
        equal_demand("FedAvg", plan.plain[0].peak_bytes, cohort),
        equal_demand("DeComFL", pure.at(plan.model.num_blocks).peak_bytes, cohort),
    ]


def _tiers(text: str, plan: "MemoryPlan") -> tuple[int, ...]:
    """Boundaries as given, or those that the planner chooses for budgets."""
    words = [word.strip() for word in text.split(",")]
    if all(word.isdecimal() for word in words):
        return tuple(int(word) for word in words)
    budgets = [parse_bytes(word) for word in words]
    return tuple(plan.fitting(budget, "paper").boundary for budget in budgets)


def _tier_table(plan: "MemoryPlan", own: tuple[int, ...]) -> Table:
    table = Table("boundary", "clients", "peak of one device", box=None)
    for boundary in sorted(set(own)):
        peak = show_bytes(plan.plain[boundary].peak_bytes)
        table.add_row(str(boundary), str(own.count(boundary)), peak)
    return table


def _demand_table(demands: list["Demand"]) -> Table:
    table = Table("method", "expected per round", "drawn cohorts", box=None)
    for demand in demands:
        table.add_row(demand.name, show_bytes(demand.expected), show_bytes(demand.simulated))
    return table


def _panels(
    plan: "MemoryPlan", demands: list["Demand"], betas: list[float], cohort: int
) -> list[Panel]:
    """One device on the left, a round's cohort on the right, as in the paper's figure."""
    single = [cost.peak_bytes / GIB for cost in plan.plain]
    drawn, equal = demands[: len(betas)], demands[len(betas) :]
    whole = [0.0, float(plan.model.num_blocks)]
    left = [
        Line("HO-FL", [float(b) for b in range(len(single))], single),
        *(Line(d.name, whole, [d.expected / cohort / GIB] * 2) for d in equal),
    ]
    ends = [min(betas), max(betas)]
    right = [
        Line("HO-FL", betas, [d.simulated / GIB for d in drawn]),
        *(Line(d.name, ends, [d.expected / GIB] * 2) for d in equal),
        Line("HO-FL, expected", betas, [d.expected / GIB for d in drawn]),
    ]
    return [
        Panel("One device", "boundary", "peak, GiB", left),
        Panel("Cohort of a round", "beta", "GiB", right),
    ]


def _numbers(text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise HoflError(f"--betas {text!r}: write numbers with commas, such as 0,0.5.") from None
