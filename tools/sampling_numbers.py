"""Write the computed numbers of docs/sampling.md: ``python tools/sampling_numbers.py``.

What beta leaves to the least preferred client is computed at once. How often the audit calls honest
draws suspicious is simulated with --simulate (half a minute) into results/data/audit.json. With
--check nothing is written, and a page that says something else ends in an error. The tables of
measured statistics on that page are records of single measurements, and say so.
"""

import json
import sys
from typing import Any

import numpy as np
from marked import ROOT, renew
from results_parts import wrapped

from hofl.choosing.guide import coverage_cap, expected_participations
from hofl.core.secret import RunSecret
from hofl.sampling.audit import audit
from hofl.sampling.policies import DimensionAware, draw_cohort
from hofl.sampling.tiers import deal_tiers

OUT = ROOT / "docs" / "results" / "data" / "audit.json"
CLIENTS, COHORT, ROUNDS, BLOCKS, TIERS, SEED = 30, 6, 160, 28, (8, 16, 24), 42
LEAST, LEVEL, RUNS = 16, 0.05, 600
BETAS = (0.0, 0.5, 0.75)
Facts = dict[str, Any]


def shares(beta: float) -> np.ndarray:
    """The marginals of the paper's fleet."""
    dealt = np.array(deal_tiers(TIERS, CLIENTS, BLOCKS, SEED, "tiers"), dtype=np.float64)
    return DimensionAware(beta).marginals(dealt, COHORT, SEED)


def coverage_part() -> str:
    """The cap of a minimum, and the least preferred client's participations."""
    cap = coverage_cap(LEAST, clients=CLIENTS, cohort=COHORT, rounds=ROUNDS)
    betas = (0.25, 0.5, 0.75)
    least = (expected_participations(shares(beta), COHORT, ROUNDS).min() for beta in betas)
    counts = ", ".join(f"{value:g}" for value in least)
    return wrapped(
        "**From a coverage budget.** "
        f"`hofl beta coverage --clients {CLIENTS} --cohort {COHORT} --rounds {ROUNDS} "
        f"--min-participations {LEAST}` gives the cap beta <= 1 - mN/(KT) = {cap:g} and, for every "
        "beta, the expected participations of the least and the most preferred client "
        f"({counts} for the least at {', '.join(map(str, betas))}) and the seats of each tier. "
        "They are expectations, not guarantees. A minimum above KT/N, which nobody can be given, "
        "is refused."
    )


def simulated() -> Facts:
    """The share of honest runs whose p-value lies below the level, by beta."""
    below = {}
    for beta in BETAS:
        p = shares(beta)
        found = 0
        for seed in range(RUNS):
            secret = RunSecret.from_seed(seed).cohorts()
            drawn = ((draw_cohort(p, COHORT, secret, t), p) for t in range(ROUNDS))
            found += audit(drawn).p_value < LEVEL
        below[str(beta)] = found / RUNS
    fleet = {"clients": CLIENTS, "cohort": COHORT, "rounds": ROUNDS}
    return {"runs": RUNS, "level": LEVEL, **fleet, "below": below}


def audit_part(facts: Facts) -> str:
    """How conservative the reference is."""
    found = ", ".join(
        f"{100 * share:.1f} % at beta {beta}" for beta, share in facts["below"].items()
    )
    return wrapped(
        f"Under honest draws p < {facts['level']:g} came up in {found}, of {facts['runs']} "
        f"simulated runs each (N = {facts['clients']}, K = {facts['cohort']}, T = "
        f"{facts['rounds']}; `python tools/sampling_numbers.py --simulate`). The check looks at "
        "counts only: it sees wrong frequencies, not dependence between rounds that leaves the "
        "frequencies right."
    )


def main() -> None:
    """Simulate where asked to, and write or compare the parts."""
    if "--simulate" in sys.argv:
        OUT.write_text(json.dumps(simulated(), indent=1) + "\n")
    parts = {"coverage": coverage_part(), "audit": audit_part(json.loads(OUT.read_text()))}
    renew({"docs/sampling.md": parts}, "sampling_numbers.py", "--check" in sys.argv)


if __name__ == "__main__":
    main()
