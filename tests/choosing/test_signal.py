"""Signal in the bottom's gradient: shares and cosines against known problems and brute force."""

from pathlib import Path

import numpy as np
import pytest
import torch

import hofl
from hofl.choosing.measure import advanced, measure_fleet
from hofl.choosing.moments import WithError
from hofl.choosing.signal import TierSignal, signal_share, tier_signals
from hofl.core.directions import DirectionKey
from hofl.core.errors import HoflError
from hofl.core.layout import Layout
from hofl.experiment.build import build_simulation
from hofl.experiment.checkpoint import load_state
from hofl.experiment.runs import RunDirectory
from hofl.theory.lemmas import kappa, reachable_cosine
from support.problems import estimate
from support.runs import quick

SIZE, NOISE = 10, 3.0
GRADIENT = np.linspace(-1, 1.5, SIZE)
"""grad f of the known problem; a minibatch adds noise of variance ``NOISE`` in all."""
TRUE_SHARE = float(GRADIENT @ GRADIENT) / (float(GRADIENT @ GRADIENT) + NOISE)


def minibatches(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return GRADIENT + rng.normal(scale=np.sqrt(NOISE / SIZE), size=(*shape, SIZE))


def test_the_share_of_a_known_problem_is_found_within_its_error() -> None:
    measured = signal_share(minibatches(np.random.default_rng(0), 4, 300))
    assert abs(measured.value - TRUE_SHARE) < 4 * measured.error
    assert measured.error < 0.05 * TRUE_SHARE


def test_pure_noise_has_no_signal_on_average_where_plain_means_see_one() -> None:
    """R = 3: products of different samples average to 0; the mean's square would give a third."""
    rng = np.random.default_rng(1)
    values = [signal_share(rng.normal(size=(4, 3, 40))).value for _ in range(400)]
    assert abs(np.mean(values)) < 4 * np.std(values) / 400**0.5
    assert min(values) < 0


def test_the_jackknife_error_is_the_spread_over_repeated_measurements() -> None:
    rng = np.random.default_rng(2)
    runs = [signal_share(minibatches(rng, 5, 8)) for _ in range(200)]
    spread = np.std([run.value for run in runs])
    assert np.mean([run.error for run in runs]) == pytest.approx(spread, rel=0.3)


@pytest.mark.parametrize(("q", "estimates"), [(0, 1), (1, 1), (3, 1), (2, 5)])
def test_cosines_equal_those_of_the_projects_own_estimates(q: int, estimates: int) -> None:
    """Brute force: forward differences of a linear loss along real directions, averaged."""
    rng = np.random.default_rng(3)
    layout = Layout(("w",), ((SIZE,),), (0,), 1)

    def one(number: int) -> np.ndarray:
        g = minibatches(rng)
        if not q:
            return g
        key = DirectionKey(5, number, 0)
        start = np.zeros(SIZE)
        return estimate(lambda v: float(g @ v), g, start, key, 0, layout, 1, q, 1e-3)

    means = np.array(
        [np.mean([one(m * 4000 + r) for m in range(estimates)], axis=0) for r in range(4000)]
    )
    along, squares = means @ GRADIENT, (means**2).sum(axis=1)
    cosine = along.mean() / np.sqrt(squares.mean() * (GRADIENT @ GRADIENT))
    tier = TierSignal(1, SIZE, WithError(TRUE_SHARE, 0.0))
    assert tier.cosine(q, estimates) == pytest.approx(cosine, rel=0.03)


def test_the_squared_cosine_is_the_progress_that_a_step_keeps() -> None:
    """On f = L/2 ||w - x||^2, by a search over step lengths along fresh estimates."""
    rng, curvature = np.random.default_rng(4), 2.0
    g = minibatches(rng, 20_000)
    u = rng.normal(size=g.shape)
    steps = u * (u * g).sum(axis=1, keepdims=True)  # q = 1
    lengths = np.linspace(0, 0.2, 401)
    along, square = (steps @ GRADIENT).mean(), (steps**2).sum(axis=1).mean()
    decrease = (lengths * along - lengths**2 * curvature * square / 2).max()
    full = GRADIENT @ GRADIENT / (2 * curvature)
    kept = reachable_cosine(TRUE_SHARE, kappa(np.array([SIZE]), 1))[0] ** 2
    assert decrease / full == pytest.approx(kept, rel=0.08)


def test_edges_of_the_formula() -> None:
    assert reachable_cosine(1.0, np.zeros(2)).tolist() == [1.0, 1.0]
    assert reachable_cosine(0.0, np.array([3.0]), 9).tolist() == [0.0]
    assert TierSignal(1, 5, WithError(-0.1, 0.2)).cosine(2) == 0.0
    assert signal_share(np.zeros((2, 3, 4))) == WithError(0.0, 0.0)
    with pytest.raises(HoflError, match="estimates"):
        reachable_cosine(0.5, np.zeros(1), 0)


def test_a_tier_is_measured_on_its_own_bottom_alone() -> None:
    """Bottom: pure signal for one tier, pure noise for the other; the top is huge noise."""
    rng = np.random.default_rng(5)
    gradients = 100 * rng.normal(size=(4, 6, 12))
    gradients[:2, :, :3] = 1.0
    gradients[2:, :, :6] = rng.normal(size=(2, 6, 6))
    low, high = tier_signals(gradients, (1, 1, 2, 2), lambda b: 3 * b)
    assert (low.boundary, low.dims, low.share.value) == (1, 3, pytest.approx(1.0))
    assert (high.boundary, high.dims) == (2, 6)
    assert abs(high.share.value) < 0.3
    assert tier_signals(gradients, (0, 0, 0, 0), lambda b: 3 * b) == ()


@pytest.mark.parametrize(("size", "all_signal"), [(4, True), (1, False)])
def test_a_batch_of_all_examples_is_all_signal(
    tiny_folder: Path, size: int, all_signal: bool
) -> None:
    """Four examples per client: with all of them in every batch nothing is left to chance."""
    data = {"examples_per_client": 4}
    config = quick(tiny_folder, task={"batch_size": size}, data=data)
    experiment = build_simulation(config)
    signals = measure_fleet(experiment, 3, smoothness=1.0).signals
    assert [tier.boundary for tier in signals] == [1, 2, 3]
    for tier in signals:
        assert tier.dims == experiment.layout.cut(tier.boundary)
        if all_signal:
            assert tier.share.value == pytest.approx(1.0, abs=1e-5)
        else:
            assert tier.share.value < 0.9


def test_it_can_be_measured_where_a_run_stands(tiny_folder: Path, tmp_path: Path) -> None:
    """The start is replaced by the checkpoint's parameters; those of other models are refused."""
    config = quick(tiny_folder, rounds=1, data={"examples_per_client": 4})
    run = hofl.run(config, tmp_path / "run").path
    experiment = advanced(build_simulation(config), run)
    state = load_state(RunDirectory(run))
    assert state is not None
    assert torch.equal(experiment.start.w, state.w)
    assert not torch.equal(experiment.start.w, build_simulation(config).start.w)
    assert measure_fleet(experiment, 3, smoothness=1.0).round == 1
    with pytest.raises(HoflError, match="is not a run"):
        advanced(experiment, tmp_path)
    other = quick(tiny_folder, adapter={"rank": 3})
    with pytest.raises(HoflError, match="other trainable parameters"):
        advanced(build_simulation(other), run)
