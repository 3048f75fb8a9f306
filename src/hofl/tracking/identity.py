"""RUN/tracking.json: what trackers call a run, so that a resumed run keeps its name."""

import json
from collections.abc import Callable
from pathlib import Path

from hofl.core.durable import write_whole

NAME = "tracking.json"


def kept(run: Path, tracker: str, make: Callable[[], str]) -> str:
    """Return the identity that a tracker gave a run, made when it has none yet."""
    file = run / NAME
    try:
        known = dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # none yet, or damaged: the run gets new ones
        known = {}
    if not isinstance(known.get(tracker), str):
        known[tracker] = make()
        write_whole(file, json.dumps(known) + "\n")
    return str(known[tracker])
