"""Server time and memory per round against the number of registered devices, N, at a fixed K.

Run: python tools/measure_scale.py [--clients 100,1000,10000] [--cohort 50] [--rounds 5]

The real loop of rounds (draw, plan, check, replay, average) with devices that send valid uploads
without training anything, on a small random model. Each N runs in a process of its own. Seconds are
of the processor, so that other work on the machine does not count.
"""

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
import tracemalloc
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from hofl.engines.base import Dispatch, Failure
from hofl.engines.local import InProcess
from hofl.experiment.build import Experiment, build_simulation
from hofl.experiment.config import parse_config
from hofl.experiment.rounds import one_round
from hofl.messages import ClientMetrics, Upload

WORDS = ["<unk>", "<s>", "</s>", "good", "bad", "a", "b", "c", "It", "was", ":"]
EXAMPLES = 20_000


class Idle(InProcess):
    """Devices that answer every plan at once with an upload that changes nothing."""

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(experiment.client)
        self._layout = experiment.layout

    def gather(self, dispatches: Iterable[Dispatch]) -> Iterator[bytes | Failure]:
        """Valid uploads of zeros."""
        for plan in (dispatch.plan for dispatch in dispatches):
            yield Upload(
                run=plan.run,
                round=plan.round,
                client=plan.client,
                boundary=plan.boundary,
                layout=plan.layout,
                plan=plan.digest(),
                scalars=torch.zeros(plan.scalars_shape(self._layout)),
                difference=torch.zeros(self._layout.size - plan.dense_start(self._layout)),
                metrics=ClientMetrics(loss=1.0, examples=1),
            ).to_bytes()


def small_model(folder: Path) -> Path:
    """A random Llama of four blocks with a tokenizer of a few words."""
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    ).save_pretrained(folder)
    shape = LlamaConfig(
        hidden_size=256,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        vocab_size=len(WORDS),
        max_position_embeddings=64,
    )
    AutoModelForCausalLM.from_config(shape).save_pretrained(folder)
    return folder


def examples(path: Path) -> Path:
    """A file with examples for every device of the largest fleet."""
    rows = ({"text": "a b c", "label": ("good", "bad")[k % 2]} for k in range(EXAMPLES))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def measure(clients: int, cohort: int, rounds: int, folder: str, results: Any) -> None:
    """Build a fleet, run its rounds, report."""
    torch.set_num_threads(1)
    data = str(Path(folder) / "rows.jsonl")
    config = parse_config(
        {
            "rounds": rounds + 1,
            "model": {"name": str(Path(folder) / "model")},
            "task": {"name": "custom", "batch_size": 1, "max_length": 32},
            "custom": {
                "train": data,
                "test": data,
                "template": "{text} It was :",
                "cut": "text",
                "labels": {"good": " good", "bad": " bad"},
            },
            "fleet": {"clients": clients, "cohort": cohort, "boundaries": [1, 2, 3]},
            "method": {"name": "hofl", "local_steps": 2},
            "server": {"verify": False},
            "evaluation": {"test": False, "holdout": 0.5},
            "engine": {"threads": 1},
        }
    )
    began = time.process_time()
    experiment = build_simulation(config)
    built = time.process_time() - began
    state, engine = experiment.start, Idle(experiment)
    one_round(experiment, engine, state, lambda *_: None)  # what is made once
    seconds = []
    for _ in range(rounds):
        began = time.process_time()
        state, row = one_round(experiment, engine, state, lambda *_: None)
        seconds.append(time.process_time() - began)
        assert len(row.answered) == cohort
    tracemalloc.start()
    one_round(experiment, engine, experiment.start, lambda *_: None)
    traced = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()  # it slows down all that allocates
    began = time.process_time()
    experiment.cohort(1)
    drawn = time.process_time() - began
    results.put(
        {
            "clients": clients,
            "build_simulation": built,
            "round": median(seconds),
            "draw": drawn,
            "traced": traced / 2**20,
            "resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10,
        }
    )


def main() -> None:
    """Print one line per N."""
    parser = argparse.ArgumentParser(description="Rounds against the number of devices.")
    parser.add_argument("--clients", default="100,1000,10000")
    parser.add_argument("--cohort", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        small_model(Path(folder) / "model")
        examples(Path(folder) / "rows.jsonl")
        print("      N   build_simulation s   round s   of it draw   MiB in a round   MiB resident")
        for text in arguments.clients.split(","):
            results = spawn.Queue()
            words = (int(text), arguments.cohort, arguments.rounds, folder, results)
            process = spawn.Process(target=measure, args=words)
            process.start()
            found = results.get(timeout=900)
            process.join()
            print(
                f"{found['clients']:7} {found['build_simulation']:9.2f} {found['round']:9.4f} "
                f"{found['draw']:12.4f} {found['traced']:16.2f} {found['resident']:14.0f}"
            )


if __name__ == "__main__":
    main()
