"""What every sampling policy promises, checked for each entry of ``POLICIES``.

A new policy is tested by being listed, with options in ``EXAMPLES``.
"""

import tomllib
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields, is_dataclass
from typing import Any

import numpy as np
import pytest
import tomli_w

from hofl.methods import METHODS, method, options_of
from hofl.sampling.policies import POLICIES, Policy, draw_cohort, policy_from, policy_spec

EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "uniform": [{}],
    "dimension-aware": [
        {"beta": 0.0},
        {"beta": 0.75},
        {"beta": 0.2, "beta_schedule": "linear", "beta_end": 0.9},
        {"beta": 0.9, "beta_schedule": "cosine", "beta_end": 0.1},
        {"beta": 0.5, "beta_schedule": "coverage", "min_participations": 0.1},
    ],
    "water-filling": [
        {"weight": 0.0},
        {"weight": 3.0, "floor": 0.2},
        {"weight": 50.0, "floor": 0.1, "costs": [4.0, 1.0, 0.0, 9.0, 2.0]},
    ],
}
CASES = [(name, options) for name in POLICIES for options in EXAMPLES.get(name, [])]
SEED, ROUNDS = 11, 20

each = pytest.mark.parametrize(
    "policy", [policy_from(name, **options) for name, options in CASES], ids=repr
)


def fleets() -> Iterator[tuple[np.ndarray, int]]:
    """Scores and K: ties, zeros, far apart and equal scores, cohorts of one and of everyone."""
    rng = np.random.default_rng(0)
    for clients in (1, 2, 7, 40):
        for scores in (
            rng.integers(0, 3, clients).astype(float),
            rng.random(clients) ** 9 * 1e6,
            np.full(clients, 640.0),
            np.zeros(clients),
        ):
            for cohort in {1, (clients + 1) // 2, clients}:
                yield scores, cohort


def shares(policy: Policy, scores: np.ndarray, cohort: int, t: int = 0) -> np.ndarray:
    """P of a fleet of which the policy knows every client."""
    known = policy.for_clients(np.arange(len(scores)))
    return known.marginals(scores, cohort, SEED, t, ROUNDS)


def test_every_policy_has_examples() -> None:
    assert set(EXAMPLES) == set(POLICIES)
    for name, kind in POLICIES.items():
        given = {key for options in EXAMPLES[name] for key in options}
        assert given == {option.name for option in fields(kind)}, f"all options of {name} are tried"


@each
def test_shares_can_be_drawn_from_and_every_draw_has_k_clients(policy: Policy) -> None:
    for scores, cohort in fleets():
        for t in (0, ROUNDS // 2, ROUNDS - 1):
            p = shares(policy, scores, cohort, t)
            assert (p.dtype, p.shape) == (np.float64, scores.shape)
            assert p.min() >= 0
            assert p.max() <= (1 + 1e-12) / cohort
            assert p.sum() == pytest.approx(1, abs=1e-12)
            drawn = draw_cohort(p, cohort, SEED, t)
            assert len(set(drawn)) == cohort
            assert (p[drawn] > 0).all()


@each
def test_a_cohort_of_everyone_has_equal_shares(policy: Policy) -> None:
    for scores, _ in fleets():
        clients = len(scores)
        assert shares(policy, scores, clients) == pytest.approx(np.full(clients, 1 / clients))


@each
def test_equal_scores_have_equal_shares_unless_the_policy_knows_the_clients(
    policy: Policy,
) -> None:
    same = np.full(12, 640.0)
    backwards = policy.for_clients(np.arange(12)[::-1])
    if backwards == policy.for_clients(np.arange(12)):
        assert shares(policy, same, 5) == pytest.approx(np.full(12, 1 / 12))
    else:
        p, mirrored = shares(policy, same, 5), backwards.marginals(same, 5, SEED, 0, ROUNDS)
        assert mirrored == pytest.approx(p[::-1])


@each
def test_shares_depend_on_their_arguments_alone(policy: Policy) -> None:
    """Whatever was called before, in whatever order, and whatever is done to the result."""
    again = policy_from(**policy_spec(policy))
    for scores, cohort in fleets():
        before = scores.copy()
        forward = [shares(policy, scores, cohort, t) for t in range(ROUNDS)]
        copies = [p.copy() for p in forward]
        for p in forward:
            p *= 0  # a result belongs to the caller
        np.random.seed(cohort)
        for t in reversed(range(ROUNDS)):
            assert np.array_equal(shares(again, scores, cohort, t), copies[t])
        assert np.array_equal(scores, before)


@each
def test_a_policy_is_a_value_that_a_file_can_hold(policy: Policy) -> None:
    assert is_dataclass(policy)
    spec = policy_spec(policy)
    assert policy_from(**spec) == policy
    assert hash(policy_from(**spec)) == hash(policy)
    assert policy_from(**tomllib.loads(tomli_w.dumps(spec))) == policy
    for option in fields(policy):
        with pytest.raises(FrozenInstanceError):
            setattr(policy, option.name, None)


@each
@pytest.mark.parametrize("name", METHODS)
def test_a_policy_fits_into_every_method_and_is_written_with_it(policy: Policy, name: str) -> None:
    changed = method(name, policy=policy_spec(policy))
    assert changed.policy == policy
    assert method(name, **options_of(changed)) == changed


@each
def test_clients_that_are_there_are_served_whoever_is_missing(policy: Policy) -> None:
    present = np.array([0, 3, 4, 17])  # 17 joined later than any value was written
    p = policy.for_clients(present).marginals(np.array([3.0, 1.0, 1.0, 2.0]), 2, SEED, 0, ROUNDS)
    assert p.sum() == pytest.approx(1, abs=1e-12)
    assert p.max() <= (1 + 1e-12) / 2
