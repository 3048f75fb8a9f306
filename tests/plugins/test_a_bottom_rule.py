"""A bottom rule from outside the package: one class, one entry, and it trains, replays, resumes."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import hofl
from hofl.local.bottom import BottomPass, Evidence, ZerothOrder
from hofl.local.site import Site
from hofl.local.surrogates import Feedback
from hofl.models.split import BlockInputs
from hofl.rules import BOTTOM_RULES, BottomTraits, LocalRule
from support.runs import adapter_bytes, quick


class Clipped(ZerothOrder):
    """Zeroth-order with scalars clipped to +-limit, as heavy-tailed losses ask for."""

    def __init__(self, rule: LocalRule, limit: float = 1.0) -> None:
        super().__init__(rule)
        if not limit > 0:
            raise hofl.HoflError(f"limit must be positive, got {limit}.")
        self.limit = limit

    def forward(self, site: Site, inputs: BlockInputs) -> BottomPass:
        return _ClippedPass(super().forward(site, inputs), self.limit)


class _ClippedPass:
    def __init__(self, inner: BottomPass, limit: float) -> None:
        self.z, self._inner, self._limit = inner.z, inner, limit

    def evidence(self, feedback: Feedback) -> Evidence:
        found = self._inner.evidence(feedback)
        return replace(found, scalars=found.scalars.clamp(-self._limit, self._limit))


@pytest.fixture(autouse=True)
def entered() -> Iterator[None]:
    BOTTOM_RULES["clipped"] = BottomTraits(make=Clipped, sends_scalars=True)
    yield
    del BOTTOM_RULES["clipped"]


def scalars_of(run: Path, method: dict[str, object], tiny_folder: Path) -> Tensor:
    """The largest scalar that the first client of a run sends in its first round."""
    from hofl.experiment.build import build_simulation
    from hofl.messages import Upload

    experiment = build_simulation(quick(tiny_folder, method=method))
    present = experiment.present(0)
    client = int(present.clients[-1])
    plan = experiment.plan(experiment.start, client, present)
    return Upload.from_bytes(experiment.client.answer(plan.to_bytes())).scalars


def test_it_trains_and_every_round_is_verified_by_its_hash(
    tiny_folder: Path, tmp_path: Path
) -> None:
    method = {"bottom": {"name": "clipped", "limit": 1e-3}}
    free = scalars_of(tmp_path, {}, tiny_folder)
    assert free.abs().max() > 1e-3, "something must be clipped"
    torch.testing.assert_close(
        scalars_of(tmp_path, method, tiny_folder), free.clamp(-1e-3, 1e-3), rtol=0, atol=0
    )
    config = quick(tiny_folder, method=method)
    run = hofl.run(config, tmp_path / "clipped")
    assert (
        run.summary["uplink_bytes"]
        < hofl.run(quick(tiny_folder, method={"name": "fedavg"}), tmp_path / "fedavg").summary[
            "uplink_bytes"
        ]
    )
    assert adapter_bytes(run.path) != adapter_bytes(
        hofl.run(quick(tiny_folder), tmp_path / "plain").path
    )
    # What the run wrote down makes the same run again.
    again = hofl.read_config(str(run.path / "config.toml"))
    assert again.method.bottom == {"name": "clipped", "limit": 1e-3}
    assert adapter_bytes(hofl.run(again, tmp_path / "again").path) == adapter_bytes(run.path)


@pytest.mark.parametrize(
    ("bottom", "message"),
    [
        ({"name": "clipped", "limits": 2}, "'clipped' has no option 'limits': it takes limit"),
        ({"name": "clipped", "limit": -1.0}, "limit must be positive, got -1.0"),
    ],
)
def test_its_mistakes_are_one_line(
    bottom: dict[str, object], message: str, tiny_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(hofl.HoflError, match=message):
        hofl.run(quick(tiny_folder, method={"bottom": bottom}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
