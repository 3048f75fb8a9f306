"""Exact, hybrid and zeroth-order devices train one adapter, each by the rule of its plan."""

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hofl
from hofl.core.errors import HoflError
from hofl.core.privacy import Privacy
from hofl.deploy.device import WorkerSettings
from hofl.deploy.worker import Worker
from hofl.experiment.build import Simulation, build_server, build_simulation
from hofl.experiment.fleet import memory_plan_of
from hofl.experiment.model import adapter_of
from hofl.experiment.rounds import run_rounds
from hofl.experiment.runs import RunDirectory
from hofl.memory.planner import Planner
from hofl.messages import RoundPlan, Upload
from hofl.server.checks import UploadLimits, check_upload, plan_as_answered
from support.flower_grid import LocalBridge, LocalGrid, local_engine
from support.flower_workers import serving
from support.runs import adapter_bytes, quick

ABLE = {"memory": "1GiB"}
THIN = {"memory": "1GiB", "uplink": "1480B"}
INFERENCE = {"memory": "1GiB", "backward": False}


def mixed(folder: Path, devices: list[dict[str, Any]] | None = None, **changes: Any) -> Any:
    fleet = {"boundaries": [], "devices": devices or [ABLE, THIN, INFERENCE]}
    adapter = {"rank": 16, "alpha": 4}
    return quick(folder, adapter=adapter, fleet={**fleet, **changes.pop("fleet", {})}, **changes)


@pytest.fixture(scope="module")
def simulation(tiny_folder: Path) -> Simulation:
    return build_simulation(mixed(tiny_folder))


def plans_of(made: Simulation) -> dict[str, RoundPlan]:
    """One plan for each kind of device."""
    present, dealt = made.present(0), made.config.fleet.devices
    kinds = {"able": ABLE, "thin": THIN, "inference": INFERENCE}
    plans = {}
    for name, device in kinds.items():
        given = [d.model_dump(exclude_defaults=True) for d in dealt]
        plans[name] = made.plan(made.start, given.index(device), present)
    return plans


def test_every_device_gets_the_rule_that_its_limits_allow(simulation: Simulation) -> None:
    """Everything exact; as much of the top as 1480 bytes carry; nothing backward at all."""
    plans, layout = plans_of(simulation), simulation.layout
    able, thin, inference = plans["able"], plans["thin"], plans["inference"]
    assert (able.boundary, able.rule.uplink_bits) == (0, 4)
    assert able.rule.traits.exact
    assert 0 < thin.boundary < layout.num_blocks
    assert thin.rule.bottom == simulation.method.local.bottom
    assert inference.boundary == layout.num_blocks
    assert inference.rule.surrogate.name == "end-to-end"
    sizes = {name: len(simulation.client.upload(plan).to_bytes()) for name, plan in plans.items()}
    assert sizes["thin"] <= 1480 < sizes["able"]
    smaller = replace(thin, boundary=thin.boundary - 1)
    assert len(simulation.client.upload(smaller).to_bytes()) > 1480, "a larger top does not fit"


def test_the_sampler_sees_what_each_device_does_not_train_exactly(simulation: Simulation) -> None:
    present, q = simulation.present(0), simulation.method.local.q
    for client, score in zip(present.clients, simulation.scores(present), strict=True):
        plan = simulation.plan(simulation.start, int(client), present)
        scalars = plan.rule.traits.sends_scalars
        expected = simulation.layout.cut(plan.boundary) / q if scalars else 0
        assert score == expected
    assert len(set(simulation.scores(present))) == 3


