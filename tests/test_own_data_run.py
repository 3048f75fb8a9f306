"""A run on the user's own files, from configuration to adapter."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import hofl
from hofl.experiment.build import build
from hofl.experiment.config import parse_config
from runs import adapter_bytes, quick

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


def test_one_file_per_client_trains_and_resumes_elsewhere_to_the_same_bits(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for client, count in enumerate((4, 7, 5)):
        write(tmp_path / "train" / f"shop-{client}.jsonl", rows(count))
    write(tmp_path / "test.jsonl", rows(6))
    monkeypatch.chdir(tmp_path)
    config = own(tiny_folder, 3, train="train", test="test.jsonl")
    experiment = build(config)
    assert experiment.client.sizes == [4, 7, 5]
    assert experiment.config.data.partition == "natural"
    result = hofl.run(config, tmp_path / "whole")
    assert result.summary["final"]["examples"] == 6

    class Stop(Exception):
        pass

    def stop(event: str, facts: dict[str, Any]) -> None:
        if event == "round" and facts["round"] == 1:
            raise Stop

    with pytest.raises(Stop):
        hofl.run(config, tmp_path / "halves", stop)
    os.chdir("/")
    hofl.resume(tmp_path / "halves")
    assert adapter_bytes(tmp_path / "halves") == adapter_bytes(tmp_path / "whole")


def test_a_client_column_names_the_clients(tiny_folder: Path, tmp_path: Path) -> None:
    lines = [*rows(3, shop="north"), *rows(5, shop="south"), *rows(2, shop="east")]
    train = write(tmp_path / "train.jsonl", lines)
    test = write(tmp_path / "test.jsonl", rows(2))
    paths = {"train": str(train), "test": str(test), "client_column": "shop"}
    assert build(own(tiny_folder, 3, **paths)).client.sizes == [2, 3, 5], "in order of the names"
    with pytest.raises(hofl.HoflError, match=r"belong to 3 clients.*fleet.clients = 3"):
        build(own(tiny_folder, 4, **paths))


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
    assert set(result.summary["final"]) == {"em", "f1", "loss", "examples"}
    assert result.summary["final"]["loss"] < result.summary["initial"]["loss"]


def test_an_answer_of_two_lines_is_refused_as_it_could_never_be_generated(
    tiny_folder: Path, tmp_path: Path
) -> None:
    train = write(tmp_path / "t.jsonl", [{"message": "the delivery", "reply": "one\ntwo"}])
    paths = {"train": str(train), "test": str(train), "labels": None, "target_column": "reply"}
    with pytest.raises(hofl.HoflError, match=r"line 1: field 'reply' must be one line"):
        build(own(tiny_folder, 2, **paths))


def test_files_of_clients_stand_in_the_order_of_their_names(
    tiny_folder: Path, tmp_path: Path
) -> None:
    for name, count in (("a10", 4), ("b1", 3), ("a2", 2)):
        write(tmp_path / "train" / f"{name}.jsonl", rows(count))
    test = write(tmp_path / "test.jsonl", rows(2))
    config = own(tiny_folder, 3, train=str(tmp_path / "train"), test=str(test))
    assert build(config).client.sizes == [2, 4, 3], "a2, a10, b1"


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
        build(parse_config(values))


def test_micro_batches_train_the_same_model_up_to_rounding(
    tiny_folder: Path, tmp_path: Path
) -> None:
    whole = hofl.run(quick(tiny_folder), tmp_path / "whole")
    parts = hofl.run(quick(tiny_folder, engine={"micro_batch": 1}), tmp_path / "parts")
    assert adapter_bytes(whole.path) != adapter_bytes(parts.path), "sums in another order"
    assert parts.summary["final"]["loss"] == pytest.approx(whole.summary["final"]["loss"], rel=1e-3)
    assert parts.summary["peak_bytes"] < whole.summary["peak_bytes"]
