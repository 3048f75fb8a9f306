"""Runs on one machine: the run directory, equal bits, refusals, dropouts."""

import json
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM

import hofl
from hofl.algorithm import reconstruct
from hofl.core.layout import Layout
from hofl.engines.base import Dispatch, Failure
from hofl.engines.client import LocalClient
from hofl.engines.local import InProcess
from hofl.experiment.build import build_simulation
from hofl.experiment.checkpoint import load_state
from hofl.experiment.rounds import one_round
from hofl.experiment.runs import RunDirectory
from hofl.memory.live import LiveBytes
from hofl.messages import ClientMetrics, RoundPlan, Upload
from support.models import batch, padded
from support.runs import adapter_bytes, quick


@pytest.fixture(scope="module")
def finished(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> hofl.Result:
    return hofl.run(quick(tiny_folder), tmp_path_factory.mktemp("runs") / "first")


def test_run_directory_holds_what_the_contract_says(finished: hofl.Result) -> None:
    names = {path.name for path in finished.path.iterdir()}
    assert names == {
        "asked.toml",
        "config.toml",
        "secret.key",
        "audit.jsonl",
        "environment.json",
        "metrics.jsonl",
        "checkpoint",
        "adapter",
        "summary.json",
    }
    rows = [json.loads(line) for line in (finished.path / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [0, 1, 2, 3]
    wanted = {"round", "cohort", "refused", "train_loss", "uplink_bytes", "downlink_bytes"}
    wanted |= {"seconds", "zo_snr", "peak_bytes"}
    assert all(wanted <= set(row) for row in rows[1:])
    assert all(len(row["cohort"]) == 3 for row in rows[1:])
    assert rows[0]["eval"]["examples"] == rows[-1]["eval"]["examples"] == 200
    assert finished.summary["uplink_bytes"] == sum(row["uplink_bytes"] for row in rows[1:])
    taken = [client for row in rows[1:] for client in row["cohort"]]
    audit = finished.summary["audit"]
    assert audit["realised"] == [taken.count(client) for client in range(6)]
    assert sum(audit["expected"]) == pytest.approx(9)
    assert {"statistic", "p_value"} <= set(audit)


def test_resolved_configuration_is_complete_and_gives_the_same_run(
    finished: hofl.Result, tmp_path: Path
) -> None:
    config = hofl.read_config(str(finished.path / "config.toml"))
    assert len(config.fleet.boundaries) == config.fleet.clients
    assert config.method.q == 2
    again = hofl.run(config, tmp_path / "again")
    assert adapter_bytes(again.path) == adapter_bytes(finished.path)


def test_plain_peft_loads_the_adapter_and_computes_the_trained_model(
    finished: hofl.Result, tiny_folder: Path
) -> None:
    base = AutoModelForCausalLM.from_pretrained(tiny_folder)
    loaded = peft.PeftModel.from_pretrained(base, finished.adapter)
    experiment = build_simulation(finished_config(finished))
    state = load_state(RunDirectory(finished.path), experiment.layout.digest)
    assert state is not None
    assert state.round == 3
    assert not torch.equal(state.w, experiment.start.w), "training must have changed the adapter"
    split = experiment.model.split
    split.load(state.w)
    data = padded(batch(0))
    with torch.no_grad():
        theirs = loaded(input_ids=data.input_ids).logits
        ours = split.module(input_ids=data.input_ids).logits
    assert torch.equal(ours, theirs)
    assert torch.equal(finished.load()(input_ids=data.input_ids).logits, theirs)


def finished_config(result: hofl.Result) -> hofl.ExperimentConfig:
    return RunDirectory(result.path).config()


def test_one_worker_and_two_workers_end_in_the_same_bits(
    finished: hofl.Result, tiny_folder: Path, tmp_path: Path
) -> None:
    config = quick(tiny_folder, engine={"workers": 2, "threads": 1})
    parallel = hofl.run(config, tmp_path / "two")
    assert adapter_bytes(parallel.path) == adapter_bytes(finished.path)
    assert parallel.summary["final"] == finished.summary["final"]


def test_another_seed_ends_in_other_bits(
    finished: hofl.Result, tiny_folder: Path, tmp_path: Path
) -> None:
    other = hofl.run(quick(tiny_folder, seed=6), tmp_path / "other")
    assert adapter_bytes(other.path) != adapter_bytes(finished.path)


@pytest.mark.parametrize("name", hofl.METHODS)
def test_every_method_runs_and_moves_the_adapter(
    name: str, tiny_folder: Path, tmp_path: Path
) -> None:
    config = quick(tiny_folder, rounds=1, method={"name": name, "local_steps": 1})
    result = hofl.run(config, tmp_path / name)
    start = build_simulation(config).start.w
    state = load_state(RunDirectory(result.path), build_simulation(config).layout.digest)
    assert state is not None
    assert not torch.equal(state.w, start)


@pytest.mark.parametrize("aggregation", ["mean", "exact-first", "by-precision"])
def test_aggregations_differ_only_where_boundaries_do(aggregation: str, tiny_folder: Path) -> None:
    """With one common boundary every rule of weights is the plain mean in the top segment."""
    config = quick(tiny_folder, fleet={"boundaries": [2]}, method={"aggregation": aggregation})
    plain = quick(tiny_folder, fleet={"boundaries": [2]})
    ends = []
    for chosen in (config, plain):
        experiment = build_simulation(chosen)
        state = experiment.start
        engine = InProcess(experiment.client)
        ends.append(one_round(experiment, engine, state, lambda *_: None)[0].w)
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-7)


Tamper = Callable[[bytes], bytes | Failure]


class Tampering(InProcess):
    """An engine one of whose clients sends something else."""

    def __init__(self, client: LocalClient, victim: int, tamper: Tamper) -> None:
        super().__init__(client)
        self._victim, self._tamper = victim, tamper

    def gather(self, dispatches: Iterable[Dispatch]) -> Iterator[bytes | Failure]:
        for number, answer in enumerate(super().gather(dispatches)):
            assert isinstance(answer, bytes)
            yield self._tamper(answer) if number == self._victim else answer


def _with(data: bytes, **changes: object) -> bytes:
    return replace(Upload.from_bytes(data), **changes).to_bytes()


def _nan(data: bytes) -> bytes:
    difference = Upload.from_bytes(data).difference.clone()
    difference[0] = torch.nan
    return _with(data, difference=difference)


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        (lambda data: data[:100], "not a hofl message"),
        (lambda data: _with(data, round=7), "round is 7"),
        (lambda data: _with(data, client=77), "client is 77"),
        (lambda data: _with(data, difference=torch.zeros(3)), "difference has shape"),
        (_nan, "not finite"),
        (lambda data: _with(data, bottom_hash="00"), "replayed bottom"),
        (lambda data: Failure("out of memory"), "out of memory"),
    ],
)
def test_a_bad_answer_is_refused_recorded_and_never_touches_the_model(
    tamper: Tamper, reason: str, tiny_folder: Path
) -> None:
    """Oracle: the same round in which that client simply was not there."""
    experiment = build_simulation(quick(tiny_folder))
    state = experiment.start
    engine = Tampering(experiment.client, 1, tamper)
    after, row = one_round(experiment, engine, state, lambda *_: None)
    victim = row.cohort[1]
    assert reason in row.refused[victim]
    assert row.answered == [i for i in row.cohort if i != victim]

    total = torch.zeros(experiment.layout.size, dtype=torch.float64)
    for client in row.answered:
        plan = experiment.plan(state, client, experiment.present(0))
        upload = Upload.from_bytes(experiment.client.answer(plan.to_bytes()))
        total += reconstruct(plan, upload, experiment.layout).double()
    assert torch.equal(after.w, (state.w.double() + total / 2).float())


