"""Runs that start from an adapter: the same bits everywhere, and no other start."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import hofl
from hofl.core.errors import HoflError
from hofl.engines.base import DeviceOffer
from hofl.experiment.build import build_server, build_simulation
from hofl.experiment.config import parse_config
from hofl.experiment.device import build_device
from hofl.experiment.launcher import worker_client
from hofl.experiment.rounds import run_rounds
from hofl.experiment.runs import RunDirectory
from support.adapters import plain_adapter
from support.flower_grid import LocalBridge, LocalGrid, local_engine
from support.flower_workers import device, serving
from support.models import batch, padded
from support.runs import adapter_bytes, quick, run_cli, stop_at

FLEET = {"clients": 3, "cohort": 2, "boundaries": [1, 2, 3]}


def warm(model: Path, start: Path, **changes: Any) -> hofl.ExperimentConfig:
    """A quick run whose rank, alpha and targets are those of the adapter."""
    values = quick(model, rounds=2, fleet=FLEET, **changes).model_dump(mode="python")
    values["adapter"] = {"start": str(start)}
    return parse_config(values)


@pytest.fixture(scope="module")
def adapter(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapter")
    plain_adapter(tiny_folder, folder)
    return folder


@pytest.fixture(scope="module")
def finished(
    tiny_folder: Path, adapter: Path, tmp_path_factory: pytest.TempPathFactory
) -> hofl.Result:
    return hofl.run(warm(tiny_folder, adapter), tmp_path_factory.mktemp("runs") / "warm")


def test_a_run_starts_as_the_model_that_peft_loads(tiny_folder: Path, tmp_path: Path) -> None:
    theirs = plain_adapter(tiny_folder, tmp_path / "adapter", target_modules=["o_proj", "q_proj"])
    ours = build_simulation(warm(tiny_folder, tmp_path / "adapter"))
    assert (ours.config.adapter.rank, ours.config.adapter.alpha) == (3, 9)
    data = padded(batch(0))
    with torch.no_grad():
        expected = theirs(input_ids=data.input_ids).logits
        found = ours.model.split.module(input_ids=data.input_ids).logits
    assert torch.equal(found, expected)
    assert torch.equal(ours.start.w, ours.model.split.w)


def test_a_resumed_run_ends_in_the_same_bits(
    finished: hofl.Result, tiny_folder: Path, adapter: Path, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        hofl.run(warm(tiny_folder, adapter), tmp_path / "stopped", stop_at(1))
    resumed = hofl.resume(tmp_path / "stopped")
    assert adapter_bytes(resumed.path) == adapter_bytes(finished.path)
    fresh = hofl.run(quick(tiny_folder, rounds=2, fleet=FLEET), tmp_path / "fresh")
    assert fresh.summary["initial"]["loss"] != finished.summary["initial"]["loss"]


def test_a_worker_of_a_pool_answers_with_the_same_bytes(tiny_folder: Path, adapter: Path) -> None:
    """Its client is what a process of the pool makes, from the run's plain values."""
    run = build_simulation(warm(tiny_folder, adapter))
    worker = worker_client(run.config.model_dump(mode="json"), 0)
    plan = run.plan(run.start, 1, run.present(0)).to_bytes()
    assert worker.answer(plan) == run.client.answer(plan)


def test_a_run_over_flowers_messages_ends_in_the_same_bits(
    finished: hofl.Result, tiny_folder: Path, adapter: Path, tmp_path: Path
) -> None:
    """The devices do not have the adapter: its folder is gone when they join."""
    moved = tmp_path / "moved"
    shutil.copytree(adapter, moved)
    experiment = build_server(warm(tiny_folder, moved))
    shutil.rmtree(moved)
    sockets = {number: tmp_path / str(number) for number in range(3)}
    directory = RunDirectory.create(tmp_path / "run", experiment.config, experiment.secret)
    with (
        serving(sockets[0], device(tmp_path, 0, 1)),
        serving(sockets[1], device(tmp_path, 1, 2)),
        serving(sockets[2], device(tmp_path, 2, 3)),
    ):
        engine = local_engine(experiment, LocalBridge(LocalGrid(sockets)), tmp_path)
        run_rounds(experiment, engine, directory, lambda *_: None)
    assert adapter_bytes(directory.path) == adapter_bytes(finished.path)
    assert all(row.refused == {} for row in directory.metrics())


