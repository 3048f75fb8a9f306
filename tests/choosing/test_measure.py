"""Measured statistics: known moments are found within their errors, on quadratics and in a run."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import hofl
from hofl.choosing.measure import GRADIENT, compare_policies, largest_curvature, measure_fleet
from hofl.choosing.moments import Products, dispersion, measurement
from hofl.cli.commands import app
from hofl.core.directions import DirectionKey
from hofl.core.errors import HoflError
from hofl.experiment.build import build_simulation
from hofl.experiment.config import read_config
from hofl.experiment.runs import config_text
from hofl.local.site import PLAIN
from hofl.messages import Upload
from hofl.sampling.statistics import Statistics, load_statistics
from support.models import slot_logits
from support.problems import Fleet, Quadratics, local_update
from support.runs import quick

CENTRES = np.random.default_rng(0).normal(size=(6, 6))
CURVATURE = np.linspace(1, 0.2, 6)
PROBLEM = Quadratics(CURVATURE, CENTRES)
FLEET = Fleet((0, 1, 1, 2, 3, 3), 2, q=2, mu=1e-3, eta=0.05, local_steps=3, noise=0.3)
START = np.full(6, 1.5)


def mean_updates() -> np.ndarray:
    """a_i in closed form: without bias the expected distance shrinks by 1 - eta c at each step."""
    steps, eta = FLEET.local_steps, FLEET.eta
    shrunk = (1 - (1 - eta * CURVATURE) ** steps) / (eta * steps)
    return (START - CENTRES) * shrunk


def sampled(repetitions: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The project's own local updates and noisy gradients, [N, R, d] each."""
    h, rng = FLEET.eta * FLEET.local_steps, np.random.default_rng(seed)
    updates = np.array(
        [
            [
                (START - local_update(PROBLEM, FLEET, START, i, DirectionKey(seed, r, i))) / h
                for r in range(repetitions)
            ]
            for i in range(6)
        ]
    )
    noise = rng.normal(scale=np.sqrt(FLEET.noise / 6), size=(6, repetitions, 6))
    return updates, PROBLEM.gradients(START)[:, None, :] + noise


def true_dispersion(vectors: np.ndarray) -> float:
    return float(((vectors - vectors.mean(axis=0)) ** 2).sum(axis=1).mean())


def test_known_moments_of_quadratics_are_found_within_standard_errors() -> None:
    """200 updates per client: a_i, H_a, zeta^2 against closed forms, v_i by the sample variance."""
    updates, gradients = sampled(200, seed=1)
    measured = measurement(
        updates,
        gradients,
        smoothness=1.0,
        step=0.15,
        boundaries=FLEET.boundaries,
        normalised=True,
    )
    a, s = mean_updates(), measured.statistics
    errors = np.sqrt(updates.var(axis=1, ddof=1) / 200)
    assert (np.abs(updates.mean(axis=1) - a) < 4.5 * errors).all()  # the problem is what we think
    gaps = ((s.means[:, None] - s.means[None]) ** 2).sum(axis=2)
    expected = ((a[:, None] - a[None]) ** 2).sum(axis=2)
    assert np.allclose(gaps, expected, rtol=0.1, atol=0.3)
    assert np.allclose(s.variances, updates.var(axis=1, ddof=1).sum(axis=1), rtol=1e-9)
    for estimate, truth in (
        (measured.dispersion, true_dispersion(a)),
        (measured.heterogeneity, PROBLEM.heterogeneity),
    ):
        assert abs(estimate.value - truth) < 4 * estimate.error
        assert estimate.error < 0.15 * truth
    assert np.allclose(measured.noise, FLEET.noise, rtol=0.25)
    g = PROBLEM.gradients(START).mean(axis=0)
    truth = Statistics(a, s.variances, g, 1.0, 0.15)
    p = np.array([0.5, 0.1, 0.1, 0.1, 0.1, 0.1])
    assert s.objective(p, 2) == pytest.approx(truth.objective(p, 2), rel=0.1)
    assert s.relaxed(p, 2) == pytest.approx(truth.relaxed(p, 2), rel=0.1)