def test_clients_that_drop_out_are_recorded_and_the_rest_is_averaged(
    tiny_folder: Path, tmp_path: Path
) -> None:
    config = quick(tiny_folder, rounds=6, fleet={"dropout": 0.5})
    result = hofl.run(config, tmp_path / "dropouts")
    rows = RunDirectory(result.path).metrics()[1:]
    assert any(row.dropped for row in rows)
    for row in rows:
        assert sorted(row.dropped + row.answered) == row.cohort
        assert (row.train_loss is None) == (not row.answered)


def test_uplink_on_the_wire_is_within_the_stated_bound(tiny_folder: Path) -> None:
    experiment = build_simulation(quick(tiny_folder))
    for client, boundary in enumerate(experiment.boundaries()):
        plan = experiment.plan(experiment.start, client, experiment.present(0))
        sent = len(experiment.client.answer(plan.to_bytes()))
        rule, d_fo = plan.rule, experiment.layout.size - experiment.layout.cut(boundary)
        assert sent <= 1.02 * 4 * (rule.local_steps * rule.q + d_fo) + 2048
        assert RoundPlan.from_bytes(plan.to_bytes()).boundary == boundary


def test_exploding_training_stops_with_one_line_and_keeps_the_last_good_round(
    tiny_folder: Path, tmp_path: Path
) -> None:
    """At this rate one processor ends in values that are not finite and another in 1e36."""
    config = quick(tiny_folder, method={"optimizer": "sgd", "lr": 1e38, "name": "fedavg"})
    reason = r"round \d( diverged|: no client gave a usable update).*[Ll]ower the learning rate"
    with pytest.raises(hofl.HoflError, match=reason) as error:
        hofl.run(config, tmp_path / "exploding")
    run = RunDirectory(tmp_path / "exploding")
    assert "\n" not in str(error.value)
    assert run.summary() is None
    experiment = build_simulation(config)
    state = load_state(run, experiment.layout.digest)
    assert state is not None
    assert state.w.norm() < 2 * experiment.start.w.norm()
    assert run.metrics()[-1].round == state.round


