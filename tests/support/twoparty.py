"""Split workflows on tiny models, and their algorithms written out in plain torch."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from hofl.core.batch import Batch
from hofl.core.directions import Gaussian
from hofl.core.optim import SGD, Optimizer
from hofl.core.wire import message_kind
from hofl.experiment.config import ExperimentConfig
from hofl.experiment.records import RoundRecord, ledger_totals
from hofl.experiment.runs import RunDirectory
from hofl.methods import METHODS
from hofl.models.adapters import Lora
from hofl.models.files import StoredTensor, stored_tensors
from hofl.models.halves import Half, build_half
from hofl.models.loading import build_split
from hofl.models.split import SplitModel
from hofl.rules import SURROGATES
from hofl.twoparty.client import SplitClient
from hofl.twoparty.exchange import Message, MessageRefused, step_and_client
from hofl.twoparty.ledger import ByteLedger
from hofl.twoparty.link import LinkedServer
from hofl.twoparty.roles import Job, play
from hofl.twoparty.server import SplitServer
from hofl.twoparty.setting import FIRST, Setting
from hofl.twoparty.store import ClientStore
from hofl.twoparty.training import OneProcess
from hofl.workflows import WORKFLOWS
from support.models import CONFIGS, batch, pack, padded
from support.runs import quick
from support.steps import whole_direction

SPLIT: dict[str, dict[str, Any]] = {
    "ho-sfl": {"local_steps": 1},
    "hosl": {"local_steps": 1, "q": 2},
    "heron-sfl": {
        "surrogate": {"name": "auxiliary-head", "rank": 2},
        "workflow": {"upload_every": 2},
    },
}
"""Quick forms of the methods that split."""
LORA = Lora(rank=2, alpha=4)
BOUNDARY = 2
MU = 1e-2


def split_config(folder: Path, name: str, **changes: Any) -> ExperimentConfig:
    """Three steps of a method on the tiny model, two of four clients a step."""
    given = {
        "method": {"name": name, **SPLIT[name]},
        "fleet": {"clients": 4, "cohort": 2, "boundaries": [2]},
    }
    for key, value in changes.items():
        given[key] = {**given.get(key, {}), **value} if isinstance(value, dict) else value
    return quick(folder, **given)


def watched(rank: int, job: Job, failure: Connection) -> None:
    """A role that notes every tensor that it reads from the model's files."""
    notes = job.path / f"read-{rank}.txt"
    for name in ("read", "mapped"):
        plain = getattr(StoredTensor, name)

        def noting(self: StoredTensor, plain: Any = plain) -> Tensor:
            with notes.open("a") as file:
                file.write(f"{self.start}\n")
            return plain(self)

        setattr(StoredTensor, name, noting)
    play(rank, job, failure)


def silent(rank: int, job: Job, failure: Connection) -> None:
    """A client process that takes calls and does not answer them."""
    if rank:
        LinkedServer.request = lambda self, message: time.sleep(60)  # type: ignore[method-assign]
    play(rank, job, failure)


def idle(rank: int, job: Job, failure: Connection) -> None:
    """A process that ends well and has done nothing."""


def killed_client(rank: int, job: Job, failure: Connection, victim: int, step: int) -> None:
    """A client process that the system kills in the first turn it has at a step or later."""
    if rank == victim:
        honest = LinkedServer.request

        def request(self: LinkedServer, message: bytes) -> bytes:
            answer = honest(self, message)
            if step_and_client(message, message_kind(message, MessageRefused))[0] >= step:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        LinkedServer.request = request  # type: ignore[method-assign]
    play(rank, job, failure)


def killed_server(rank: int, job: Job, failure: Connection, step: int) -> None:
    """A server process that the system kills when a step is over and not yet recorded."""
    honest = RunDirectory.record

    def record(self: RunDirectory, made: RoundRecord) -> None:
        if made.round == step:
            os.kill(os.getpid(), signal.SIGKILL)
        honest(self, made)

    RunDirectory.record = record  # type: ignore[method-assign]
    play(rank, job, failure)


def liar(rank: int, job: Job, failure: Connection) -> None:
    """A client process whose every message is one that only a server sends."""
    if rank:
        honest = LinkedServer.request

        def request(self: LinkedServer, message: bytes) -> bytes:
            return honest(self, Message("turn", 0, 0).to_bytes())

        LinkedServer.request = request  # type: ignore[method-assign]
    play(rank, job, failure)


def noisy(rank: int, job: Job, failure: Connection) -> None:
    """A second client process that sends 40 bytes of noise in place of its first message."""
    if rank == 2:
        honest = LinkedServer.request
        LinkedServer.request = lambda self, message: honest(self, bytes(40))  # type: ignore[method-assign]
    play(rank, job, failure)


def what_was_read(run: Path, rank: int) -> set[str]:
    """Names of the tensors that the process of a rank has read."""
    reference = RunDirectory(run).config().model.name
    names = {tensor.start: name for name, tensor in stored_tensors(reference).items()}
    return {names[int(line)] for line in (run / f"read-{rank}.txt").read_text().split()}


