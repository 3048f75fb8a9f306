"""Placeholder."""

EXAMPLE = "x"


def measure() -> None:
    """Placeholder."""
