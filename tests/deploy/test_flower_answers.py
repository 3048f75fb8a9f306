"""Answers that come late, twice, from strangers, too long or not at all: refused, with the reason.

Flower's real apps and messages in one process; what a device sends is changed on its way.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message

import hofl
from hofl.deploy.flower.records import content, parts
from hofl.deploy.link import Header, LinkLost
from hofl.engines.base import DeviceOffer, Dispatch, Failure
from hofl.engines.local import InProcess
from hofl.experiment.build import Experiment, build_server, build_simulation
from hofl.experiment.records import RoundRecord
from hofl.experiment.rounds import one_round
from hofl.server.state import ServerState
from support.flower_grid import LocalBridge, LocalGrid, Tamper, Tampered, local_engine
from support.flower_workers import device, serving
from support.runs import quick

BOUNDARIES = {0: 1, 1: 2, 2: 3}
NODES = {0: 5, 1: 12, 2: 77}

Outcomes = Callable[[tuple[int, ...]], torch.Tensor]
Round = Callable[..., tuple[ServerState, RoundRecord]]


class Without(InProcess):
    """The same round in one process, in which some clients give no answer."""

    def __init__(self, experiment: Experiment, silent: Iterable[int]) -> None:
        super().__init__(experiment.client)
        self._silent = set(silent)

    def join(self) -> Mapping[int, DeviceOffer]:  # type: ignore[override]
        return {client: DeviceOffer(boundary) for client, boundary in BOUNDARIES.items()}

    def gather(self, dispatches: Iterable[Dispatch]) -> Iterator[bytes | Failure]:
        for dispatch in dispatches:
            silent = dispatch.plan.client in self._silent
            yield Failure("silent") if silent else next(super().gather([dispatch]))


@pytest.fixture(scope="module")
def config(tiny_folder: Path) -> hofl.ExperimentConfig:
    fleet = {"clients": 3, "cohort": 3, "boundaries": [1, 2, 3]}
    return quick(tiny_folder, fleet=fleet, server={"deadline": 1.0}, method={"local_steps": 1})


@pytest.fixture(scope="module")
def sockets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[int, Path]]:
    folder = tmp_path_factory.mktemp("workers")
    with ExitStack() as stack:
        for client, node in NODES.items():
            worker = device(folder, client, BOUNDARIES[client])
            stack.enter_context(serving(folder / str(node), worker))
        yield {node: folder / str(node) for node in NODES.values()}


@pytest.fixture(scope="module")
def experiment(config: hofl.ExperimentConfig) -> Experiment:
    return build_server(config)


@pytest.fixture
def round_with(sockets: Mapping[int, Path], experiment: Experiment, tmp_path: Path) -> Round:
    """A round in which what one client answers is changed on its way."""

    def played(client: int, tamper: Tamper, on: Experiment = experiment, **watchers: Any) -> Any:
        bridge = LocalBridge(Tampered(sockets, NODES[client], tamper))
        engine = local_engine(on, bridge, tmp_path, **watchers)
        return one_round(on, engine, on.start, lambda *_: None)

    return played


@pytest.fixture(scope="module")
def outcomes(config: hofl.ExperimentConfig) -> Outcomes:
    """The model after the same round in one process, without some clients."""
    experiment = build_simulation(config)

    @cache
    def outcome(silent: tuple[int, ...]) -> torch.Tensor:
        start = experiment.start
        return one_round(experiment, Without(experiment, silent), start, lambda *_: None)[0].w

    return outcome


def nothing(reply: Message) -> list[Message]:
    return []


def twice(reply: Message) -> list[Message]:
    return [reply, reply]


def from_another(reply: Message) -> list[Message]:
    reply.metadata.__dict__["_src_node_id"] = NODES[2]
    return [reply]


def from_a_stranger(reply: Message) -> list[Message]:
    reply.metadata.__dict__["_src_node_id"] = 4711
    return [reply]


def too_long(reply: Message) -> list[Message]:
    header, upload = parts(reply)
    reply.content = content(header, upload + bytes(1 << 20))
    return [reply]


def a_failure(reply: Message) -> list[Message]:
    reply.content = content({"failure": "no power"})
    return [reply]


def in_escapes(reply: Message) -> list[Message]:
    reply.content = content({"failure": "\x1b[2J \ud800 \n"})
    return [reply]


def nested(reply: Message) -> list[Message]:
    header, upload = parts(reply)
    reply.content = content({**header, "more": [[]]}, upload)
    return [reply]


def failure_from_another(reply: Message) -> list[Message]:
    reply.content = content({"failure": "no power"})
    return from_another(reply)


def unreadable(reply: Message) -> list[Message]:
    raise KeyError("as Flower does over objects of another kind")


def half(reply: Message) -> list[Message]:
    header, upload = parts(reply)
    reply.content = content(header, upload[: len(upload) // 2])
    return [reply]


def nobody_asked(reply: Message) -> list[Message]:
    reply.metadata.__dict__["_reply_to_message_id"] = "something else"
    return [reply]


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        (nothing, "no answer within 1 s"),
        (twice, None),
        (from_another, "delivered by device 'device-2', not by client 1's"),
        (failure_from_another, "delivered by device 'device-2', not by client 1's"),
        (from_a_stranger, "delivered by device '', not by client 1's"),
        (too_long, "bytes, and at most"),
        (a_failure, "no power"),
        (in_escapes, r"\x1b[2J \ud800 \n"),
        (nested, "malformed message: the header is nested"),
        (unreadable, "unreadable: KeyError"),
        (half, "not a hofl message"),
        (nobody_asked, "no answer within 1 s"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_wrong_with_one_answer_is_recorded_and_costs_that_answer_alone(
    round_with: Round, outcomes: Outcomes, tamper: Tamper, reason: str | None
) -> None:
    """Oracle: the round in one process, without that client when it is refused."""
    state, row = round_with(1, tamper)
    if reason is None:
        assert row.refused == {}
        assert torch.equal(state.w, outcomes(()))
    else:
        assert list(row.refused) == [1]
        assert reason in row.refused[1]
        assert row.answered == [0, 2]
        assert torch.equal(state.w, outcomes((1,)))
    assert not torch.equal(outcomes(()), outcomes((1,)))


def late(reply: Message) -> list[Message]:
    time.sleep(1.0)
    return []


def test_a_device_that_stays_silent_costs_no_answer_behind_its_own(
    round_with: Round, outcomes: Outcomes, config: hofl.ExperimentConfig
) -> None:
    """The others have answered in time, but are looked for after the deadline of half a second."""
    server = config.server.model_copy(update={"deadline": 0.5})
    hasty = build_server(config.model_copy(update={"server": server}))
    state, row = round_with(0, late, hasty)
    assert row.refused == {0: "no answer within 0.5 s"}
    assert row.answered == [1, 2]
    assert torch.equal(state.w, outcomes((0,)))


def test_answers_are_fetched_when_they_come_not_when_it_is_their_turn(
    round_with: Round, outcomes: Outcomes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transport keeps an answer for half of the deadline, which the first client uses up."""
    monkeypatch.setattr("hofl.deploy.engine.KEPT", -1.0)
    lines: list[str] = []
    state, row = round_with(0, nothing, say=lines.append)
    assert row.refused == {0: "no answer within 1 s"}
    assert row.answered == [1, 2]
    assert torch.equal(state.w, outcomes((0,)))
    assert lines[-1] == "2 of 3 answered; device-0 gave none within 1 s"


