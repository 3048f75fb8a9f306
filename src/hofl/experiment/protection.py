"""From the privacy section of a configuration to what plans ask; combinations that cannot work."""

import math

from hofl.errors import HoflError
from hofl.experiment.config import PrivacyConfig
from hofl.messages import LocalRule
from hofl.privacy import Privacy
from hofl.server.accounting import epsilon
from hofl.server.checks import UploadLimits


def privacy_of(config: PrivacyConfig) -> Privacy | None:
    """What plans ask of devices; None without noise."""
    clips = (config.scalar_clip, config.difference_clip)
    if config.noise == 0:
        if any(clip is not None for clip in clips):
            raise HoflError("clipping alone protects nobody: set privacy.noise above 0.")
        return None
    if config.scalar_clip is None or config.difference_clip is None:
        raise HoflError(
            "privacy.noise needs privacy.scalar_clip and privacy.difference_clip: "
            "noise hides only what is bounded."
        )
    epsilon(config.noise, 1, config.delta)  # without an accountant it is told now
    return Privacy(
        noise=config.noise,
        scalar_clip=config.scalar_clip,
        difference_clip=config.difference_clip,
    )


def check_limits(privacy: Privacy, limits: UploadLimits, rule: LocalRule, size: int) -> None:
    """Refuse limits on uploads that the noise alone exceeds more often than not.

    Args:
        privacy: clips and noise.
        limits: of the server.
        rule: the local rule.
        size: values of the largest difference.
    """
    norm = privacy.noise * 2 * privacy.difference_clip * math.sqrt(size)
    if norm > limits.max_norm:
        raise HoflError(
            f"the noise on a difference of {size} values has a norm of about {norm:.3g}: "
            f"server.max_norm {limits.max_norm:.3g} would refuse it. Leave it out or raise it."
        )
    scale = privacy.noise * 2 * privacy.scalar_clip
    if rule.bottom == "zeroth-order" and scale > limits.max_scalar:
        raise HoflError(
            f"the noise on a scalar has a standard deviation of {scale:.3g}: "
            f"server.max_scalar {limits.max_scalar:.3g} would refuse it. Leave it out or raise it."
        )
