"""The command line: its surface, its help, and one clear line for every mistake."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hofl
from hofl.cli.commands import app
from hofl.methods import METHODS
from runs import quick, run_cli

COMMANDS = {
    "certs",
    "check",
    "curve",
    "data",
    "demo",
    "evaluate",
    "memory",
    "methods",
    "models",
    "plan",
    "profile",
    "run",
    "sample",
    "theory",
    "server",
    "device",
    "fleet",
}
GROUPS = {"beta": {"guide", "coverage", "pilot", "measure"}}


def test_the_commands_are_these_and_no_others() -> None:
    assert {command.name for command in app.registered_commands} == COMMANDS
    found = {
        group.typer_instance.info.name: {c.name for c in group.typer_instance.registered_commands}
        for group in app.registered_groups
    }
    assert found == GROUPS


@pytest.mark.parametrize(
    "command",
    [
        *sorted(COMMANDS),
        *GROUPS,
        *(f"{g} {name}" for g, names in GROUPS.items() for name in sorted(names)),
    ],
)
def test_help_of_every_command_shows_an_example(command: str) -> None:
    result = CliRunner(env={"COLUMNS": "120"}).invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert "Example" in result.output
    assert f"hofl {command}" in result.output


def test_methods_lists_every_method_with_its_line() -> None:
    output = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["methods"]).output
    for name, method in METHODS.items():
        assert name in output
        assert method.summary in output


def test_models_lists_the_built_in_sources() -> None:
    output = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["models"]).output
    assert "smollm2-135m-instruct" in output


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["method.name=magic"], "unknown method 'magic': choose one of hofl,"),
        (["model.name=/no/such/folder"], "cannot load model '/no/such/folder'"),
        (["fleet.boundaries=[99]"], "fleet.boundaries holds 99, but the model has 4 blocks"),
        (["fleet.cohort=7"], "fleet.cohort 7 exceeds fleet.clients 6"),
        (["fleet.clients=5000"], "5000 clients cannot share 480 examples"),
        (["method.learning_rate=1"], "unknown key 'method.learning_rate'"),
        (["fleet.cohrt=2"], "did you mean 'cohort'?"),
        (["rounds=0"], "rounds = 0: input should be greater than or equal to 1"),
        (["method.lr=-1"], "lr must be positive, got -1"),
        (["method.beta=1.0"], "beta must lie in [0, 1), got 1.0"),
        (["method.beta_end=0.5"], "beta_end needs beta_schedule"),
        (["method.beta_schedule=coverage", "method.min_participations=9"], "KT/N = 1.5"),
        (["method.clip_norm=1.0"], "clip_norm couples all coordinates"),
        (["method.estimator=guess"], "unknown estimator 'guess'"),
        (["method.aggregation=mode"], "unknown aggregation 'mode'"),
        (["method.optimizer=lion"], "unknown optimizer 'lion'"),
        (["task.name=poetry"], "unknown task 'poetry': choose one of helpdesk"),
        (["task.max_length=4096"], "exceeds the model's window of 64"),
        (["task.max_length=3"], "even without its 'text', and only 3 are allowed"),
        (["engine.device=cuda:9"], "device 'cuda:9' is not usable here"),
        (["adapter.targets=['nope']"], "LoRA targets ['nope'] are not in this model"),
        (["rounds"], "write changes as key=value"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(
    changes: list[str],
    message: str,
    tiny_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import tomli_w

    from hofl.cli.main import main

    source = tmp_path / "c.toml"
    source.write_text(tomli_w.dumps(quick(tiny_folder).model_dump(exclude_none=True)))
    out = tmp_path / "out"
    monkeypatch.setattr("sys.argv", ["hofl", "run", str(source), *changes, "--out", str(out)])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    errors = capsys.readouterr().err.strip()
    assert message in errors
    assert errors.startswith("error: ")
    assert len(errors.splitlines()) == 1
    assert not out.exists()


def test_an_unreadable_configuration_is_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("rounds = = 3")
    for source in (str(tmp_path / "missing.toml"), str(broken), str(tmp_path)):
        code, output = run_cli("run", source, "--out", str(tmp_path / "x"))
        assert code == 2
        assert output.startswith("error: ")
        assert len(output.strip().splitlines()) == 1


def test_an_existing_folder_is_never_overwritten(tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(hofl.HoflError, match=r"exists and is not empty.*--resume"):
        hofl.run(quick(tiny_folder), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_resuming_something_that_is_no_run_says_so(tmp_path: Path) -> None:
    code, output = run_cli("run", "--resume", str(tmp_path))
    assert code == 2
    assert "is not a run" in output


@pytest.mark.parametrize("name", ["config.toml", "checkpoint/state.safetensors"])
def test_a_damaged_run_is_one_clear_error(name: str, tiny_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    hofl.run(quick(tiny_folder, rounds=1), run)
    (run / "summary.json").unlink()
    whole = (run / name).read_bytes()
    (run / name).write_bytes(whole[: len(whole) // 2] + b"[[")
    with pytest.raises(hofl.HoflError, match=r"damaged|not valid TOML"):
        hofl.resume(run)


def test_a_model_with_damaged_weights_is_one_clear_error(tiny_folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(tiny_folder, copy)
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(hofl.HoflError, match="cannot load model"):
        hofl.run(quick(copy), tmp_path / "run")
    assert not (tmp_path / "run").exists()
