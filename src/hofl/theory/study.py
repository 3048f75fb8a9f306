"""One fleet, several zeta^2: the bound against beta in three readings, and where it fails to apply.

The formal constants are enormous (C_star >= 144 C_0^2): no practical number of rounds reaches the
theorem's horizon. The study therefore shows the formula at the given T, the theorem at the shortest
horizon it covers, and the informal rate with unit constants, each under its name.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from hofl.core.errors import HoflError
from hofl.theory import rate
from hofl.theory.assumptions import Constants, at_least
from hofl.theory.tradeoff import (
    BoundCurve,
    Condition,
    Point,
    conditions,
    formal_curve,
    informal_curve,
    own_floor_zeros,
)


@dataclass(frozen=True)
class Study:
    """A fleet's policies and the constants they are judged by.

    Args:
        points: the policies, by ascending beta.
        num_clients: N.
        constants: L, L_s, sigma^2, a_H, Delta; its zeta^2 is replaced by each of ``zetas``.
        zetas: the zeta^2 to compare.
        rounds: T.
        local_steps: E.
        epsilon: the coverage floor, one for all policies as in the theorem.
        mu: the radius a run would use.
    """

    points: Sequence[Point]
    num_clients: int
    constants: Constants
    zetas: Sequence[float]
    rounds: int
    local_steps: int
    epsilon: float
    mu: float

    def __post_init__(self) -> None:
        at_least(1, rounds=self.rounds, local_steps=self.local_steps)
        if not self.mu > 0:
            raise HoflError(f"mu must be positive, got {self.mu}.")
        if not self.zetas:
            raise HoflError("give at least one zeta^2.")
        for zeta in self.zetas:
            self.at(zeta)

    def at(self, zeta: float) -> Constants:
        """Return the constants with this zeta^2."""
        return replace(self.constants, heterogeneity=zeta)

    @cached_property
    def zero(self) -> float:
        """C_0; it does not depend on zeta^2."""
        return rate.c_0(self.constants, self.num_clients, self.epsilon)

    @cached_property
    def horizon(self) -> float:
        """The shortest T at which the theorem covers every policy of the study."""
        star = rate.c_star(self.constants, self.num_clients, self.epsilon, self.zero)
        return max(rate.horizon(star, x.dimension) for x in self.points)

    def readings(self, points: Sequence[Point]) -> dict[str, list[BoundCurve]]:
        """Return the bounds against beta, one curve per zeta^2, in three readings."""
        formal = [self.at(zeta) for zeta in self.zetas]
        return {
            f"formula at T = {self.rounds:,}": [
                formal_curve(points, c, self.rounds, self.zero) for c in formal
            ],
            f"theorem at T = {self.horizon:.3g}": [
                formal_curve(points, c, self.horizon, self.zero) for c in formal
            ],
            f"unit constants at T = {self.rounds:,}": [
                informal_curve(points, zeta, self.rounds) for zeta in self.zetas
            ],
        }

    def best(self) -> dict[str, list[float]]:
        """Return the best beta per reading and zeta^2 among policies that the theorem covers."""
        limit = rate.MAX_SKEW
        allowed = [x for x in self.points if self.constants.affine * x.skew <= limit]
        if not allowed:
            raise HoflError("no beta satisfies a_H chi^2 <= 1/12: lower a_H or include beta = 0.")
        best = {
            name: [curve.best() for curve in curves]
            for name, curves in self.readings(allowed).items()
        }
        zeros = own_floor_zeros(allowed, self.constants, self.num_clients)
        best["theorem, epsilon = 1 - beta"] = [
            formal_curve(allowed, self.at(zeta), self.horizon, zeros).best() for zeta in self.zetas
        ]
        return best

    def conditions(self, x: Point) -> list[Condition]:
        """Check the theorem's requirements at one policy and the given T and mu."""
        constants, mu = self.constants, self.mu if x.remainder else None
        return conditions(x, constants, self.num_clients, self.epsilon, self.rounds, mu)

    def failures(self) -> list[str]:
        """List the requirements that fail: at which betas, and by how much at the first."""
        broken: dict[str, list[tuple[float, Condition]]] = {}
        for x in self.points:
            for condition in self.conditions(x):
                if not condition.holds:
                    broken.setdefault(condition.name, []).append((x.beta, condition))
        lines = []
        for cases in broken.values():
            first, last = cases[0], cases[-1]
            where = f"beta = {first[0]:.2f}"
            if len(cases) > 1:
                where += f" to {last[0]:.2f}"
            lines.append(f"{first[1]} ({where})")
        return lines

    def row(self, x: Point) -> dict[str, float | None]:
        """Return D, chi^2, M_p and the prescribed eta and mu of one policy at the given T."""
        largest = rate.radius(self.rounds, x.dimension, x.remainder)
        return {
            "beta": x.beta,
            "D": x.dimension,
            "chi2": x.skew,
            "M_p": x.remainder,
            "eta": rate.step_size(self.local_steps, self.rounds, x.dimension),
            "mu_max": largest if np.isfinite(largest) else None,
        }

    def summary(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        return {
            "C_0": self.zero,
            "C_0_coverage_free": rate.c_0_coverage_free(self.constants, self.num_clients),
            "horizon": self.horizon,
            "zeta2": list(self.zetas),
            "policies": [self.row(x) for x in self.points],
            "bounds": {
                name: [
                    {
                        "optimization": curve.optimization.tolist(),
                        "representation": curve.representation.tolist(),
                        "total": curve.total.tolist(),
                    }
                    for curve in curves
                ]
                for name, curves in self.readings(self.points).items()
            },
            "best_beta": self.best(),
            "failures": self.failures(),
        }
