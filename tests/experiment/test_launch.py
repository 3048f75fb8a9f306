"""Starting and resuming: what is blamed when files go away, and what a finished run costs."""

import errno
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hofl
from hofl.experiment.launch import readable_errors
from hofl.experiment.runs import RunDirectory
from support.runs import adapter_bytes, quick


@pytest.fixture
def weights(tiny_folder: Path, tmp_path: Path) -> Path:
    """The weights of a model of this test alone, which are read while it trains."""
    shutil.copytree(tiny_folder, tmp_path / "model")
    return tmp_path / "model" / "model.safetensors"


def streamed(weights: Path, **changes: Any) -> hofl.ExperimentConfig:
    engine = {"threads": 1, "stream_bottom": True}
    return quick(weights.parent, engine=engine, evaluation={"every": 1}, **changes)


def taken_away(weights: Path, when: Callable[[str, int], bool]) -> Callable[[str, Any], None]:
    """An observer that moves the file away after the events of which ``when`` says so."""
    away, seen = weights.with_suffix(".away"), {"client": 0}

    def observe(event: str, facts: dict[str, Any]) -> None:
        seen[event] = seen.get(event, 0) + 1
        if when(event, seen["client"]) and weights.exists():
            weights.rename(away)
        elif not when(event, seen["client"]) and away.exists():
            away.rename(weights)

    return observe


def test_a_streamed_file_that_is_gone_is_the_failure_of_the_client_that_needed_it(
    weights: Path, tmp_path: Path
) -> None:
    """It is away from the first answer of round 1 to the second."""
    observe = taken_away(weights, lambda event, answers: event == "client" and answers == 1)
    run = hofl.run(streamed(weights), tmp_path / "run", observe)
    first, *later = RunDirectory(run.path).metrics()[1:]
    victim = first.cohort[1]
    assert list(first.refused) == [victim]
    assert "No such file or directory" in first.refused[victim]
    assert first.answered == [client for client in first.cohort if client != victim]
    assert [row.refused for row in later] == [{}, {}]


def test_a_model_that_is_gone_ends_the_run_without_blaming_its_folder_and_it_can_be_resumed(
    weights: Path, tmp_path: Path
) -> None:
    config = streamed(weights)
    expected = hofl.run(config, tmp_path / "expected")
    kept = weights.read_bytes()

    def observe(event: str, facts: dict[str, Any]) -> None:
        if event == "round" and facts["round"] == 1:
            weights.unlink()

    with pytest.raises(hofl.HoflError) as failure:
        hofl.run(config, tmp_path / "run", observe)
    assert "round 2: no client gave a usable update" in str(failure.value)
    assert str(weights) in str(failure.value)
    assert "cannot use" not in str(failure.value)
    weights.write_bytes(kept)
    assert adapter_bytes(hofl.resume(tmp_path / "run").path) == adapter_bytes(expected.path)


def test_a_model_that_is_gone_before_an_evaluation_is_named(weights: Path, tmp_path: Path) -> None:
    def observe(event: str, facts: dict[str, Any]) -> None:
        if event == "evaluation" and (tmp_path / "run" / "metrics.jsonl").exists():
            weights.unlink(missing_ok=True)

    with pytest.raises(hofl.HoflError) as failure:
        hofl.run(streamed(weights), tmp_path / "run", observe)
    message = str(failure.value)
    assert message.startswith(f"cannot use {weights}: No such file or directory."), message


def test_errors_blame_the_run_where_it_is_the_run(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    inside = OSError(errno.EACCES, "Permission denied", str(tmp_path / "run" / "metrics.jsonl"))
    above = OSError(errno.EROFS, "Read-only file system", str(tmp_path))
    for error in (full, inside, above):
        with (
            pytest.raises(hofl.HoflError, match=f"cannot use {tmp_path / 'run'}: {error.strerror}"),
            readable_errors(tmp_path / "run"),
        ):
            raise error
    with pytest.raises(hofl.HoflError, match=r"^no such model$"), readable_errors(tmp_path / "run"):
        raise OSError("no such model\nlook it up")


def test_resuming_a_finished_run_loads_nothing(weights: Path, tmp_path: Path) -> None:
    """Not even its model need still be there."""
    run = hofl.run(quick(weights.parent, rounds=1), tmp_path / "run")
    shutil.rmtree(weights.parent)
    code = (
        "import sys, hofl; result = hofl.resume(sys.argv[1]); print(result.summary['rounds'])\n"
        "heavy = ('torch', 'transformers', 'hofl.experiment.rounds', 'hofl.experiment.build')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    words = [sys.executable, "-c", code, str(run.path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[:2] == ["1", "[]"], done.stdout + done.stderr
