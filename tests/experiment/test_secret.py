"""The run's secret: what a curious device can make of two models, and where the secret is kept.

The attack: a device in the cohort sees w_t and w_{t+1}. Below everyone's boundary the difference is
the mean of updates that are linear in the neighbours' scalars under SGD, along directions that
whoever has the keys can make. Least squares then give the scalars of the whole cohort.
"""

import hashlib
import os
import stat
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import hofl
from hofl.core.directions import DirectionKey
from hofl.core.errors import HoflError
from hofl.core.secret import COHORT, RunSecret
from hofl.engines.base import Dispatch
from hofl.engines.local import InProcess
from hofl.experiment.build import Simulation, build_server, build_simulation
from hofl.experiment.rounds import one_round, run_rounds
from hofl.experiment.runs import RunDirectory
from hofl.messages import RoundPlan, Upload
from support.runs import adapter_bytes, quick

KeyOf = Callable[[RoundPlan, int], DirectionKey]
"""What the attacker takes for the key of a client, from its own plan."""


class Listening(InProcess):
    """An engine that notes what every client was sent and what it answered."""

    def gather(self, dispatches):
        self.plans, self.uploads = [], []

        def heard():
            for dispatch in dispatches:
                self.plans.append(RoundPlan.from_bytes(dispatch.message))
                yield Dispatch(dispatch.plan, dispatch.message)

        for answer in super().gather(heard()):
            self.uploads.append(Upload.from_bytes(answer))
            yield answer


def solved(
    experiment: Simulation,
    own: RoundPlan,
    after: torch.Tensor,
    cohort: Sequence[int],
    cut: int,
    key_of: KeyOf,
) -> np.ndarray:
    """The scalars [K, E, q] that explain w_{t+1} - w_t below the lowest boundary best."""
    rule, layout = own.rule, experiment.layout
    columns = []
    for client in cohort:
        directions = replace(own, key=key_of(own, client)).directions(layout)
        for e in range(rule.local_steps):
            for unit in np.eye(rule.q, dtype=np.float32):
                g = directions.combine(unit, e, 1, np.empty(layout.cut(1), np.float32))
                columns.append(-rule.optimizer.lr * g[:cut] / len(cohort))
    moved = (after.double() - own.w.double()).numpy()[:cut]
    found = np.linalg.lstsq(np.stack(columns, 1).astype(np.float64), moved, rcond=None)[0]
    return found.reshape(len(cohort), rule.local_steps, rule.q)


def relative_errors(config: hofl.ExperimentConfig, key_of: KeyOf | None) -> list[float]:
    """How far the attacker's scalars of its neighbours are from the true ones, over rounds."""
    experiment, errors = build_simulation(config), []
    engine, state = Listening(experiment.client), experiment.start
    for _ in range(2):
        after, _ = one_round(experiment, engine, state, lambda *_: None)
        own, cohort = engine.plans[0], [plan.client for plan in engine.plans]
        keys = {plan.client: plan.key for plan in engine.plans}
        guess = key_of or (lambda plan, client, keys=keys: keys[client])
        found = solved(experiment, own, after.w, cohort, experiment.layout.cut(1), guess)
        true = np.stack([upload.scalars.numpy() for upload in engine.uploads])
        errors.append(float(np.linalg.norm(found[1:] - true[1:]) / np.linalg.norm(true[1:])))
        state = after
    return errors


GUESSES: dict[str, KeyOf] = {
    "its own key": lambda own, client: own.key,
    "its own key with another number": lambda own, client: replace(own.key, stream=client),
    "the old keys of a seed": lambda own, client: DirectionKey(own.seed, own.round, client),
    "the old keys of the run's seed": lambda own, client: DirectionKey(5, own.round, client),
    "a secret made of its own seed": lambda own, client: RunSecret.from_seed(
        own.seed % 2**63
    ).directions(own.round, client),
    "the secret of the run's seed": lambda own, client: RunSecret.from_seed(5).directions(
        own.round, client
    ),
}


def attacked(folder: Path, secret: str) -> hofl.ExperimentConfig:
    optimizer = {"name": "sgd", "lr": 0.05, "weight_decay": 0.0}
    fleet = {"clients": 6, "cohort": 4, "boundaries": [1, 2]}
    method = {"optimizer": optimizer, "local_steps": 2}
    return quick(folder, fleet=fleet, method=method, server={"secret": secret})


def test_with_all_keys_the_attack_finds_every_scalar(tiny_folder: Path) -> None:
    """So the attack itself works: only the keys are missing below."""
    assert max(relative_errors(attacked(tiny_folder, "random"), None)) < 1e-2


@pytest.mark.parametrize("guess", GUESSES)
def test_a_device_does_no_better_than_guessing(guess: str, tiny_folder: Path) -> None:
    """Guessing zero has a relative error of 1.

    A fit by 16 wrong directions of 224 coordinates explains a fourth of the norm by chance, in any
    direction: no draw of the secret can bring the error below about 0.7.
    """
    assert min(relative_errors(attacked(tiny_folder, "random"), GUESSES[guess])) > 0.5


