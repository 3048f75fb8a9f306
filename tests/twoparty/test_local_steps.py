"""HERON-SFL: clients train bottom and head alone, the server its top; weights are averaged."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hofl.core.batch import Batch
from hofl.core.errors import HoflError
from hofl.core.optim import SGD
from hofl.rules import Part
from hofl.twoparty.exchange import MessageRefused
from hofl.twoparty.ledger import Category
from hofl.twoparty.training import train
from support.models import CONFIGS, pack
from support.twoparty import (
    BOUNDARY,
    MU,
    Whole,
    batches_of,
    directions_at,
    ledger_of,
    roles,
    saved,
    setting_of,
    whole_model,
)

HEAD = Part.of({"name": "auxiliary-head", "rank": 2, "alpha": 4.0})


def head_loss(whole: Whole, w: Tensor, data: Batch) -> float:
    """The auxiliary head written out: z + 2 z A^T B^T, final norm, unembedding."""
    z = pack(whole.run(w, data)[0].detach(), data)[0, data.slots]
    a, b = w[:64].view(2, 32), w[64:128].view(32, 2)
    base = whole.model.base
    norm = base.model.norm if hasattr(base.model, "norm") else base.model.decoder.final_layer_norm
    scores = base.lm_head(norm(z + 2 * z @ a.T @ b.T))[:, data.goal.candidates]
    return torch.nn.functional.cross_entropy(scores, data.goal.targets).item()


@pytest.mark.parametrize("family", ["opt", "llama"])
def test_two_rounds_are_those_of_the_algorithm_written_out(family: str, tmp_path: Path) -> None:
    """Oracle: h = 3 steps a client, every 2nd batch trains the top, then weights are averaged."""
    lr, h, k = 0.05, 3, 2
    setting = setting_of(
        "heron-sfl", SGD(lr=lr), surrogate=HEAD, q=1, local_steps=h, upload_every=k
    )
    folder = saved(family, tmp_path)
    server, _, engine = roles(folder, family, setting, clients=3)
    whole = whole_model(folder, family, setting)
    start = w = whole.model.w.clone()
    cut = whole.cut
    for t, cohort in enumerate([[0, 1], [2, 0]]):
        train(server, engine, lambda step, chosen=cohort: chosen, t + 1)
        common, top, ends = w[:cut].clone(), w[cut:].clone(), []
        for client in cohort:
            own = common.clone()
            for e, data in enumerate(batches_of(h)(t, client)):
                (u,) = directions_at(whole.model, setting, t, client, e)
                if e % k == 0:
                    gradient = whole.feedback(torch.cat([own, top]), data)[2]
                moved = head_loss(whole, torch.cat([own + MU * u, top]), data)
                scalar = (moved - head_loss(whole, torch.cat([own, top]), data)) / MU
                if e % k == 0:
                    top -= lr * gradient
                own -= lr * scalar * u
            ends.append(own)
        w = torch.cat([torch.stack(ends).mean(0), top])
        assert (server.top.w - top).norm() < 0.01 * (top - start[cut:]).norm()
        assert (server.kept - w[:cut]).norm() < 0.02 * (w - start)[:cut].norm()
        assert (w - start)[:128].norm() > 0, "the head is trained"


def test_the_ledger_has_one_upload_per_k_steps_and_no_gradient(tmp_path: Path) -> None:
    setting = setting_of("heron-sfl", surrogate=HEAD, q=1, local_steps=5, upload_every=2)
    server, _, engine = roles(saved("llama", tmp_path), "llama", setting, clients=2)
    records: list = []
    train(server, engine, lambda step: [0, 1], 1, records.append)
    total = ledger_of(records)
    tokens = sum(len(data.texts.tokens) for i in range(2) for data in batches_of(5)(0, i)[::2])
    assert total.bytes[Category.ACT_UP] == 4 * 32 * tokens
    assert total.counts[Category.ACT_UP] == total.counts[Category.LABELS_UP] == 2 * 3
    cut, own = server.model.layout.cut(BOUNDARY), server.model.layout.cut(0)
    for way in ("UP", "DOWN"):
        assert total.bytes[Category[f"CLIENT_WEIGHTS_{way}"]] == 2 * 4 * (cut - own)
        assert total.bytes[Category[f"AUXILIARY_WEIGHTS_{way}"]] == 2 * 4 * own
    for never in ("GRAD_DOWN", "LOSS_DOWN", "SCALARS_UP", "SCALARS_DOWN", "SEEDS"):
        assert total.bytes[Category[never]] == 0


def test_a_client_that_fails_in_the_middle_leaves_the_top_as_it_was(tmp_path: Path) -> None:
    setting = setting_of("heron-sfl", surrogate=HEAD, q=1, local_steps=4, upload_every=1)
    folder = saved("llama", tmp_path)
    ends = []
    for cohort in ([0], [1, 0]):
        server, clients, engine = roles(folder, "llama", setting, clients=2)
        clients[1].batches = lambda step, client: failing_after(batches_of(4)(step, client))
        records: list = []
        train(server, engine, lambda step, chosen=cohort: chosen, 1, records.append)
        ends.append((server.top.w, server.kept))
        assert list(records[0].refused) == [1] * (len(cohort) - 1)
    for one, two in zip(*ends, strict=True):
        assert torch.equal(one, two)


def test_more_uploads_than_steps_allow_are_refused(tmp_path: Path) -> None:
    """And what they moved of the top is taken back: h = 3 and k = 2 make two uploads."""
    setting = setting_of("heron-sfl", surrogate=HEAD, q=1, local_steps=3, upload_every=2)
    server, clients, engine = roles(saved("llama", tmp_path), "llama", setting, clients=2)
    clients[0].every = 1  # type: ignore[attr-defined]
    before = server.top.w.clone()
    server.begin([0, 1])
    assert engine.turn(1) is None
    alone = server.top.w.clone()
    assert engine.turn(0) == "more than 2 batches in one round"
    server.drop(0)
    assert torch.equal(server.top.w, alone)
    assert not torch.equal(server.top.w, before)


def test_an_activation_whose_gradient_overflows_does_not_move_the_top(tmp_path: Path) -> None:
    """Finite values of z can give none: the step goes on without that client."""
    setting = setting_of("heron-sfl", surrogate=HEAD, q=1, upload_every=1)
    folder, ends = saved("opt", tmp_path), []
    for cohort in ([1], [0, 1]):
        server, clients, engine = roles(folder, "opt", setting, clients=2)
        clients[0].local_step = wild(clients[0])  # type: ignore[method-assign]
        records: list = []
        train(server, engine, lambda step, chosen=cohort: chosen, 1, records.append)
        ends.append((server.top.w, server.kept))
        expected = {0: "loss or gradient at this z are not finite"} if 0 in cohort else {}
        assert records[0].refused == expected
    for one, two in zip(*ends, strict=True):
        assert torch.equal(one, two)


def wild(client: Any) -> Any:
    """A client's step whose z is as large as float32 allows."""

    def step(t: int, e: int, data: Batch, open_top: Any) -> Any:
        z = torch.full((1, len(data.texts.tokens), CONFIGS["opt"].hidden_size), 3e38)
        open_top(None, data, None).gradients(z, to_boundary=False)

    return step


