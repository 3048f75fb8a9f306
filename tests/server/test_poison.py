"""A poisoned device in a whole run: it moves the mean anywhere, and a robust rule hardly.

The measurement itself is ``tools/measure_poison.py``; here its engine runs on a tiny model.
"""

import importlib.util
import math
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import torch

from hofl.experiment.build import build_simulation
from hofl.experiment.rounds import one_round
from support.runs import quick

ROUNDS = 2


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    path = Path(__file__).parents[2] / "tools" / "measure_poison.py"
    spec = importlib.util.spec_from_file_location("measure_poison", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def moved(tool: ModuleType, folder: Path, rule: str, attack: str, optimizer: str) -> float:
    """How far w has gone after some rounds, with device 1 of 5 poisoned."""
    method = {"aggregation": rule, "optimizer": optimizer, "lr": 1e-2}
    fleet = {"clients": 5, "cohort": 5, "boundaries": [2]}
    server = {"max_ratio": math.inf}  # the aggregation alone
    experiment = build_simulation(quick(folder, fleet=fleet, method=method, server=server))
    engine = tool.Poisoned(experiment.client, {1}, tool.ATTACKS[attack], experiment.layout)
    state = experiment.start
    for _ in range(ROUNDS):
        state, row = one_round(experiment, engine, state, lambda *_: None)
        assert len(row.answered) == 5, "the hash fits what the poisoned device sends"
    return torch.linalg.vector_norm(state.w - experiment.start.w).item()


@pytest.mark.parametrize("rule", ["median", "trimmed-mean"])
@pytest.mark.parametrize("attack", ["scalars x 1000", "both"])
def test_a_robust_rule_survives_what_ruins_the_mean(
    tool: ModuleType, tiny_folder: Path, rule: str, attack: str
) -> None:
    honest = moved(tool, tiny_folder, "mean", "none", "sgd")
    assert moved(tool, tiny_folder, "mean", attack, "sgd") > 50 * honest
    assert moved(tool, tiny_folder, rule, attack, "sgd") < 2 * honest


def test_adamw_has_no_use_for_larger_scalars(tool: ModuleType, tiny_folder: Path) -> None:
    """Its steps do not depend on the gradient's scale, so neither does the replay of them."""
    honest = moved(tool, tiny_folder, "mean", "none", "adamw")
    poisoned = moved(tool, tiny_folder, "mean", "scalars x 1000", "adamw")
    assert poisoned == pytest.approx(honest, rel=0.2)
    assert moved(tool, tiny_folder, "mean", "both", "adamw") > 50 * honest
