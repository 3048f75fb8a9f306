"""Arguments and options that several commands share, and how their lists of numbers are read."""

import re
from pathlib import Path
from typing import Annotated

import typer

from hofl.core.errors import HoflError

TRANSPORT = "flower"
"""How messages travel unless another transport is named."""
_SOURCE = typer.Argument(help="TOML file, or the name of a recipe such as demo.")


def check_seed(value: int | None) -> int | None:
    """Refuse what cannot be a seed; as a range, the limits would fill the help."""
    if value is not None and not 0 <= value < 2**63:
        raise typer.BadParameter(f"{value} is not in the range 0 <= x < 2**63.")
    return value


Source = Annotated[str, _SOURCE]
OptionalSource = Annotated[str | None, _SOURCE]
Changes = Annotated[
    list[str] | None,
    typer.Argument(
        help="Changes to it: key=value, such as method.optimizer.lr=1e-3, or ~key to remove."
    ),
]
FromRound = Annotated[
    int | None,
    typer.Option(min=0, help="Go back to the checkpoint of this round; server.keep are kept."),
]
Plot = Annotated[Path | None, typer.Option(help="Write a figure: .html, .png or .svg.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Seed = Annotated[int, typer.Option(callback=check_seed, help="Seed of the run.")]
Clients = Annotated[int, typer.Option(min=1, help="N, devices in the fleet.")]
Cohort = Annotated[int, typer.Option(min=1, help="K, devices per round.")]
Rounds = Annotated[int, typer.Option(min=1, help="T, rounds of the run.")]
Tiers = Annotated[
    str, typer.Option(help="Boundary of each tier (or of each client), separated by commas.")
]
Backward = Annotated[
    bool, typer.Option("--backward/--no-backward", help="Can it run a block backward?")
]
Disk = Annotated[str | None, typer.Option(help="Free disk for streamed weights; 0 is none.")]
Seconds = Annotated[float | None, typer.Option(help="Most that a round may take.")]
Uplink = Annotated[str | None, typer.Option(help="Most that an upload may have: 1MiB.")]


def numbers(option: str, text: str, like: str) -> list[float]:
    """Read numbers separated by commas; ``like`` is what the error shows as an example."""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise HoflError(f"{option} {text!r}: write numbers, such as {like}.") from None


def whole_numbers(option: str, text: str, most: int | None = None) -> list[int]:
    """Read whole numbers separated by commas, from 0 to ``most`` where that is given."""
    words = [word.strip() for word in text.split(",")]
    allowed = ", such as 8,16,24" if most is None else f" from 0 to {most}"
    if not all(word.isdecimal() and (most is None or int(word) <= most) for word in words):
        raise HoflError(f"{option} {text!r}: write whole numbers{allowed}.")
    return [int(word) for word in words]


_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400}


def seconds_of(option: str, text: str) -> float:
    """Read a time: 90s, 30min, 2h, 1.5d."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h|d)\s*", text)
    if match is None or not float(match[1]):
        raise HoflError(f"{option} {text!r}: write a time above 0, such as 90s, 30min or 2h.")
    return float(match[1]) * _SECONDS[match[2]]


def more_rounds(changes: list[str]) -> int | None:
    """Return the rounds to which a resumed run is extended; it takes no other change."""
    rounds = None
    for change in changes:
        key, _, text = change.partition("=")
        if key != "rounds" or not text.isdecimal():
            raise HoflError(
                "--resume takes its configuration from the run, and no change of it but rounds=N, "
                f"which extends it: got {change!r}."
            )
        rounds = int(text)
    return rounds
