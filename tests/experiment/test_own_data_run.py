"""A run on the user's own files, from configuration to adapter."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import hofl
from hofl.experiment.build import build_simulation
from hofl.experiment.config import parse_config
from support.runs import adapter_bytes, quick

TEXTS = {
    "delivery": "my parcel has not arrived and the delivery is late",
    "billing": "you charged my card twice and the invoice is wrong",
}


def rows(count: int, **extra: Any) -> list[dict[str, Any]]:
    kinds = list(TEXTS)
    return [
        {"message": TEXTS[kinds[i % 2]], "kind": kinds[i % 2].upper(), **extra}
        for i in range(count)
    ]


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def own(tiny_folder: Path, clients: int, **custom: Any) -> hofl.ExperimentConfig:
    values = quick(
        tiny_folder,
        rounds=2,
        task={"name": "custom"},
        fleet={"clients": clients, "cohort": 2, "boundaries": [2]},
    ).model_dump(exclude_none=True)
    values["custom"] = {
        "template": "Message: {message}\nDepartment:",
        "cut": "message",
        "label_column": "kind",
        "labels": {"DELIVERY": "delivery", "BILLING": "billing"},
        **custom,
    }
    return parse_config(values)


class Stop(Exception):
    """Ends a run in the middle."""


def stop_after_round_1(event: str, facts: dict[str, Any]) -> None:
    if event == "round" and facts["round"] == 1:
        raise Stop


def test_one_file_per_client_trains_and_resumes_elsewhere_to_the_same_bits(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for client, count in enumerate((4, 7, 5)):
        write(tmp_path / "train" / f"shop-{client}.jsonl", rows(count))
    write(tmp_path / "test.jsonl", rows(6))
    monkeypatch.chdir(tmp_path)
    config = own(tiny_folder, 3, train="train", test="test.jsonl")
    experiment = build_simulation(config)
    assert experiment.client.sizes == [4, 7, 5]
    assert experiment.config.data.partition == "natural"
    result = hofl.run(config, tmp_path / "whole")
    assert result.summary["final"]["examples"] == 6

    with pytest.raises(Stop):
        hofl.run(config, tmp_path / "halves", stop_after_round_1)
    os.chdir("/")
    hofl.resume(tmp_path / "halves")
    assert adapter_bytes(tmp_path / "halves") == adapter_bytes(tmp_path / "whole")


def test_a_run_is_resumed_evaluated_and_repeated_after_its_tree_has_moved(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data, model and runs in one tree: config.toml names no place outside of it."""
    tree = tmp_path / "here"
    shutil.copytree(tiny_folder, tree / "model")
    for client, count in enumerate((4, 7)):
        write(tree / "data" / "train" / f"shop-{client}.jsonl", rows(count))
    write(tree / "data" / "test.jsonl", rows(6))
    monkeypatch.chdir(tree)
    files = {"train": ["data/train/shop-0.jsonl", "data/train/shop-1.jsonl"]}
    config = own(Path("model"), 2, **files, test=str(tree / "data" / "test.jsonl"))
    whole = hofl.run(config, "runs/whole")
    expected, score = adapter_bytes(whole.path), whole.summary["final"]["loss"]
    with pytest.raises(Stop):
        hofl.run(config, "runs/halves", stop_after_round_1)
    monkeypatch.chdir("/")
    moved = tree.rename(tmp_path / "there")
    for name in ("whole", "halves"):
        assert str(tmp_path) not in (moved / "runs" / name / "config.toml").read_text()
    hofl.resume(moved / "runs" / "halves")
    assert adapter_bytes(moved / "runs" / "halves") == expected
    run = moved / "runs" / "whole"
    assert hofl.evaluate(run=run)["loss"] == pytest.approx(score, rel=1e-6)
    again = hofl.read_config(str(run / "config.toml"), ["rounds=2"])
    assert adapter_bytes(hofl.run(again, moved / "runs" / "again").path) == expected


