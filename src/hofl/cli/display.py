"""What a run shows: a live bar on a terminal, one line per round elsewhere, a table at its end."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from hofl.cli import interrupts
from hofl.core.sizes import show_bytes
from hofl.experiment.records import Attempt, RoundRecord, RunSummary, Scores, headline

JUDGED = 3
"""Rounds in which a low signal-to-noise ratio of the scalars speaks against the settings.

The gradient is largest at the start. A ratio that falls later means that the gradient has faded,
which no precision and no radius can change.
"""


def say(console: Console, line: str, style: str = "") -> None:
    """Print a line as it is: names and reasons are other people's text, never markup."""
    console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


class RunDisplay:
    """An observer of a run, usable as a context manager."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._warned = False
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} rounds"),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._bar = self._progress.add_task(title, total=1, note="loading")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, event: str, facts: Mapping[str, Any]) -> None:
        """Take in one event of the run (see ``hofl.experiment.rounds.Observer``)."""
        interrupts.check()
        match event:
            case "start":
                self._start(facts)
            case "device":
                say(self._console, facts["text"])
            case "tracker":
                line = f"{facts['name']} is left out from here on: {facts['reason']}"
                say(self._console, line, "yellow")
            case "lost":
                line = f"round {facts['round']} is repeated: {facts['reason']}"
                say(self._console, line, "yellow")
            case "plan":
                for budget, chosen in facts["chosen"].items():
                    say(self._console, planned_line(budget, chosen))
            case "client":
                self._update(note=f"client {facts['number']}/{facts['of']}")
            case "evaluation":
                self._update(note=f"evaluating {facts['done']}/{facts['of']} examples")
            case "round":
                self._round(RoundRecord.from_json(facts))

    def _update(self, **changes: Any) -> None:
        self._progress.update(self._bar, **changes)

    def _start(self, facts: Mapping[str, Any]) -> None:
        if facts["note"]:
            say(self._console, f"note: {facts['note']}", "yellow")
        done = facts["round"]
        self._update(note="started", total=facts["rounds"], completed=done)
        where = f"resumed after round {done}, start was" if done else "start,"
        say(self._console, f"{self._title}: {where} {shown_score(facts['scores'])}")

    def _round(self, record: RoundRecord) -> None:
        note = _round_note(record)
        self._update(note=note, completed=record.round)
        # The bar replaces its note and vanishes at the end: scores must stay.
        if record.scores or not self._console.is_terminal:
            say(self._console, f"{self._title}: round {record.round}, {note}")
        for attempt in record.repeats:
            for line in _refusals(attempt) or [_dropouts(attempt)]:
                say(self._console, f"round {record.round} was repeated: {line}", "yellow")
        for client in record.forward_only:
            what = f"client {client} could not run a block backward and continued without"
            say(self._console, f"round {record.round}: {what}", "yellow")
        for line in _refusals(record):
            say(self._console, f"round {record.round}: {line}", "yellow")
        lost = record.zo_snr is not None and record.zo_snr < 1
        if lost and record.round <= JUDGED and not self._warned:
            self._warned = True
            say(
                self._console,
                f"round {record.round}: the scalars' signal-to-noise ratio is {record.zo_snr:.2g}: "
                "the zeroth-order part learns noise. Use model.compute_dtype=float32, "
                "method.estimator=central, or a larger method.mu.",
                "yellow",
            )


def planned_line(budget: str, chosen: Mapping[str, Any]) -> str:
    """Say what was planned for a device, and what it would have been with padded texts."""
    line = f"planned for {budget}: {_plan_and_peak(chosen)}"
    if "headroom_bytes" in chosen:
        line += f" and headroom {show_bytes(chosen['headroom_bytes'])}"
    if "padded" not in chosen:  # recorded by an earlier version
        return line
    padded = chosen["padded"]
    other = "nothing would fit" if padded is None else _plan_and_peak(padded)
    return f"{line} (with padded texts: {other})"


def _plan_and_peak(chosen: Mapping[str, Any]) -> str:
    return f"{chosen['plan']}, peak {show_bytes(chosen['peak_bytes'])}"


def _round_note(record: RoundRecord) -> str:
    silent = "loss withheld" if record.answered else "no answer"
    loss = silent if record.train_loss is None else f"loss {record.train_loss:.4f}"
    parts = [loss, f"{record.seconds:.1f} s"]
    if record.epsilon:
        parts.append(f"epsilon up to {max(record.epsilon.values()):.3g}")
    if record.scores:
        parts.append(shown_score(record.scores))
    return ", ".join(parts)


def _refusals(attempt: Attempt) -> list[str]:
    return [f"client {client} refused: {reason}" for client, reason in attempt.refused.items()]


def _dropouts(attempt: Attempt) -> str:
    return f"{len(attempt.dropped)} of {len(attempt.cohort)} clients dropped out"


def shown_score(scores: Scores) -> str:
    """Return the first score in a few words."""
    name, value = headline(scores)
    more = f", perplexity {scores['perplexity']:.2f}" if "perplexity" in scores else ""
    return f"{name.replace('_', ' ')} {100 * value:.1f} %{more}"


def show_result(console: Console, path: Path, summary: RunSummary) -> None:
    """Print the summary of a finished run, and where its adapter is."""
    from hofl.sampling.audit import verdict

    console.print(summary_table([summary]))
    if summary.audit:  # runs finished by an earlier version have none
        say(console, verdict(summary.audit))
    for rule, share in summary.bottom_signal.items():
        say(console, signal_line(rule, share))
    if summary.wire:
        say(console, wire_line(summary.wire))
    say(console, f"adapter: {path / summary.adapter}")


def signal_line(rule: str, share: float) -> str:
    """Say how much of the bottom's updates a cohort's clients had in common.

    >>> signal_line("recompute", 0.1234)
    "bottom (recompute): 12 % of the clients' updates is signal, the rest noise or their own"
    """
    percent = f"{100 * max(share, 0.0):.2g} %"
    return (
        f"bottom ({rule}): {percent} of the clients' updates is signal, the rest noise or their own"
    )


def summary_table(summaries: Sequence[RunSummary], names: Sequence[str] = ()) -> Table:
    """Return one line per run: score before and after, a client's memory, bytes, training time.

    ``names`` in place of the methods' own, where several runs have one method.
    """
    table = Table(title=None)
    table.add_column("method", no_wrap=True)
    for column in ("before", "after", "peak memory", "uplink", "downlink", "time"):
        table.add_column(column, justify="right")
    for name, summary in zip(names or [s.method for s in summaries], summaries, strict=True):
        table.add_row(
            name,
            _in_table(summary.initial),
            _in_table(summary.final),
            size_range(summary.peak_by_boundary.values()),
            show_bytes(summary.uplink_bytes),
            show_bytes(summary.downlink_bytes),
            f"{summary.seconds:.0f} s",
        )
    return table


def _in_table(scores: Scores) -> str:
    """Return the first score, and the perplexity of free text, which says more."""
    more = f", ppl {scores['perplexity']:.2f}" if "perplexity" in scores else ""
    return f"{100 * headline(scores)[1]:.1f} %{more}"


def size_range(sizes: Collection[int]) -> str:
    """Return the smallest and the largest peak of a device."""
    if not sizes:
        return "-"
    least, most = show_bytes(min(sizes)), show_bytes(max(sizes))
    if least == most:
        return most
    # One unit for both where they share it: 579.8 - 670.7 MiB.
    value, unit = least.split()
    return f"{value if most.split()[1] == unit else least} - {most}"


def wire_line(wire: Mapping[str, int]) -> str:
    """Say what crossed the network, against what the algorithm wanted to send."""
    count = Counter(wire)
    needed, sent = count["plan"] + count["upload"], count["down"] + count["up"]
    more = f", {100 * (sent - needed) / needed:.2f} % more than plans and uploads" if needed else ""
    return f"messages: {show_bytes(count['down'])} down, {show_bytes(count['up'])} up{more}"
