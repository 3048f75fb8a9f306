"""Sample answers before and after, and free text with workers, resumes and Flower: equal bits."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import hofl
from hofl.experiment.build import build_server, build_simulation
from hofl.experiment.launcher import worker_client
from hofl.experiment.rounds import run_rounds
from hofl.experiment.runs import RunDirectory
from hofl.messages import Upload
from support.flower_grid import LocalBridge, LocalGrid, local_engine
from support.flower_workers import device, serving
from support.runs import adapter_bytes, quick, stop_at
from support.written_answers import continued, longest_common

SAID = ("my parcel is late", "the invoice is wrong", "it works again", "please refund the card")
ROWS = [
    {
        "prompt": SAID[n % 4],
        "completion": f"{SAID[(n + 1) % 4]}\n{SAID[n % 3]}",
        "text": " ".join(SAID[n % 4 :]),
        "who": n % 3,
    }
    for n in range(12)
]


def config_of(folder: Path, path: Path, name: str, **changes: Any) -> hofl.ExperimentConfig:
    path.write_text("\n".join(map(json.dumps, ROWS)))
    custom = {"train": str(path), "test": str(path), "client_column": "who"}
    custom |= {"max_new_tokens": 6} if name == "chat" else {}
    changes = {"rounds": 2, **changes}
    return quick(
        folder,
        task={"name": name, "batch_size": 2, "max_length": 16},
        custom=custom,
        fleet={"clients": 3, "cohort": 2},
        **changes,
    )


def test_the_answers_are_those_of_the_model_of_the_start_and_of_the_adapter(
    tiny_folder: Path, tmp_path: Path
) -> None:
    config = config_of(
        tiny_folder,
        tmp_path / "rows.jsonl",
        "chat",
        method={"name": "fedavg"},
        evaluation={"samples": 3, "rouge": True, "batch_size": 2},
    )
    run = hofl.run(config, tmp_path / "run")
    found = json.loads((run.path / "samples.json").read_text())
    assert len(found["answers"]) == 3
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    start = AutoModelForCausalLM.from_pretrained(tiny_folder).eval()
    models = {"before": start, "after": run.load().eval()}
    for row in found["answers"]:
        source = next(r for r in ROWS if r["prompt"] == row["prompt"])
        assert row["expected"] in [r["completion"] for r in ROWS if r["prompt"] == row["prompt"]]
        text = f"User: {source['prompt']}\nAssistant:"
        prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
        for name, model in models.items():
            tokens = continued(model, prompt, 6, tokenizer.eos_token_id)
            assert row[name] == tokenizer.decode(tokens, skip_special_tokens=True).strip()
    assert any(row["before"] != row["after"] for row in found["answers"])
    for name, scores in (("before", run.record.initial), ("after", run.record.final)):
        by_hand = []
        for row in found["answers"]:
            one, other = row[name].split(), row["expected"].split()
            by_hand.append(2 * longest_common(one, other) / (len(one) + len(other)))
        assert scores["rouge_l"] == pytest.approx(sum(by_hand) / 3)
        assert found["rouge_l"][name] == scores["rouge_l"]
    assert hofl.evaluate(run=run.path)["rouge_l"] == pytest.approx(run.record.final["rouge_l"])
    assert "| rouge_l |" in (run.adapter / "README.md").read_text()


def test_documents_are_continued_from_the_middle_of_a_window(
    tiny_folder: Path, tmp_path: Path
) -> None:
    config = config_of(
        tiny_folder, tmp_path / "rows.jsonl", "text", rounds=1, evaluation={"samples": 2}
    )
    run = hofl.run(config, tmp_path / "run")
    whole = " ".join(row["text"] for row in ROWS[::3] + ROWS[1::3] + ROWS[2::3])
    answers = json.loads((run.path / "samples.json").read_text())["answers"]
    assert len(answers) == 2
    for row in answers:
        assert f"{row['prompt']} {row['expected']}".strip() in whole
        assert abs(len(row["prompt"].split()) - len(row["expected"].split())) <= 2


def test_without_a_test_set_examples_are_asked_that_nobody_trains_on(
    tiny_folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    held = {"samples": 50, "test": False, "holdout": 0.4}
    config = config_of(tiny_folder, path, "chat", rounds=1, evaluation=held)
    rows = [{**row, "completion": f"answer {n}"} for n, row in enumerate(ROWS)]
    path.write_text("\n".join(map(json.dumps, rows)))
    run = hofl.run(config, tmp_path / "run")
    answers = json.loads((run.path / "samples.json").read_text())["answers"]
    simulation = build_simulation(config)
    trained = {
        simulation.train.question(int(row)).expected
        for shard in simulation.client._shards
        for row in shard
    }
    everything = {f"answer {n}" for n in range(len(ROWS))}
    assert {row["expected"] for row in answers} == everything - trained
    assert len(answers) == 6, "two of each client's four"


@pytest.mark.parametrize(
    ("evaluation", "reason"),
    [
        ({"samples": 2}, "evaluation.samples and evaluation.rouge need conversations or documents"),
        ({"rouge": True}, "evaluation.samples and evaluation.rouge need conversations or document"),
        (
            {"samples": 2, "test": False, "holdout": 0.3},
            "evaluation.samples and evaluation.rouge need conversations or documents",
        ),
    ],
)
def test_samples_of_chosen_answers_are_refused_before_anything_is_written(
    evaluation: dict[str, Any], reason: str, tiny_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(hofl.HoflError) as caught:
        hofl.run(quick(tiny_folder, evaluation=evaluation), tmp_path / "run")
    assert reason in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["chat", "text"])
def test_free_text_has_the_same_bits_resumed_in_workers_and_over_flowers_messages(
    name: str, tiny_folder: Path, tmp_path: Path
) -> None:
    quiet = {"samples": 0}
    config = config_of(tiny_folder, tmp_path / "rows.jsonl", name, evaluation=quiet)
    expected = adapter_bytes(hofl.run(config, tmp_path / "expected").path)
    assert not (tmp_path / "expected" / "samples.json").exists()
    with pytest.raises(KeyboardInterrupt):
        hofl.run(config, tmp_path / "stopped", stop_at(1))
    assert adapter_bytes(hofl.resume(tmp_path / "stopped").path) == expected
    simulation = build_simulation(config)
    plan = simulation.plan(simulation.start, 1, simulation.present(0)).to_bytes()
    worker = worker_client(simulation.config.model_dump(mode="json"), 0)
    one, other = (Upload.from_bytes(c.answer(plan)) for c in (worker, simulation.client))
    assert torch.equal(one.scalars, other.scalars), "a process of a pool"
    assert torch.equal(one.difference, other.difference)
    experiment = build_server(config)
    resolved = hofl.config_of(tmp_path / "expected").fleet.boundaries
    directory = RunDirectory.create(tmp_path / "run", experiment.config, experiment.secret)
    sockets = {7 + n: tmp_path / f"socket-{n}" for n in range(3)}
    with ExitStack() as stack:
        for number, socket in enumerate(sockets.values()):
            worker = device(tmp_path, number, int(resolved[number]))
            stack.enter_context(serving(socket, worker))
        engine = local_engine(experiment, LocalBridge(LocalGrid(sockets)), tmp_path)
        run_rounds(experiment, engine, directory, lambda *_: None)
    assert adapter_bytes(directory.path) == expected