class Echo:
    """Answers every plan with a valid upload that changes nothing."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def join(self) -> None:
        pass

    def traffic(self) -> dict[str, dict[str, int]]:
        return {}

    def gather(self, dispatches: Iterable[Dispatch]) -> Iterator[bytes | Failure]:
        for plan in (dispatch.plan for dispatch in dispatches):
            yield Upload(
                run=plan.run,
                round=plan.round,
                client=plan.client,
                boundary=plan.boundary,
                layout=plan.layout,
                plan=plan.digest(),
                scalars=torch.zeros(plan.scalars_shape(self._layout)),
                difference=torch.zeros(self._layout.size - plan.dense_start(self._layout)),
                metrics=ClientMetrics(loss=1.0, examples=1),
            ).to_bytes()

    def close(self) -> None:
        pass


def test_server_memory_does_not_grow_with_the_cohort(tiny_folder: Path) -> None:
    """Message buffers by tracemalloc and tensors by their live storages, K = 10 against 200.

    The headers of 190 more plans, 1.4 kB each, are all that may be added. The first round is not
    measured: it imports.
    """
    peaks = {}
    for cohort in (10, 10, 200):
        config = quick(
            tiny_folder,
            adapter={"kind": "full"},
            fleet={"clients": 200, "cohort": cohort},
            method={"name": "hofl-uniform", "local_steps": 1},
            server={"verify": False},
        )
        experiment = build_simulation(config)
        tracemalloc.start()
        with LiveBytes() as tensors:
            _, row = one_round(
                experiment,
                Echo(experiment.layout),
                experiment.start,
                lambda *_: None,
            )
        peaks[cohort] = tensors.peak + tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(row.answered) == cohort
    one_message = 4 * experiment.layout.size
    assert peaks[200] < peaks[10] + 5 * one_message
