"""ClientUpdate and Reconstruct: exact replay, and what the method must equal in special cases."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from hofl.algorithm import client_update, reconstruct, replay
from hofl.core.directions import DirectionKey
from hofl.core.errors import HoflError, UploadRefused
from hofl.core.optim import SGD, AdamW
from hofl.local.step import LocalParts
from hofl.methods import METHODS
from hofl.models.adapters import FullBlocks
from hofl.rules import LocalRule
from support.models import BLOCKS, PAPER_FAMILIES, batch, tiny
from support.steps import averaged as average
from support.steps import loss_of, participate, plan_for

OPTIMIZERS = {
    "sgd": SGD(lr=0.05),
    "sgd-decay": SGD(lr=0.05, weight_decay=0.1),
    "adamw": AdamW(lr=0.01, weight_decay=0.0),
    "adamw-decay": AdamW(lr=0.01, weight_decay=0.1),
}


@pytest.mark.parametrize("family", PAPER_FAMILIES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("proximal", [0.0, 0.3])
def test_server_rebuilds_the_clients_bottom_bit_for_bit(
    family: str, optimizer: str, proximal: float
) -> None:
    model = tiny(family)
    start = model.w.clone()
    for boundary in range(BLOCKS + 1):
        for local_steps, q in ((1, 1), (3, 2), (2, 5)):
            model.load(start)
            rule = LocalRule(
                optimizer=OPTIMIZERS[optimizer], local_steps=local_steps, q=q, proximal=proximal
            )
            plan = plan_for(model, boundary, rule, verify=True)
            upload, final = participate(model, plan)
            cut = model.layout.cut(boundary)
            if boundary:
                assert torch.equal(replay(plan, upload.scalars, model.layout), final[:cut])
                assert not torch.equal(final[:cut], start[:cut]), "the bottom must have moved"
            delta = reconstruct(plan, upload, model.layout)
            assert torch.equal(delta, final - start)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_full_parameter_training_replays_bit_for_bit(family: str) -> None:
    model = tiny(family, FullBlocks())
    plan = plan_for(model, 2, LocalRule(optimizer=AdamW(lr=0.01), local_steps=2))
    upload, final = participate(model, plan)
    assert torch.equal(replay(plan, upload.scalars, model.layout), final[: model.layout.cut(2)])


def test_replay_with_one_scalar_changed_is_caught_by_the_hash() -> None:
    model = tiny("llama")
    plan = plan_for(model, 2, LocalRule(optimizer=AdamW(lr=0.01), local_steps=2), verify=True)
    upload, _ = participate(model, plan)
    scalars = upload.scalars.clone()
    scalars[1, 0] = torch.nextafter(scalars[1, 0], torch.tensor(torch.inf))
    with pytest.raises(UploadRefused, match="replayed bottom"):
        reconstruct(plan, replace(upload, scalars=scalars), model.layout)


def test_boundary_zero_is_plain_federated_averaging() -> None:
    """Against an independent FedAvg: the peft model's own forward pass and torch's AdamW.

    With its usual eps AdamW makes lr times a sign of the rounding of a gradient near zero.
    """
    model = tiny("opt")
    start = model.w.clone()
    rule = LocalRule(optimizer=AdamW(lr=0.01, weight_decay=0.1, eps=1e-3), local_steps=3)
    updates = []
    for client in (0, 1):
        model.load(start)
        plan = plan_for(model, 0, rule, client=client)
        upload, _ = participate(model, plan)
        updates.append((plan, reconstruct(plan, upload, model.layout)))
    ours = average(start, updates, model.layout)

    model.load(start)
    parameters = [p for p in model.module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1, eps=1e-3)
    for step in range(3):  # both clients saw the same batches, so their average is either of them
        loss = loss_of(model, batch(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    theirs = torch.cat([p.detach().reshape(-1) for p in parameters])
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6)


def test_recompute_equals_full_backpropagation_at_every_boundary() -> None:
    model = tiny("gemma3")
    start = model.w.clone()
    finals = []
    for boundary in range(BLOCKS + 1):
        model.load(start)
        rule = LocalRule(optimizer=SGD(lr=0.1), local_steps=2, bottom="recompute", q=0)
        finals.append(participate(model, plan_for(model, boundary, rule))[1])
    for final in finals[1:]:
        torch.testing.assert_close(final, finals[0], rtol=0, atol=1e-6)
    assert not torch.equal(finals[0], start)


def test_shared_directions_let_the_server_average_scalars() -> None:
    """DeComFL's point: with SGD and common directions, the mean update is the mean scalars'."""
    model = tiny("llama")
    start = model.w.clone()
    rule = replace(METHODS["decomfl-sgd"].local, local_steps=2)
    uploads, updates = [], []
    for client in range(3):
        model.load(start)
        key = DirectionKey(11, 3, 0)  # one for the cohort
        plan = plan_for(model, BLOCKS, rule, client=client, key=key)
        received = [[batch(10 * client + step)] for step in range(2)]
        upload = client_update(model, plan, received, LocalParts.of(rule, BLOCKS))
        uploads.append(upload)
        updates.append((plan, reconstruct(plan, upload, model.layout)))
    averaged = average(start, updates, model.layout)
    scalars = torch.stack([upload.scalars for upload in uploads]).mean(0)
    torch.testing.assert_close(averaged, replay(plan, scalars, model.layout), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bottom": "magic"}, "unknown bottom 'magic'"),
        ({"surrogate": "magic"}, "unknown surrogate"),
        ({"estimator": "magic"}, "unknown estimator"),
        ({"q": 0}, "q must be at least 1"),
        ({"mu": 0.0}, "mu must lie in"),
        ({"local_steps": 0}, "local_steps must be at least 1"),
        ({"surrogate": "none"}, "needs a surrogate"),
        ({"bottom": "recompute", "surrogate": "end-to-end"}, "needs delta"),
    ],
)
def test_a_bad_rule_is_refused_with_what_to_do(change: dict[str, Any], message: str) -> None:
    rule = replace(LocalRule(optimizer=SGD(lr=0.1)), **change)
    with pytest.raises(HoflError, match=message):
        LocalParts.of(rule, 2)
