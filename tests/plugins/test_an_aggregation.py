"""An aggregation by n_i from outside the package: one class, one entry."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import hofl
from hofl.core.layout import Layout
from hofl.server.aggregate import AGGREGATIONS
from hofl.server.state import Contribution
from support.runs import adapter_bytes, quick

SKEWED = {"partition": "quantity", "alpha": 0.3}


class PowerOfExamples:
    """Weights n_i ** power; power 1 is FedAvg's own, power 0 the plain mean."""

    def __init__(self, layout: Layout, power: float = 1.0) -> None:
        self._sum, self._total = torch.zeros(layout.size, dtype=torch.float64), 0.0
        self._power = power

    def add(self, contribution: Contribution) -> None:
        weight = float(contribution.examples) ** self._power
        self._sum.add_(contribution.delta.double(), alpha=weight)
        self._total += weight

    def result(self) -> Tensor:
        return self._sum / (self._total or 1.0)


@pytest.fixture(autouse=True)
def entered() -> Iterator[None]:
    AGGREGATIONS["power-of-examples"] = PowerOfExamples
    yield
    del AGGREGATIONS["power-of-examples"]


def trained(tiny_folder: Path, out: Path, aggregation: object) -> bytes:
    config = quick(tiny_folder, method={"aggregation": aggregation}, data=SKEWED)
    return adapter_bytes(hofl.run(config, out).path)


def test_its_option_moves_it_between_the_two_that_are_built_in(
    tiny_folder: Path, tmp_path: Path
) -> None:
    weighted = trained(tiny_folder, tmp_path / "a", "by-examples")
    mean = trained(tiny_folder, tmp_path / "b", "mean")
    assert weighted != mean
    assert trained(tiny_folder, tmp_path / "c", "power-of-examples") == weighted
    flat = {"name": "power-of-examples", "power": 0.0}
    assert trained(tiny_folder, tmp_path / "d", flat) == mean
