"""RUN/audit.jsonl: what happened to a run and when, append-only, each line bound to the one before.

Every line is sealed and holds the SHA-256 of the line before it: a line that was changed, removed,
inserted or moved shows (``hofl audit``). Whoever can write the file could rewrite all of it; the
last digest, kept elsewhere, shows that, too, and lines cut off at the end.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hofl.core.durable import has_seal, intact, sealed
from hofl.core.errors import HoflError, printable, reason_of
from hofl.core.version import VERSION
from hofl.experiment.records import RoundRecord
from hofl.experiment.runs import RunDirectory

if TYPE_CHECKING:
    from hofl.experiment.rounds import Observer

FIRST = "0" * 64
"""In place of the digest of a line before the first."""
NAME = "audit.jsonl"
BLOCK = 1 << 16
"""Bytes that are read from the end first."""
# What is copied from a round's record.
_OF_A_ROUND = ("round", "cohort", "answered", "refused", "dropped", "resting", "repeats", "lost")


class Journal:
    """Writes and reads one run's audit log."""

    def __init__(self, run: Path) -> None:
        self._path = run / NAME

    def append(self, event: str, facts: Mapping[str, Any] | None = None) -> None:
        """Add one event, durably; what a kill left of a line is cut off first.

        A last line that has its seal was written whole: it is never removed, and if its end is
        damaged, that shows.
        """
        (last, rest), end = _tail(self._path), ""
        if has_seal(rest.decode(errors="replace")):
            last, end = rest, "\n"
        elif rest:
            os.truncate(self._path, self._path.stat().st_size - len(rest))
        values = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "event": event,
            **(facts or {}),
            "previous": hashlib.sha256(last).hexdigest() if last else FIRST,
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(end + sealed(json.dumps(values)) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def verified(self) -> tuple[list[dict[str, Any]], str]:
        """Return all events and the digest of the last line.

        Raises:
            HoflError: a line does not fit the one before it, or is damaged; or there is no log.
        """
        if not self._path.exists():
            RunDirectory.open(self._path.parent)
            raise HoflError(
                f"{self._path.parent} has no {NAME}: it was removed, the run has not started to "
                "train, or an earlier version ran it."
            )
        before, events = FIRST, []
        for number, line in enumerate(self._lines(), start=1):
            event = _parsed(line)
            if event is None or event.get("previous") != before:
                raise HoflError(
                    f"{self._path} is not as it was written from line {number} on: that line was "
                    "changed, removed or inserted. Restore it from a backup; training does not "
                    "need it."
                )
            before = hashlib.sha256(line).hexdigest()
            events.append(event)
        if not events:
            raise HoflError(
                f"{self._path} has no event: it was emptied, or a kill cut off the first. "
                "Restore it from a backup; training does not need it."
            )
        return events, before

    def last(self) -> dict[str, Any]:
        """Return the last event, unverified; empty without one."""
        return _parsed(_tail(self._path)[0]) or {}

    def complete(self, records: Iterable[RoundRecord]) -> None:
        """Add the kept rounds that are missing: a kill came between a checkpoint and its line."""
        written: set[int] = set()
        for event in map(_parsed, self._lines()):
            if event is None:
                continue
            reached = event.get("round", 0)
            if event["event"] == "round":
                written.add(reached)
            elif event["event"] in ("started", "returned"):
                written = {number for number in written if number <= reached}
        for record in records:
            if record.round and record.round not in written:
                self.append("round", {**_of_a_round(record.to_json()), "late": True})

    def _lines(self) -> list[bytes]:
        """Return all lines but one that a kill cut off."""
        data = self._path.read_bytes() if self._path.exists() else b""
        *lines, rest = data.split(b"\n")
        return [*lines, rest] if has_seal(rest.decode(errors="replace")) else lines

    def watching(
        self, observe: "Observer", records: Callable[[], Iterable[RoundRecord]]
    ) -> "Observer":
        """Return an observer that writes down what an auditor asks for, and passes all on.

        Args:
            observe: gets every event as well.
            records: returns the rounds kept so far.
        """

        def note(event: str, facts: Mapping[str, Any]) -> None:
            if event == "start":
                self.complete(records())
                self.append("started", {"version": VERSION, "round": facts["round"]})
            elif event == "round":
                self.append("round", _of_a_round(facts))
            elif event in ("device", "lost", "stop"):
                self.append(event, facts)
            elif event == "end":
                self.append("finished", {"adapter_sha256": facts["adapter_sha256"]})
            observe(event, facts)

        return note

    def stopped(self, error: BaseException) -> None:
        """Write down why training ended before its time."""
        self.append("stopped", {"reason": reason_of(error)[:500]})


def of_day(events: Sequence[Mapping[str, Any]], day: date) -> list[Mapping[str, Any]]:
    """Return the events of one day, in UTC."""
    return [event for event in events if event["time"].startswith(day.isoformat())]


def story(events: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for people about every event."""
    for event in events:
        yield f"{event['time'][:19].replace('T', ' ')}  {_line(event)}"


def _line(event: Mapping[str, Any]) -> str:
    kind = event["event"]
    if kind == "round":
        line = f"round {event['round']} kept: {len(event.get('answered', ()))} of "
        line += f"{len(event.get('cohort', ()))} answered"
        for client, reason in event.get("refused", {}).items():
            line += f"; client {client} refused: {reason}"
        again = len(event.get("repeats", ()))
        line += f"; drawn {again + 1} times" if again else ""
        return line + ("; a kill came before this line, a later start wrote it" * ("late" in event))
    rest = {name: event[name] for name in event if name not in ("time", "event", "previous")}
    rest.pop("sha256", None)
    rest.pop("adapter_sha256", None)
    shown = ", ".join(f"{name} {printable(value)}" for name, value in rest.items())
    return f"{kind}: {shown}" if shown else str(kind)


def _of_a_round(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: facts[name] for name in _OF_A_ROUND if facts.get(name)}


def _tail(path: Path) -> tuple[bytes, bytes]:
    """Return the last whole line and what comes after it; a log of years is not read for that."""
    if not path.exists():
        return b"", b""
    with path.open("rb") as file:
        size, block = file.seek(0, os.SEEK_END), BLOCK
        while True:
            file.seek(max(0, size - block))
            lines = file.read().split(b"\n")
            if len(lines) > 2 or block >= size:
                return (lines[-2] if len(lines) > 1 else b""), lines[-1]
            block *= 2


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        text = line.decode()
        event = json.loads(text)
    except ValueError:
        return None
    whole = isinstance(event, dict) and {"time", "event", "sha256"} <= event.keys()
    return event if whole and has_seal(text) and intact(text) else None
