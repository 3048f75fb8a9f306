"""The command line: its surface, its help, and one clear line for every mistake."""

import shlex
import shutil
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from typer.testing import CliRunner

import hofl
from hofl.cli.commands import GROUPS, LazyGroup, app
from hofl.methods import METHODS
from support.runs import quick, run_cli

COMMANDS = {
    "audit",
    "repair",
    "certs",
    "check",
    "compare",
    "curve",
    "data",
    "demo",
    "evaluate",
    "memory",
    "methods",
    "models",
    "plan",
    "profile",
    "report",
    "run",
    "sample",
    "theory",
    "server",
    "device",
    "fleet",
    "beta",
    "watch",
    "paper",
    "config",
    "chat",
    "init",
    "merge",
    "push",
    "split",
}
INNER = {
    "beta": {"guide", "coverage", "pilot", "measure"},
    "config": {"show", "diff", "schema"},
}
ALL = [*sorted(COMMANDS), *(f"{g} {name}" for g in INNER for name in sorted(INNER[g]))]


def loaded(words: str) -> click.Command:
    """The whole command behind these words."""
    command: click.Command = typer.main.get_command(app)
    for word in words.split():
        assert isinstance(command, LazyGroup)
        command = command.load(word)
    return command


def examples(words: str) -> list[str]:
    """Its examples, from the end of its help."""
    return [line.strip("`") for line in (loaded(words).epilog or "").split("\\\n\n")[1:]]


def help_of(words: str) -> list[str]:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*words.split(), "--help"])
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def test_the_commands_are_these_and_no_others() -> None:
    for words, names in {"": COMMANDS, **INNER}.items():
        group = loaded(words)
        assert isinstance(group, LazyGroup)
        assert set(group.commands) == names


@pytest.mark.parametrize("words", ["", *ALL])
def test_help_fits_80_columns_and_cuts_nothing(words: str) -> None:
    """Options whole, commands with their line, and every example on a line of its own."""
    lines, command = help_of(words), loaded(words)
    assert all(len(line) <= 80 for line in lines)
    assert not any("…" in line for line in lines)
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert any(f" {parameter.opts[0]} " in line for line in lines), parameter.opts
    if isinstance(command, LazyGroup):
        for name, entry in command.commands.items():
            assert any(f" {name} " in line and str(entry.help) in line for line in lines), name
    assert examples(words)
    for example in examples(words):
        assert example in [line.strip() for line in lines]


@pytest.mark.parametrize("words", ["", *ALL])
def test_examples_are_commands_that_can_be_read(words: str) -> None:
    for example in examples(words):
        program, *rest = shlex.split(example.rpartition(" | ")[2].partition(" > ")[0])
        assert program == "hofl"
        name = " ".join(rest[:2] if rest[0] in INNER else rest[:1])
        assert name in ALL
        loaded(name).make_context(name, rest[len(name.split()) :])  # raises where it cannot


@pytest.mark.parametrize("group", INNER)
def test_a_group_alone_shows_how_to_use_it(group: str) -> None:
    assert GROUPS[group][2][0] in CliRunner().invoke(app, [group]).output


def test_the_version_is_one_line() -> None:
    assert run_cli("--version") == (0, f"hofl {hofl.__version__}\n")


def test_an_unknown_command_is_named_with_the_nearest_one() -> None:
    code, output = run_cli("curv")
    assert code == 2
    assert "No such command 'curv'" in output
    assert output.count("Did you mean 'curve'?") == 1


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("hofl cur", ["curve"]), ("hofl beta p", ["pilot"]), ("hofl curve --pl", ["--plot"])],
)
def test_a_shell_completes_commands_and_options(
    typed: str, offered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As bash asks for it: a real process, with what was typed in its environment."""
    monkeypatch.setenv("_HOFL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    code, output = run_cli()
    assert code == 0, output
    assert output.split() == offered


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
        (["method.lr=-1"], "lr must be positive and finite, got -1"),
        (["method.beta=1.0"], "beta must lie in [0, 1), got 1.0"),
        (["method.beta_end=0.5"], "beta_end needs beta_schedule linear"),
        (["method.beta_schedule=coverage", "method.min_participations=9"], "KT/N = 1.5"),
        (["method.clip_norm=1.0"], "clip_norm couples all coordinates"),
        (["method.estimator=guess"], "unknown estimator 'guess'"),
        (["method.aggregation=mode"], "unknown aggregation 'mode'"),
        (["method.optimizer=lion"], "unknown optimizer 'lion'"),
        (["task.name=poetry"], "unknown task 'poetry': choose one of helpdesk"),
        (["task.max_length=4096"], "exceeds the model's window of 64"),
        (["task.max_length=3"], "even without its 'text', and only 3 are allowed"),
        (["engine.device=toaster"], "'toaster' is not a device: use auto, cpu, cuda"),
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


@pytest.mark.parametrize(("words", "size"), [([], 7), (["--batch-size", "3"], 3)])
def test_a_run_is_evaluated_with_its_own_batch_size_unless_told_otherwise(
    words: list[str],
    size: int,
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sizes of the batches that the model really sees."""
    from hofl.experiment import scoring

    run = hofl.run(quick(tiny_folder, rounds=1, evaluation={"batch_size": 7}), tmp_path / "run")
    sizes, scores_of = [], scoring.scores_of

    def watched(model, examples, batch_size, *rest):  # type: ignore[no-untyped-def]
        sizes.append(batch_size)
        return scores_of(model, examples, batch_size, *rest)

    monkeypatch.setattr(scoring, "scores_of", watched)
    words = ["evaluate", "--run", str(run.path), "--examples", "9", "--json", *words]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert sizes == [size]


def test_a_stopped_demo_is_resumed_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hint is the demo's own command: resuming one run would leave the other three out."""
    started = []

    def stopped(config: Any, out: Path, *_: Any, **options: Any) -> None:
        started.append(out.name)
        out.mkdir(parents=True)
        (out / "config.toml").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("hofl.models.sources.fetch", lambda name: None)
    monkeypatch.setattr("hofl.run", stopped)
    out = tmp_path / "demo"
    code, text = run_cli("demo", "--out", str(out))
    assert (code, started) == (130, ["plan"])
    assert f"stopped; resume with: hofl demo --out {out}" in text.splitlines()
    assert "hofl run" not in text