def saved(family: str, folder: Path) -> Path:
    """A random model of a family in a folder, its weights larger than usual."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(CONFIGS[family])
    model.save_pretrained(folder)
    return folder


def setting_of(name: str, optimizer: Optimizer | None = None, **fields: Any) -> Setting:
    """A method's setting with SGD at 0.5, two directions and one step, unless said otherwise."""
    made = METHODS[name]
    workflow = {key: fields.pop(key) for key in ("upload_every",) if key in fields}
    values = {"optimizer": optimizer or SGD(lr=0.5), "q": 2, "local_steps": 1, "mu": MU, **fields}
    rule = replace(made.local, **values)
    maker = WORKFLOWS[made.workflow.name].make
    assert maker is not None
    agreed = made.workflow.changed(workflow).made_by(maker, rule)
    return Setting(rule=rule, boundary=BOUNDARY, seed=9, workflow=agreed)


def half(folder: Path, family: str, which: Half, setting: Setting) -> SplitModel:
    """One half of the model in a folder, its adapter moved off the start (B is not zero)."""
    part = setting.rule.surrogate
    made = part.made_by(SURROGATES[part.name].make).parameters(CONFIGS[family])
    model = build_half(
        CONFIGS[family], str(folder), which, BOUNDARY, adapter=LORA, seed=1, surrogate=made
    )
    noise = torch.randn(model.layout.size, generator=torch.Generator().manual_seed(3))
    model.load(model.w + 0.05 * noise)
    return model


def whole_model(folder: Path, family: str, setting: Setting) -> "Whole":
    """The same model and adapter in one piece."""
    part = setting.rule.surrogate
    made = part.made_by(SURROGATES[part.name].make).parameters(CONFIGS[family])
    model = build_split(CONFIGS[family], str(folder), adapter=LORA, seed=1, surrogate=made)
    noise = torch.randn(model.layout.size, generator=torch.Generator().manual_seed(3))
    model.load(model.w + 0.05 * noise)
    return Whole(model)


def batches_of(steps: int) -> Callable[[int, int], list[Batch]]:
    return lambda step, client: [batch(1000 * step + 10 * client + e) for e in range(steps)]


def roles(
    folder: Path, family: str, setting: Setting, clients: int, store: ClientStore | None = None
) -> tuple[SplitServer, dict[int, SplitClient], OneProcess]:
    """A server and its clients in one process, on halves of a model."""
    server = setting.workflow.server(half(folder, family, Half.TOP, setting), setting)
    bottom = half(folder, family, Half.BOTTOM, setting)
    start, data = bottom.w.clone(), batches_of(setting.rule.local_steps)
    made = {}
    for number in range(clients):
        bottom.load(start)
        made[number] = setting.workflow.client(
            bottom, setting, number, data, store or ClientStore()
        )
    return server, made, OneProcess(server, made)


def ledger_of(records: Sequence[RoundRecord]) -> ByteLedger:
    """All bytes of some steps."""
    return ByteLedger.from_json(ledger_totals(records))


class Whole:
    """The whole model in plain torch, cut by hooks: a loss, z and gradients by autograd."""

    def __init__(self, model: SplitModel) -> None:
        self.model, self.cut = model, model.layout.cut(BOUNDARY)
        self.parameters = [p for p in model.module.parameters() if p.requires_grad]

    def run(self, w: Tensor, data: Batch) -> tuple[Tensor, Tensor]:
        """Return z [R, T, D], a leaf, and the loss as a function of it."""
        self.model.load(w.float())
        found: list[Tensor] = []

        def leaf(_module: object, _args: object, output: Any) -> Any:
            hidden = output[0] if isinstance(output, tuple) else output
            found.append(hidden.detach().requires_grad_(True))
            return (found[0], *output[1:]) if isinstance(output, tuple) else found[0]

        hook = self.model.blocks[BOUNDARY - 1].register_forward_hook(leaf)
        plain = padded(data)
        logits = self.model.module(input_ids=plain.input_ids).logits[plain.rows, plain.columns]
        hook.remove()
        loss = torch.nn.functional.cross_entropy(logits[:, data.goal.candidates], data.goal.targets)
        return found[0], loss

    def feedback(self, w: Tensor, data: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return z, delta and the gradient of the top [d_FO]."""
        z, loss = self.run(w, data)
        inside = [
            p
            for index in range(BOUNDARY, self.model.num_blocks)
            for p in self.model.parameters_in(range(index, index + 1))
        ]
        delta, *grads = torch.autograd.grad(loss, [z, *inside])
        return z.detach(), delta, torch.cat([g.reshape(-1) for g in grads])

    def loss(self, w: Tensor, data: Batch) -> float:
        return self.run(w, data)[1].item()


def slow_scalars(
    whole: Whole, w: Tensor, data: Batch, u: Sequence[Tensor], surrogate: str
) -> tuple[list[float], Tensor]:
    """One client's scalars and the gradient of the top: HO-SFL's (linear) or HOSL's."""
    z, delta, top = whole.feedback(w, data)
    scalars = []
    for direction in u:
        step = torch.zeros_like(w)
        step[: whole.cut] = MU * direction
        if surrogate == "linear":
            moved = whole.run(w + step, data)[0].detach()
            scalars.append((pack(delta, data) * pack(moved - z, data)).sum().item() / MU)
        else:
            scalars.append((whole.loss(w + step, data) - whole.loss(w - step, data)) / (2 * MU))
    return scalars, top


def directions_at(
    model: SplitModel, setting: Setting, step: int, client: int, e: int = 0
) -> list[Tensor]:
    """The normal draws of a local step over the bottom."""
    plain = setting.directions(model.layout, step, client)
    assert type(plain) is Gaussian
    cut = model.layout.cut(BOUNDARY)
    return [whole_direction(plain, FIRST + e, j)[:cut] for j in range(setting.rule.q)]