def test_paths_of_a_configuration_may_be_relative_to_the_file(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without base they are relative to the working directory; changes on the command line too."""
    write(tmp_path / "set" / "train.jsonl", rows(4))
    values = own(tiny_folder, 2, train="train.jsonl", test="test.jsonl").model_dump(
        exclude_none=True
    )
    (tmp_path / "set" / "own.toml").write_text(tomli_w.dumps({"base": ".", **values}))
    (tmp_path / "set" / "plain.toml").write_text(tomli_w.dumps(values))
    monkeypatch.chdir(tmp_path)
    custom = hofl.read_config("set/own.toml", ["custom.test=elsewhere.jsonl"]).custom
    assert custom is not None
    assert (custom.train, custom.test) == (
        str(tmp_path / "set" / "train.jsonl"),
        "elsewhere.jsonl",
    )
    plain = hofl.read_config("set/plain.toml").custom
    assert plain is not None
    assert plain.train == "train.jsonl"


def test_a_client_column_names_the_clients(tiny_folder: Path, tmp_path: Path) -> None:
    lines = [*rows(3, shop="north"), *rows(5, shop="south"), *rows(2, shop="east")]
    train = write(tmp_path / "train.jsonl", lines)
    test = write(tmp_path / "test.jsonl", rows(2))
    paths = {"train": str(train), "test": str(test), "client_column": "shop"}
    assert build_simulation(own(tiny_folder, 3, **paths)).client.sizes == [2, 3, 5], (
        "in order of the names"
    )
    with pytest.raises(hofl.HoflError, match=r"belong to 3 clients.*fleet.clients = 3"):
        build_simulation(own(tiny_folder, 4, **paths))


def test_free_text_answers_are_trained_and_scored_by_f1(tiny_folder: Path, tmp_path: Path) -> None:
    lines = [{"message": "the delivery is late", "reply": "the parcel is on its way"}] * 8
    train = write(tmp_path / "train.jsonl", lines)
    config = own(
        tiny_folder,
        2,
        train=str(train),
        test=str(train),
        labels=None,
        target_column="reply",
        max_new_tokens=6,
    )
    result = hofl.run(config, tmp_path / "run")
    scores = {"em", "f1", "loss", "examples", "perplexity", "token_accuracy", "tokens"}
    assert set(result.summary["final"]) == scores
    assert result.summary["final"]["loss"] < result.summary["initial"]["loss"]


def test_an_answer_of_two_lines_is_refused_as_it_could_never_be_generated(
    tiny_folder: Path, tmp_path: Path
) -> None:
    train = write(tmp_path / "t.jsonl", [{"message": "the delivery", "reply": "one\ntwo"}])
    paths = {"train": str(train), "test": str(train), "labels": None, "target_column": "reply"}
    with pytest.raises(hofl.HoflError, match=r"line 1: field 'reply' must be one line"):
        build_simulation(own(tiny_folder, 2, **paths))


def test_files_of_clients_stand_in_the_order_of_their_names(
    tiny_folder: Path, tmp_path: Path
) -> None:
    for name, count in (("a10", 4), ("b1", 3), ("a2", 2)):
        write(tmp_path / "train" / f"{name}.jsonl", rows(count))
    test = write(tmp_path / "test.jsonl", rows(2))
    config = own(tiny_folder, 3, train=str(tmp_path / "train"), test=str(test))
    assert build_simulation(config).client.sizes == [2, 4, 3], "a2, a10, b1"


@pytest.mark.parametrize(
    ("task", "custom", "message"),
    [
        ("custom", None, "own data need both"),
        ("helpdesk", {"train": "a.jsonl", "test": "b.jsonl"}, "own data need both"),
    ],
)
def test_a_section_and_a_task_name_belong_together(
    tiny_folder: Path, task: str, custom: dict[str, str] | None, message: str
) -> None:
    values = quick(tiny_folder, task={"name": task}).model_dump(exclude_none=True)
    if custom is not None:
        values["custom"] = {**custom, "template": "{text}:", "cut": "text"}
    assert tomli_w.dumps(values)
    with pytest.raises(hofl.HoflError, match=message):
        build_simulation(parse_config(values))


@pytest.mark.parametrize("name", ["train", "test"])
def test_an_empty_name_is_not_the_working_directory(
    name: str, tiny_folder: Path, tmp_path: Path
) -> None:
    file = str(write(tmp_path / "mail.jsonl", rows(8)))
    config = own(tiny_folder, 2, **{"train": file, "test": file, name: ""})
    with pytest.raises(hofl.HoflError, match=f"'custom.{name}' is required"):
        build_simulation(config)


def test_micro_batches_train_the_same_model_up_to_rounding(
    tiny_folder: Path, tmp_path: Path
) -> None:
    """By SGD, whose steps are as close as the gradients; AdamW's can be their rounding's sign."""
    sgd = {"optimizer": "sgd", "lr": 0.1}
    whole = hofl.run(quick(tiny_folder, method=sgd), tmp_path / "whole")
    config = quick(tiny_folder, method=sgd, engine={"micro_batch": 1})
    parts = hofl.run(config, tmp_path / "parts")
    assert adapter_bytes(whole.path) != adapter_bytes(parts.path), "sums in another order"
    assert parts.summary["final"]["loss"] == pytest.approx(whole.summary["final"]["loss"], rel=1e-3)
    assert parts.summary["peak_bytes"] < whole.summary["peak_bytes"]
