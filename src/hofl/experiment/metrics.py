"""RUN/metrics.jsonl: one sealed line per round. Reading needs no torch."""

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from hofl.core.durable import has_seal, intact, sealed, write_whole
from hofl.core.errors import HoflError
from hofl.experiment.records import RoundRecord

Line = tuple[RoundRecord | None, str]
"""A record, None where the line is damaged, and its text."""


class MetricsFile:
    """The recorded rounds of one run, in their order.

    A kill while a line is written leaves a last line without its end: that one was never recorded.
    Every other line that cannot be read, or whose checksum does not fit, is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, record: RoundRecord) -> None:
        """Add one round, durably."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_text(record) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def records(self) -> list[RoundRecord]:
        """Return all rounds, 0 to the last.

        Raises:
            HoflError: a line is damaged.
        """
        records = []
        for number, (record, _) in enumerate(self.lines()):
            if record is None:
                raise self._damaged(number)
            records.append(record)
        return records

    def forget_after(self, last: int) -> None:
        """Drop the rounds after ``last``, damaged or not: they will be run again.

        What private devices revealed in them is not undone: their participations are moved to the
        last round that is kept.
        """
        lines = list(self.lines())
        kept, dropped = lines[: last + 1], [record for record, _ in lines[last + 1 :]]
        for number in range(last + 1):
            if number >= len(kept) or kept[number][0] is None:
                raise self._damaged(number)
        # The lines as they are: another version may have written more than is known here.
        texts = [text for _, text in kept]
        spent = revealed(dropped)
        if kept and spent:
            final = kept[-1][0]
            assert final is not None
            texts[-1] = _text(dataclasses.replace(final, lost=[*final.lost, *spent]))
        self._write(texts)

    def start_again(self, first: RoundRecord) -> None:
        """Drop all rounds but a new round 0, which takes over what private devices revealed."""
        spent = revealed(record for record, _ in self.lines())
        self.replace([dataclasses.replace(first, lost=spent)])

    def forget_stop(self) -> None:
        """Let a run that a callback ended continue."""
        lines = list(self.lines())
        if any(record is not None and record.stopped for record, _ in lines):
            self._write(
                [
                    text if record is None else _text(dataclasses.replace(record, stopped=None))
                    for record, text in lines
                ]
            )

    def replace(self, records: list[RoundRecord]) -> None:
        """Write these rounds in place of all lines."""
        self._write([_text(record) for record in records])

    def lines(self) -> Iterator[Line]:
        """Yield every line of a round; line n is damaged unless it is that of round n."""
        data = self._path.read_bytes() if self._path.exists() else b""
        lines = data.split(b"\n")
        for number, line in enumerate(lines):
            record, text = _parsed(line)
            if number == len(lines) - 1 and record is None and not has_seal(text):
                return  # cut off by a kill, or the empty rest after the last line's end
            if record is not None and record.round != number:
                record = None
            yield record, text

    def _write(self, lines: list[str]) -> None:
        write_whole(self._path, "".join(line + "\n" for line in lines))

    def _damaged(self, number: int) -> HoflError:
        run = self._path.parent
        return HoflError(
            f"{self._path} is damaged in line {number + 1}, round {number}. "
            f"Bring the run back to work with: hofl repair {run}"
        )


def revealed(records: Iterable[RoundRecord | None]) -> list[list[int]]:
    """Return the participations of private rounds, and those that the start took over."""
    private = (record for record in records if record and (record.epsilon or record.round == 0))
    return [record.participations for record in private if record.participations]


def _text(record: RoundRecord) -> str:
    return sealed(json.dumps(record.to_json()))


def _parsed(line: bytes) -> Line:
    try:
        text = line.decode()
        return (RoundRecord.from_json(json.loads(text)) if intact(text) else None), text
    except ValueError:
        return None, line.decode(errors="replace")
