"""Data handed over from Python, and a folder that is used again."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch

import hofl
from hofl.experiment.build import build_simulation
from hofl.experiment.launcher import worker_client
from hofl.experiment.reuse import REPLACED
from hofl.messages import Upload
from support.runs import adapter_bytes, quick, stop_at

SAID = ("my parcel is late", "the invoice is wrong", "it works\nagain", "please refund the card")
ROWS = [
    {"prompt": SAID[n % 4], "completion": f"{SAID[(n + 1) % 4]}\n\n{SAID[n % 3]}", "who": n % 3}
    for n in range(12)
]
OWNERS = [row["who"] for row in ROWS]


def config_of(folder: Path, **changes: Any) -> hofl.ExperimentConfig:
    """Task chat without a section ``custom``, and with as many clients as the rows have."""
    values = {"rounds": 2, "task": {"name": "chat", "batch_size": 2, "max_length": 18}, **changes}
    quiet = {"samples": 0}
    config = quick(folder, fleet={"clients": 3, "cohort": 2}, evaluation=quiet, **values)
    fleet = hofl.FleetConfig(cohort=2, boundaries=(1, 2, 3))
    return config.model_copy(update={"fleet": fleet})


@pytest.fixture(scope="module")
def finished(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on rows that were handed over; tests that change it copy it."""
    path = tmp_path_factory.mktemp("finished") / "run"
    hofl.run(config_of(tiny_folder), path, train=ROWS, test=ROWS[:6], clients="who")
    return path


