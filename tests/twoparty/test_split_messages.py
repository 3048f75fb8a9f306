"""Malformed and late messages: refused with a reason, nothing changed, the step goes on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hofl.core.errors import HoflError
from hofl.twoparty.exchange import Message, MessageRefused
from hofl.twoparty.labels import labels_of
from hofl.twoparty.ledger import Category
from hofl.twoparty.server import SplitServer
from hofl.twoparty.training import Direct, OneProcess, train
from support.models import batch
from support.twoparty import roles, saved, setting_of

DATA = batch(3)
TOKENS = len(DATA.texts.tokens)


def activation(step: int = 0, client: int = 0, **changes: Any) -> Message:
    """A good activation with some of its parts replaced; None removes one."""
    tensors, fields = labels_of(DATA)
    whole: dict[str, Any] = {"z": torch.zeros(1, TOKENS, 32), **tensors, **fields, "train": True}
    whole = {k: v for k, v in {**whole, **changes}.items() if v is not None}
    inside = {k: v for k, v in whole.items() if isinstance(v, torch.Tensor)}
    rest = {k: v for k, v in whole.items() if not isinstance(v, torch.Tensor)}
    return Message("activation", step, client, inside, rest)


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "noise": (lambda: b"\x00" * 40, "not a hofl message"),
    "empty": (lambda: b"", "not a hofl message"),
    "cut short": (lambda: activation().to_bytes()[:-7], "cannot be read|not a hofl message|activ"),
    "another kind": (lambda: Message("turn", 0, 0).to_bytes(), "is not a message of a client"),
    "a late step": (lambda: activation(step=7).to_bytes(), r"\(7, 0\), expected \(0, 0\)"),
    "another client": (lambda: activation(client=1).to_bytes(), "expected"),
    "no labels": (lambda: activation(lengths=None).to_bytes(), "lacks lengths"),
    "a wide z": (lambda: activation(z=torch.zeros(1, TOKENS, 33)).to_bytes(), "expected float32"),
    "a short z": (lambda: activation(z=torch.zeros(1, 2, 32)).to_bytes(), "expected float32"),
    "a double z": (
        lambda: activation(z=torch.zeros(1, TOKENS, 32, dtype=torch.float64)).to_bytes(),
        "float64",
    ),
    "a z of nan": (
        lambda: activation(z=torch.full((1, TOKENS, 32), float("nan"))).to_bytes(),
        "z holds values that are not finite",
    ),
    "no texts": (lambda: activation(lengths=torch.zeros(1).long()).to_bytes(), "must be positive"),
    "a slot outside": (lambda: activation(slots=DATA.slots + TOKENS).to_bytes(), "slots must lie"),
    "a word outside": (
        lambda: activation(**{"goal.candidates": torch.tensor([5, 6, 7, 999])}).to_bytes(),
        "candidates must lie in 0..96",
    ),
    "lengths without end": (
        lambda: activation(lengths=torch.tensor([2**62, 2**62, 2**62])).to_bytes(),
        "expected float32",
    ),
    "options of nobody": (
        lambda: activation(
            goal="option",
            **{
                "goal.candidates": None,
                "goal.tokens": DATA.slots.clone(),
                "goal.options": torch.tensor([0, 1, 2]),
                "goal.targets": torch.tensor([1, 0]),
            },
        ).to_bytes(),
        "3 options cannot be shared by 2 examples",
    ),
    "an unknown goal": (lambda: activation(goal="dance").to_bytes(), "unknown goal"),
    "an extra tensor": (lambda: activation(more=torch.zeros(1)).to_bytes(), "unknown tensor"),
    "many examples": (lambda: activation(examples=99).to_bytes(), "examples is 99"),
    "a result first": (
        lambda: Message("result", 0, 0, {"scalars": torch.zeros(2)}).to_bytes(),
        "before any activation",
    ),
    "held ahead": (
        lambda: Message("ready", 0, 0, fields={"held": 5}).to_bytes(),
        r"held is 5, not in 0..0",
    ),
    "z alone first": (
        lambda: Message(
            "activation", 0, 0, {"z": torch.zeros(1, TOKENS, 32)}, {"train": False}
        ).to_bytes(),
        "came before any with them",
    ),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> SplitServer:
    folder = saved("llama", tmp_path_factory.mktemp("model"))
    return roles(folder, "llama", setting_of("ho-sfl"), clients=1)[0]


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_message_is_refused_with_a_reason(kind: str, server: SplitServer) -> None:
    make, reason = BAD[kind]
    server.begin([0])
    top = server.top.w.clone()
    data = make()
    with pytest.raises(MessageRefused, match=reason):
        server.answer(0, data)
    assert torch.equal(server.top.w, top)
    assert +server.ledger.bytes == ({Category.REFUSED_UP: len(data)} if data else {})
    assert server.answer(0, activation().to_bytes()), "a good one is answered all the same"


def test_scalars_of_another_shape_or_twice_are_refused(server: SplitServer) -> None:
    server.begin([0])
    server.answer(0, activation().to_bytes())
    for bad, reason in [
        (torch.zeros(3), "expected float32"),
        (torch.full((2,), float("inf")), "finite"),
    ]:
        with pytest.raises(MessageRefused, match=reason):
            server.answer(0, Message("result", 0, 0, {"scalars": bad}).to_bytes())
    good = Message("result", 0, 0, {"scalars": torch.zeros(2)}).to_bytes()
    server.answer(0, good)
    with pytest.raises(MessageRefused, match="after the result of step 0"):
        server.answer(0, good)


def test_the_step_goes_on_without_a_client_that_was_refused(tmp_path: Path) -> None:
    """And ends as if that client had not been drawn."""
    folder, setting = saved("llama", tmp_path), setting_of("ho-sfl")
    ends, sent = [], []
    for cohort in ([1], [0, 1]):
        server, clients, engine = roles(folder, "llama", setting, clients=2)
        clients[0].take_turn = lambda step, channel: channel.request(  # type: ignore[method-assign]
            activation(step, z=torch.full((1, TOKENS, 32), float("inf"))).to_bytes()
        )
        records: list = []
        train(server, engine, lambda step, chosen=cohort: chosen, 2, records.append)
        ends.append((server.top.w, server.kept))
        sent.append(records[0].uplink_bytes)
        if cohort[0] == 0:
            refused = records[0].ledger["refused_up"]["bytes"]
            assert sent[1] - sent[0] == refused > 4 * 32 * TOKENS
            assert records[0].refused == {0: "z holds values that are not finite"}
            assert records[0].answered == [1]
    for one, two in zip(*ends, strict=True):
        assert torch.equal(one, two)


def test_a_step_without_any_result_stops_with_one_line(tmp_path: Path) -> None:
    server, clients, _ = roles(saved("llama", tmp_path), "llama", setting_of("ho-sfl"), clients=1)
    clients[0].batches = lambda step, client: [batch(0), batch(1)]  # one is expected

    class Broken(OneProcess):
        def turn(self, client: int) -> str | None:
            return "z holds values that are not finite"

    with pytest.raises(HoflError, match=r"step 1: no client gave a result.*Lower the learning"):
        train(server, Broken(server, clients), lambda step: [0], 1)
    assert server.step == 0


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Message("turn", 1, 0), "expected"),
        (Message("turn", 0, 0, {"keys": torch.arange(1), "scalars": torch.zeros(1, 2)}), "expect"),
        (Message("feedback", 0, 0), "feedback|turn"),
    ],
)
def test_a_client_refuses_a_bad_answer_and_keeps_its_bottom(
    answer: Message, reason: str, tmp_path: Path
) -> None:
    _, clients, _ = roles(saved("llama", tmp_path), "llama", setting_of("ho-sfl"), clients=1)
    before = clients[0].bottom.w.clone()

    class Lying(Direct):
        def request(self, message: bytes) -> bytes:
            return answer.to_bytes()

    with pytest.raises(MessageRefused, match=reason):
        clients[0].take_turn(0, Lying(None, 0))  # type: ignore[arg-type]
    assert torch.equal(clients[0].bottom.w, before)
    assert clients[0].held == 0
