"""Federated methods as values: a local rule, a boundary rule, a sampling policy, an aggregation.

No method has a file or a branch of its own. To add one, add a value to ``METHODS``; to vary one,
use :func:`method`:

>>> method("hofl", lr=1e-3, beta=0.5).local.surrogate.name
'linear'
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hofl.core.errors import HoflError
from hofl.core.optim import SGD, AdamW, Optimizer, optimizer_from, optimizer_spec
from hofl.rules import PARTS, RULE_OPTIONS, LocalRule, Part
from hofl.sampling.policies import DimensionAware, Policy, Uniform, changed_policy, policy_spec
from hofl.variants import exact, forward_only, frozen
from hofl.workflows import WHOLE_MODEL, WORKFLOWS

BoundaryRule = Callable[[np.ndarray, int], np.ndarray]
"""(boundary that each device's memory allows [N], L) -> boundary that the method uses [N]."""


def device_boundary(allowed: np.ndarray, num_blocks: int) -> np.ndarray:
    """Cut on each device at the boundary that its memory allows."""
    return allowed


def common_boundary(allowed: np.ndarray, num_blocks: int) -> np.ndarray:
    """Cut everywhere at the boundary of the most constrained device, as in split learning."""
    return np.full_like(allowed, allowed.max(initial=0))


def all_first_order(allowed: np.ndarray, num_blocks: int) -> np.ndarray:
    """Cut at b = 0: plain backpropagation."""
    return np.zeros_like(allowed)


def all_zeroth_order(allowed: np.ndarray, num_blocks: int) -> np.ndarray:
    """Cut at b = L: no backpropagation at all."""
    return np.full_like(allowed, num_blocks)


UNIFORM, MEAN = Uniform(), Part("mean")


@dataclass(frozen=True, kw_only=True)
class Method:
    """A federated method.

    Args:
        summary: one line for people.
        local: what a client does.
        boundary: where it cuts the model.
        policy: sampling marginals.
        aggregation: the aggregation rule (``hofl.server.aggregate``).
        own_bottoms: whether a planned device may run another bottom than the method's: exact where
            it can, zeroth-order or frozen where it must.
        workflow: who holds what in ``hofl split``, from ``hofl.workflows``; ``hofl run`` gives
            every client the whole model, whatever the method.
    """

    summary: str
    local: LocalRule
    boundary: BoundaryRule = device_boundary
    policy: Policy = UNIFORM
    aggregation: Part = MEAN
    own_bottoms: bool = False
    workflow: Part = WHOLE_MODEL

    @property
    def splits(self) -> bool:
        """Whether it has a workflow between clients with the bottom and a server with the top."""
        return WORKFLOWS[self.workflow.name].make is not None

    @property
    def one_boundary(self) -> bool:
        """Whether the method cuts all devices at one boundary, whatever their memory."""
        return self.boundary is not device_boundary

    def rules(self, backward: bool) -> list[LocalRule]:
        """Return the rules that a planned device may run, the most exact one first.

        Args:
            backward: whether the device can run a block backward.
        """
        if not backward:
            return [forward_only(self.local)] if self.own_bottoms else []
        if not self.own_bottoms:
            return [self.local]
        return [exact(self.local), self.local, frozen(self.local)]


_ADAMW = AdamW(lr=1e-5)  # the paper's setting: weight decay 5e-4, moments (0.9, 0.999)
_HYBRID = LocalRule(optimizer=_ADAMW)
_FIRST_ORDER = LocalRule(optimizer=_ADAMW, bottom=Part("frozen"), surrogate=Part("none"), q=0)
_PURE_ZO = LocalRule(optimizer=_ADAMW, surrogate=Part("end-to-end"))
_MEZO = replace(_PURE_ZO, optimizer=SGD(lr=1e-3), estimator=Part("central"), q=1, mu=1e-2)

METHODS: dict[str, Method] = {
    "hofl": Method(
        summary="zeroth-order bottom, first-order top, a boundary per device, beta = 0.75",
        local=_HYBRID,
        policy=DimensionAware(0.75),
        own_bottoms=True,
    ),
    "hofl-uniform": Method(
        summary="HO-FL with uniform client sampling (beta = 0)", local=_HYBRID, own_bottoms=True
    ),
    "fedavg": Method(
        summary="backpropagation through the whole model on every device",
        local=_FIRST_ORDER,
        boundary=all_first_order,
    ),
    "fedprox": Method(
        summary="FedAvg with the proximal term 1e-3/2 ||w - w_t||^2",
        local=replace(_FIRST_ORDER, proximal=1e-3),
        boundary=all_first_order,
    ),
    "frozen-bottom": Method(
        summary="control: HO-FL's sampling and top, with a bottom that is not trained",
        local=_FIRST_ORDER,
        policy=DimensionAware(0.75),
    ),
    "recompute": Method(
        summary="exact bottom gradients, one block re-run at a time; uploads the whole difference",
        local=replace(_HYBRID, bottom=Part("recompute"), q=0),
    ),
    "decomfl": Method(
        summary="pure zeroth-order, end-to-end loss, AdamW with replay (the paper's baseline)",
        local=_PURE_ZO,
        boundary=all_zeroth_order,
    ),
    "decomfl-sgd": Method(
        summary="DeComFL as published: SGD, shared directions, catch-up from mean scalars",
        local=replace(
            _PURE_ZO,
            optimizer=SGD(lr=1e-3),
            directions=Part("gaussian", (("shared", True),)),
            q=5,
        ),
        boundary=all_zeroth_order,
        aggregation=Part("mean-of-scalars"),
    ),
    "hiso": Method(
        summary="HiSo: DeComFL, with directions scaled by a curvature that the server keeps",
        local=replace(
            _PURE_ZO,
            optimizer=SGD(lr=1e-5),
            directions=Part("curved", (("shared", True),)),
            local_steps=1,
            q=5,
        ),
        boundary=all_zeroth_order,
        aggregation=Part("mean-of-scalars"),
    ),
    "fedzo": Method(
        summary="FedZO: 20 directions on the unit sphere per step; uploads the whole difference",
        local=replace(
            _PURE_ZO,
            optimizer=SGD(lr=1e-3),
            bottom=Part("zeroth-order-vector"),
            directions=Part("sphere"),
            q=20,
        ),
        boundary=all_zeroth_order,
    ),
    "fedkseed": Method(
        summary="FedKSeed: MeZO along 4096 candidate directions, w rebuilt from w_0 every round",
        local=replace(_MEZO, optimizer=SGD(lr=3e-7), directions=Part("candidates"), mu=5e-4),
        boundary=all_zeroth_order,
        aggregation=Part("from-start"),
    ),
    "mezo": Method(
        summary="MeZO: central difference, one direction, SGD; with one client the original",
        local=_MEZO,
        boundary=all_zeroth_order,
    ),
    "ho-sfl": Method(
        summary="HO-SFL: linear surrogate, one common boundary, scalars averaged in every step",
        local=replace(_HYBRID, local_steps=1),
        boundary=common_boundary,
        workflow=Part("shared-steps"),
    ),
    "hosl": Method(
        summary="HOSL: end-to-end surrogate, central difference, one common boundary",
        local=replace(
            _HYBRID,
            optimizer=SGD(lr=1e-3),
            surrogate=Part("end-to-end"),
            estimator=Part("central"),
            local_steps=1,
            q=10,
        ),
        boundary=common_boundary,
        workflow=Part("shared-steps"),
    ),
    "heron-sfl": Method(
        summary="HERON-SFL: bottom and auxiliary head by zeroth order, weights averaged",
        local=replace(_HYBRID, optimizer=SGD(lr=1e-3), surrogate=Part("auxiliary-head"), q=1),
        boundary=common_boundary,
        workflow=Part("local-steps"),
    ),
}

OPTIONS = ("optimizer", *RULE_OPTIONS, "policy", "aggregation", "workflow")
"""Values of a method that can be replaced; a part is a name, or a table of name and options."""
PART_OPTIONS = ("optimizer", *PARTS, "policy", "aggregation", "workflow")
"""The options that are parts."""
SHORT: dict[str, tuple[str, str]] = {
    **{key: ("optimizer", key) for key in ("lr", "weight_decay", "beta1", "beta2", "eps")},
    "clip_norm": ("optimizer", "clip_norm"),
    **{key: ("policy", key) for key in ("beta", "beta_schedule", "beta_end", "min_participations")},
    **{key: ("policy", key) for key in ("weight", "floor", "costs", "statistics")},
    "shared_directions": ("directions", "shared"),
}
"""Options that may be given without their table: ``lr`` is ``optimizer.lr``."""


def nested(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with short ones moved into their tables.

    >>> nested({"policy": "dimension-aware", "beta": 0.5, "q": 4})
    {'policy': {'name': 'dimension-aware', 'beta': 0.5}, 'q': 4}
    """
    result = {key: value for key, value in options.items() if key not in SHORT}
    for key, value in options.items():
        if key in SHORT:
            table, inner = SHORT[key]
            part = result.get(table, {})
            part = {"name": part} if isinstance(part, str) else part
            if not isinstance(part, Mapping):
                raise HoflError(f"{table} must be a name or a table, got {part!r:.80}.")
            if inner in part:
                raise HoflError(f"{key} and {table}.{inner} are the same option: give it once.")
            result[table] = {**part, inner: value}
    return result


def method(name: str, **options: Any) -> Method:
    """Return a method from ``METHODS`` with some of its values replaced.

    Args:
        name: a key of ``METHODS``.
        **options: of ``OPTIONS``, or short ones such as lr and beta (``SHORT``). A part is a name
            or a table; a table without a name changes options of the part that the method has.
    """
    if name not in METHODS:
        raise HoflError(f"unknown method {name!r}: choose one of {', '.join(METHODS)}.")
    base, values = METHODS[name], nested(options)
    unknown = sorted(set(values) - set(OPTIONS))
    if unknown:
        known = ", ".join((*OPTIONS, *SHORT))
        raise HoflError(f"method has no option {unknown[0]!r}: it takes {known}.")
    local = {key: values[key] for key in RULE_OPTIONS if key in values}
    for key in PARTS:
        if key in local:
            local[key] = getattr(base.local, key).changed(local[key])
    if "optimizer" in values:
        local["optimizer"] = _changed_optimizer(base.local.optimizer, values["optimizer"])
    changes: dict[str, Any] = {"local": replace(base.local, **local)}
    if changes["local"].bottom != base.local.bottom:
        changes["own_bottoms"] = False  # whoever names a bottom wants that one
    if "policy" in values:
        changes["policy"] = changed_policy(base.policy, _table(values["policy"]))
    for key in ("aggregation", "workflow"):
        if key in values:
            changes[key] = getattr(base, key).changed(values[key])
    if changes.get("workflow", base.workflow).name not in WORKFLOWS:
        unknown_name, known = changes["workflow"].name, ", ".join(WORKFLOWS)
        raise HoflError(f"unknown workflow {unknown_name!r:.40}: choose one of {known}.")
    return replace(base, **changes)


def options_of(chosen: Method) -> dict[str, Any]:
    """Return all options of a method: ``method(name, **options_of(m))`` equals m."""
    return {
        **chosen.local.spec(),
        "policy": policy_spec(chosen.policy),
        "aggregation": chosen.aggregation.spec(),
        "workflow": chosen.workflow.spec(),
    }


def _changed_optimizer(base: Optimizer, change: str | Mapping[str, Any]) -> Optimizer:
    """Return the changed optimizer; a named one keeps the learning rate alone, unless given."""
    old, new = optimizer_spec(base), _table(change)
    return optimizer_from({**({"lr": old["lr"]} if "name" in new else old), **new})


def _table(spec: str | Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(spec, str | Mapping):
        raise HoflError(f"a part is a name or a table, got {spec!r:.80}.")
    return {"name": spec} if isinstance(spec, str) else dict(spec)
