"""Statistics of a fleet's updates, and the water-filling options that follow from them.

``hofl beta measure`` writes them; the configuration's ``method.policy.statistics`` reads them back.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hofl.core.errors import HoflError
from hofl.core.vectors import check_scores

FITTED = "water-filling"
"""The policy whose options follow from statistics."""


@dataclass(frozen=True)
class Statistics:
    """Moments of the clients' normalised updates U_i = (w - w_i^E) / h in one round.

    Args:
        means: a_i = E[U_i], [N, D].
        variances: v_i = E||U_i - a_i||^2, [N].
        gradient: g, the gradient of the global objective, [D].
        smoothness: L.
        step: h = eta E.
    """

    means: np.ndarray
    variances: np.ndarray
    gradient: np.ndarray
    smoothness: float
    step: float

    def __post_init__(self) -> None:
        check_scores(self.variances, "variance")
        clients, size = len(self.variances), np.size(self.gradient)
        if np.shape(self.means) != (clients, size) or np.ndim(self.gradient) != 1:
            raise HoflError(
                f"means must be [N, D] = [{clients}, {size}], as the variances and the gradient "
                f"say, got shape {np.shape(self.means)}."
            )
        for name in ("means", "gradient"):
            bad = np.argwhere(~np.isfinite(getattr(self, name)))
            if len(bad):
                raise HoflError(f"{name} must be finite: entry {bad[0].tolist()} is not.")
        for name in ("smoothness", "step"):
            if not 0 <= getattr(self, name) < np.inf:
                raise HoflError(f"{name} must be finite, not negative; got {getattr(self, name)}.")

    @cached_property
    def spread(self) -> np.ndarray:
        """||a_i - mean of a||^2, [N]."""
        return np.sum((self.means - self.means.mean(axis=0)) ** 2, axis=1)

    @property
    def weight(self) -> float:
        """A = 2 N H_a = 2 sum_i ||a_i - mean of a||^2."""
        return float(2 * self.spread.sum())

    def costs(self, cohort: int) -> np.ndarray:
        """c_i = (L h / K) [v_i + 2 ||a_i - mean of a||^2], [N]."""
        return self.smoothness * self.step / cohort * (self.variances + 2 * self.spread)

    def objective(self, p: np.ndarray, cohort: int) -> float:
        """Return J(p) = ||sum_i p_i a_i - g||^2 + c^T p."""
        bias = p @ self.means - self.gradient
        return float(bias @ bias + self.costs(cohort) @ p)

    def relaxed(self, p: np.ndarray, cohort: int) -> float:
        """Return A ||p - u||^2 + c^T p + 2 ||mean of a - g||^2, at least J (Cauchy-Schwarz)."""
        away = p - 1 / len(p)
        offset = self.means.mean(axis=0) - self.gradient
        return float(self.weight * away @ away + self.costs(cohort) @ p + 2 * offset @ offset)


def load_statistics(path: str) -> tuple[Statistics, tuple[int, ...]]:
    """Read the statistics and the boundaries that ``hofl beta measure`` wrote."""
    try:
        values: dict[str, Any] = json.loads(Path(path).read_bytes())
        arrays = {key: np.array(values[key]) for key in ("means", "variances", "gradient")}
        statistics = Statistics(**arrays, smoothness=values["smoothness"], step=values["step"])
        return statistics, tuple(values["boundaries"])
    except OSError as error:
        raise HoflError(f"cannot read statistics {path!r}: {error.strerror}.") from None
    except HoflError as error:
        raise HoflError(f"{path!r}: {error}") from None
    except (ValueError, KeyError, TypeError):
        raise HoflError(
            f"{path!r} does not hold statistics. Write them with hofl beta measure."
        ) from None


def fitted_options(
    path: str, policy: str | None, given: Collection[str], cohort: int
) -> dict[str, Any]:
    """Return the policy that a file of statistics fits: water-filling, with its A and c.

    Args:
        path: the file.
        policy: the policy's name, where one is given beside the file.
        given: names of the options given beside the file.
        cohort: K.
    """
    doubled = [key for key in ("weight", "costs") if key in given]
    if doubled:
        raise HoflError(f"statistics give weight and costs: leave {' and '.join(doubled)} out.")
    if policy not in (None, FITTED):
        raise HoflError(f"statistics are for policy {FITTED!r}, and the policy is {policy!r}.")
    statistics, _ = load_statistics(path)
    costs = tuple(statistics.costs(cohort).tolist())
    return {"name": FITTED, "weight": statistics.weight, "costs": costs}
