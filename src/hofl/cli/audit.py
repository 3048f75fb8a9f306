"""``hofl audit`` and ``hofl repair``: check a run's log, and bring a damaged run back to work."""

import json
from datetime import date, datetime
from pathlib import Path
from typing import Annotated

import typer

from hofl.cli.options import AsJson
from hofl.core.errors import HoflError
from hofl.experiment.journal import Journal, of_day, story

EXAMPLES = {
    "audit": ("hofl audit runs/a", "hofl audit runs/a --day 2026-03-01"),
    "repair": ("hofl repair runs/a",),
}


def audit(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    day: Annotated[str, typer.Option(help="Only this day, YYYY-MM-DD, in UTC.")] = "",
    as_json: AsJson = False,
) -> None:
    """Check a run's audit log, line by line, and print its story.

    The digest at the end covers everything before it: keep it elsewhere, and compare it with a
    later one's line of that time.
    """
    chosen = _date(day) if day else None
    events, digest = Journal(run).verified()
    shown = of_day(events, chosen) if chosen else events
    if as_json:
        typer.echo(json.dumps({"events": shown, "sha256": digest}))
        return
    for line in story(shown):
        typer.echo(line)
    if chosen and not shown:
        typer.echo(f"no event on {chosen}")
    typer.echo(f"{len(events)} events, all as they were written; SHA-256 of the last: {digest}")


def repair(run: Annotated[Path, typer.Argument(help="Folder of the run.")]) -> None:
    """Return a run to its last sound checkpoint, and remove what is damaged.

    Nothing else is lost: resuming it trains the rounds after that one again.
    """
    from hofl.experiment.repair import repair as repaired

    done = repaired(run)
    for line in done:
        typer.echo(line)
    typer.echo("now resume the run" if done else "nothing is damaged")


def _date(text: str) -> date:
    try:
        return datetime.strptime(text, "%Y-%m-%d").date()
    except ValueError:
        raise HoflError(f"--day {text!r} is not a day. Give one such as 2026-03-01.") from None