def test_a_known_seed_is_a_known_secret_where_the_seed_is_its_source(tiny_folder: Path) -> None:
    """As docs/security.md says of ``server.secret = "seed"``."""
    guess = GUESSES["the secret of the run's seed"]
    assert max(relative_errors(attacked(tiny_folder, "seed"), guess)) < 1e-2


def test_keys_differ_between_rounds_clients_purposes_and_secrets() -> None:
    one, other = RunSecret.from_seed(1), RunSecret.from_seed(2)
    clients = (COHORT, 0, 1, 2**31)
    keys = [s.directions(t, i) for s in (one, other) for t in (0, 1, 2**40) for i in clients]
    words = [word for key in keys for word in (key.seed, key.round)]
    words += [s.draws(t, i) for s in (one, other) for t in (0, 1) for i in clients]
    words += [one.cohorts(), other.cohorts(), one.draws(0, 0) ^ one.cohorts()]
    assert len(set(words)) == len(words)


def test_the_derivation_is_hmac_by_another_implementation() -> None:
    """RFC 2104 by hand; the label and the numbers are protocol for resumed runs."""

    def by_hand(key: bytes, message: bytes) -> bytes:
        padded = key.ljust(64, b"\0")
        inner = hashlib.sha256(bytes(b ^ 0x36 for b in padded) + message).digest()
        return hashlib.sha256(bytes(b ^ 0x5C for b in padded) + inner).digest()

    secret = RunSecret(by_hand(b"hofl", b"secret of a seed\0" + struct.pack("<q", 42)))
    assert secret == RunSecret.from_seed(42)
    derived = by_hand(secret.value, b"directions\0" + struct.pack("<qq", 7, 3))
    assert [*secret.directions(7, 3)] == [*struct.unpack_from("<QQI", derived)]


def test_the_secret_is_the_owners_alone_and_one_damaged_copy_does_no_harm(
    tiny_folder: Path, tmp_path: Path
) -> None:
    old = os.umask(0)
    try:
        path = hofl.run(quick(tiny_folder, rounds=1), tmp_path / "run").path
    finally:
        os.umask(old)
    copies = [path / "secret.key", path / "checkpoint" / "secret.key"]
    assert [stat.S_IMODE(copy.stat().st_mode) for copy in copies] == [0o600, 0o600]
    expected = RunDirectory(path).secret()
    for damaged, sound in (copies, copies[::-1]):
        text = damaged.read_text()
        for bad in ("", text[:-9], "0" + text[1:] if text[0] != "0" else "1" + text[1:], "\x80é"):
            damaged.write_text(bad)
            assert RunDirectory(path).secret() == expected, (damaged, bad)
        damaged.unlink()
        assert RunDirectory(path).secret() == expected
        damaged.write_text(sound.read_text())
    for copy in copies:
        copy.write_bytes(b"\xff" * 10)
    with pytest.raises(HoflError, match="are damaged"):
        RunDirectory(path).secret()


def stopped(config: hofl.ExperimentConfig, out: Path) -> None:
    def stop(event, facts):
        if event == "round":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hofl.run(config, out, stop)


def test_a_random_secret_is_kept_for_the_resume_and_never_sent(
    tiny_folder: Path, tmp_path: Path
) -> None:
    config = quick(tiny_folder, server={"secret": "random"})
    run = tmp_path / "run"
    stopped(config, run)
    secret = RunDirectory(run).secret()
    bits = adapter_bytes(hofl.resume(run).path)
    # The oracle: one uninterrupted run with that secret.
    whole = replace(build_simulation(config), secret=secret)
    directory = RunDirectory.create(tmp_path / "whole", whole.config, secret)
    run_rounds(whole, InProcess(whole.client), directory, lambda *_: None)
    assert adapter_bytes(directory.path) == bits
    assert RunDirectory(hofl.run(config, tmp_path / "other").path).secret() != secret
    plan = whole.plan(whole.start, 2, whole.present(0)).to_bytes()
    public = plan + (run / "config.toml").read_bytes() + (run / "metrics.jsonl").read_bytes()
    assert secret.value not in public
    assert secret.value.hex().encode() not in public


def test_a_network_server_draws_its_secret_unless_told_otherwise(tiny_folder: Path) -> None:
    config = quick(tiny_folder)
    unset = config.server.model_copy(update={"secret": None})
    experiment = build_server(config.model_copy(update={"server": unset}))
    assert experiment.config.server.secret == "random"
    assert experiment.secret != RunSecret.from_seed(config.seed)
    assert build_server(config).secret == RunSecret.from_seed(config.seed)
    assert build_simulation(config.model_copy(update={"server": unset})).secret == (
        RunSecret.from_seed(config.seed)
    )


def test_a_run_of_an_earlier_version_is_refused_in_one_line(
    tiny_folder: Path, tmp_path: Path
) -> None:
    """Its directions came from the seed: going on with others would not end in its bits."""
    run = tmp_path / "run"
    stopped(quick(tiny_folder), run)
    for copy in (run / "secret.key", run / "checkpoint" / "secret.key"):
        copy.unlink()
    with pytest.raises(HoflError, match="an earlier version started it") as caught:
        hofl.resume(run)
    assert "\n" not in str(caught.value)
