"""Which of a model's scores is shown first."""

from collections.abc import Mapping
from typing import Any

HEADLINES = ("accuracy", "f1")


def headline(scores: Mapping[str, Any]) -> tuple[str, float]:
    """Name and value of the score that tables, curves and progress displays show.

    >>> headline({"em": 0.25, "f1": 0.5, "loss": 2.0})
    ('f1', 0.5)
    """
    name = next(name for name in HEADLINES if name in scores)
    return name, scores[name]
