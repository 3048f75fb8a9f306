"""The contenders of the race in ``peers.py``: each maps a job to seconds, an adapter and bytes."""

import tempfile
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from step_variants import peft_model
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

import hofl
from hofl.experiment.runs import RunDirectory

MODEL, LEARNING_RATE, DECAY = "smollm2-135m-instruct", 1e-3, 5e-4
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


def adapter_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return copies of the trained parameters by name."""
    return {n: p.detach().clone() for n, p in module.named_parameters() if p.requires_grad}


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
            loss = cross_entropy(self.scores(*padded(texts)), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return adapter_of(self.model)

    def scores(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return the label words' scores after each text of padded ids [B, T], [B, C]."""
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        rows = torch.arange(len(ids))
        if self.whole_head:
            logits = self.model(input_ids=ids, attention_mask=mask).logits  # [B, T, V]
            return logits[rows, lengths - 1][:, self.words]
        base = self.model.get_base_model()
        hidden = base.model(input_ids=ids, attention_mask=mask).last_hidden_state
        return hidden[rows, lengths - 1] @ base.lm_head.weight[self.words].T


def padded(texts: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids [B, T] padded to the longest text, and the lengths [B]."""
    return pad_sequence(texts, batch_first=True), torch.tensor([len(text) for text in texts])


def uploads(job: Job) -> int:
    """Bytes of the clients' adapters in FP32."""
    return len(job["clients"]) * sum(4 * value.numel() for value in job["start"].values())


def ours(job: Job) -> Outcome:
    """``hofl.run`` into a folder that goes away."""
    with tempfile.TemporaryDirectory() as folder:
        result = hofl.run(configuration(), Path(folder) / "run")
        record = RunDirectory.open(Path(folder) / "run").metrics()[-1]
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


def pfl(job: Job) -> Outcome:
    """The plain loop's loss in a module of pfl-research: its FederatedAveraging, simulated."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data import FederatedDataset
    from pfl.data.dataset import Dataset
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Weighted
    from pfl.model.pytorch import PyTorchModel

    trainer = Trainer(job, whole_head=True)

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = trainer.model

        def loss(self, ids: Any, lengths: Any, targets: Any) -> torch.Tensor:
            return cross_entropy(trainer.scores(ids, lengths), targets)

        def metrics(self, *batch: Any) -> dict[str, Any]:
            return {"batches": Weighted(1, 1)}  # asked for before and after training: nothing

    class Steps(Dataset):
        def iter(self, batch_size: int | None) -> Any:
            return ((*padded(texts), targets) for texts, targets in self.raw_data)

        def __len__(self) -> int:
            return sum(len(texts) for texts, _ in self.raw_data)

    module = Module()
    trained = {n: p for n, p in trainer.model.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(job["start"][name])
    users = iter(range(len(job["clients"])))
    cohort = FederatedDataset(lambda user: Steps(job["clients"][user]), lambda: next(users))
    model = PyTorchModel(
        module,
        lambda _, lr: torch.optim.AdamW(trained.values(), lr=lr, weight_decay=DECAY),
        torch.optim.SGD(trained.values(), lr=1.0),  # the mean difference is the step
    )
    steps = NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=LEARNING_RATE, local_batch_size=16
    )
    start = time.perf_counter()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=1,
            evaluation_frequency=1,
            train_cohort_size=len(job["clients"]),
            val_cohort_size=0,
        ),
        SimulatedBackend(cohort, cohort),
        model,
        steps,
        NNEvalHyperParams(local_batch_size=16),
    )
    return time.perf_counter() - start, adapter_of(trainer.model), uploads(job)


CONTENDERS: dict[str, Callable[[Job], Outcome]] = {
    "plain": plain,
    "plain, label words": lambda job: plain(job, whole_head=False),
    "flower": flower,
    "pfl": pfl,
    "hofl": ours,
}
