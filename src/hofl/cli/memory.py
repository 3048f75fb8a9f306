"""``hofl memory``: what the devices of a round need together."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from hofl.cli.display import say
from hofl.cli.options import AsJson, Clients, Cohort, Plot, Rounds, Seed, numbers
from hofl.core.sizes import parse_bytes, show_bytes
from hofl.core.vectors import check_cohort
from hofl.reporting.figures import Line, Panel, write_panels
from hofl.sampling.policies import DimensionAware
from hofl.sampling.tiers import deal_tiers

if TYPE_CHECKING:  # the model libraries take seconds to load
    from hofl.memory.cohort import Demand
    from hofl.memory.plan import MemoryPlan

EXAMPLES = {
    "memory": (
        "hofl memory --model Qwen/Qwen2.5-1.5B --fleet 8,16,24 --plot memory.png",
        "hofl memory --model Qwen/Qwen2.5-1.5B --fleet 12GiB,24GiB,48GiB",
    )
}
GIB = 2**30


def memory(
    model: Annotated[
        str, typer.Option(help="Built-in model, folder or hub id; only its configuration is read.")
    ],
    fleet: Annotated[
        str, typer.Option(help="Tiers: boundaries (8,16,24) or budgets (12GiB,24GiB).")
    ] = "8,16,24",
    clients: Clients = 30,
    cohort: Cohort = 6,
    betas: Annotated[str, typer.Option(help="Preferences for small ZO parts.")] = "0,0.25,0.5,0.75",
    rounds: Rounds = 160,
    seed: Seed = 42,
    batch_size: Annotated[int, typer.Option(min=1, help="B, examples per step.")] = 16,
    seq_len: Annotated[int, typer.Option(min=2, help="T, tokens per example.")] = 1024,
    storage_dtype: Annotated[str, typer.Option(help="Of the frozen weights.")] = "bfloat16",
    compute_dtype: Annotated[str, typer.Option(help="Of the activations.")] = "bfloat16",
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Predict the memory of a round's cohort under HO-FL for several beta, FedAvg and DeComFL.

    Cohorts are drawn as in a run with the same fleet, rounds and seed; no model is trained.
    """
    from hofl.memory.cohort import cohort_demands
    from hofl.memory.plan import memory_plan
    from hofl.methods import METHODS, method

    check_cohort(cohort, clients)
    policies = {beta: DimensionAware(beta) for beta in numbers("--betas", betas, "0,0.5")}
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "seq_len": seq_len,
        "storage_dtype": storage_dtype,
        "compute_dtype": compute_dtype,
    }
    plan = memory_plan(model, method("hofl").local, **options)
    pure = memory_plan(model, METHODS["decomfl"].local, **options)
    boundaries = deal_tiers(_tiers(fleet, plan), clients, plan.model.num_blocks, seed, "--fleet")
    demands = cohort_demands(
        plan, pure, boundaries, policies, cohort=cohort, rounds=rounds, seed=seed
    )
    if plot is not None:
        write_panels(_panels(plan, demands, list(policies), cohort), plot)
    if as_json:
        facts = {
            "model": model,
            "boundaries": list(boundaries),
            "demands": [asdict(d) for d in demands],
        }
        typer.echo(json.dumps(facts))
        return
    console = Console()
    console.print(_tier_table(plan, boundaries))
    console.print(_demand_table(demands))
    if plot is not None:
        say(console, f"figure: {plot}")


def _tiers(text: str, plan: "MemoryPlan") -> tuple[int, ...]:
    """Return boundaries as given, or those that the planner chooses for budgets."""
    words = [word.strip() for word in text.split(",")]
    if all(word.isdecimal() for word in words):
        return tuple(int(word) for word in words)
    budgets = [parse_bytes(word) for word in words]
    return tuple(plan.fitting(budget).boundary for budget in budgets)


def _tier_table(plan: "MemoryPlan", boundaries: tuple[int, ...]) -> Table:
    table = Table("boundary", "clients", "peak of one device", box=None)
    for boundary in sorted(set(boundaries)):
        peak = show_bytes(plan.plain[boundary].peak_bytes)
        table.add_row(str(boundary), str(boundaries.count(boundary)), peak)
    return table


def _demand_table(demands: list["Demand"]) -> Table:
    table = Table("method", "expected per round", "drawn cohorts", box=None)
    for demand in demands:
        table.add_row(demand.name, show_bytes(demand.expected), show_bytes(demand.simulated))
    return table


def _panels(
    plan: "MemoryPlan", demands: list["Demand"], betas: list[float], cohort: int
) -> list[Panel]:
    """Return one device on the left and a cohort on the right, as in the paper's figure."""
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
