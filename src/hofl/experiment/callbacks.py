"""Ready-made callbacks: early stopping, the best checkpoint, a progress bar."""

import json
import math
import sys
from importlib.util import find_spec
from typing import Any

from hofl.core.durable import write_whole
from hofl.core.errors import HoflError
from hofl.experiment.events import (
    Callback,
    Client,
    End,
    Evaluation,
    Round,
    Start,
    StopTraining,
)
from hofl.experiment.records import Scores, headline

LESS_IS_BETTER = ("loss", "perplexity")
BEST = "best"
"""Folder of the best adapter in a run, and of the file about it, with ``.json``."""


def value_of(scores: Scores, metric: str | None) -> tuple[str, float]:
    """Return a score's name and value, larger for better; without a name the first score.

    >>> value_of({"accuracy": 0.5, "loss": 2.0}, "loss")
    ('loss', -2.0)
    """
    name = metric or headline(scores)[0]
    if not isinstance(scores.get(name), int | float):
        known = ", ".join(key for key, value in scores.items() if isinstance(value, float))
        raise HoflError(f"there is no score {name!r}: choose one of {known}.")
    value = -scores[name] if name in LESS_IS_BETTER else scores[name]
    return name, -math.inf if math.isnan(value) else float(value)


class EarlyStopping(Callback):
    """End a run that has not improved for some evaluations.

    Args:
        patience: evaluations without improvement after which the run ends.
        metric: the score to follow; the run's first score unless given.
        min_change: least change that counts as an improvement.
    """

    def __init__(
        self, patience: int = 3, metric: str | None = None, min_change: float = 0.0
    ) -> None:
        if patience < 1:
            raise HoflError(f"patience must be at least 1, got {patience}.")
        self.patience, self.metric, self.min_change = patience, metric, min_change
        self._best, self._since = -math.inf, 0

    def on_start(self, event: Start) -> None:
        """Take in what was scored before, so that a resumed run ends where it would have ended."""
        self._best, self._since = -math.inf, 0
        if event.round:  # else the evaluation of the start is reported next
            for record in event.records:
                if record.scores:
                    self._note(record.scores)
            self._judge()

    def on_evaluation(self, event: Evaluation) -> None:
        """Compare with the best so far; the start is what the first one is compared with."""
        self._note(event.scores)
        self._judge()

    def _note(self, scores: Scores) -> None:
        _, value = value_of(scores, self.metric)
        improved = value > self._best + self.min_change
        self._since = 0 if improved else self._since + 1
        self._best = max(self._best, value)

    def _judge(self) -> None:
        if self._since >= self.patience:
            raise StopTraining(f"no improvement in {self._since} evaluations")


class BestCheckpoint(Callback):
    """Keep the adapter of the best evaluation in ``RUN/best``; ``RUN/best.json`` says which it is.

    Args:
        metric: the score to follow; the run's first score unless given.
    """

    def __init__(self, metric: str | None = None) -> None:
        self.metric = metric
        self._best = -math.inf

    def on_start(self, event: Start) -> None:
        """Read what was the best before, unless the run went back behind it."""
        self._best = -math.inf
        try:
            kept = json.loads((event.run / f"{BEST}.json").read_text(encoding="utf-8"))
            if kept["round"] <= event.round:
                self._best = value_of({kept["metric"]: kept["value"]}, kept["metric"])[1]
        except (OSError, ValueError, KeyError, TypeError):
            pass  # nothing was kept, or it cannot be read

    def on_evaluation(self, event: Evaluation) -> None:
        """Save the parameters if they are the best so far; those of the start are nobody's."""
        name, value = value_of(event.scores, self.metric)
        if event.round and value > self._best:
            self._best = value
            event.save(event.run / BEST)
            facts = {"round": event.round, "metric": name, "value": event.scores[name]}
            write_whole(event.run / f"{BEST}.json", json.dumps(facts) + "\n")


class ProgressBar(Callback):
    """Show a bar of rounds, in a terminal and in a notebook."""

    def __init__(self) -> None:
        self._bar: Any = None

    @staticmethod
    def wanted(progress: bool | None) -> bool:
        """Return whether to show one: as asked, or where somebody is watching."""
        return (sys.stderr.isatty() or _in_notebook()) if progress is None else progress

    def on_start(self, event: Start) -> None:
        """Open the bar."""
        kind = _bars()
        self._bar = kind(total=event.rounds, initial=event.round, unit="round", desc=event.run.name)

    def on_client(self, event: Client) -> None:
        """Say how many clients have answered."""
        self._bar.set_postfix_str(f"client {event.number}/{event.of}")

    def on_round(self, event: Round) -> None:
        """Advance by one round."""
        record = event.record
        said = [] if record.train_loss is None else [f"loss {record.train_loss:.4f}"]
        if record.scores:
            name, value = headline(record.scores)
            said.append(f"{name.replace('_', ' ')} {100 * value:.1f} %")
        self._bar.set_postfix_str(", ".join(said), refresh=False)
        self._bar.update(1)

    def on_end(self, event: End) -> None:
        """Leave the bar as it is."""
        self.close()

    def close(self) -> None:
        """End the bar, finished or not."""
        if self._bar is not None:
            self._bar.close()


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    running = None if shell is None else shell.get_ipython()
    return running is not None and "IPKernelApp" in running.config


def _bars() -> Any:
    """Return tqdm's bar for where this runs; without widgets a notebook shows text."""
    if _in_notebook() and find_spec("ipywidgets") is not None:
        from tqdm.notebook import tqdm as in_notebook

        return in_notebook
    from tqdm import tqdm

    return tqdm
