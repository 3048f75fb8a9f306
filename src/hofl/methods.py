"""Federated methods as values: a local rule, a boundary rule, a sampling policy, an aggregation.

No method has a file or a branch of its own. To add one, add a value to ``METHODS``; to vary one,
use :func:`method`:

>>> method("hofl", lr=1e-3, beta=0.5).local.surrogate
'linear'
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from hofl.errors import HoflError
from hofl.messages import LocalRule
from hofl.optim import SGD, AdamW, optimizer_from, optimizer_spec
from hofl.sampling.named import OPTIONS as _POLICY_OPTIONS
from hofl.sampling.named import changed_policy, policy_options
from hofl.sampling.policies import DimensionAware, Policy, Uniform

BoundaryRule = Callable[[int, Sequence[int], int], int]
"""(the device's own boundary, all devices' boundaries, L) -> the boundary this method uses."""


def device_boundary(own: int, fleet: Sequence[int], num_blocks: int) -> int:
    """Each device at the boundary its own memory allows."""
    return own


def common_boundary(own: int, fleet: Sequence[int], num_blocks: int) -> int:
    """Everyone at the boundary of the most constrained device, as split learning requires."""
    return max(fleet)


def all_first_order(own: int, fleet: Sequence[int], num_blocks: int) -> int:
    """B = 0: plain backpropagation."""
    return 0


def all_zeroth_order(own: int, fleet: Sequence[int], num_blocks: int) -> int:
    """B = L: no backpropagation at all."""
    return num_blocks


UNIFORM = Uniform()


@dataclass(frozen=True, kw_only=True)
class Method:
    """A federated method.

    Args:
        summary: one line for people.
        local: what a client does.
        boundary: where it cuts the model.
        policy: sampling marginals.
        aggregation: name of the aggregation rule (``hofl.server.aggregate``).
        shared_directions: one set of directions for the whole cohort.
    """

    summary: str
    local: LocalRule
    boundary: BoundaryRule = device_boundary
    policy: Policy = UNIFORM
    aggregation: str = "mean"
    shared_directions: bool = False


_ADAMW = AdamW(lr=1e-5)  # the paper's setting: weight decay 5e-4, moments (0.9, 0.999)
_HYBRID = LocalRule(optimizer=_ADAMW)
_FIRST_ORDER = LocalRule(optimizer=_ADAMW, bottom="frozen", surrogate="none", q=0)
_PURE_ZO = LocalRule(optimizer=_ADAMW, surrogate="end-to-end")

METHODS: dict[str, Method] = {
    "hofl": Method(
        summary="zeroth-order bottom, first-order top, own boundary per device, beta = 0.75",
        local=_HYBRID,
        policy=DimensionAware(0.75),
    ),
    "hofl-uniform": Method(summary="HO-FL with uniform client sampling (beta = 0)", local=_HYBRID),
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
        summary="control: HO-FL's sampling and top, while the bottom is never changed",
        local=_FIRST_ORDER,
        policy=DimensionAware(0.75),
    ),
    "recompute": Method(
        summary="exact bottom gradients, one block re-run at a time; uploads the whole difference",
        local=replace(_HYBRID, bottom="recompute", q=0),
    ),
    "decomfl": Method(
        summary="pure zeroth-order, end-to-end loss, AdamW with replay (the paper's baseline)",
        local=_PURE_ZO,
        boundary=all_zeroth_order,
    ),
    "decomfl-sgd": Method(
        summary="DeComFL in its own form: SGD, and directions shared by the whole cohort",
        local=replace(_PURE_ZO, optimizer=SGD(lr=1e-3), q=5),
        boundary=all_zeroth_order,
        shared_directions=True,
    ),
    "fedzo": Method(
        summary="pure zeroth-order SGD with own directions per client (FedZO style)",
        local=replace(_PURE_ZO, optimizer=SGD(lr=1e-3)),
        boundary=all_zeroth_order,
    ),
    "mezo": Method(
        summary="pure zeroth-order SGD, central difference, one direction (MeZO style)",
        local=replace(_PURE_ZO, optimizer=SGD(lr=1e-3), estimator="central", q=1, mu=1e-2),
        boundary=all_zeroth_order,
    ),
    "ho-sfl": Method(
        summary="HO-SFL's step: linear surrogate, one common boundary, E = 1",
        local=replace(_HYBRID, local_steps=1),
        boundary=common_boundary,
    ),
    "hosl": Method(
        summary="HOSL's step: end-to-end surrogate, central difference, one common boundary",
        local=replace(_HYBRID, surrogate="end-to-end", estimator="central", local_steps=1),
        boundary=common_boundary,
    ),
}

_OPTIMIZER_OPTIONS = ("optimizer", "lr", "weight_decay", "beta1", "beta2", "eps", "clip_norm")
_LOCAL_OPTIONS = tuple(f.name for f in fields(LocalRule) if f.name != "optimizer")
_METHOD_OPTIONS = ("aggregation", "shared_directions")
OPTIONS = (*_OPTIMIZER_OPTIONS[:-1], *_LOCAL_OPTIONS, *_POLICY_OPTIONS, *_METHOD_OPTIONS)


def method(name: str, **options: Any) -> Method:
    """A method from ``METHODS`` with some of its values replaced.

    Args:
        name: a key of ``METHODS``.
        **options: optimizer, lr, weight_decay, local_steps, q, mu, estimator, surrogate, bottom,
            proximal, uplink_bits, aggregation, shared_directions; policy and what the sampling
            policy takes: beta, beta_schedule, beta_end, min_participations, or weight, floor,
            costs.
    """
    if name not in METHODS:
        raise HoflError(f"unknown method {name!r}: choose one of {', '.join(METHODS)}.")
    unknown = sorted(set(options) - set(OPTIONS) - {"clip_norm"})
    if unknown:
        raise HoflError(f"method has no option {unknown[0]!r}: it takes {', '.join(OPTIONS)}.")
    base = METHODS[name]
    changes = {key: options[key] for key in _METHOD_OPTIONS if key in options}
    sampling = {key: options[key] for key in _POLICY_OPTIONS if key in options}
    if sampling:
        changes["policy"] = changed_policy(base.policy, sampling)
    local = {key: options[key] for key in _LOCAL_OPTIONS if key in options}
    spec = {key: options[key] for key in _OPTIMIZER_OPTIONS[1:] if key in options}
    if spec or "optimizer" in options:
        old = optimizer_spec(base.local.optimizer)
        kind = options.get("optimizer", old["name"])
        kept = old if kind == old["name"] else {"lr": old["lr"]}
        local["optimizer"] = optimizer_from({**kept, **spec, "name": kind})
    return replace(base, local=replace(base.local, **local), **changes)


def options_of(chosen: Method) -> dict[str, Any]:
    """All options of a method: ``method(name, **options_of(m))`` equals m."""
    spec = optimizer_spec(chosen.local.optimizer)
    local = {key: getattr(chosen.local, key) for key in _LOCAL_OPTIONS}
    return {
        "optimizer": spec.pop("name"),
        **spec,
        **local,
        **policy_options(chosen.policy),
        "aggregation": chosen.aggregation,
        "shared_directions": chosen.shared_directions,
    }
