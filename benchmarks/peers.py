"""A race: one FedAvg LoRA round of SmolLM2-135M on SST-2, from the same start to the same adapter.

``python benchmarks/peers.py [--repeats 3] [--out FILE.json]``, with SST-2's files in HOFL_DATA. 30
clients, 6 of them drawn, 5 AdamW steps each on 16 texts. The contenders:

- ``plain``: PEFT and a torch loop with dynamic padding, as a tutorial writes it: the model's own
  forward pass with the scores of the whole vocabulary, of which the label words are compared;
- ``plain, label words``: the same loop, with the head computed at the label words alone;
- ``flower``: that loop in a ClientApp under Flower's simulation, if ``flwr[simulation]`` is
  installed (``peers-requirements.txt``); ray listens on all interfaces, so it runs in a network
  namespace of its own (``unshare``, root);
- ``hofl``: ``hofl.run``.

Every contender has a process of its own. Seconds are those of the round, without loading the model;
memory is the peak, over samples every 0.1 s, of the proportional set size of all its processes;
bytes are the uploads. A contender that ends in another adapter is out of the race. pfl-research is
not in it yet.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch
from harness import environment
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file
from step_variants import peft_model
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

import hofl
from hofl.experiment.build import build_simulation
from hofl.experiment.runs import RunDirectory
from hofl.local.site import PLAIN

MODEL, LEARNING_RATE, DECAY = "smollm2-135m-instruct", 1e-3, 5e-4
CLOSE = 1e-2
"""Norm of the difference between two adapters' updates, over the norm of the update. AdamW divides
by the root of tiny squares, so rounding in a gradient near zero grows to a step of its own."""
Batch = tuple[list[torch.Tensor], torch.Tensor]
"""Token ids of each text, and the index of its label word."""
Job = dict[str, Any]
"""Start of the adapter, the clients' batches, the label words, the model's folder."""
Outcome = tuple[float, dict[str, torch.Tensor], int]
"""Seconds of the round, the new adapter, bytes of the uploads."""


def configuration() -> hofl.ExperimentConfig:
    """The round as a run of hofl."""
    return hofl.ExperimentConfig(
        rounds=1,
        seed=7,
        model={"name": MODEL},
        method={
            "name": "fedavg",
            "local_steps": 5,
            "optimizer": {"lr": LEARNING_RATE, "weight_decay": DECAY},
        },
        task={"name": "sst2", "batch_size": 16},
        data={"examples_per_client": 200},
        fleet={"clients": 30, "cohort": 6, "boundaries": [0]},
        evaluation={"every": 0, "test": False, "holdout": 0.01},
    )


def prepare(job: Path) -> None:
    """Run hofl once; write what the others need: the start, the clients' batches, the end."""
    run = job.with_name("prepared")
    hofl.run(configuration(), run)
    record = RunDirectory.open(run).rows()[-1]
    experiment = build_simulation(configuration())
    model, present = experiment.model.split, experiment.present(0)
    clients = []
    for number in record.answered:
        plan = experiment.plan(experiment.start, number, present)
        steps = [parts[0] for parts in experiment.client._batches(plan, PLAIN)]
        clients.append([(_texts(step), step.goal.targets) for step in steps])
    words = steps[0].goal.candidates
    facts = {"start": _adapter(model.module), "clients": clients, "words": words}
    torch.save({**facts, "reference": experiment.model.reference}, job)


def _texts(batch: Any) -> list[torch.Tensor]:
    return list(batch.texts.tokens.split(batch.texts.lengths))


def _adapter(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in module.named_parameters() if p.requires_grad}


# -- contenders: a job in, seconds and the adapter's change out


def plain(job: Job, whole_head: bool = True) -> Outcome:
    """Train the clients one after the other, average their adapters."""
    trainer = Trainer(job, whole_head)
    start = time.perf_counter()
    ends = [trainer.train(job["start"], steps) for steps in job["clients"]]
    mean = {name: sum(end[name] for end in ends) / len(ends) for name in job["start"]}
    return time.perf_counter() - start, mean, uploads(job)


