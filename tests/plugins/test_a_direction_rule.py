"""A direction rule with a scale that the server keeps, from outside the package (HiSo's).

u = H^(-1/2) * normal, with H updated from the averaged zeroth-order steps of every round. The
server sends the scale with every plan, keeps H in its state, and replays with what it sent.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import hofl
from hofl.core.directions import Gaussian
from hofl.core.layout import Coordinate, Layout
from hofl.experiment.build import build_simulation
from hofl.experiment.checkpoint import load_state
from hofl.experiment.launch import advance
from hofl.experiment.runs import RunDirectory
from hofl.rules import DIRECTIONS, DirectionTraits
from hofl.server.state import Contribution
from support.runs import adapter_bytes, quick


class Scaled(Gaussian):
    """Shared normal directions, scaled coordinate by coordinate."""

    def __init__(self, key, layout, vectors, *, nu: float = 0.05) -> None:
        super().__init__(key, layout, vectors)

    def direction(self, step: int, j: int, coordinate: Coordinate) -> np.ndarray:
        values = super().direction(step, j, coordinate)
        values *= self.vectors["scale"][coordinate.start : coordinate.stop]
        return values


class Curvature:
    """H <- (1 - nu) H + nu Dx^2, Dx the mean over clients of their last step's estimate."""

    def __init__(self, layout: Layout, nu: float = 0.05) -> None:
        self._layout, self._nu = layout, nu
        self._sum, self._count = torch.zeros(layout.size), 0

    def start(self) -> dict[str, Tensor]:
        return {"hessian": torch.ones(self._layout.size), "scale": torch.ones(self._layout.size)}

    def add(self, contribution: Contribution) -> None:
        plan, scalars = contribution.plan, contribution.upload.scalars
        if scalars.shape[1]:
            g = torch.zeros(self._layout.cut(plan.boundary))
            last = len(scalars) - 1
            directions = plan.directions(self._layout)
            directions.combine(scalars[last].numpy(), last, plan.boundary, out=g.numpy())
            self._sum[: len(g)] += g
            self._count += 1

    def result(self, vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        mean = self._sum / max(self._count, 1)
        hessian = (1 - self._nu) * vectors["hessian"] + self._nu * mean.square()
        return {"hessian": hessian, "scale": hessian.rsqrt()}


@pytest.fixture(autouse=True)
def entered() -> Iterator[None]:
    DIRECTIONS["scaled"] = DirectionTraits(make=Scaled, keep=Curvature, shared=lambda _: True)
    yield
    del DIRECTIONS["scaled"]


def config(tiny_folder: Path, **options: float) -> hofl.ExperimentConfig:
    method = {"name": "decomfl-sgd", "directions": {"name": "scaled", **options}}
    return quick(tiny_folder, rounds=4, method={"optimizer": {"lr": 0.01}, **method})


def test_a_scale_of_one_is_decomfl_bit_for_bit(tiny_folder: Path, tmp_path: Path) -> None:
    plain = quick(tiny_folder, rounds=4, method={"name": "decomfl-sgd", "optimizer": {"lr": 0.01}})
    scaled = hofl.run(config(tiny_folder, nu=0.0), tmp_path / "scaled")
    assert adapter_bytes(scaled.path) == adapter_bytes(hofl.run(plain, tmp_path / "plain").path)


def test_the_scale_is_kept_sent_replayed_and_resumed(tiny_folder: Path, tmp_path: Path) -> None:
    """Every upload's hash is verified, so a client and a server with two scales would stop it."""
    whole = hofl.run(config(tiny_folder), tmp_path / "whole")
    digest = build_simulation(config(tiny_folder)).layout.digest
    state = load_state(RunDirectory(whole.path), digest)
    assert state is not None
    assert set(state.vectors) == {"hessian", "scale"}
    assert (state.vectors["hessian"] != 1).all()
    assert adapter_bytes(whole.path) != adapter_bytes(
        hofl.run(config(tiny_folder, nu=0.0), tmp_path / "one").path
    )
    advance(config(tiny_folder), tmp_path / "stopped", 2)
    resumed = hofl.resume(tmp_path / "stopped")
    assert adapter_bytes(resumed.path) == adapter_bytes(whole.path)
    assert torch.equal(
        load_state(RunDirectory(resumed.path), digest).vectors["hessian"], state.vectors["hessian"]
    )
    downlink = whole.summary["downlink_bytes"]
    plain = quick(tiny_folder, rounds=4, method={"name": "decomfl-sgd", "optimizer": {"lr": 0.01}})
    assert downlink > 2.5 * hofl.run(plain, tmp_path / "plain").summary["downlink_bytes"]
