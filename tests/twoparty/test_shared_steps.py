"""HO-SFL and HOSL: every step is shared, scalars are averaged, all clients stay equal."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from hofl.core.optim import SGD, AdamW
from hofl.twoparty.exchange import Message
from hofl.twoparty.ledger import Category
from hofl.twoparty.server import SplitServer
from hofl.twoparty.shared import SharedClient
from hofl.twoparty.store import ClientStore, load_server, save_server
from hofl.twoparty.training import train
from support.models import batch, padded
from support.twoparty import (
    batches_of,
    directions_at,
    ledger_of,
    roles,
    saved,
    setting_of,
    slow_scalars,
    whole_model,
)

COHORTS = [[0, 1], [1, 2], [0, 2], [1, 2]]
SURROGATE = {"ho-sfl": "linear", "hosl": "end-to-end"}


@pytest.mark.parametrize("family", ["opt", "llama"])
@pytest.mark.parametrize(
    ("method", "optimizer"), [("ho-sfl", AdamW(lr=0.01, eps=1e-3)), ("hosl", SGD(lr=0.3))]
)
def test_three_steps_are_those_of_the_algorithm_written_out(
    family: str, method: str, optimizer: SGD | AdamW, tmp_path: Path
) -> None:
    """Oracle: the whole model in plain torch, its own optimizers, two clients of three a step."""
    folder, setting = saved(family, tmp_path), setting_of(method, optimizer)
    server, clients, engine = roles(folder, family, setting, clients=3)
    whole = whole_model(folder, family, setting)
    start = w = whole.model.w.clone()
    halves = [
        torch.nn.Parameter(w[: whole.cut].clone()),
        torch.nn.Parameter(w[whole.cut :].clone()),
    ]
    kind = torch.optim.AdamW if isinstance(optimizer, AdamW) else torch.optim.SGD
    options = {k: v for k, v in vars(optimizer).items() if k in ("lr", "eps", "weight_decay")}
    optim = kind(halves, **options)
    for t, cohort in enumerate(COHORTS[:3]):
        train(server, engine, lambda step, chosen=cohort: chosen, t + 1)
        u = directions_at(whole.model, setting, t, 0)
        found = [
            slow_scalars(whole, w, batches_of(1)(t, client)[0], u, SURROGATE[method])
            for client in cohort
        ]
        mean = torch.tensor([scalars for scalars, _ in found]).mean(0)
        halves[0].grad = sum(s * direction for s, direction in zip(mean, u, strict=True)) / len(u)
        halves[1].grad = torch.stack([top for _, top in found]).mean(0)
        optim.step()
        w = torch.cat([part.detach() for part in halves])
        assert (server.kept[t] - mean).norm() < 0.02 * mean.norm() + 1e-4
        moved = (w - start)[whole.cut :].norm()
        assert (server.top.w - w[whole.cut :]).norm() < 0.01 * moved
    caught_up(server, clients)
    for client in clients.values():
        moved = (w - start)[: whole.cut].norm()
        assert (client.bottom.w - w[: whole.cut]).norm() < 0.02 * moved


def caught_up(server: SplitServer, clients: Mapping[int, SharedClient]) -> None:
    """Bring every client to the server's step."""
    server.begin(list(clients))
    for client in clients.values():
        ask = Message("ready", server.step, client.number, fields={"held": client.held})
        turn = server.answer(client.number, ask.to_bytes())
        client.catch_up(Message.from_bytes(turn, "turn", server.step, client.number))


@pytest.mark.parametrize("method", SURROGATE)
def test_a_client_that_was_away_has_the_bits_of_those_that_were_not(
    method: str, tmp_path: Path
) -> None:
    setting = setting_of(method, AdamW(lr=0.01))
    server, clients, engine = roles(saved("llama", tmp_path), "llama", setting, clients=4)
    start = clients[0].bottom.w.clone()
    train(server, engine, lambda step: COHORTS[step], 4)
    assert [clients[i].held for i in range(4)] == [2, 3, 3, 0]
    caught_up(server, clients)
    for client in clients.values():
        assert torch.equal(client.bottom.w, clients[0].bottom.w)
        assert torch.equal(client.bottom.moments.v, clients[0].bottom.moments.v)
    assert torch.equal(server.bottom(start), clients[0].bottom.w)
    assert not torch.equal(clients[0].bottom.w, start)


