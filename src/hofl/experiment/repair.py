"""``hofl repair``: bring a damaged run back to work, with as little lost as possible.

Where a checkpoint and all records up to it are sound, the run returns to it and ends in the bits it
would have had. Where only records are damaged, placeholders stand for them.
"""

from collections.abc import Sequence
from pathlib import Path

from hofl.core.errors import HoflError
from hofl.experiment.checkpoint import (
    forget_states,
    forget_unsound,
    load_state,
    return_to,
    sound_rounds,
)
from hofl.experiment.journal import Journal
from hofl.experiment.metrics import revealed
from hofl.experiment.records import RoundRecord
from hofl.experiment.runs import RunDirectory


def repair(path: Path) -> list[str]:
    """Repair a run; return what was done, a line each, nothing where nothing was damaged.

    Raises:
        HoflError: nothing can be done; nothing was changed.
    """
    run = RunDirectory.open(path)
    run.config()  # nothing here could write that again
    with run.locked():
        run.sweep()
        if not _complete(run):
            run.check_accounted(max(sound_rounds(run), default=-1))
        done = [*_repaired(run), *(f"removed the damaged {name}" for name in forget_unsound(run))]
        if done:
            Journal(run.path).append("repaired", {"done": done})
        return done


def _repaired(run: RunDirectory) -> list[str]:
    done = [*_secret(run), *_result(run)]
    lines = [record for record, _ in run.rounds.lines()]
    rounds = sound_rounds(run)
    if not rounds:
        return done + _from_the_start(run, lines)
    damaged = [n for n in range(rounds[0] + 1) if n >= len(lines) or lines[n] is None]
    whole = [t for t in rounds if all(n > t for n in damaged)]
    if damaged and (run.summary() is not None or not whole):
        known = lines[: rounds[0] + 1] + [None] * (rounds[0] + 1 - len(lines))
        run.rounds.replace(
            [record or RoundRecord(round=n, repaired=True) for n, record in enumerate(known)]
        )
        lost = ", ".join(map(str, damaged))
        done.append(f"placeholders stand for the lost records of rounds {lost}")
        whole = rounds
    if whole[0] < rounds[0] or not _loads(run):
        return_to(run, whole[0])
        run.rounds.forget_after(whole[0])
        done.append(f"returned to round {whole[0]}, the last one that is sound")
    return done


def _secret(run: RunDirectory) -> list[str]:
    secret = run.secret()
    if not run.damaged_secrets():
        return []
    run.keep_secret(secret)
    return ["the secret was written again from its other copy"]


def _result(run: RunDirectory) -> list[str]:
    """Forget a damaged result: resuming writes it again from the last checkpoint."""
    try:
        run.finished()
    except HoflError:
        run.unfinish()
        return ["the damaged result was removed; a resume writes it again"]
    return []


def _from_the_start(run: RunDirectory, lines: Sequence[RoundRecord | None]) -> list[str]:
    """Forget all rounds, where no checkpoint is sound; every key is still there."""
    if not forget_states(run) and (not lines or (len(lines) == 1 and lines[0])):
        return []  # it was stopped before its first checkpoint
    run.unfinish()
    spent = revealed(lines)
    run.rounds.replace([RoundRecord(round=0, lost=spent)] if spent else [])
    return ["no checkpoint is sound: a resume starts from round 0"]


def _complete(run: RunDirectory) -> bool:
    """Return whether a run is finished, and neither its result nor its end is damaged."""
    try:
        return run.finished() is not None and _loads(run)
    except HoflError:
        return False


def _loads(run: RunDirectory) -> bool:
    try:
        return load_state(run) is not None
    except HoflError:
        return False