class Trainer:
    """A PEFT model and the loop of a tutorial."""

    def __init__(self, job: dict[str, Any], whole_head: bool) -> None:
        self.model = peft_model(job["reference"])
        self.words, self.whole_head = job["words"], whole_head

    def train(self, start: dict[str, torch.Tensor], steps: list[Batch]) -> dict[str, torch.Tensor]:
        """Load the start, take the steps, return the adapter."""
        trained = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        with torch.no_grad():
            for name, parameter in trained.items():
                parameter.copy_(start[name])
        optimizer = torch.optim.AdamW(trained.values(), lr=LEARNING_RATE, weight_decay=DECAY)
        self.model.train()
        for texts, targets in steps:
            loss = cross_entropy(self.scores(texts), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return _adapter(self.model)

    def scores(self, texts: list[torch.Tensor]) -> torch.Tensor:
        """Return the label words' scores after each text, [B, C]."""
        ids = pad_sequence(texts, batch_first=True)
        lengths = torch.tensor([len(text) for text in texts])
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        rows = torch.arange(len(texts))
        if self.whole_head:
            logits = self.model(input_ids=ids, attention_mask=mask).logits  # [B, T, V]
            return logits[rows, lengths - 1][:, self.words]
        base = self.model.get_base_model()
        hidden = base.model(input_ids=ids, attention_mask=mask).last_hidden_state
        return hidden[rows, lengths - 1] @ base.lm_head.weight[self.words].T


def uploads(job: Job) -> int:
    """Bytes of the clients' adapters in FP32."""
    return len(job["clients"]) * sum(4 * value.numel() for value in job["start"].values())


def ours(job: Job) -> Outcome:
    """``hofl.run`` into a folder that goes away."""
    with tempfile.TemporaryDirectory() as folder:
        result = hofl.run(configuration(), Path(folder) / "run")
        record = RunDirectory.open(Path(folder) / "run").rows()[-1]
        end = load_file(result.adapter / "adapter_model.safetensors")
        named = {name: end[name.replace(".default.", ".")] for name in job["start"]}
        return record.seconds, named, record.uplink_bytes


def flower(job: Job) -> Outcome:
    """The plain loop in a ClientApp, FedAvg as the strategy, on Flower's simulation engine.

    In a first round, which is not timed, every client loads the model and returns the start.
    """
    from flwr.client import ClientApp, NumPyClient
    from flwr.common import Context, ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.server import ServerApp, ServerAppComponents, ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.simulation import run_simulation

    names, kept, times = list(job["start"]), {}, {}

    class Client(NumPyClient):
        def __init__(self, number: int) -> None:
            self.number = number

        def fit(self, parameters: list[Any], config: dict[str, Any]) -> Any:
            trainer = _trainer(job)
            if config["round"] == 1:
                return parameters, 80, {}
            start = dict(zip(names, map(torch.from_numpy, parameters), strict=True))
            end = trainer.train(start, job["clients"][self.number])
            return [end[name].numpy() for name in names], 80, {}

    class Timed(FedAvg):
        def configure_fit(self, *args: Any, **kwargs: Any) -> Any:
            times["start"] = time.perf_counter()
            return super().configure_fit(*args, **kwargs)

        def aggregate_fit(self, *args: Any, **kwargs: Any) -> Any:
            outcome = super().aggregate_fit(*args, **kwargs)
            times["end"] = time.perf_counter()
            arrays = parameters_to_ndarrays(outcome[0])
            kept.update(zip(names, map(torch.from_numpy, arrays), strict=True))
            return outcome

    def server(context: Context) -> ServerAppComponents:
        strategy = Timed(
            fraction_evaluate=0.0,
            on_fit_config_fn=lambda number: {"round": number},
            initial_parameters=ndarrays_to_parameters([job["start"][n].numpy() for n in names]),
        )
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=2))

    run_simulation(
        server_app=ServerApp(server_fn=server),
        client_app=ClientApp(
            client_fn=lambda context: Client(int(context.node_config["partition-id"])).to_client()
        ),
        num_supernodes=len(job["clients"]),
        backend_config={"client_resources": {"num_cpus": torch.get_num_threads()}},
    )
    return times["end"] - times["start"], kept, uploads(job)


@lru_cache
def _loaded(reference: str, words: tuple[int, ...]) -> "Trainer":
    """One model per process of the simulation."""
    return Trainer({"reference": reference, "words": torch.tensor(words)}, whole_head=True)


def _trainer(job: Job) -> "Trainer":
    return _loaded(job["reference"], tuple(job["words"].tolist()))


CONTENDERS: dict[str, Callable[[Job], Outcome]] = {
    "plain": plain,
    "plain, label words": lambda job: plain(job, whole_head=False),
    "flower": flower,
    "hofl": ours,
}


