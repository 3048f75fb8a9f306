"""A flipped bit in a file of a run is reported in one line with the way back, or has no effect."""

import hashlib
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import get_peft_model_state_dict
from safetensors import safe_open

import hofl
from hofl.core.errors import HoflError
from hofl.experiment.checkpoint import load_state, sound_rounds
from hofl.experiment.journal import Journal
from hofl.experiment.metrics import MetricsFile
from hofl.experiment.repair import repair
from hofl.experiment.runs import RunDirectory
from hofl.reporting.curves import learning_curve
from support.damage import flipped
from support.runs import adapter_bytes, quick, run_cli, stop_at

FLIPS = 500
WAYS_BACK = ("hofl repair", "estore it", "Restore one")


@pytest.fixture(scope="module")
def runs(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run, and the same stopped after round 4."""
    folder, config = tmp_path_factory.mktemp("flips"), quick(tiny_folder, rounds=5)
    hofl.run(config, folder / "finished")
    with pytest.raises(KeyboardInterrupt):
        hofl.run(config, folder / "stopped", stop_at(4))
    return {name: folder / name for name in ("finished", "stopped")}


@pytest.fixture
def finished(runs: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of the finished run, to be damaged."""
    return Path(shutil.copytree(runs["finished"], tmp_path / "finished"))


@pytest.fixture
def stopped(runs: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of the stopped run, to be damaged."""
    return Path(shutil.copytree(runs["stopped"], tmp_path / "stopped"))


def flip_near_the_end(path: Path) -> None:
    path.write_bytes(flipped(path.read_bytes(), 8 * path.stat().st_size - 500))


def loaded(run: RunDirectory) -> list[Any]:
    """The adapter of a finished run as a user of the library gets it, card aside."""
    summary = run.summary()
    if summary is None:
        return []
    model = hofl.Result(run.path, summary).load()
    weights = get_peft_model_state_dict(model)
    return [model.peft_config, *((name, w.numpy().tobytes()) for name, w in weights.items())]


def everything(path: Path) -> list[Any]:
    """All that resuming, reporting and loading read of a run, one after another."""
    run = RunDirectory.open(path)
    found: list[Any] = [run.config(), *loaded(run)]
    found += [run.secret(), run.finished(), run.metrics()]
    state = load_state(run)
    assert state is not None
    found.append(Journal(path).verified())
    return [*found, state.round, state.w.numpy().tobytes(), sorted(state.vectors)]


def flips(run: Path, count: int) -> Iterator[tuple[Path, int]]:
    """Bits over all files, each file as often as any other: most of the bytes are vectors."""
    rng = random.Random(7)
    files = sorted(path for path in run.rglob("*") if path.is_file() and path.stat().st_size)
    for number in range(count):
        path = files[number % len(files)]
        yield path, rng.randrange(8 * path.stat().st_size)


@pytest.mark.parametrize("name", ["finished", "stopped"])
def test_no_flipped_bit_is_silent(name: str, runs: dict[str, Path]) -> None:
    run = runs[name]
    whole, refusals = everything(run), []
    for path, bit in flips(run, FLIPS // 2):
        data = path.read_bytes()
        path.write_bytes(flipped(data, bit))
        try:
            assert everything(run) == whole, f"{path.name} bit {bit} changed what is read"
        except HoflError as error:
            refusals.append(f"{path.name}, bit {bit}: {error}")
        finally:
            path.write_bytes(data)
    assert everything(run) == whole
    assert len(refusals) > FLIPS // 8, "most files matter"
    for refusal in refusals:
        assert "\n" not in refusal
        assert any(way in refusal for way in WAYS_BACK), refusal


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("stopped", "metrics.jsonl"),
        ("stopped", "checkpoint/state.safetensors"),
        ("stopped", "checkpoint/state-3.safetensors"),
        ("stopped", "secret.key"),
        ("finished", "summary.json"),
        ("finished", "adapter/adapter_model.safetensors"),
        ("finished", "checkpoint/state.safetensors"),
    ],
)
def test_a_repaired_run_ends_in_the_same_bits(
    name: str, file: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs[name], run)
    path = run / file
    flip_near_the_end(path)
    repair(run)
    hofl.resume(run)
    assert adapter_bytes(run) == adapter_bytes(runs["finished"])
    assert repair(run) == [], "nothing is left to repair"
    assert everything(run)[:2] == everything(runs["finished"])[:2]


def test_a_damaged_adapter_is_not_used(finished: Path) -> None:
    path = finished / "adapter" / "adapter_model.safetensors"
    flip_near_the_end(path)
    summary = RunDirectory(finished).summary()
    assert summary is not None
    with pytest.raises(HoflError, match=r"adapter_model.safetensors is damaged .* hofl repair"):
        hofl.Result(finished, summary).load()
    code, output = run_cli("evaluate", "--run", str(finished), "--examples", "2")
    assert (code, "hofl repair" in output, output.count("\n")) == (2, True, 1), output


def test_an_emptied_configuration_is_named_with_the_way_back(stopped: Path) -> None:
    (stopped / "config.toml").write_bytes(b"")
    for action in (repair, hofl.resume):
        with pytest.raises(HoflError, match=r"config.toml: .* restore it from a backup"):
            action(stopped)


def test_a_damaged_earlier_checkpoint_is_removed(finished: Path) -> None:
    """Then ``--from-round`` no longer sends to ``hofl repair``, which finds nothing."""
    path = finished / "checkpoint" / "state-4.safetensors"
    flip_near_the_end(path)
    with pytest.raises(HoflError, match=r"state-4.safetensors is damaged. .* hofl repair"):
        hofl.resume(finished, from_round=4)
    assert repair(finished) == ["removed the damaged state-4.safetensors"]
    assert not path.exists()
    with pytest.raises(HoflError, match="no checkpoint of round 4; kept are: 5, 3"):
        hofl.resume(finished, from_round=4)
    assert repair(finished) == []


def damaged_lines(run: Path, *numbers: int) -> None:
    lines = (run / "metrics.jsonl").read_bytes().split(b"\n")
    for number in numbers:
        lines[number] = lines[number].replace(b'"seconds": ', b'"seconds": 1')
    (run / "metrics.jsonl").write_bytes(b"\n".join(lines))


@pytest.mark.parametrize("line", [0, 1, 2])
def test_records_older_than_every_checkpoint_get_placeholders(
    line: int, runs: dict[str, Path], stopped: Path
) -> None:
    """The model and all that follows stay; what the record said is gone, and that is recorded."""
    damaged_lines(stopped, line)
    with pytest.raises(HoflError, match=f"damaged in line {line + 1}, round {line}. .* repair"):
        hofl.resume(stopped)
    assert repair(stopped) == [f"placeholders stand for the lost records of rounds {line}"]
    hofl.resume(stopped)
    rows = RunDirectory(stopped).metrics()
    assert [row.round for row in rows if row.repaired] == [line]
    assert adapter_bytes(stopped) == adapter_bytes(runs["finished"])
    assert rows[0].scores == RunDirectory(runs["finished"]).metrics()[0].scores


def test_the_record_of_a_later_round_costs_the_rounds_after_it(
    runs: dict[str, Path], stopped: Path
) -> None:
    damaged_lines(stopped, 3)
    assert repair(stopped) == ["returned to round 2, the last one that is sound"]
    hofl.resume(stopped)
    assert not any(row.repaired for row in RunDirectory(stopped).metrics())
    assert adapter_bytes(stopped) == adapter_bytes(runs["finished"])


def test_a_damaged_first_line_is_not_called_an_evaluation_to_come(
    runs: dict[str, Path], finished: Path
) -> None:
    damaged_lines(finished, 0)
    with pytest.raises(HoflError, match="is damaged in line 1"):
        learning_curve(finished)
    code, output = run_cli("curve", str(finished))
    assert (code, "hofl repair" in output) == (2, True)
    code, output = run_cli("repair", str(finished))
    assert code == 0, output
    assert learning_curve(finished).losses == learning_curve(runs["finished"]).losses


def test_a_cut_line_at_the_end_was_never_recorded(tmp_path: Path, runs: dict[str, Path]) -> None:
    data = (runs["stopped"] / "metrics.jsonl").read_bytes()
    whole = MetricsFile(runs["stopped"] / "metrics.jsonl").records()
    last = data.rstrip(b"\n").rindex(b"\n") + 1
    for end in range(last, len(data) - 75, 13):
        (tmp_path / "metrics.jsonl").write_bytes(data[:end])
        assert MetricsFile(tmp_path / "metrics.jsonl").records() == whole[:-1]


def test_without_any_sound_checkpoint_a_repaired_run_starts_again(
    runs: dict[str, Path], stopped: Path
) -> None:
    for path in (stopped / "checkpoint").glob("state*"):
        path.write_bytes(path.read_bytes()[:-1])
    assert sound_rounds(RunDirectory(stopped)) == []
    assert repair(stopped) == ["no checkpoint is sound: a resume starts from round 0"]
    hofl.resume(stopped)
    assert adapter_bytes(stopped) == adapter_bytes(runs["finished"])


def test_a_changed_configuration_has_to_be_acknowledged(stopped: Path) -> None:
    path = stopped / "config.toml"
    text = path.read_text()
    path.write_text(text.replace("lr = 0.01", "lr = 0.02"))
    with pytest.raises(HoflError, match="If you changed it, remove its last line"):
        hofl.resume(stopped)
    path.write_text("\n".join(path.read_text().rstrip().split("\n")[:-1]) + "\n")
    assert RunDirectory(stopped).config().method.optimizer["lr"] == 0.02


def test_vectors_of_a_checkpoint_are_hashed_with_names_and_shapes(runs: dict[str, Path]) -> None:
    """The digest, by its description alone."""
    with safe_open(runs["finished"] / "checkpoint" / "state.safetensors", framework="pt") as file:
        w, fields = file.get_tensor("w"), file.metadata()
    assert fields["round"] == "5"
    text = f"5 {fields['layout']} w torch.float32 ({len(w)},) ".encode()
    assert fields["sha256"] == hashlib.sha256(text + w.numpy().astype("<f4").tobytes()).hexdigest()
    assert w.dtype == torch.float32
