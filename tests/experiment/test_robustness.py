"""What goes wrong around a run: files, paths, other processes, odd combinations."""

import itertools
import json
import shutil
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

import hofl
from hofl.cli.display import RunDisplay
from hofl.core.directions import DirectionKey
from hofl.experiment.build import build_simulation
from hofl.experiment.records import Attempt, RoundRecord
from hofl.experiment.runs import RunDirectory
from hofl.local.surrogates import EndToEnd, Linear
from hofl.local.top import LocalTop
from hofl.rules import ESTIMATORS
from support.models import batch, tiny
from support.runs import adapter_bytes, quick, run_cli
from support.steps import made, site_at


def test_a_model_with_a_missing_weight_is_refused(tiny_folder: Path, tmp_path: Path) -> None:
    """Otherwise it would be drawn at random, anew in every process."""
    copy = tmp_path / "model"
    shutil.copytree(tiny_folder, copy)
    weights = load_file(copy / "model.safetensors")
    weights.pop("model.layers.2.mlp.up_proj.weight")
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(hofl.HoflError, match=r"incomplete: model\.layers\.2\.mlp\.up_proj"):
        hofl.load_model(str(copy))


def test_two_processes_cannot_work_on_one_run(tiny_folder: Path, tmp_path: Path) -> None:
    experiment = build_simulation(quick(tiny_folder))
    directory = RunDirectory.create(tmp_path / "run", experiment.config, experiment.secret)
    with (
        directory.locked(),
        pytest.raises(hofl.HoflError, match="another process is working on"),
    ):
        hofl.resume(directory.path)


def test_a_run_on_a_relative_model_path_resumes_from_anywhere(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny_folder.parent)
    config = quick(Path(tiny_folder.name), rounds=2)
    whole = hofl.run(config, tmp_path / "whole")
    (whole.path / "summary.json").unlink()
    shutil.rmtree(whole.adapter)
    monkeypatch.chdir(tmp_path)
    again = hofl.resume("whole")
    assert again.summary["rounds"] == 2
    resolved = RunDirectory(again.path).config()
    assert resolved.model.name == str(tiny_folder)
    assert resolved.model.compute_dtype == "float32"
    assert resolved.adapter.targets == ("q_proj", "v_proj")
    assert resolved.engine.threads == 1


def test_a_run_on_random_weights_does_not_load_another_backbone(
    tiny_folder: Path, tmp_path: Path
) -> None:
    result = hofl.run(quick(tiny_folder, rounds=1, model={"weights": "random"}), tmp_path / "r")
    with pytest.raises(hofl.HoflError, match="random weights"):
        result.load()


@pytest.mark.parametrize("family", ["llama", "opt-350m"])
@pytest.mark.parametrize("storage", [torch.float32, torch.bfloat16])
def test_estimators_and_surrogates_agree_in_every_precision(
    family: str, storage: torch.dtype
) -> None:
    """All six pairs estimate the same derivative."""
    model, data = tiny(family, storage_dtype=storage), batch(0)
    found, site = [], site_at(model, 2, DirectionKey(1, 2, 3), 0)
    for name, surrogate in itertools.product(ESTIMATORS, (Linear(), EndToEnd())):
        estimator = made(name, 1e-3)
        probe = estimator.probe(site, site.model.inputs(data.texts), 3)
        feedback = surrogate(
            site, data, LocalTop.open(site, data, site.model.inputs(data.texts)), probe.z
        )
        found.append(estimator.scalars(probe, feedback))
    exact = found[-1]
    for scalars in found:
        assert (scalars - exact).abs().max() < 0.03 * exact.abs().max() + 2e-3


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: (run / "metrics.jsonl").unlink(), "metrics.jsonl is damaged"),
        (lambda run: (run / "metrics.jsonl").write_bytes(b"\xff\xfe"), "metrics.jsonl is damaged"),
        (lambda run: (run / "metrics.jsonl").write_text("[1]\n"), "metrics.jsonl is damaged"),
        (lambda run: (run / "summary.json").write_text("{"), "summary.json is damaged"),
    ],
)
def test_damaged_records_are_one_clear_error(
    damage, message: str, tiny_folder: Path, tmp_path: Path
) -> None:
    run = hofl.run(quick(tiny_folder, rounds=1), tmp_path / "run").path
    (run / "summary.json").unlink()
    damage(run)
    with pytest.raises(hofl.HoflError, match=message):
        hofl.resume(run)


