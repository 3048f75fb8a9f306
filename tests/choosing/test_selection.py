"""Which beta: the paired test against SciPy and simulation, and what halving may throw out."""

import itertools

import numpy as np
import pytest
from scipy import stats

from hofl.choosing.selection import choice, difference, rungs, standings, survivors
from hofl.core.errors import HoflError


def test_one_training_is_the_paired_t_test_over_clients() -> None:
    rng = np.random.default_rng(1)
    first, second = rng.normal(1.2, 1, size=(1, 12)), rng.normal(1, 1, size=(1, 12))
    expected = stats.ttest_rel(first[0], second[0], alternative="greater")
    measured = difference(first, second)
    assert measured.p_value == pytest.approx(expected.pvalue, rel=1e-10)
    assert measured.mean / measured.error == pytest.approx(expected.statistic)


def trial(rng: np.random.Generator, shift: float, training: float, client: float) -> float:
    """The p-value for 3 trainings x 20 clients whose differences have these deviations."""
    d = shift + training * rng.normal(size=(3, 1)) + client * rng.normal(size=(1, 20))
    return difference(d + 0.5 * rng.normal(size=(3, 20)), np.zeros((3, 20))).p_value


@pytest.mark.parametrize(
    ("training", "client"), [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (0.5, 1.0), (3.0, 3.0)]
)
def test_false_alarms_are_at_most_as_frequent_as_the_level(training: float, client: float) -> None:
    """2,000 tables without a difference; also when a whole training is lucky at all clients."""
    rng = np.random.default_rng(7)
    alarms = sum(trial(rng, 0.0, training, client) < 0.05 for _ in range(2000))
    assert alarms < 100 + 4 * (2000 * 0.05 * 0.95) ** 0.5


def test_a_difference_beyond_the_noise_is_found() -> None:
    """A shift of four deviations of either source, at three trainings."""
    rng = np.random.default_rng(8)
    assert sum(trial(rng, 1.0, 0.25, 0.25) < 0.05 for _ in range(300)) > 285


def test_clients_alone_would_believe_a_lucky_training() -> None:
    """Why trainings count: the t-test over all client pairs is fooled by what they share."""
    rng = np.random.default_rng(3)
    naive = honest = 0
    for _ in range(1000):
        d = rng.normal(size=(3, 1)) + 0.5 * rng.normal(size=(3, 20))
        naive += stats.ttest_1samp(d.ravel(), 0, alternative="greater").pvalue < 0.05
        honest += difference(d, np.zeros_like(d)).p_value < 0.05
    assert naive > 250
    assert honest < 80


def losses(**offsets: float) -> dict[float, np.ndarray]:
    """Candidates b0, b25, ... whose losses differ by these offsets up to a little paired noise."""
    noise = 0.01 * np.random.default_rng(5).normal(size=(8, 2, 10))
    return {
        int(name[1:]) / 100: 1 + offset + noise[k]
        for k, (name, offset) in enumerate(offsets.items())
    }


def test_the_smallest_inconclusive_beta_is_chosen() -> None:
    ranking = standings(losses(b0=0.5, b25=0.001, b50=0.4, b75=0.0), level=0.05)
    assert [standing.beta for standing in ranking] == [0.0, 0.25, 0.5, 0.75]
    assert [standing.inconclusive for standing in ranking] == [False, True, False, True]
    assert choice(ranking) == 0.25


def test_a_clearly_best_beta_is_chosen() -> None:
    for best in ("b0", "b25", "b50", "b75"):
        offsets = dict.fromkeys(("b0", "b25", "b50", "b75"), 0.5) | {best: 0.0}
        assert choice(standings(losses(**offsets), level=0.05)) == int(best[1:]) / 100


def test_equal_losses_choose_the_smallest() -> None:
    same = np.random.default_rng(0).random((2, 5))
    ranking = standings({beta: same for beta in (0.75, 0.0, 0.5)}, level=0.05)
    assert choice(ranking) == 0.0
    assert all(standing.behind.p_value == 1 for standing in ranking)


def test_the_worse_half_stops_unless_it_is_smaller_and_inconclusive() -> None:
    clear = standings(losses(b0=0.9, b25=0.6, b50=0.3, b75=0.0), level=0.05)
    assert survivors(clear) == [0.5, 0.75]
    small = standings(losses(b0=0.004, b25=0.6, b50=0.003, b75=0.0), level=1e-3)
    assert survivors(small) == [0.0, 0.5, 0.75]
    larger = standings(losses(b0=0.0, b25=0.003, b50=0.004, b75=0.005), level=1e-3)
    assert survivors(larger) == [0.0, 0.25]


def test_what_the_final_rule_would_choose_is_never_thrown_out() -> None:
    rng = np.random.default_rng(9)
    for _ in range(300):
        table = {b: rng.normal(size=(2, 6)) + rng.normal() for b in (0.0, 0.25, 0.5, 0.75, 0.9)}
        ranking = standings(table, level=0.1)
        kept = survivors(ranking)
        assert choice(ranking) in kept
        best = min(table, key=lambda b: table[b].mean())
        open_ones = [
            standing.beta for standing in ranking if standing.inconclusive and standing.beta <= best
        ]
        assert set(open_ones) <= set(kept)
        assert len(kept) >= 3


def test_rungs_double_and_end_at_the_given_length() -> None:
    assert rungs(2, 7) == [7]
    assert rungs(3, 8) == [4, 8]
    assert rungs(4, 21) == [10, 21]
    assert rungs(8, 8) == [2, 4, 8]
    for candidates, rounds in itertools.product(range(2, 9), range(4, 30)):
        lengths = rungs(candidates, rounds)
        assert lengths[-1] == rounds
        assert all(b - 2 * a in (0, 1) for a, b in itertools.pairwise(lengths))
    with pytest.raises(HoflError, match="4 candidates need at least 2 pilot rounds, got 1"):
        rungs(4, 1)


def test_bad_losses_are_refused() -> None:
    with pytest.raises(HoflError, match=r"not finite: lower method\.optimizer\.lr"):
        difference(np.array([[1.0, np.nan]]), np.zeros((1, 2)))
    with pytest.raises(HoflError, match="at least two paired values"):
        difference(np.zeros((1, 1)), np.zeros((1, 1)))