def test_handed_over_rows_train_as_files_do(
    finished: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    for name, rows in (("train", ROWS), ("test", ROWS[:6])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    files = {name: str(tmp_path / f"{name}.jsonl") for name in ("train", "test")}
    config = config_of(tiny_folder, custom={**files, "client_column": "who"})
    fleet = config.fleet.model_copy(update={"clients": 3})
    expected = hofl.run(config.model_copy(update={"fleet": fleet}), tmp_path / "expected").path
    assert adapter_bytes(finished) == adapter_bytes(expected)
    resolved = hofl.config_of(finished)
    assert resolved.fleet.clients == 3, "counted, for the configuration does not say"
    text = (finished / "config.toml").read_text()
    assert 'train = "./data/train.jsonl"' in text, "the folder can be moved"
    facts = json.loads((finished / "environment.json").read_text())
    assert sorted(facts["rows"]) == ["test.jsonl", "train.jsonl"]


@pytest.mark.parametrize("clients", [OWNERS, lambda row: row["who"]], ids=["list", "function"])
def test_clients_can_be_given_beside_the_rows(
    clients: Any, finished: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    columns = ("prompt", "completion") if clients is OWNERS else tuple(ROWS[0])
    rows = datasets.Dataset.from_list([{key: row[key] for key in columns} for row in ROWS])
    given = {"train": rows, "test": lambda: iter(ROWS[:6]), "clients": clients}
    run = hofl.run(config_of(tiny_folder), tmp_path / "run", **given)
    assert adapter_bytes(run.path) == adapter_bytes(finished)


def test_a_worker_process_reads_the_rows_from_the_folder(finished: Path) -> None:
    """From the plain values that it is sent, it answers a plan with the bits of one process."""
    config = hofl.config_of(finished)
    simulation = build_simulation(config)
    plan = simulation.plan(simulation.start, 1, simulation.present(0)).to_bytes()
    worker = worker_client(config.model_dump(mode="json"), 0)
    one, other = (Upload.from_bytes(c.answer(plan)) for c in (worker, simulation.client))
    assert torch.equal(one.scalars, other.scalars)
    assert torch.equal(one.difference, other.difference)


def test_a_stopped_run_is_moved_continued_and_scored_with_the_same_bits(
    finished: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    given = {"train": ROWS, "test": ROWS[:6], "clients": "who"}
    with pytest.raises(KeyboardInterrupt):
        hofl.run(config_of(tiny_folder), tmp_path / "run", stop_at(1), **given)
    shutil.move(tmp_path / "run", tmp_path / "elsewhere")
    run = hofl.run(config_of(tiny_folder), tmp_path / "elsewhere", exist="resume", **given)
    assert adapter_bytes(run.path) == adapter_bytes(finished)
    assert hofl.evaluate(run=run.path)["loss"] == pytest.approx(run.summary["final"]["loss"])


def test_damaged_rows_are_reported_in_one_line(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    file = tmp_path / "run" / "data" / "test.jsonl"
    file.write_text(file.read_text().replace("parcel", "basket", 1))
    for use in (hofl.resume, lambda path: hofl.evaluate(run=path)):
        with pytest.raises(hofl.HoflError, match=r"test\.jsonl is damaged or missing: restore it"):
            use(tmp_path / "run")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"train": [*ROWS[:4], {**ROWS[4], "completion": " "}]}, "train[4]: field 'completion' is"),
        (
            {"train": [{"prompt": "x"}]},
            "train[0]: no conversation is recognised in the col",
        ),
        ({"train": ROWS, "clients": "whom"}, "train[0]: no field 'whom': there are prompt"),
        ({"train": None, "test": ROWS}, "'custom.train' is required: name a file, or hand rows"),
        ({"train": ROWS, "test": None}, "'custom.test' is required: name a file, or hand rows"),
        ({"train": {"train": ROWS}}, "train is a mapping of 'train'"),
    ],
)
def test_bad_rows_are_one_line_and_leave_nothing(
    given: dict[str, Any], reason: str, tiny_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(hofl.HoflError) as caught:
        hofl.run(config_of(tiny_folder), tmp_path / "run", **{"test": ROWS, **given})
    assert reason in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_task_with_data_of_its_own_takes_no_rows(tiny_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(hofl.HoflError, match="task 'helpdesk' has data of its own"):
        hofl.run(quick(tiny_folder), tmp_path / "run", train=ROWS, test=ROWS)


def test_a_finished_run_is_returned_if_it_is_the_same(finished: Path, tiny_folder: Path) -> None:
    given = {"train": ROWS, "test": ROWS[:6], "clients": "who"}
    before = (finished / "summary.json").stat().st_mtime_ns
    again = hofl.run(config_of(tiny_folder), finished, exist="resume", **given)
    assert again.record.rounds == 2
    assert (finished / "summary.json").stat().st_mtime_ns == before
    with pytest.raises(hofl.HoflError, match="exists and is not empty"):
        hofl.run(config_of(tiny_folder), finished, **given)
    longer = config_of(tiny_folder, rounds=3, method={"local_steps": 1})
    with pytest.raises(hofl.HoflError, match=r"rounds, method.local_steps differ\."):
        hofl.run(longer, finished, exist="resume", **given)
    other = {**given, "train": ROWS[:6]}
    with pytest.raises(hofl.HoflError, match="holds other rows than train"):
        hofl.run(config_of(tiny_folder), finished, exist="resume", **other)
    with pytest.raises(hofl.HoflError, match="choose one of 'error', 'resume', 'replace'"):
        hofl.run(config_of(tiny_folder), finished, exist="overwrite", **given)  # type: ignore[arg-type]


def test_a_run_is_replaced_when_the_new_one_is_there_and_not_before(
    finished: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    given = {"test": ROWS[:6], "clients": "who", "exist": "replace"}
    broken = [*ROWS, {"prompt": "", "completion": "x", "who": 1}]
    with pytest.raises(hofl.HoflError, match=r"train\[12\]: field 'prompt' is empty"):
        hofl.run(config_of(tiny_folder), path, train=broken, **given)
    assert adapter_bytes(path) == adapter_bytes(finished), "brought back"
    run = hofl.run(config_of(tiny_folder, rounds=1), path, train=ROWS, **given)
    assert run.record.rounds == 1
    assert list(tmp_path.iterdir()) == [path], REPLACED


def test_a_folder_that_is_not_a_run_is_never_replaced(tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("mine = true")
    with pytest.raises(hofl.HoflError, match="exists and is not empty"):
        hofl.run(quick(tiny_folder), tmp_path, exist="replace")
    assert (tmp_path / "config.toml").read_text() == "mine = true"


SCRIPT = """
import multiprocessing
from hofl.core.process import IMPORTED_AGAIN, leave_if_imported_again
leave_if_imported_again()  # as hofl.run and hofl.compare do first
process = multiprocessing.get_context("spawn").Process(target=print)
process.start()
process.join()
print(process.exitcode == IMPORTED_AGAIN)
"""


def test_a_script_without_a_guard_is_not_started_again_by_its_processes(tmp_path: Path) -> None:
    """They leave without a word; whoever waits for them says what is missing."""
    (tmp_path / "script.py").write_text(SCRIPT)
    words = [sys.executable, "script.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == ("True\n", "")
