"""Privacy: what leaves a device is clipped and noised, replayed exactly, and accounted for."""

import json
import math
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch

import hofl
from hofl.algorithm import client_update, reconstruct
from hofl.core.directions import DirectionKey
from hofl.core.errors import UploadRefused
from hofl.core.optim import SGD, AdamW
from hofl.core.privacy import Privacy, released, secret_normals
from hofl.experiment.build import build_simulation
from hofl.experiment.records import Attempt, RoundRecord
from hofl.experiment.runs import RunDirectory
from hofl.local.step import LocalParts
from hofl.messages import WITHHELD, RoundPlan, Upload
from hofl.methods import METHODS
from hofl.rules import LocalRule
from hofl.server.accounting import Ledger, epsilon, releases
from hofl.server.checks import UploadLimits, check_upload
from support.models import batch, tiny
from support.runs import quick

PRIVACY = Privacy(noise=0.5, scalar_clip=0.3, difference_clip=0.01)
SECTION = {"noise": 1.0, "scalar_clip": 0.5, "difference_clip": 0.1}


def test_noise_is_normal_independent_and_never_the_same() -> None:
    """Chances of a false alarm: 1e-6 each."""
    values = secret_normals(200_001)
    assert len(values) == 200_001
    assert scipy.stats.kstest(values, "norm").pvalue > 1e-6
    assert scipy.stats.kstest(values**2, "chi2", args=(1,)).pvalue > 1e-6
    half = len(values) // 2  # the two halves come from the same draws
    for other in (values[half : 2 * half], np.roll(values, 1)[:half]):
        correlation = scipy.stats.spearmanr(values[:half], other)
        assert correlation.pvalue > 1e-6
        assert scipy.stats.spearmanr(values[:half] ** 2, other**2).pvalue > 1e-6
    assert not np.array_equal(values, secret_normals(200_001))
    assert len(secret_normals(0)) == 0


@pytest.mark.parametrize("scale", [1e-6, 0.1, 1.0, 1e6, 1e30])
def test_a_release_moves_by_at_most_twice_the_clip(scale: float) -> None:
    rng = torch.Generator().manual_seed(1)
    values = torch.randn(1000, generator=rng) * scale
    exact = released(values, 2.0, 0.0)
    norm = exact.double().norm().item()
    assert norm <= 2.0 * (1 + 1e-6)
    assert norm == pytest.approx(min(2.0, values.double().norm().item()), rel=1e-6)
    cosine = torch.nn.functional.cosine_similarity(exact.double(), values.double(), 0)
    assert cosine.item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_hidden_too(value: float) -> None:
    values = torch.ones(5000)
    values[7] = value
    found = released(values, 1.0, 1.0)
    assert torch.isfinite(found).all()
    assert found.std().item() == pytest.approx(2.0, rel=0.1)


def test_noise_has_the_stated_scale() -> None:
    difference = PRIVACY.difference(torch.zeros(100_000))
    assert difference.std().item() == pytest.approx(0.5 * 2 * 0.01, rel=0.02)
    scalars = torch.stack([PRIVACY.scalars(torch.zeros(4)) for _ in range(5000)])
    assert scalars.std().item() == pytest.approx(0.5 * 2 * 0.3, rel=0.05)


def participation(
    rule: LocalRule, privacy: Privacy | None, boundary: int = 2
) -> tuple[torch.nn.Module, RoundPlan, Upload]:
    model = tiny("llama")
    plan = RoundPlan(
        run="r",
        round=3,
        client=1,
        boundary=boundary,
        key=DirectionKey(9, 3, 1),
        seed=9,
        layout=model.layout.digest,
        rule=rule,
        w=model.w.clone(),
        verify=True,
        privacy=privacy,
    )
    received = RoundPlan.from_bytes(plan.to_bytes())
    assert received.digest() == plan.digest()
    steps = [[batch(e)] for e in range(rule.local_steps)]
    upload = client_update(model, received, steps, LocalParts.of(rule, boundary))
    return model, plan, Upload.from_bytes(upload.to_bytes())


RULES = {
    "sgd": LocalRule(optimizer=SGD(lr=0.05), local_steps=3),
    "adamw": replace(METHODS["hofl"].local, optimizer=AdamW(lr=1e-2), local_steps=3, q=3),
    "central": LocalRule(optimizer=SGD(lr=0.05), local_steps=2, estimator="central"),
}


@pytest.mark.parametrize("name", RULES)
def test_the_bottom_is_replayed_from_noised_scalars_bit_for_bit(name: str) -> None:
    """The hash in the upload is of what the device really trained."""
    model, plan, upload = participation(RULES[name], PRIVACY)
    check_upload(upload, plan, model.layout, UploadLimits())
    delta = reconstruct(plan, upload, model.layout)
    cut = model.layout.cut(2)
    assert torch.equal(delta[:cut], model.w[:cut] - plan.w[:cut])
    assert torch.equal(delta[cut:], upload.difference)
    assert not torch.equal(upload.difference, model.w[cut:] - plan.w[cut:])
    with pytest.raises(UploadRefused, match="replayed bottom"):
        reconstruct(plan, replace(upload, scalars=upload.scalars * 1.01), model.layout)


