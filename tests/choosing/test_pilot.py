"""The pilot: one fleet, continued runs, a choice from the metrics, interruptions."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from typer.testing import CliRunner

import hofl
from hofl.choosing.pilot import Pilot, Settings
from hofl.choosing.selection import choice, standings, survivors
from hofl.cli.commands import app
from hofl.experiment.build import build_simulation
from hofl.experiment.config import ExperimentConfig, read_config
from hofl.experiment.launch import advance, resume
from hofl.experiment.runs import RunDirectory, config_text
from hofl.sampling.policies import DimensionAware
from support.runs import adapter_bytes, quick

SETTINGS = Settings(
    candidates=(0.0, 0.25, 0.5, 0.75), rounds=4, seeds=2, examples=24, holdout=0.25, level=0.05
)


def silent(_title: str) -> Any:
    return nullcontext(lambda event, facts: None)


@pytest.fixture(scope="module")
def config(tiny_folder: Path) -> ExperimentConfig:
    fleet = {"clients": 9, "cohort": 3, "boundaries": [1, 2, 3]}
    return quick(tiny_folder, rounds=40, fleet=fleet, method={"local_steps": 1, "lr": 0.05})


@pytest.fixture(scope="module")
def finished(config: ExperimentConfig, tmp_path_factory: pytest.TempPathFactory) -> Pilot:
    pilot = Pilot.create(tmp_path_factory.mktemp("pilot") / "p", SETTINGS, config)
    pilot.run(silent)
    return pilot


def test_every_candidate_trains_on_the_formal_runs_fleet(
    config: ExperimentConfig, finished: Pilot
) -> None:
    formal = build_simulation(config)
    for seed in (6, 7):
        pilot = build_simulation(finished.config(0.75, seed))
        assert pilot.boundaries() == formal.boundaries()
        # hofl's own beta is 0.75
        shares = (run.marginals(0, run.present(0)) for run in (pilot, formal))
        assert np.array_equal(*shares)
        for client, shard in enumerate(pilot.client._shards):
            assert set(shard) <= set(formal.client._shards[client])
            assert (len(shard), len(pilot.held_out.rows[client])) == (18, 6)
            assert not set(shard) & set(pilot.held_out.rows[client])


def test_continued_runs_are_the_uninterrupted_ones(finished: Pilot, tmp_path: Path) -> None:
    """Rungs at 2 and 4 rounds; the survivor is finished and compared with one single run."""
    outcome = json.loads((finished.path / "pilot.json").read_text())
    assert [rung["rounds"] for rung in outcome["rungs"]] == [2, 4]
    beta = outcome["rungs"][-1]["candidates"][-1]["beta"]
    left = finished.path / "runs" / f"seed-6-beta-{beta}"
    whole = hofl.run(finished.config(beta, 6), tmp_path / "whole")
    assert adapter_bytes(resume(left).path) == adapter_bytes(whole.path)
    rows = [RunDirectory(path).metrics() for path in (left, whole.path)]
    assert [row.round for row in rows[0]] == [0, 1, 2, 3, 4]
    assert [row.scores for row in rows[0]] == [row.scores for row in rows[1]]


def test_the_choice_is_the_rule_applied_to_the_runs_metrics(finished: Pilot) -> None:
    def losses(beta: float, rounds: int) -> np.ndarray:
        rows = [
            RunDirectory(finished.path / "runs" / f"seed-{seed}-beta-{beta}").metrics()
            for seed in (6, 7)
        ]
        return np.array([row[rounds].scores["clients"]["each"]["loss"] for row in rows])

    first = standings({beta: losses(beta, 2) for beta in SETTINGS.candidates}, 0.05)
    alive = survivors(first)
    second = standings({beta: losses(beta, 4) for beta in alive}, 0.05)
    outcome = json.loads((finished.path / "pilot.json").read_text())
    assert outcome["rungs"][0]["kept"] == alive
    assert outcome["beta"] == choice(second)
    stopped = set(SETTINGS.candidates) - set(alive)
    for beta in stopped:
        run = RunDirectory(finished.path / "runs" / f"seed-6-beta-{beta}")
        assert run.metrics()[-1].round == 2


def test_the_chosen_file_is_the_formal_run_with_the_chosen_beta(
    config: ExperimentConfig, finished: Pilot
) -> None:
    file = finished.path / "chosen.toml"
    outcome = json.loads((finished.path / "pilot.json").read_text())
    chosen = read_config(str(file))
    assert file.read_text().startswith(f"# beta = {outcome['beta']:g} was chosen by")
    built = build_simulation(chosen)
    assert built.method.policy == DimensionAware(outcome["beta"])
    formal = build_simulation(config)
    assert (chosen.rounds, chosen.seed, chosen.evaluation) == (40, 5, config.evaluation)
    assert chosen.fleet == formal.config.fleet
    assert built.held_out is None
    assert np.array_equal(built.client._shards[3], formal.client._shards[3])


def test_a_stopped_pilot_resumes_to_the_same_files(
    config: ExperimentConfig, finished: Pilot, tmp_path: Path
) -> None:
    """Stopped inside a run, then resumed from the folder alone."""
    pilot = Pilot.create(tmp_path / "p", SETTINGS, config)
    seen = []

    def stop(event: str, facts: dict[str, Any]) -> None:
        seen.append(event)
        if seen.count("round") == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pilot.run(lambda title: nullcontext(stop))
    assert not (pilot.path / "pilot.json").exists()
    Pilot.open(pilot.path).run(silent)
    for name in ("pilot.json", "chosen.toml"):
        assert (pilot.path / name).read_bytes() == (finished.path / name).read_bytes()


def test_resuming_a_finished_pilot_shows_its_tables_and_the_choice(finished: Pilot) -> None:
    outcome = json.loads((finished.path / "pilot.json").read_text())
    words = ["beta", "pilot", "--resume", str(finished.path)]
    output = CliRunner(env={"COLUMNS": "200"}).invoke(app, words).output
    assert "4 candidates x 2 trainings, compared after 2, 4 rounds; at most 32 rounds" in output
    assert "after 2 rounds" in output
    assert "after 4 rounds" in output
    assert f"chosen: beta = {outcome['beta']:g}" in output
    assert sum("chosen │" in line for line in output.splitlines()) == 1
    assert f"hofl run {finished.path / 'chosen.toml'} --out DIR" in output


def test_advancing_backwards_returns_the_rows_so_far(finished: Pilot) -> None:
    folder = next(iter(sorted((finished.path / "runs").iterdir())))
    before = (folder / "metrics.jsonl").read_bytes()
    rows = advance(finished.base, folder, 1)
    assert [row.round for row in rows] == [0, 1]
    assert (folder / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["method.beta_schedule=linear", "method.beta_end=0.1"], "chooses a constant beta"),
        (["method.name=fedavg"], "beta changes nothing"),
        (["--rounds", "1"], "4 candidates need at least 2 pilot rounds"),
        (["--candidates", "0.5"], "at least two betas"),
        (["--candidates", "0.5,0.5"], "at least two betas"),
        (["--candidates", "0,x"], "write numbers, such as 0,0.25,0.5"),
        (["--candidates", "0,1"], "beta must lie in [0, 1), got 1.0"),
        (["--min-participations", "13"], "leaves one candidate, 0, so there is nothing to compare"),
        (["--min-participations", "99"], "cannot be met"),
        (["--holdout", "0"], "holdout must lie in (0, 1), got 0.0"),
        (["--seeds", "0"], "seeds must be at least 1, got 0"),
    ],
)
def test_a_mistake_is_one_error_and_writes_nothing(
    config: ExperimentConfig, words: list[str], message: str, tmp_path: Path
) -> None:
    source = tmp_path / "c.toml"
    source.write_text(config_text(config))
    out = tmp_path / "out"
    error = (
        CliRunner().invoke(app, ["beta", "pilot", str(source), *words, "--out", str(out)]).exception
    )
    assert isinstance(error, hofl.HoflError), error
    assert message in str(error)
    assert not out.exists()


def test_resuming_takes_no_other_options(finished: Pilot) -> None:
    """They would be ignored: the pilot's own are in its folder."""
    for words in (["--rounds", "9"], ["--seeds", "3"], ["demo"], ["--out", "elsewhere"]):
        asked = ["beta", "pilot", *words, "--resume", str(finished.path)]
        error = CliRunner().invoke(app, asked).exception
        assert isinstance(error, hofl.HoflError), error
        assert "--resume takes everything from the pilot" in str(error)