def test_an_impossible_output_path_is_one_line(tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    config = quick(tiny_folder)
    with pytest.raises(hofl.HoflError, match="is a file"):
        hofl.run(config, tmp_path / "file")
    for place in (tmp_path / "file" / "sub", Path("/proc/nope"), tmp_path / ("x" * 300)):
        with pytest.raises(hofl.HoflError, match="cannot use"):
            hofl.run(config, place)


def test_a_fleet_smaller_than_the_tiers_gets_the_first_of_them(tiny_folder: Path) -> None:
    config = quick(tiny_folder, fleet={"clients": 2, "cohort": 1, "boundaries": []})
    assert build_simulation(config).config.fleet.boundaries == (1, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": {"proximal": float("nan")}}, "proximal must be a finite number"),
        ({"method": {"mu": float("inf")}}, "mu must be a finite number"),
        ({"method": {"mu": 2.0}}, "mu must lie in"),
        ({"method": {"name": "fedavg", "q": -5}}, "q must not be negative"),
        (
            {"adapter": {"kind": "full"}, "model": {"compute_dtype": "bfloat16"}},
            "adapter.kind=full trains FP32 weights",
        ),
        ({"engine": {"device": "meta"}}, "'meta' is not a device"),
    ],
)
def test_values_that_cannot_work_are_refused_before_anything_is_written(
    change: dict, message: str, tiny_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(hofl.HoflError, match=message):
        hofl.run(quick(tiny_folder, **change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "change",
    [{"rounds": True}, {"rounds": "3"}, {"method": {"q": "2"}}, {"method": {"bottom": 3}}],
    ids=str,
)
def test_values_of_another_type_are_refused(change: dict, tiny_folder: Path) -> None:
    with pytest.raises(hofl.HoflError, match="configuration: "):
        quick(tiny_folder, **change)


def test_text_of_strangers_is_never_read_as_markup(capsys: pytest.CaptureFixture[str]) -> None:
    with RunDisplay(Console(width=200), "a[/b]c") as display:
        record = RoundRecord(round=1, cohort=[3], refused={3: "run is '[/x]'"})
        display("round", record.to_json())
    output = capsys.readouterr().out
    assert "client 3 refused: run is '[/x]'" in output
    assert "a[/b]c: round 1" in output


def test_repeated_rounds_and_resumed_runs_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    with RunDisplay(Console(width=200), "run") as display:
        display("start", {"scores": {"accuracy": 0.5}, "note": "", "round": 4, "rounds": 9})
        attempt = Attempt(cohort=[3], refused={3: "no key"})
        display("round", RoundRecord(round=5, cohort=[1], repeats=[attempt]).to_json())
    output = capsys.readouterr().out
    assert "run: resumed after round 4, start was accuracy 50.0 %" in output
    assert "round 5 was repeated: client 3 refused: no key" in output


def test_a_lost_signal_is_reported_and_warned_about(tiny_folder: Path, tmp_path: Path) -> None:
    """At this radius no perturbed parameter differs from its anchor."""
    result = hofl.run(quick(tiny_folder, rounds=1, method={"mu": 1e-30}), tmp_path / "run")
    row = RunDirectory(result.path).metrics()[1]
    assert row.zo_snr == 0
    code, output = run_cli(
        "run", str(result.path / "config.toml"), "rounds=1", "--out", str(tmp_path / "[again]")
    )
    assert code == 0, output
    assert "learns noise" in output.replace("\n", " ")
    assert str(tmp_path / "[again]") in output.replace("\n", "")
    assert adapter_bytes(tmp_path / "[again]") == adapter_bytes(result.path)


def test_every_row_of_the_metrics_has_the_same_keys(tiny_folder: Path, tmp_path: Path) -> None:
    config = quick(tiny_folder, rounds=2, evaluation={"every": 1})
    run = hofl.run(config, tmp_path / "run").path
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert set(rows[1]) - set(rows[0]) == {"bottom_signal"}, "the start has no updates"
    assert all(set(row) == set(rows[1]) for row in rows[1:])