def test_without_noise_a_release_is_the_clipped_gradient_information() -> None:
    """In the limit of little noise: scalars and difference of the plain participation, clipped."""
    rule = replace(RULES["sgd"], local_steps=1)
    _, _, plain = participation(rule, None)
    tiny_noise = Privacy(noise=1e-7, scalar_clip=0.05, difference_clip=1e-3)
    _, _, private = participation(rule, tiny_noise)
    norm = plain.scalars.norm()
    assert norm > 0.05, "the clip must bind"
    torch.testing.assert_close(private.scalars, plain.scalars * 0.05 / norm, rtol=1e-4, atol=1e-6)
    wanted = plain.difference * min(1, 1e-3 / plain.difference.norm().item())
    torch.testing.assert_close(private.difference, wanted, rtol=1e-3, atol=1e-8)


def test_two_participations_share_no_noise() -> None:
    first, second = (participation(RULES["sgd"], PRIVACY)[2] for _ in range(2))
    assert not torch.equal(first.scalars, second.scalars)
    assert not torch.equal(first.difference, second.difference)


def test_nothing_else_that_tells_of_the_data_is_sent() -> None:
    _, _, upload = participation(RULES["sgd"], PRIVACY)
    assert upload.metrics == WITHHELD
    assert asdict(WITHHELD) == {**dict.fromkeys(asdict(WITHHELD), 0), "loss": None}
    _, plan, plain = participation(RULES["sgd"], None)
    with pytest.raises(UploadRefused, match="loss is None, not a number"):
        check_upload(replace(plain, metrics=WITHHELD), plan, tiny("llama").layout, UploadLimits())


def exact_epsilon(noise: float, count: int, delta: float) -> float:
    """Of ``count`` Gaussian mechanisms, which are one of multiplier noise / sqrt(count).

    Its delta at epsilon is known in closed form: Phi(m/2 - e/m) - exp(e) Phi(-m/2 - e/m).
    """
    m, phi = math.sqrt(count) / noise, scipy.stats.norm

    def excess(e: float) -> float:
        return phi.cdf(m / 2 - e / m) - math.exp(e + phi.logcdf(-m / 2 - e / m)) - delta

    return scipy.optimize.brentq(excess, 0, 1e4)


@pytest.mark.parametrize("noise", [0.7, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("count", [1, 6, 100])
@pytest.mark.parametrize("delta", [1e-5, 1e-8])
def test_epsilon_is_above_the_exact_one_and_not_by_much(
    noise: float, count: int, delta: float
) -> None:
    exact = exact_epsilon(noise, count, delta)
    assert exact <= epsilon(noise, count, delta) <= 1.25 * exact + 0.02


def test_a_participation_releases_every_step_and_the_difference() -> None:
    assert releases(RULES["sgd"]) == 4
    assert releases(METHODS["fedavg"].local) == 1
    assert releases(METHODS["recompute"].local) == 1


def test_the_ledger_counts_who_was_asked() -> None:
    first = RoundRecord(round=1, cohort=[0, 1, 2], dropped=[1])
    repeat = Attempt(cohort=[0, 1, 2], dropped=[1])
    second = RoundRecord(round=2, cohort=[0, 3], repeats=[repeat], lost=[[3, 4]])
    ledger = Ledger(2.0, 1e-5)
    ledger.note({i: 6 * n for i, n in Counter(first.participations).items()})
    assert ledger.note({i: 6 * n for i, n in Counter(second.participations).items()}) == {
        i: epsilon(2.0, 6 * n, 1e-5) for i, n in ((0, 3), (2, 2), (3, 2), (4, 1))
    }
    summary = ledger.summary()
    assert set(summary["clients"]) == {"0", "2", "3", "4"}
    assert summary["largest"] == epsilon(2.0, 18, 1e-5)


def test_a_private_run_reports_epsilon_per_device_and_resumes(
    tiny_folder: Path, tmp_path: Path
) -> None:
    config = quick(tiny_folder, rounds=3, privacy=SECTION)
    result = hofl.run(config, tmp_path / "run")
    rows = RunDirectory(result.path).metrics()
    taken = [client for row in rows[1:] for client in row.cohort]
    assert result.summary["epsilon"]["delta"] == 1e-5
    assert result.summary["epsilon"]["clients"] == {
        str(i): epsilon(1.0, 3 * taken.count(i), 1e-5) for i in sorted(set(taken))
    }
    for row in rows[1:]:
        assert row.refused == {}, "verify is on: every replay was exact"
        assert set(row.epsilon) == set(row.cohort)
        assert row.train_loss is None
        assert row.peak_bytes is None
    (result.path / "summary.json").unlink()
    again = hofl.resume(result.path)
    assert again.summary["epsilon"] == result.summary["epsilon"]
    json.dumps(again.summary)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"privacy": {"noise": 1.0}}, "needs privacy.scalar_clip and privacy.difference_clip"),
        ({"privacy": {"scalar_clip": 1.0}}, "clipping alone gives no privacy"),
        ({"privacy": {**SECTION, "scalar_clip": 0.0}}, "privacy.scalar_clip must be positive"),
        ({"privacy": {**SECTION, "noise": math.inf}}, r"privacy\.noise must be .*finite"),
        ({"privacy": SECTION, "server": {"max_norm": 1.0}}, "server.max_norm 1 would refuse it"),
        ({"privacy": SECTION, "server": {"max_scalar": 0.9}}, "server.max_scalar 0.9 would refuse"),
        (
            {"privacy": SECTION, "method": {"aggregation": "by-examples"}},
            "private devices do not report: use mean",
        ),
    ],
)
def test_combinations_that_make_no_sense_are_refused(
    changes: dict, message: str, tiny_folder: Path
) -> None:
    with pytest.raises(hofl.HoflError, match=message):
        build_simulation(quick(tiny_folder, **changes))