def test_a_folder_that_cannot_be_made_is_one_error(
    config: ExperimentConfig, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(hofl.HoflError, match=r"cannot use .*file/p: Not a directory"):
        Pilot.create(tmp_path / "file" / "p", SETTINGS, config)


def test_the_base_keeps_the_configurations_threads_and_its_limit_on_examples(
    config: ExperimentConfig, tmp_path: Path
) -> None:
    few = config.data.model_copy(update={"examples_per_client": 10})
    before = torch.get_num_threads()
    torch.set_num_threads(2)  # what a process starts with is not what the configuration asks
    try:
        limited = config.model_copy(update={"data": few})
        pilot = Pilot.create(tmp_path / "p", SETTINGS, limited)
    finally:
        torch.set_num_threads(before)
    assert pilot.base.engine.threads == config.engine.threads == 1
    assert pilot.config(0.5, 5).data.examples_per_client == 10
    assert Pilot.open(pilot.path).base == pilot.base


def test_an_existing_folder_is_refused(config: ExperimentConfig, finished: Pilot) -> None:
    with pytest.raises(hofl.HoflError, match=r"not empty.*hofl beta pilot --resume"):
        Pilot.create(finished.path, SETTINGS, config)
    damaged = finished.path / "pilot.toml"
    text = damaged.read_text()
    damaged.write_text(tomli_w.dumps({"rounds": 3}))
    with pytest.raises(hofl.HoflError, match="damaged"):
        Pilot.open(finished.path)
    damaged.write_text(text)
