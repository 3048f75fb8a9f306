"""Trackers: real libraries read back by their own readers; failures that do not stop a run."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

import hofl
from hofl.core.errors import HoflError
from hofl.experiment.config import read_config
from hofl.tracking.trackers import TRACKERS, Entry, kept_identity, makers, tracked
from support.runs import adapter_bytes, quick, run_cli, stop_at


def lines_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_tensorboard_has_every_round_once_also_of_a_run_that_was_stopped(
    tiny_folder: Path, tmp_path: Path
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = quick(tiny_folder, tracking={"to": ["tensorboard"]}, evaluation={"every": 1})
    with pytest.raises(KeyboardInterrupt):
        hofl.run(config, tmp_path / "run", stop_at(2))
    hofl.resume(tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    rows = lines_of(tmp_path / "run")
    wanted = {
        "train_loss": {row["round"]: row["train_loss"] for row in rows[1:]},
        "uplink_bytes": {row["round"]: row["uplink_bytes"] for row in rows},
        "eval/accuracy": {row["round"]: row["eval"]["accuracy"] for row in rows},
        "answered": {row["round"]: len(row["answered"]) for row in rows},
    }
    for name, values in wanted.items():
        found = [(event.step, event.value) for event in events.Scalars(name)]
        assert [step for step, _ in found] == list(values), name
        assert dict(found) == pytest.approx(values, rel=1e-6), name
    (text,) = events.Tensors("configuration/text_summary")[-1].tensor_proto.string_val
    assert b"rounds = 3" in text
    plain = hofl.run(quick(tiny_folder, evaluation={"every": 1}), tmp_path / "plain")
    assert adapter_bytes(plain.path) == adapter_bytes(tmp_path / "run"), "only looked at"


def test_weights_and_biases_offline_holds_the_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    monkeypatch.delenv("WANDB_MODE", raising=False)
    follow(tmp_path, "wandb")
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    store, steps = DataStore(), {}
    store.open_for_scan(str(file))
    while (data := store.scan_data()) is not None:
        record = Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {
                (item.key or "/".join(item.nested_key)): json.loads(item.value_json)
                for item in record.history.item
            }
            steps[items["_step"]] = items["train_loss"]
    assert steps == {n: pytest.approx(LOSSES[n]) for n in LOSSES}


@pytest.mark.filterwarnings("default")  # MLflow's store uses what SQLAlchemy deprecates
def test_mlflow_holds_the_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    follow(tmp_path, "mlflow")
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("hofl").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["method.name"] == "hofl"
    history = client.get_metric_history(run.info.run_id, "train_loss")
    assert {metric.step: metric.value for metric in history} == LOSSES


LOSSES = {0: 2.5, 1: 1.5, 2: 1.25}


def follow(run: Path, name: str, heard: list[Any] | None = None) -> None:
    """Pass a short run on to a tracker; nothing is trained."""
    rows = [{"round": n, "train_loss": loss, "eval": {"f1": 0.5}} for n, loss in LOSSES.items()]
    told = [] if heard is None else heard

    def hear(event: str, facts: Mapping[str, Any]) -> None:
        told.append((event, facts))

    settings = {"method.name": "hofl", "fleet.boundaries": [1, 2]}
    with tracked([name], run, settings, rows.__getitem__, hear) as observe:
        observe("start", {"round": 0})
        for row in rows[1:]:
            observe("round", row)
        observe("end", {"uplink_bytes": 7, "final": {"f1": 0.75, "name": "x"}})
    if heard is None:
        assert [event for event, _ in told if event == "tracker"] == [], told


class Recorder:
    """A tracker from outside, which fails at a stated call."""

    calls: ClassVar[list[tuple[Any, ...]]] = []
    fails_at = ""

    def __init__(self, run: Path) -> None:
        type(self).calls = [("made", run)]

    def _note(self, *call: Any) -> None:
        self.calls.append(call)
        if call[0] == self.fails_at:
            raise RuntimeError(f"no more room for {call[0]}\nat all")

    def start(self, settings: Mapping[str, Any], reached: int) -> None:
        self._note("start", dict(settings), reached)

    def log(self, round_number: int, values: Mapping[str, float]) -> None:
        self._note("log", round_number, dict(values))

    def close(self, totals: Mapping[str, float] | None) -> None:
        self._note("close", totals)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> type[Recorder]:
    monkeypatch.setitem(TRACKERS, "recorder", Entry(Recorder))
    monkeypatch.setattr(Recorder, "fails_at", "")
    return Recorder


def test_a_tracker_from_outside_hears_the_start_every_round_and_the_totals(
    recorder: type[Recorder], tmp_path: Path
) -> None:
    heard: list[Any] = []
    follow(tmp_path, "recorder", heard)
    assert recorder.calls == [
        ("made", tmp_path),
        ("start", {"method.name": "hofl", "fleet.boundaries": [1, 2]}, 0),
        *(("log", n, {"train_loss": loss, "eval/f1": 0.5}) for n, loss in LOSSES.items()),
        ("close", {"total/uplink_bytes": 7.0, "final/f1": 0.75}),
    ]
    assert [event for event, _ in heard] == ["start", "round", "round", "end"]


@pytest.mark.parametrize("call", ["start", "log", "close"])
def test_a_tracker_that_fails_is_left_out_and_the_run_goes_on(
    call: str, recorder: type[Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "fails_at", call)
    heard: list[Any] = []
    follow(tmp_path, "recorder", heard)
    assert recorder.calls[-1][0] == call, "nothing is asked of it any more"
    told = [facts for event, facts in heard if event == "tracker"]
    assert told == [{"name": "recorder", "reason": f"no more room for {call}"}]
    assert [event for event, _ in heard if event != "tracker"] == ["start", "round", "round", "end"]


def test_a_stopped_run_is_closed_without_totals(recorder: type[Recorder], tmp_path: Path) -> None:
    def stopped() -> None:
        with tracked(["recorder"], tmp_path, {}, lambda n: {}, lambda e, facts: None) as observe:
            observe("start", {"round": 4})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert recorder.calls[-1] == ("close", None)


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_library_is_one_line_before_anything_is_written(
    name: str, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [m for m in sys.modules if m.split(".")[0] == name]:
        monkeypatch.setitem(sys.modules, module, None)
    for module in (name, "torch.utils.tensorboard" if name == "tensorboard" else name):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"hofl.tracking.{name}", raising=False)
    config = tmp_path / "run.toml"
    config.write_text(f'rounds = 1\n[model]\nname = "{tiny_folder}"\n')
    code, output = run_cli("run", str(config), f"tracking.to={name}", "--out", f"{tmp_path}/run")
    assert code == 2
    assert f"pip install 'hofl[{name}]'" in output
    assert len(output.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_names_are_checked_and_may_be_separated_by_commas() -> None:
    config = read_config("demo", ["tracking.to=tensorboard, mlflow"])
    assert config.tracking.to == ("tensorboard", "mlflow")
    with pytest.raises(HoflError, match="'tensorbord': allowed are tensorboard, wandb, mlflow"):
        makers(["tensorbord"])


def test_a_run_keeps_what_a_tracker_calls_it(tmp_path: Path) -> None:
    assert kept_identity(tmp_path, "mlflow", lambda: "first") == "first"
    assert kept_identity(tmp_path, "wandb", lambda: "other") == "other"
    assert kept_identity(tmp_path, "mlflow", lambda: "second") == "first"
    (tmp_path / "tracking.json").write_text("{")
    assert kept_identity(tmp_path, "mlflow", lambda: "third") == "third"