def test_the_linear_scalar_is_autograds_directional_derivative(tmp_path: Path) -> None:
    folder, setting = saved("llama", tmp_path), setting_of("ho-sfl", q=4, mu=1e-4)
    server, _, engine = roles(folder, "llama", setting, clients=1)
    train(server, engine, lambda step: [0], 1)
    whole, data = whole_model(folder, "llama", setting), batch(0)
    plain = padded(data)
    logits = whole.model.module(input_ids=plain.input_ids).logits[plain.rows, plain.columns]
    loss = torch.nn.functional.cross_entropy(logits[:, data.goal.candidates], data.goal.targets)
    grads = torch.autograd.grad(loss, whole.model.parameters_in(range(2)))
    gradient = torch.cat([g.reshape(-1) for g in grads])
    for scalar, u in zip(server.kept[0], directions_at(whole.model, setting, 0, 0), strict=True):
        assert scalar.item() == pytest.approx((gradient @ u).item(), rel=0.05, abs=1e-3)


@pytest.mark.parametrize(("method", "uploads"), [("ho-sfl", 1), ("hosl", 2 * 3 + 1)])
def test_the_ledger_has_the_bytes_of_the_papers_table(
    method: str, uploads: int, tmp_path: Path
) -> None:
    """HO-SFL one upload in a step, HOSL 2q + 1; 4 bytes per real token and feature."""
    server, _, engine = roles(saved("llama", tmp_path), "llama", setting_of(method, q=3), clients=2)
    records: list = []
    train(server, engine, lambda step: [0], 2, records.append)
    total = ledger_of(records)
    tokens = [len(batches_of(1)(step, 0)[0].texts.tokens) for step in range(2)]
    assert total.bytes[Category.ACT_UP] == 4 * 32 * sum(tokens) * uploads
    assert total.counts[Category.ACT_UP] == 2 * uploads
    assert total.counts[Category.LABELS_UP] == 2
    gradients = 4 * 32 * sum(tokens) if method == "ho-sfl" else 0
    assert total.bytes[Category.GRAD_DOWN] == gradients
    assert total.bytes[Category.LOSS_DOWN] == 4 * uploads * 2
    assert total.bytes[Category.SCALARS_UP] == 2 * 4 * 3
    assert total.bytes[Category.SCALARS_DOWN] == 4 * 3, "step 2 catches up with step 1"
    assert total.bytes[Category.SEEDS] == 8
    assert sum(total.bytes[c] for c in Category if "weights" in c.value) == 0
    assert total.up == sum(record.uplink_bytes for record in records)
    assert total.down == sum(record.downlink_bytes for record in records)


@pytest.mark.parametrize("method", SURROGATE)
def test_a_resumed_run_ends_in_the_same_bits(method: str, tmp_path: Path) -> None:
    folder, setting = saved("llama", tmp_path / "model"), setting_of(method, AdamW(lr=0.01))
    ends = []
    for stops in ([4], [1, 2, 4], [2, 4]):
        place = tmp_path / str(len(ends))
        for stop in stops:  # every stop is a new process's worth of objects
            server, clients, engine = roles(folder, "llama", setting, 3, ClientStore(place))
            load_server(place, server)
            train(server, engine, lambda step: COHORTS[step], stop)
            save_server(place, server)
        caught_up(server, clients)
        ends.append((server.top.w, clients[0].bottom.w))
    for top, bottom in ends[1:]:
        assert torch.equal(top, ends[0][0])
        assert torch.equal(bottom, ends[0][1])


def test_a_damaged_state_is_one_line(tmp_path: Path) -> None:
    server, *_ = roles(saved("llama", tmp_path), "llama", setting_of("ho-sfl"), clients=1)
    save_server(tmp_path, server)
    path = tmp_path / "server.state"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(ValueError, match=r"server\.state is damaged"):
        load_server(tmp_path, server)
