"""What a running experiment shows: a live bar on a terminal, one line per round elsewhere."""

from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from hofl.evaluation.headline import headline


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
        self._seen = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def __call__(self, event: str, facts: dict[str, Any]) -> None:
        """Take in one event of the run."""
        if event == "start":
            first = facts["rows"][0]["eval"]
            if facts["note"]:
                self._print(f"note: {facts['note']}", "yellow")
            self._progress.update(
                self._bar, total=facts["rounds"], completed=facts["round"], note="started"
            )
            where = f"on after round {facts['round']}, start was" if facts["round"] else "start,"
            self._say(f"{self._title}: {where} {_score(first)}")
        elif event == "device":
            self._print(facts["text"])
        elif event == "lost":
            self._print(f"round {facts['round']} is repeated: {facts['reason']}", "yellow")
        elif event == "plan":
            for budget, chosen in facts["chosen"].items():
                peak, cut = size(chosen["peak_bytes"]), chosen["boundary"]
                self._print(f"planned for {budget}: boundary {cut}, peak {peak}")
        elif event == "client":
            self._seen += 1
            self._progress.update(self._bar, note=f"client {self._seen}/{facts['of']}")
        elif event == "evaluation":
            self._progress.update(
                self._bar, note=f"evaluating {facts['done']}/{facts['of']} examples"
            )
        elif event == "round":
            self._seen = 0
            self._progress.update(self._bar, completed=facts["round"], note=self._note(facts))
            self._say(f"{self._title}: round {facts['round']}, {self._note(facts)}")
            self._warn(facts)

    def _say(self, line: str) -> None:
        if not self._console.is_terminal:
            self._print(line)

    def _print(self, line: str, style: str = "") -> None:
        # Names and reasons are other people's text: never read them as markup.
        self._console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

    def _note(self, row: dict[str, Any]) -> str:
        loss = row["train_loss"]
        silent = "loss withheld" if row["answered"] else "no answer"
        parts = [silent if loss is None else f"loss {loss:.4f}", f"{row['seconds']:.1f} s"]
        if row.get("epsilon"):
            parts.append(f"epsilon up to {max(row['epsilon'].values()):.3g}")
        if row.get("eval"):
            parts.append(_score(row["eval"]))
        return ", ".join(parts)

    def _warn(self, row: dict[str, Any]) -> None:
        for attempt in row.get("repeats", ()):
            for client, reason in attempt["refused"].items():
                text = f"round {row['round']} was repeated: client {client} refused: {reason}"
                self._print(text, "yellow")
        for client, reason in row["refused"].items():
            self._print(f"round {row['round']}: client {client} refused: {reason}", "yellow")
        if row["zo_snr"] is not None and row["zo_snr"] < 1 and not self._warned:
            self._warned = True
            self._print(
                f"round {row['round']}: the scalars' signal-to-noise ratio is {row['zo_snr']:.2g}: "
                "the zeroth-order part learns noise. Use model.compute_dtype=float32, "
                "method.estimator=central, or a larger method.mu.",
                "yellow",
            )


def _score(scores: dict[str, float]) -> str:
    name, value = headline(scores)
    return f"{name} {100 * value:.1f} %"


def size(num_bytes: float) -> str:
    """A byte count for people: 1.4 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024 or unit == "GiB":
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    raise AssertionError
