"""From the method and privacy sections of a configuration to checked values."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hofl.core.directions import TOTALS, DirectionKey
from hofl.core.errors import HoflError
from hofl.core.layout import Layout
from hofl.core.privacy import Privacy
from hofl.experiment.config import ExperimentConfig, MethodConfig, PrivacyConfig
from hofl.local.step import LocalParts
from hofl.methods import Method
from hofl.methods import method as named_method
from hofl.models.split import SplitModel
from hofl.rules import DIRECTIONS
from hofl.sampling.statistics import fitted_options, load_statistics
from hofl.server.accounting import epsilon
from hofl.server.aggregate import aggregation_of
from hofl.server.checks import UploadLimits
from hofl.server.state import keeper_of

_NO_PARAMETERS = Layout((), (), (), 1)


def build_method(config: ExperimentConfig) -> Method:
    """Return the method with the configuration's values in place, every part checked."""
    options = config.method.options()
    policy = options.get("policy")
    if isinstance(policy, dict) and "statistics" in policy:
        others = {key: value for key, value in policy.items() if key != "statistics"}
        name, file = others.pop("name", None), policy["statistics"]
        fitted = fitted_options(file, name, others, config.fleet.cohort)
        options["policy"] = {**others, **fitted}
    chosen = named_method(config.method.name, **options)
    _check_parts(chosen)
    return chosen


def _check_parts(chosen: Method) -> None:
    """Make every part once, to refuse unknown names and options before anything is loaded."""
    rule, directions = chosen.local, chosen.local.directions
    rule.check()
    LocalParts.of(rule, 1)
    keeper = keeper_of(directions, _NO_PARAMETERS)
    vectors = {name: vector.numpy() for name, vector in keeper.start().items()}
    key = DirectionKey(0, 0, 0)
    directions.made_by(DIRECTIONS[directions.name].make, key, _NO_PARAMETERS, vectors)
    if getattr(aggregation_of(chosen.aggregation, _NO_PARAMETERS), "from_start", False):
        _check_rebuilt(chosen)


def _check_rebuilt(chosen: Method) -> None:
    """Refuse a method whose w does not follow from w_0 and one sum of scalars per candidate."""
    rule, name = chosen.local, chosen.aggregation.name
    kept = keeper_of(rule.directions, _NO_PARAMETERS).start()
    whole = chosen.boundary(np.array([0]), 1).all() and rule.traits.sends_scalars
    missing = {
        "directions=candidates": TOTALS in kept,
        "a bottom that is the whole model and sends scalars": whole,
        "optimizer=sgd without weight_decay": rule.optimizer.sums,
        "proximal=0": rule.proximal == 0,
    }
    for needed, there in missing.items():
        if not there:
            raise HoflError(f"aggregation {name!r} needs {needed}: set it, or use mean.")


def check_measured_fleet(section: MethodConfig, boundaries: tuple[int, ...]) -> None:
    """Refuse statistics of another fleet: a cost belongs to a client."""
    policy = section.options().get("policy")
    if not isinstance(policy, dict) or "statistics" not in policy:
        return
    file = policy["statistics"]
    _, measured = load_statistics(file)
    if len(measured) != len(boundaries):
        raise HoflError(
            f"{file!r} holds {len(measured)} clients, the fleet {len(boundaries)}. "
            "Measure this fleet with hofl beta measure."
        )
    for client, (then, now) in enumerate(zip(measured, boundaries, strict=True)):
        if then != now:
            raise HoflError(
                f"{file!r} was measured on another fleet: client {client} had boundary {then} and "
                f"has {now}. Measure this fleet with hofl beta measure."
            )


def check_head(model: SplitModel, boundaries: Sequence[int]) -> None:
    """Refuse a surrogate that copies more blocks than there are above a boundary."""
    copies = 0 if model.surrogate is None else model.surrogate.copies
    most = model.num_blocks - max(boundaries, default=0)
    if copies > most:
        raise HoflError(
            f"a head of {copies} blocks does not fit above boundary {max(boundaries)}: set "
            f"method.surrogate.blocks to at most {most}."
        )


def build_privacy(section: PrivacyConfig) -> Privacy | None:
    """Return the privacy that round plans ask for; None without noise."""
    clips: tuple[Any, ...] = (section.scalar_clip, section.difference_clip)
    if section.noise == 0:
        if any(clip is not None for clip in clips):
            raise HoflError("clipping alone gives no privacy: set privacy.noise above 0.")
        return None
    if section.scalar_clip is None or section.difference_clip is None:
        raise HoflError(
            "privacy.noise needs privacy.scalar_clip and privacy.difference_clip: "
            "noise hides only what is bounded."
        )
    epsilon(section.noise, 1, section.delta)  # report a missing accountant now
    return Privacy(
        noise=section.noise,
        scalar_clip=section.scalar_clip,
        difference_clip=section.difference_clip,
    )


def check_limits(privacy: Privacy, limits: UploadLimits, method: Method, layout: Layout) -> None:
    """Refuse an aggregation that needs n_i, and limits that the noise alone exceeds.

    Args:
        privacy: clips and noise.
        limits: of the server.
        method: the federated method.
        layout: the shared coordinates.
    """
    rule, size = method.local, layout.size
    if getattr(aggregation_of(method.aggregation, layout), "needs_examples", False):
        raise HoflError(
            f"aggregation {method.aggregation.name!r} needs the number of examples of every "
            "device, which private devices do not report: use mean."
        )
    norm = privacy.noise * 2 * privacy.difference_clip * math.sqrt(size)
    if norm > limits.max_norm:
        raise HoflError(
            f"the noise on a difference of {size} values has a norm of about {norm:.3g}: "
            f"server.max_norm {limits.max_norm:.3g} would refuse it. Remove or raise the limit."
        )
    scale = privacy.noise * 2 * privacy.scalar_clip
    if rule.traits.sends_scalars and scale > limits.max_scalar:
        raise HoflError(
            f"the noise on a scalar has a standard deviation of {scale:.3g}: "
            f"server.max_scalar {limits.max_scalar:.3g} would refuse it. Remove or raise the limit."
        )
