"""Devices with their own files and their own memory: what they train, and how they plan."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

import hofl
from hofl.deploy.device import WorkerSettings
from hofl.deploy.worker import Worker
from hofl.experiment.build import Experiment, build_server, build_simulation
from hofl.experiment.device import build_device
from hofl.experiment.fleet import memory_plan_of
from hofl.experiment.model import adapter_of
from hofl.experiment.rounds import run_rounds
from hofl.experiment.runs import RunDirectory, config_text
from hofl.memory.capability import Headroom
from hofl.memory.device import DevicePlanner
from hofl.memory.plan import MemoryPlan
from hofl.memory.workload import Cost
from support.flower_grid import LocalBridge, LocalGrid, local_engine
from support.flower_workers import serving
from support.runs import adapter_bytes, own_files, quick

TEXTS = ("my parcel has not arrived", "you charged my card twice", "the invoice is wrong")


@pytest.fixture
def config(tiny_folder: Path, tmp_path: Path) -> hofl.ExperimentConfig:
    """Three clients with 4, 7 and 5 examples of their own, a file each."""
    for number, count in enumerate((4, 7, 5)):
        lines = [{"text": TEXTS[(i + number) % 3], "kind": "ab"[i % 2]} for i in range(count)]
        file = tmp_path / "train" / f"shop-{number}.jsonl"
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "test.jsonl").write_text('{"text": "late", "kind": "a"}\n')
    fleet = {"clients": 3, "cohort": 2, "boundaries": [1]}
    return own_files(
        tiny_folder, tmp_path / "train", tmp_path / "test.jsonl", fleet=fleet, rounds=2
    )


def test_devices_with_a_file_each_train_what_one_process_trains_with_all_files(
    config: hofl.ExperimentConfig, tmp_path: Path
) -> None:
    """The server names no training file that exists."""
    expected = hofl.run(config, tmp_path / "in-process")
    assert config.custom is not None
    blind = config.custom.model_copy(update={"train": "on-the-devices"})
    experiment = build_server(config.model_copy(update={"custom": blind}))
    directory = RunDirectory.create(tmp_path / "run", experiment.config, experiment.secret)
    sockets = {number + 1: tmp_path / f"s{number}" for number in range(3)}
    with ExitStack() as stack:
        for number, socket in enumerate(sockets.values()):
            settings = WorkerSettings(
                name=f"shop-{number}",
                run_config=str(tmp_path / f"offer-{number}"),
                data=str(tmp_path / "train" / f"shop-{number}.jsonl"),
                boundary=1,
                device="cpu",
                threads=1,
            )
            stack.enter_context(serving(socket, Worker(settings)))
        engine = local_engine(experiment, LocalBridge(LocalGrid(sockets)), tmp_path)
        run_rounds(experiment, engine, directory, lambda *_: None)
    assert [row.refused for row in directory.metrics()] == [{}] * 3
    assert adapter_bytes(directory.path) == adapter_bytes(expected.path)


@pytest.fixture(scope="module")
def experiment(tiny_folder: Path) -> Experiment:
    return build_simulation(quick(tiny_folder))


@pytest.fixture(scope="module")
def costs(experiment: Experiment) -> MemoryPlan:
    config, model = experiment.config, experiment.model.split
    adapter = adapter_of(config)
    return memory_plan_of(config, experiment.method, model, experiment.train, adapter, 8)


def test_a_device_takes_the_smallest_boundary_that_fits_and_plans_again_when_memory_changes(
    experiment: Experiment, costs: MemoryPlan
) -> None:
    """Oracle: the peaks of all boundaries, looked through one by one."""
    peaks = [cost.peak_bytes for cost in costs.plain]
    budget = peaks[2]
    rule = experiment.method.local
    own = DevicePlanner(lambda memory, _: costs.fitting(memory), rule, lambda: budget)
    seen = set()
    for budget in (peaks[2], min(peaks), 10 * max(peaks), peaks[3]):
        fits = [boundary for boundary, peak in enumerate(peaks) if peak <= budget]
        assert own().boundary == fits[0]
        seen.add(fits[0])
    assert len(seen) > 2
    budget = min(peaks) - 1
    with pytest.raises(hofl.HoflError):
        own()


def test_a_device_plans_again_when_the_headroom_of_its_plan_is_gone(
    experiment: Experiment, costs: MemoryPlan
) -> None:
    """By hand: a plan of peak p leaves 100 bytes, so it is kept down to p + 100 and no further."""
    lean, heavy = sorted((costs.plain[0], costs.plain[-1]), key=lambda cost: cost.peak_bytes)
    budget, headroom = 2 * heavy.peak_bytes, Headroom(100, 0.0)

    def choose(memory: int, _backward: bool) -> Cost:
        for cost in (heavy, lean):
            if cost.peak_bytes + 100 <= memory:
                return cost
        raise hofl.HoflError("nothing fits")

    own = DevicePlanner(choose, experiment.method.local, lambda: budget, headroom)
    assert own().boundary == heavy.boundary
    budget = heavy.peak_bytes + 100
    assert own().boundary == heavy.boundary
    budget = heavy.peak_bytes + 99
    assert own().boundary == lean.boundary
    budget = lean.peak_bytes  # nothing would fit, and the peak of what runs still does
    assert own().boundary == lean.boundary
    budget = lean.peak_bytes - 1
    with pytest.raises(hofl.HoflError, match="nothing fits"):
        own()


def test_a_device_without_enough_memory_says_so_in_one_line(experiment: Experiment) -> None:
    side = build_device(experiment.config, data=None, shard=0, memory="1KiB", device="cpu")
    with pytest.raises(hofl.HoflError) as caught:
        side.choose()
    assert "\n" not in str(caught.value)


def test_what_is_wrong_with_a_devices_files_is_reported_in_its_log_alone(
    config: hofl.ExperimentConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "mine.jsonl").write_text('"a secret"\n')
    settings = WorkerSettings(
        name="shop",
        run_config=str(tmp_path / "offer"),
        data=str(tmp_path / "mine.jsonl"),
        boundary=1,
        device="cpu",
        threads=1,
    )
    offer = config_text(build_server(config).config).encode()
    said, upload = Worker(settings).answer({"kind": "join"}, offer)
    assert "worker.log" in said["failure"]
    assert "secret" not in str(said)
    assert upload == b""
    assert "secret" in caplog.text


@pytest.mark.parametrize("min_noise", [0.0, 0.5])
def test_how_much_memory_a_private_device_lacks_is_reported_in_its_log_alone(
    min_noise: float, experiment: Experiment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It follows from the longest text."""
    settings = WorkerSettings(
        name="shop",
        run_config=str(tmp_path / "offer"),
        shard=0,
        memory="1KiB",
        device="cpu",
        threads=1,
        min_noise=min_noise,
    )
    offer = config_text(experiment.config).encode()
    said, _ = Worker(settings).answer({"kind": "join"}, offer)
    assert ("the smallest plan" in said["failure"]) == (min_noise == 0)
    assert "the smallest plan" in caplog.text