def test_gradients_stand_for_mean_updates_at_small_steps() -> None:
    """zeta^2 and c^T p keep their meaning; the spread is that of the gradients, without noise."""
    updates, gradients = sampled(60, seed=4)
    options = {"smoothness": 1.0, "step": 0.15, "boundaries": FLEET.boundaries}
    measured = measurement(updates, gradients, normalised=True, first_order=True, **options)
    plain = measurement(updates, gradients, normalised=True, **options)
    truth = ((PROBLEM.gradients(START) - PROBLEM.gradients(START).mean(axis=0)) ** 2).sum(axis=1)
    assert measured.statistics.spread == pytest.approx(truth, rel=0.15, abs=0.1)
    assert np.array_equal(measured.statistics.variances, plain.statistics.variances)
    assert np.allclose(measured.statistics.means.mean(axis=0), measured.statistics.gradient)
    with pytest.raises(HoflError, match="under SGD only"):
        measurement(updates, gradients, normalised=False, first_order=True, **options)


def test_few_repetitions_are_unbiased_where_plain_means_are_not() -> None:
    """R = 3, 200 measurements: the mean of H_a is true; from means it would be far too large."""
    truth = true_dispersion(mean_updates())
    unbiased, plain, errors = [], [], []
    for seed in range(200):
        updates, _ = sampled(3, seed=100 + seed)
        estimate = Products.of(updates).estimate(dispersion)
        unbiased.append(estimate.value)
        errors.append(estimate.error)
        plain.append(true_dispersion(updates.mean(axis=1)))
    standard = np.std(unbiased) / 200**0.5
    assert abs(np.mean(unbiased) - truth) < 4 * standard
    assert np.mean(plain) > truth + 10 * standard
    assert np.mean(errors) == pytest.approx(np.std(unbiased), rel=0.35)


def test_variances_and_gram_equal_their_textbook_forms() -> None:
    samples = np.random.default_rng(2).normal(size=(3, 5, 70_000)).astype(np.float32)
    products = Products.of(samples)
    wide = samples.astype(np.float64)
    variances = wide.var(axis=1, ddof=1).sum(axis=1)
    assert np.allclose(products.variances(), variances, rtol=1e-9)
    means = wide.mean(axis=1)
    corrected = means @ means.T - np.diag(variances / 5)
    assert np.allclose(products.gram, corrected, rtol=1e-6, atol=1e-6)
    shorter = [np.delete(rows, 3, axis=0) if i == 1 else rows for i, rows in enumerate(wide)]
    means = np.array([rows.mean(axis=0) for rows in shorter])
    lengths = [rows.var(axis=0, ddof=1).sum() / len(rows) for rows in shorter]
    assert np.allclose(products.gram_without(1, 3), means @ means.T - np.diag(lengths), atol=1e-6)


def test_largest_curvature_of_a_quadratic_is_its_largest_eigenvalue() -> None:
    rng = np.random.default_rng(4)
    basis, _ = np.linalg.qr(rng.normal(size=(8, 8)))
    hessian = torch.from_numpy(basis @ np.diag([5, -2, 1, 1, 0.5, 0.3, 0.1, 0]) @ basis.T)
    w = torch.from_numpy(rng.normal(size=8))
    largest = largest_curvature(lambda at: hessian @ at, w, torch.ones(8, dtype=torch.float64))
    assert 0.98 * 5 < largest < 5 * (1 + 1e-9)
    assert largest_curvature(lambda at: 0 * at, w, w) == 0
    assert largest_curvature(lambda at: at, w, 0 * w) == 0


@pytest.fixture(scope="module")
def config(tiny_folder: Path) -> hofl.ExperimentConfig:
    return quick(tiny_folder, method={"optimizer": "sgd", "lr": 1e-3, "weight_decay": 0.0})


def test_the_gradient_probe_is_autograds_gradient(config: hofl.ExperimentConfig) -> None:
    experiment = build_simulation(config)
    model = experiment.model.split
    noise = torch.randn(model.layout.size, generator=torch.Generator().manual_seed(1))
    w = experiment.start.w + 0.05 * noise
    state = replace(experiment.start, w=w, round=7)
    plan = experiment.plan(state, 2, experiment.present(7))
    plan = replace(plan, rule=GRADIENT, boundary=0, verify=False)
    (batch,) = next(iter(experiment.client._batches(plan, PLAIN)))  # the parts of the first step
    upload = Upload.from_bytes(experiment.client.answer(plan.to_bytes()))
    model.load(w)
    logits = slot_logits(model.module, batch)
    loss = torch.nn.functional.cross_entropy(logits[:, batch.goal.candidates], batch.goal.targets)
    grads = torch.autograd.grad(loss, model.parameters_in(range(model.num_blocks)))
    expected = torch.cat([grad.reshape(-1) for grad in grads])
    assert torch.allclose(-upload.difference, expected, rtol=1e-3, atol=1e-6)