def test_a_mixed_run_is_the_same_resumed_in_two_workers_and_over_a_network(
    tiny_folder: Path, tmp_path: Path
) -> None:
    config = mixed(tiny_folder, [ABLE, THIN, INFERENCE], fleet={"clients": 3, "cohort": 3})
    whole = hofl.run(config, tmp_path / "whole")
    rows = RunDirectory(whole.path).metrics()
    assert [row.refused for row in rows] == [{}] * 4

    def stop(event: str, facts: dict[str, Any]) -> None:
        if event == "round" and facts["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hofl.run(config, tmp_path / "halves", stop)
    hofl.resume(tmp_path / "halves")
    assert adapter_bytes(tmp_path / "halves") == adapter_bytes(whole.path)
    both = config.model_copy(update={"engine": config.engine.model_copy(update={"workers": 2})})
    hofl.run(both, tmp_path / "both")
    assert adapter_bytes(tmp_path / "both") == adapter_bytes(whole.path)

    experiment = build_server(config)
    directory = RunDirectory.create(tmp_path / "network", experiment.config, experiment.secret)
    sockets = {number + 1: tmp_path / f"s{number}" for number in range(3)}
    said: list[str] = []
    with ExitStack() as stack:
        for number, device in enumerate([ABLE, THIN, INFERENCE]):
            limits = {key: value for key, value in device.items() if key != "memory"}
            settings = WorkerSettings(
                name=f"device-{number}",
                run_config=str(tmp_path / f"offer-{number}"),
                shard=number,
                memory="1GiB",
                limits=limits,
                device="cpu",
                threads=1,
            )
            stack.enter_context(serving(sockets[number + 1], Worker(settings)))
        engine = local_engine(
            experiment, LocalBridge(LocalGrid(sockets)), tmp_path, say=said.append
        )
        run_rounds(experiment, engine, directory, lambda *_: None)
    assert [row.refused for row in directory.metrics()] == [{}] * 4
    assert adapter_bytes(directory.path) == adapter_bytes(whole.path)
    assert any("bottom recompute, uplink_bits 4" in line for line in said)
    recorded = json.loads((directory.path / "metrics.jsonl").read_text().splitlines()[1])["rules"]
    assert recorded["0"] == {"bottom": "recompute", "uplink_bits": 4}
    summaries = [hofl.resume(path).summary for path in (whole.path, directory.path)]
    assert summaries[0]["audit"] == summaries[1]["audit"]


def test_an_inference_only_device_never_builds_a_graph(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Autograd raises as soon as anything is differentiated, and when a block runs with a graph."""
    plans, model = plans_of(simulation), simulation.model.split
    block = type(model).block

    def forward_only(self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        output = block(self, *args, **kwargs)
        if output.requires_grad:
            raise AssertionError("a block was run with a graph")
        return output

    def no_backward(*_args: Any, **_kwargs: Any) -> None:
        raise AssertionError("something was differentiated")

    monkeypatch.setattr(type(model), "block", forward_only)
    monkeypatch.setattr(torch.autograd, "grad", no_backward)
    upload = simulation.client.upload(plans["inference"])
    assert upload.scalars.abs().min() > 0
    with pytest.raises(AssertionError, match="with a graph"):
        simulation.client.upload(plans["able"])


@pytest.mark.parametrize("boundary", [0, 2])
def test_a_device_that_fails_backward_goes_on_without_and_the_server_follows(
    boundary: int, simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: the plan for an inference-only device, carried out as such."""
    plan = replace(plans_of(simulation)["able"], boundary=boundary)
    reasons: list[str] = []
    monkeypatch.setattr(simulation.client, "_cannot_run_backward", reasons.append)
    grad = torch.autograd.grad

    def unsupported(*_args: Any, **_kwargs: Any) -> None:
        raise NotImplementedError("no backward kernel on this device")

    monkeypatch.setattr(torch.autograd, "grad", unsupported)
    upload = simulation.client.upload(plan)
    monkeypatch.setattr(torch.autograd, "grad", grad)
    layout = simulation.layout
    answered = plan_as_answered(plan, Upload.from_bytes(upload.to_bytes()), layout)
    assert answered.boundary == layout.num_blocks
    assert answered.rule.surrogate.name == "end-to-end"
    check_upload(upload, answered, layout, UploadLimits())
    other = replace(plans_of(simulation)["inference"], client=plan.client, key=plan.key)
    other = replace(other, seed=plan.seed, rule=replace(other.rule, uplink_bits=4))
    assert torch.equal(simulation.client.upload(other).scalars, upload.scalars)
    assert len(reasons) == 1
    assert "no backward kernel" in reasons[0]
    private = replace(plan, privacy=Privacy(noise=1.0, scalar_clip=1.0, difference_clip=1.0))
    assert private.without_backward(layout) is None, "it would release more than it accounted for"


def test_a_device_on_a_network_falls_back_once_and_reports_it(
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It joins as one that runs backward, fails in round 1 and is planned without from round 2."""
    config = mixed(tiny_folder, [ABLE], fleet={"clients": 1, "cohort": 1})
    experiment = build_server(config)
    directory = RunDirectory.create(tmp_path / "run", experiment.config, experiment.secret)
    settings = WorkerSettings(
        name="claims-backward",
        run_config=str(tmp_path / "offer"),
        shard=0,
        memory="1GiB",
        device="cpu",
        threads=1,
    )
    failures: list[str] = []
    grad = torch.autograd.grad

    def unsupported(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        first = outputs if isinstance(outputs, torch.Tensor) else outputs[0]
        if first.is_meta:
            return grad(outputs, *args, **kwargs)  # planning needs no device
        failures.append("backward")
        raise NotImplementedError("no backward kernel on this device")

    monkeypatch.setattr(torch.autograd, "grad", unsupported)
    with serving(tmp_path / "s", Worker(settings)):
        engine = local_engine(
            experiment, LocalBridge(LocalGrid({1: tmp_path / "s"})), tmp_path, say=lambda _: None
        )
        run_rounds(experiment, engine, directory, lambda *_: None)
    first, *later = directory.metrics()[1:]
    assert (first.rules[0]["bottom"], first.forward_only) == ("recompute", [0])
    assert [row.rules[0] for row in later] == [{"surrogate": "end-to-end"}] * 2
    assert [row.forward_only for row in later] == [[], []]
    assert all(row.answered == [0] for row in (first, *later))
    assert len(failures) == 1
    assert caplog.text.count("planning without backward passes") == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fleet": {"strategy": "best"}, "method": {"name": "ho-sfl"}}, "at one boundary"),
        ({"fleet": {"budgets": ["1GiB"]}}, "fleet.devices or fleet.budgets, not both"),
        (
            {"devices": [INFERENCE], "method": {"name": "recompute"}},
            "needs a method whose devices may have bottoms",
        ),
        (
            {"devices": [INFERENCE], "method": {"name": "fedavg"}},
            r"paper plans by memory alone, and a device has other limits \(no backward\)",
        ),
        ({"devices": [THIN], "fleet": {"strategy": "paper"}}, r"other limits \(uplink\)"),
    ],
)
def test_what_cannot_be_mixed_is_one_line(
    changes: dict[str, Any], message: str, tiny_folder: Path
) -> None:
    with pytest.raises(HoflError, match=message):
        build_simulation(mixed(tiny_folder, **changes))


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ({"memory": "1KiB"}, r"nothing fits a device with 1.0 KiB: the smallest plan \(boundary"),
        ({"memory": "1GiB", "read_speed": "0MiB/s"}, "as a speed above 0: write it as 500MiB/s"),
        ({"memory": "1GiB", "seconds": 5.0}, "needs the device's speed: give gflops"),
        ({"memory": "1GiB", "uplink": "10B"}, r"needs \d+ B of uplink"),
        ({"memory": "1GiB", "disk": "much"}, "cannot read 'much' as an amount of disk"),
    ],
)
def test_a_device_that_cannot_be_planned_is_one_line(
    device: dict[str, Any], message: str, tiny_folder: Path
) -> None:
    with pytest.raises(HoflError, match=message) as caught:
        build_simulation(mixed(tiny_folder, [device]))
    assert "\n" not in str(caught.value)


def test_a_limit_of_time_leaves_blocks_out(tiny_folder: Path) -> None:
    """At half the speed that backpropagation needs, only the top is trained: half the passes."""
    free = build_simulation(mixed(tiny_folder, [{"memory": "1GiB", "gflops": 1.0}]))
    config = free.config
    model, least = free.model.split, min(free.client.sizes)
    memory = memory_plan_of(config, free.method, model, free.train, adapter_of(config), least)
    steps = Planner(memory, free.method).effort
    needed = steps.local_steps * steps.flops / 1e9
    slow = {"memory": "1GiB", "gflops": 1.0, "seconds": 0.8 * needed}
    hurried = build_simulation(mixed(tiny_folder, [slow]))
    (row,) = hurried.config.fleet.planned
    assert row.rule["bottom"] == "frozen"
    assert np.all(np.array(hurried.boundaries()) == row.boundary)
    assert 0 < row.boundary < hurried.layout.num_blocks