def test_more_answers_than_may_be_held_stay_with_the_transport(
    experiment: Experiment,
    sockets: Mapping[int, Path],
    outcomes: Outcomes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Oracle: what was pulled when the first answer is taken."""
    monkeypatch.setattr("hofl.deploy.engine.HELD", 0)
    pulled: list[Message] = []

    class Counting(LocalGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            replies = list(super().pull_messages(message_ids))
            pulled.extend(r for r in replies if r.metadata.message_type == "train")
            return replies

    engine = local_engine(experiment, LocalBridge(Counting(dict(sockets))), tmp_path)
    seen = []
    state, _ = one_round(
        experiment, engine, experiment.start, lambda event, _: seen.append((event, len(pulled)))
    )
    assert seen == [("client", 1), ("client", 2), ("client", 3)]
    assert torch.equal(state.w, outcomes(()))


@pytest.mark.parametrize("waiting", ["for devices", "for answers"])
def test_whoever_watches_can_stop_a_server_that_only_waits(
    experiment: Experiment, sockets: Mapping[int, Path], tmp_path: Path, waiting: str
) -> None:
    """As a noted Ctrl-C does, whose exception a destructor has swallowed."""
    here = sockets if waiting == "for answers" else {}
    bridge = LocalBridge(Tampered(here, NODES[0], nothing))

    def stop() -> None:
        raise KeyboardInterrupt

    engine = local_engine(experiment, bridge, tmp_path, idle=stop)
    with pytest.raises(KeyboardInterrupt):
        one_round(experiment, engine, experiment.start, lambda *_: None)


def out_of_memory(reply: Message) -> list[Message]:
    header, _ = parts(reply)
    reply.content = content({**header, "boundary": 3, "failure": "needs more memory"})
    return [reply]


def test_a_device_that_refuses_a_plan_is_planned_for_with_the_boundary_it_tells(
    experiment: Experiment, sockets: Mapping[int, Path], tmp_path: Path
) -> None:
    """It is not asked again: its worker would say 2."""
    grid = Tampered(sockets, NODES[1], out_of_memory)
    engine = local_engine(experiment, LocalBridge(grid), tmp_path)
    assert {i: offer.boundary for i, offer in engine.join().items()} == BOUNDARIES
    _, row = one_round(experiment, engine, experiment.start, lambda *_: None)
    assert row.refused == {1: "needs more memory"}
    assert {i: offer.boundary for i, offer in engine.join().items()} == {**BOUNDARIES, 1: 3}


class Dead(LocalBridge):
    """Connected again and again, and lost at every call."""

    def call(self, header: Header, payload: bytes = b"") -> tuple[Header, bytes]:
        raise LinkLost("gone")


def test_a_connection_that_never_lasts_is_not_waited_for_without_end(
    tiny_folder: Path, tmp_path: Path
) -> None:
    engine = local_engine(
        build_server(quick(tiny_folder, server={"wait": 0.05})), Dead(LocalGrid({})), tmp_path
    )
    with pytest.raises(hofl.HoflError, match=r"no connection within 0\.05 s: gone"):
        engine.join()
