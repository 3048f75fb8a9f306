"""A device's own count of what it has released: kept on disk, in all runs, before it computes."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hofl.cli.commands import app
from hofl.core.errors import HoflError
from hofl.core.privacy import Privacy
from hofl.deploy.device import WorkerSettings
from hofl.deploy.ledger import Limits, OwnLedger
from hofl.deploy.worker import UNSAID, Worker
from hofl.engines.base import DeviceOffer
from hofl.experiment.build import Experiment, build_server
from hofl.experiment.runs import config_text
from hofl.messages import RoundPlan
from support.damage import flipped
from support.runs import quick

PRIVATE = {"noise": 2.0, "scalar_clip": 0.5, "difference_clip": 0.1}
FLEET = {"clients": 3, "cohort": 2, "boundaries": [1, 2, 3]}


@pytest.fixture(scope="module")
def private(tiny_folder: Path) -> Experiment:
    return build_server(quick(tiny_folder, fleet=FLEET, privacy=PRIVATE))


@pytest.fixture(scope="module")
def plan(private: Experiment) -> RoundPlan:
    """Of E local steps: E + 1 releases."""
    return private.plan(private.start, 0, private.present(0, {0: DeviceOffer(1)}))


def gaussian_epsilon(noise: float, releases: int, delta: float) -> float:
    """Epsilon by the closed bound of Renyi divergences (Mironov 2017), minimised over orders.

    A Gaussian release has divergence a / (2 z^2) at order a; n of them n times that.
    """
    orders = [1 + k / 1000 for k in range(1, 200_000)]
    return min(a * releases / (2 * noise**2) + math.log(1 / delta) / (a - 1) for a in orders)


def written(path: Path) -> dict[str, Any]:
    """What a ledger says, without its seal."""
    fields: dict[str, Any] = json.loads(path.read_text())
    assert len(fields.pop("sha256")) == 64
    return fields


def test_the_count_survives_a_restart_and_its_epsilon_lies_below_the_closed_bound(
    plan: RoundPlan, tmp_path: Path
) -> None:
    """Oracle: Mironov's bound; the library's conversion may be tighter by at most log(1/delta)."""
    path, steps = tmp_path / "ledger.json", plan.rule.local_steps
    for participations in range(1, 4):
        ledger = OwnLedger(path, Limits(rounds=3))  # a new process each time
        ledger.enter(plan)
        releases = participations * (steps + 1)
        kept = {"participations": participations, "releases": [[2.0, releases]]}
        assert written(path) == kept
        bound = gaussian_epsilon(2.0, releases, 1e-5)
        assert 0.6 * bound < ledger.spent() <= bound
    with pytest.raises(HoflError, match="has taken part in its 3 rounds"):
        OwnLedger(path, Limits(rounds=3)).enter(plan)
    assert written(path) == kept


def test_the_limit_is_the_devices_own_epsilon_over_all_noise_it_was_asked_for(
    plan: RoundPlan, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.json"
    louder = replace(plan, privacy=Privacy(noise=8.0, scalar_clip=0.5, difference_clip=0.1))
    unlimited = OwnLedger(path, Limits())
    unlimited.enter(plan)
    once = unlimited.spent()
    unlimited.enter(louder)
    both = unlimited.spent()
    assert once < both < 2 * once
    with pytest.raises(HoflError, match="would exceed this device's epsilon"):
        OwnLedger(path, Limits(epsilon=both)).enter(louder)
    OwnLedger(path, Limits(epsilon=2 * both)).enter(louder)
    bare = replace(plan, privacy=None)
    with pytest.raises(HoflError, match="would exceed this device's epsilon 1e"):
        OwnLedger(path, Limits(epsilon=1e300)).enter(bare)
    OwnLedger(path, Limits()).enter(bare)
    with pytest.raises(HoflError, match="would exceed"):
        OwnLedger(path, Limits(epsilon=1e300)).enter(plan)


def ledger_text(rounds: str, *releases: str) -> str:
    """A ledger without a seal, as earlier versions wrote it."""
    return f'{{"participations": {rounds}, "releases": [{", ".join(releases)}]}}'


IMPOSSIBLE = [
    ledger_text("-1", "[2.0, 5]"),
    ledger_text("1.5", "[2.0, 5]"),
    ledger_text("1e400", "[2.0, 5]"),
    ledger_text("1", "[2.0, -5]"),
    ledger_text("1", "[2.0, 1e400]"),
    ledger_text("1", "[NaN, 5]"),
    ledger_text("1", "[1e400, 5]"),
    ledger_text("1", "[-2.0, 5]"),
    ledger_text("1", f"[{10**400}, 5]"),
    ledger_text("1", "[2.0, 5]", "[2.0, 5]"),
    ledger_text("1", "[]"),
    ledger_text("1"),
]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"participations": 1}', "null", "\x00", *IMPOSSIBLE]
)
def test_a_damaged_ledger_is_one_line_and_counts_as_nothing_less(text: str, tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    path.write_text(text)
    with pytest.raises(HoflError, match="is damaged: it counts what this device has released"):
        OwnLedger(path, Limits())
    assert path.read_text() == text


def test_a_ledger_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    path.write_text(ledger_text("1", "[2.0, 5]"))
    assert 0 < OwnLedger(path, Limits()).spent() < math.inf


def test_no_flipped_bit_of_a_ledger_is_silent(plan: RoundPlan, tmp_path: Path) -> None:
    """All of its bits, one after another: refused, or without effect."""
    path = tmp_path / "ledger.json"
    OwnLedger(path, Limits()).enter(plan)
    data, counted = path.read_bytes(), written(path)
    spent, refused = OwnLedger(path, Limits()).spent(), 0
    for bit in range(8 * len(data)):
        path.write_bytes(flipped(data, bit))
        try:
            ledger = OwnLedger(path, Limits(rounds=counted["participations"]))
        except HoflError:
            refused += 1
            continue
        assert ledger.spent() == spent
        with pytest.raises(HoflError, match="has taken part in its 1 rounds"):
            ledger.enter(plan)
    assert refused > 4 * len(data)


def worker(folder: Path, max_rounds: int | None = None, max_epsilon: float | None = None) -> Worker:
    settings = WorkerSettings(
        name="device-0",
        run_config=str(folder / "run.toml"),
        shard=0,
        boundary=1,
        device="cpu",
        threads=1,
        ledger=str(folder / "ledger.json"),
        max_rounds=max_rounds,
        max_epsilon=max_epsilon,
    )
    return Worker(settings)


def test_a_worker_counts_before_it_computes_and_refuses_beyond_its_limit(
    private: Experiment, plan: RoundPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_config = config_text(private.config).encode()
    first = worker(tmp_path, max_rounds=1)
    first.answer({"kind": "join"}, run_config)

    def dies(asked: RoundPlan) -> None:
        assert json.loads((tmp_path / "ledger.json").read_text())["participations"] == 1
        raise SystemExit  # as a kill in the middle of computing

    monkeypatch.setattr(first._side.client, "upload", dies)
    with pytest.raises(SystemExit):
        first.answer({"kind": "plan"}, plan.to_bytes())
    reply, upload = worker(tmp_path, max_rounds=1).answer({"kind": "plan"}, plan.to_bytes())
    assert reply["failure"] == "this device has taken part in its 1 rounds"
    assert upload == b""
    reply, upload = worker(tmp_path, max_rounds=2).answer({"kind": "plan"}, plan.to_bytes())
    assert "failure" not in reply
    assert upload


SECRET = "the patient's name is Ada"


@pytest.mark.parametrize("kind", [HoflError, KeyError, MemoryError, RecursionError, UnicodeError])
@pytest.mark.parametrize("where", ["upload", "choose", "from_bytes"])
def test_no_exception_leaves_its_text_in_a_private_devices_answer(
    kind: type[Exception],
    where: str,
    private: Experiment,
    plan: RoundPlan,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise kind(SECRET)

    mine = worker(tmp_path, max_epsilon=100.0)
    mine.answer({"kind": "join"}, config_text(private.config).encode())
    if where == "choose":
        mine._side = replace(mine._side, choose=fail)
    else:
        home = mine._side.client if where == "upload" else RoundPlan
        monkeypatch.setattr(home, where, fail)
    for request in ("plan", "join"):
        reply, upload = mine.answer({"kind": request}, plan.to_bytes())
        assert SECRET not in str(reply)
        if request == "plan":
            assert reply["failure"] in (UNSAID, "it has too little memory; see its worker.log")
            assert upload == b""


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--min-noise", "nan"),
        ("--min-noise", "inf"),
        ("--max-epsilon", "nan"),
        ("--max-epsilon", "inf"),
        ("--delta", "1"),
        ("--delta", "nan"),
    ],
)
def test_limits_that_limit_nothing_are_refused(
    option: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.execv", lambda *_: pytest.fail("it takes part"))
    words = ["device", "--server", "127.0.0.1:9092", "--shard", "0", "--home", str(tmp_path)]
    result = CliRunner().invoke(app, [*words, option, value])
    assert isinstance(result.exception, HoflError)
    assert f"got {option} {value}" in str(result.exception)