def test_a_device_refuses_another_start(tiny_folder: Path, adapter: Path) -> None:
    server = build_server(warm(tiny_folder, adapter))
    side = build_device(server.config, data=None, shard=0, memory="auto", boundary=1)
    plan = server.plan(server.start, 0, server.present(0, {0: DeviceOffer(1)}))
    assert side.client.upload(plan).client == 0
    for other in (
        replace(plan, start=""),
        replace(plan, start="0" * 64),
        replace(plan, w=plan.w + 1e-3),
        replace(plan, round=3, start="0" * 64),
    ):
        with pytest.raises(HoflError, match="this device joined a run that starts from"):
            side.client.upload(other)
    later = replace(plan, round=3, w=plan.w + 1e-3)  # training has moved w
    assert side.client.upload(later).round == 3


def test_a_changed_adapter_is_refused_by_a_resume(
    tiny_folder: Path, adapter: Path, tmp_path: Path
) -> None:
    start = tmp_path / "start"
    shutil.copytree(adapter, start)
    with pytest.raises(KeyboardInterrupt):
        hofl.run(warm(tiny_folder, start), tmp_path / "run", stop_at(1))
    shutil.rmtree(start)
    code, output = run_cli("run", "--resume", str(tmp_path / "run"))
    assert (code, output.count("\n")) == (2, 1)
    assert "is not a PEFT adapter" in output
    other = plain_adapter(tiny_folder, start)
    with torch.no_grad():
        next(p for n, p in other.named_parameters() if "lora_B" in n).add_(1.0)
    other.save_pretrained(str(start))
    with pytest.raises(HoflError, match="is not the one that this run starts from"):
        hofl.resume(tmp_path / "run")


def test_a_run_can_start_from_the_result_of_another(
    finished: hofl.Result, tiny_folder: Path, tmp_path: Path
) -> None:
    second = hofl.run(warm(tiny_folder, finished.path), tmp_path / "second")
    assert second.summary["initial"] == finished.summary["final"]
    assert "started from | an adapter with SHA-256" in (second.adapter / "README.md").read_text()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"rank": 4}, "adapter.rank is 4, and the adapter in .* has 3: remove adapter.rank"),
        ({"targets": ["q_proj"]}, "adapter.targets is q_proj, and .* has q_proj, v_proj"),
        ({"kind": "full"}, "set adapter.kind=lora"),
        ({"start": "nowhere"}, "nowhere is not a PEFT adapter"),
    ],
)
def test_a_configuration_that_asks_for_another_adapter_is_one_line(
    change: dict[str, Any], expected: str, tiny_folder: Path, adapter: Path
) -> None:
    values = warm(tiny_folder, adapter).model_dump(mode="python", exclude_defaults=True)
    values["adapter"] |= change
    with pytest.raises(HoflError, match=expected):
        build_simulation(parse_config(values))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"peft_type": "IA3"}, "is a IA3 adapter: only LoRA"),
        ({"use_dora": True}, "use_dora = True: only plain LoRA"),
        ({"rank_pattern": {"q_proj": 9}}, "rank_pattern"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa'"),
        ({"target_modules": ".*_proj"}, "by a pattern"),
        ({"target_modules": ["q_proj"]}, "does not fit the model: it has .*v_proj"),
        ({"target_modules": ["q_proj", "v_proj", "k_proj"]}, "it lacks .*k_proj"),
        ({"target_modules": [1]}, "by a pattern, .1."),
        ({"r": "3"}, "has r = '3': only positive whole numbers"),
        ({"r": 0}, "has r = 0: only"),
        ({"lora_alpha": 2.5}, "has lora_alpha = 2.5: only"),
        ({"lora_alpha": float("nan")}, "has lora_alpha = nan: only"),
        ({"r": 5}, "does not fit the model: .*lora_A.weight is .3, 32., .* needs .5, 32."),
    ],
)
def test_an_adapter_that_does_not_fit_is_one_line(
    change: dict[str, Any], expected: str, tiny_folder: Path, adapter: Path, tmp_path: Path
) -> None:
    start = tmp_path / "start"
    shutil.copytree(adapter, start)
    file = start / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(HoflError, match=expected) as refusal:
        build_simulation(warm(tiny_folder, start))
    assert "\n" not in str(refusal.value)