def contend(name: str, job: Path) -> None:
    """Run one contender in this process and print the outcome as JSON."""
    loaded = torch.load(job, weights_only=False)
    seconds, end, sent = CONTENDERS[name](loaded)
    change = torch.cat([(end[n] - loaded["start"][n]).reshape(-1) for n in loaded["start"]])
    torch.save(change, job.with_name(f"{name}.pt"))
    print(json.dumps({"seconds": seconds, "uplink_bytes": sent}))


def watched(command: list[str]) -> tuple[str | None, int]:
    """Run a command; return what it printed (None if it failed) and its processes' peak memory."""
    with tempfile.TemporaryFile("w+") as printed:
        process, peak = psutil.Popen(command, stdout=printed), 0
        while process.poll() is None:
            with contextlib.suppress(psutil.Error):
                family = [process, *process.children(recursive=True)]
                peak = max(peak, sum(p.memory_full_info().pss for p in family))
            time.sleep(0.1)
        printed.seek(0)
        return (None if process.returncode else printed.read()), peak


def race(job: Path, names: list[str], repeats: int) -> list[dict[str, Any]]:
    """Let the contenders run in turn; one row each."""
    samples: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    failed: set[str] = set()
    for repeat in range(repeats):
        turn = repeat % len(names)
        for name in names[turn:] + names[:turn]:
            command = [sys.executable, __file__, "--contender", name, "--job", str(job)]
            if name == "flower":
                inner = " ".join(f"'{word}'" for word in command)
                command = ["unshare", "--net", "sh", "-c", f"ip link set lo up && exec {inner}"]
            printed, peak = (None, 0) if name in failed else watched(command)
            if printed is None:
                failed.add(name)
            else:
                samples[name].append({**json.loads(printed.splitlines()[-1]), "peak": peak})
    for needed in ("plain", "hofl"):
        if needed in failed or needed not in names:
            sys.exit(f"{needed} did not finish, and the others are compared with it.")
    return [_row(name, job, samples) if name not in failed else _out(name) for name in names]


def _out(name: str, why: str = "did not finish") -> dict[str, Any]:
    return {"variant": name, "failed": why}


def _row(name: str, job: Path, samples: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    reference, change = (torch.load(job.with_name(f"{n}.pt")) for n in ("hofl", name))
    off = ((change - reference).norm() / reference.norm()).item()
    if off > CLOSE:
        return _out(name, f"ended in another adapter, {off:.2g} of the update away")
    seconds = [sample["seconds"] for sample in samples[name]]
    return {
        "variant": name,
        "median_seconds": median(seconds),
        "min_seconds": min(seconds),
        "ratio": median(seconds) / median(sample["seconds"] for sample in samples["plain"]),
        "peak_bytes": max(sample["peak"] for sample in samples[name]),
        "uplink_bytes": samples[name][0]["uplink_bytes"],
        "adapter_difference": off,
        "samples_in_seconds": seconds,
    }


def table(rows: list[dict[str, Any]]) -> Table:
    """The rows for people."""
    shown = Table(title="One FedAvg round of SmolLM2-135M on SST-2", title_justify="left")
    for headline in ("contender", "median s", "min s", "time / plain", "peak MiB", "uplink MiB"):
        shown.add_column(headline)
    for row in rows:
        if "failed" in row:
            shown.add_row(row["variant"], row["failed"])
            continue
        times = (f"{row[key]:.2f}" for key in ("median_seconds", "min_seconds", "ratio"))
        sizes = (f"{row[key] / 2**20:.1f}" for key in ("peak_bytes", "uplink_bytes"))
        shown.add_row(row["variant"], *times, *sizes)
    return shown


def main() -> None:
    """Prepare the job, run the race, print and write it."""
    parser = argparse.ArgumentParser(description="hofl against what people use today.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "peers.json")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--without", action="append", default=[], choices=["flower", "plain, label words"]
    )
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(os.cpu_count() or 1)
    if arguments.contender:
        contend(arguments.contender, arguments.job)
        return
    if arguments.job:
        prepare(arguments.job)
        return
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.pt"
        subprocess.run([sys.executable, __file__, "--job", str(job)], check=True)
        names = [name for name in CONTENDERS if name not in arguments.without]
        rows = race(job, names, arguments.repeats)
    Console(width=120).print(table(rows))
    facts = {"rows": rows, "environment": environment()}
    arguments.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
