"""What every method promises, checked for each entry of ``METHODS``: it is tested by being listed.

That every method runs is shown in ``tests/experiment/test_engine.py``.
"""

import json
import tomllib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch

from hofl.algorithm import reconstruct
from hofl.methods import METHODS, method, options_of
from hofl.rules import LocalRule
from hofl.server.aggregate import aggregation_of
from hofl.server.checks import UploadLimits, check_upload
from support.models import BLOCKS, tiny
from support.steps import participate, plan_for, tiny_for

each = pytest.mark.parametrize("name", METHODS)


@each
@pytest.mark.parametrize("allowed", [1, 2, BLOCKS])
def test_the_server_rebuilds_the_clients_whole_update(name: str, allowed: int) -> None:
    model = tiny_for(METHODS[name].local.surrogate, "llama")
    start, rule = model.w.clone(), METHODS[name].local
    rule = replace(rule, local_steps=min(2, rule.local_steps))
    boundary = int(METHODS[name].boundary(np.array([allowed]), BLOCKS)[0])
    plan = plan_for(model, boundary, rule, verify=True)
    upload, final = participate(model, plan)
    check_upload(upload, plan, model.layout, UploadLimits())
    assert torch.equal(reconstruct(plan, upload, model.layout), final - start)
    cut = model.layout.cut(boundary)
    trained = rule.traits.sends_scalars or rule.traits.sends_difference
    assert torch.equal(final[:cut], start[:cut]) == (cut == 0 or not trained)
    assert torch.equal(final[cut:], start[cut:]) == (boundary == BLOCKS)


@each
def test_its_parts_exist_and_fit(name: str) -> None:
    chosen = METHODS[name]
    chosen.local.check()
    aggregation_of(chosen.aggregation, tiny("llama").layout)
    assert chosen.summary == chosen.summary.strip() != ""
    assert "\n" not in chosen.summary


@each
def test_its_boundaries_fit_the_model_and_the_devices_unless_it_ignores_memory(name: str) -> None:
    for allowed in ([0, 1, 2, 3, 4], [2], [4, 4, 1], []):
        given = np.array(allowed, dtype=int)
        cuts = METHODS[name].boundary(given, 4)
        assert given.tolist() == allowed, "what was given stays as it is"
        assert cuts.shape == given.shape
        assert np.issubdtype(cuts.dtype, np.integer)
        assert ((cuts >= 0) & (cuts <= 4)).all()
        assert (cuts >= given).all() or not cuts.any()


class Counted(np.ndarray):
    """An array that counts what is done with it: operations on the whole, and looks at elements."""

    count = 0

    def __array_ufunc__(self, ufunc: np.ufunc, kind: str, *inputs: Any, **options: Any) -> Any:
        Counted.count += 1
        plain = [np.asarray(each) if isinstance(each, Counted) else each for each in inputs]
        return getattr(ufunc, kind)(*plain, **options)

    def __iter__(self) -> Any:
        Counted.count += len(self)
        return iter(np.asarray(self))

    def __getitem__(self, key: Any) -> Any:
        Counted.count += 1
        return np.asarray(self)[key]


@each
def test_its_boundaries_take_as_many_operations_for_a_thousand_devices_as_for_ten(
    name: str,
) -> None:
    counts = []
    for clients in (10, 1000):
        Counted.count = 0
        METHODS[name].boundary((np.arange(clients) % 4).view(Counted), 4)
        counts.append(Counted.count)
    assert counts[0] == counts[1]


@each
def test_its_options_make_the_same_method_also_from_a_file(name: str) -> None:
    chosen = METHODS[name]
    options = options_of(chosen)
    assert method(name, **options) == chosen
    written = tomllib.loads(tomli_w.dumps(options))
    assert method(name, **written) == chosen
    kept = {name: getattr(chosen, name) for name in ("boundary", "own_bottoms", "summary")}
    for other in METHODS:  # options say everything but what belongs to a method's name
        assert replace(method(other, **written), **kept) == chosen


@each
def test_its_rule_survives_a_plans_header(name: str) -> None:
    rule = METHODS[name].local
    assert LocalRule.from_spec(json.loads(json.dumps(rule.spec()))) == rule


@each
def test_its_options_keep_every_change(name: str) -> None:
    changes = {"lr": 0.3, "weight_decay": 0.2, "q": 9, "mu": 0.1, "proximal": 0.4, "beta": 0.6}
    words = {"estimator": "forward-mode", "aggregation": "by-precision", "shared_directions": True}
    for optimizer in ({"optimizer": "sgd"}, {"optimizer": "adamw", "beta1": 0.5, "eps": 1e-3}):
        changed = method(name, local_steps=3, **changes, **words, **optimizer)
        assert method(name, **options_of(changed)) == changed != METHODS[name]
        rule = changed.local
        assert (rule.optimizer.lr, rule.optimizer.weight_decay) == (0.3, 0.2)
        assert (rule.local_steps, rule.q, rule.mu, rule.proximal) == (3, 9, 0.1, 0.4)
        assert rule.directions == METHODS[name].local.directions.changed({"shared": True})
        assert (rule.estimator.name, changed.aggregation.name) == ("forward-mode", "by-precision")
        assert changed.policy.beta == 0.6