def test_measuring_a_fleet_writes_what_a_run_takes(
    config: hofl.ExperimentConfig, tmp_path: Path
) -> None:
    source, out = tmp_path / "c.toml", tmp_path / "out"
    source.write_text(config_text(config))
    words = ["beta", "measure", str(source), "--out", str(out), "--repetitions", "3"]
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, words)
    assert shown.exit_code == 0, shown.output
    texts = ("beta 0.75", "water-filling", "statistical QP", "H_a = ", "zeta^2 = ", "signal share")
    for name in texts:
        assert name in shown.output
    values = json.loads((out / "statistics.json").read_text())
    assert (values["repetitions"], values["reference"]) == (3, "gradient")
    assert [tier["boundary"] for tier in values["signal"]] == [1, 2, 3]
    filled = read_config(str(out / "water-filling.toml"))
    table = {"statistics": str(out / "statistics.json"), "floor": 0.1}
    method = config.method.model_copy(update={"policy": table})
    by_file = config.model_copy(update={"method": method})
    assert build_simulation(filled).method.policy == build_simulation(by_file).method.policy
    s, boundaries = load_statistics(str(out / "statistics.json"))
    simulation = build_simulation(filled)
    assert boundaries == simulation.boundaries()
    p = simulation.marginals(0, simulation.present(0))
    assert p.min() >= 0.1 / 6 - 1e-12
    uniform = np.full(6, 1 / 6)
    assert s.relaxed(p, 3) <= s.relaxed(uniform, 3) * (1 + 1e-12)
    again = CliRunner().invoke(app, words).exception
    assert isinstance(again, HoflError)
    assert "exists and is not empty" in str(again)


def test_what_is_fitted_to_noise_is_judged_by_other_repetitions(
    config: hofl.ExperimentConfig,
) -> None:
    """Clients alike but for noise, so that uniform sampling is the optimum.

    On its own repetitions the QP seems to beat it every time; judged by the other half it loses.
    """
    rng, experiment = np.random.default_rng(8), build_simulation(config)
    gains: dict[int, list[float]] = {3: [], 12: []}
    for repetitions, gained in gains.items():
        for _ in range(20):
            samples = rng.normal(size=(2, 6, repetitions, 40))
            options = {"smoothness": 0.0, "step": 1.0, "boundaries": experiment.boundaries()}
            statistics = measurement(*samples, normalised=True, **options)
            rows, notes = compare_policies(statistics, experiment, floor=0.0)
            values = {row.name: row.objective for row in rows}
            gained.append(values["beta 0"] - values["statistical QP"])
            assert ("flatters" in " ".join(notes)) == (repetitions == 3)
    assert min(gains[3]) > 0
    assert np.mean(gains[12]) < 0


def test_measuring_repeats_itself_and_adamw_takes_the_mean_update(
    config: hofl.ExperimentConfig,
) -> None:
    method = config.method.model_copy(update={"optimizer": "adamw"})
    experiment = build_simulation(config.model_copy(update={"method": method}))
    first = measure_fleet(experiment, 3, smoothness=1.0)
    assert first.to_json() == measure_fleet(experiment, 3, smoothness=1.0).to_json()
    s = first.statistics
    assert first.reference == "mean update"
    assert s.gradient == pytest.approx(s.means.mean(axis=0), abs=1e-9 * np.abs(s.means).max())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--repetitions", "2"], "repetitions must be at least 3, got 2"),
        (["--smoothness", "-1"], "smoothness must be finite, not negative; got -1"),
        (["--floor", "1.5"], "floor (epsilon) must lie in [0, 1], got 1.5"),
        (["--out", "FILE/out"], "Not a directory"),
    ],
)
def test_a_mistake_is_reported_before_anything_is_measured(
    config: hofl.ExperimentConfig,
    tmp_path: Path,
    words: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hofl.choosing.measure.measure_fleet", lambda *_: pytest.fail("measured"))
    source = tmp_path / "c.toml"
    source.write_text(config_text(config))
    words = [word.replace("FILE", str(source)) for word in words]
    asked = ["beta", "measure", str(source), "--out", str(tmp_path / "out"), *words]
    error = CliRunner().invoke(app, asked).exception
    assert isinstance(error, HoflError), error
    assert message in str(error)


def test_too_few_repetitions_are_refused(config: hofl.ExperimentConfig) -> None:
    with pytest.raises(HoflError, match="repetitions must be at least 3, got 2"):
        measure_fleet(build_simulation(config), 2)
