"""Tail probabilities of the chi-square and Student's t laws.

SciPy has both, but it is an optional dependency (``hofl[qp]``), and every run is audited; the
standard library and NumPy have neither. Tests compare these functions with SciPy's.
"""

import math

TINY = 1e-300
"""Stands for a zero denominator in Lentz's method."""


def upper_gamma(a: float, x: float) -> float:
    """Return Q(a, x), the regularised upper incomplete gamma: P(c chi^2_k > y) = Q(k/2, y/2c).

    The series of P below the mean and Lentz's continued fraction of Q above it, both of which
    converge in O(sqrt(a)) terms.
    """
    if x <= 0:
        return 1.0
    front = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        k = a
        while term > total * 1e-16:
            k += 1
            term *= x / k
            total += term
        return max(0.0, 1 - front * total)
    b = x + 1 - a
    d = 1 / b
    c, fraction = 1 / TINY, d
    k = 0.0
    while True:
        k += 1
        b += 2
        d = 1 / ((-k * (k - a)) * d + b or TINY)
        c = b + (-k * (k - a)) / c or TINY
        fraction *= c * d
        if abs(c * d - 1) < 1e-14:
            return front * fraction


def upper_t(t: float, freedom: float) -> float:
    """Return P(T > t) of Student's t: I_x(freedom/2, 1/2) / 2 at x = freedom / (freedom + t^2)."""
    tail = 0.5 * _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))
    return tail if t >= 0 else 1 - tail


def t_quantile(tail: float, freedom: float) -> float:
    """Return t with P(T > t) = ``tail`` of at most one half, by bisection: upper_t is decreasing.

    >>> round(t_quantile(0.025, 2), 4)
    4.3027
    """
    low, high = 0.0, 1.0
    while upper_t(high, freedom) > tail:
        high *= 2
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if upper_t(middle, freedom) > tail else (low, middle)
    return middle


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return I_x(a, b) by Lentz's fraction, on the side of the mean where it converges."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(front + a * math.log(x) + b * math.log1p(-x)) / a
    c, d = 1.0, 1 / ((1 - (a + b) * x / (a + 1)) or TINY)
    fraction = d
    for m in range(1, 10_000):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / ((1 + step * d) or TINY)
            c = (1 + step / c) or TINY
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * fraction