def failing_after(data: list[Batch]) -> Any:
    """Two good batches, then a failure on the way."""
    yield from data[:2]
    raise MessageRefused("no power")


@pytest.mark.parametrize("family", ["opt", "llama"])
def test_a_head_of_copied_blocks_is_held_by_the_client(family: str, tmp_path: Path) -> None:
    """The client's half has the block above the boundary; its LoRA is apart from the server's."""
    head = Part.of({"name": "auxiliary-head", "rank": 2, "alpha": 4.0, "blocks": 1})
    setting = setting_of("heron-sfl", surrogate=head, q=1, local_steps=2, upload_every=1)
    server, clients, engine = roles(saved(family, tmp_path), family, setting, clients=2)
    before = server.kept.clone()
    train(server, engine, lambda step: [0, 1], 2)
    own = server.model.layout.cut(0)
    width = CONFIGS[family].hidden_size
    assert own == 2 * 2 * width + sum(
        c.size for c in server.model.layout.coordinates if c.block == 0
    )
    assert (server.kept[4 * width : own] != before[4 * width : own]).float().mean() > 0.9
    frozen = [p for p in clients[0].model.blocks[BOUNDARY].parameters() if p.numel()]
    assert len(frozen) > 4
    assert not any(
        p.numel() for p in clients[0].model.blocks[BOUNDARY + 1].parameters() if not p.requires_grad
    )


def test_options_that_make_no_sense_are_one_line() -> None:
    with pytest.raises(HoflError, match="upload_every must be a positive integer, got 0"):
        setting_of("heron-sfl", upload_every=0)
    with pytest.raises(HoflError, match="does not ask the top, not 'linear'"):
        setting_of("heron-sfl", surrogate="linear")
    with pytest.raises(HoflError, match=r"set method\.local_steps=1"):
        setting_of("ho-sfl", local_steps=2)
