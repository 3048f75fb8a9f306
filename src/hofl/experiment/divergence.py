"""Detect divergence: weights far beyond every scale seen so far in training.

A learning rate that is far too large need not end in NaN. Norms and softmax keep a transformer
finite at weights of 1e36: every device answers, and the loss stays near chance. So each new state
is compared with the start and with earlier rounds, and discarded when

1. it is 1e6 times the start's norm away from the start: float32 has seven digits, beside such
   weights the start is a rounding error;
2. its update is 1e3 times the median of the last five and ten times the weights it was added to;
3. it is 100 times the start's norm away from the start, while the median of the last five training
   losses is not below the start's, or not below that of guessing.

A run that learns stays far below. Measured (stories15M, SST-2, LoRA): 0.2 times the start's norm
after 25 rounds of AdamW at lr 1e-3; 23 times at lr 0.1, which already ruins the model. Rounds
without an update are skipped, and tiny first updates do not trigger it, because 2. needs both. The
verdict depends on the recorded rounds alone, so a resumed run reaches the same one.

>>> divergence = Divergence(scale=2.0)
>>> divergence.judge(RoundRecord(round=1, update_norm=0.1, distance=0.1, train_loss=0.7))
>>> divergence.judge(RoundRecord(round=2, update_norm=9e36, distance=9e36, train_loss=0.7))
... # doctest: +ELLIPSIS
Traceback (most recent call last):
hofl.core.errors.HoflError: round 2 diverged: the weights are 9e+36 away from their start, ...
"""

import math
from collections import deque
from collections.abc import Iterable
from statistics import median, median_low

import torch
from torch import Tensor

from hofl.core.errors import HoflError
from hofl.data.task import Form, LabelWords
from hofl.experiment.build import Experiment
from hofl.experiment.records import RoundRecord

RECENT = 5
"""Rounds over which a median is taken."""
FEWEST = 3
"""Fewer rounds do not make a meaningful median."""
LOST, JUMP, OUTWEIGHS, FAR = 1e6, 1e3, 10.0, 100.0
SMALLEST = 1e-3
"""Size of a weight that stands in for the start's where the start is zero."""


def moved(start: Tensor, before: Tensor, after: Tensor) -> tuple[float, float]:
    """Return ||w_t - w_{t-1}|| and ||w_t - w_0|| as a round records them."""
    return norm_of(after - before), norm_of(after - start)


class Divergence:
    """The judge of every round by the start and the earlier rounds.

    Args:
        scale: norm of the start (:func:`scale_of`).
        chance: training loss of a model that guesses (:func:`chance_of`).
        records: the rounds so far; those of older versions have no norms and are skipped.
        keep: how many checkpoints are kept.
    """

    def __init__(
        self,
        scale: float,
        chance: float = math.inf,
        records: Iterable[RoundRecord] = (),
        keep: int = 1,
    ) -> None:
        self._scale, self._chance, self._keep = scale, chance, keep
        self._good = 0
        self._start_loss = math.inf
        self._distance = 0.0
        self._updates: deque[float] = deque(maxlen=RECENT)
        self._losses: deque[float] = deque(maxlen=RECENT)
        for record in records:
            self._take(record)

    @classmethod
    def of(cls, experiment: Experiment, records: Iterable[RoundRecord]) -> "Divergence":
        """Return the judge of an experiment after these rounds."""
        keep = experiment.config.server.keep
        return cls(scale_of(experiment.start.w), chance_of(experiment.prompt), records, keep)

    def judge(self, record: RoundRecord) -> None:
        """Take in a new round, or raise :class:`HoflError` with what was seen and what to do."""
        before, last = self._distance, record.round - 1
        usual = median(self._updates) if len(self._updates) >= FEWEST else math.inf
        self._take(record)
        seen = self._seen(record.update_norm or 0.0, usual, before)
        if not seen:
            return
        advice = "Lower the learning rate in the run's config.toml, remove its last line, the "
        advice += f"checksum, and resume: round {last}, the last good one"
        if before > FAR * self._scale:
            advice = self._way_back(last)
        raise HoflError(
            f"round {record.round} diverged: {seen}. {advice}, is kept. "
            "To keep such rounds, set server.divergence = false."
        )

    def _way_back(self, last: int) -> str:
        """Return the advice where the last round is hardly better than the one refused."""
        if self._good > last - self._keep:
            return (
                f"Resume with --from-round {self._good}, and with a lower learning rate if it "
                f"diverges again: round {self._good}, the last good one"
            )
        return f"Start again with a lower learning rate: round {last}, hardly better"

    def _take(self, record: RoundRecord) -> None:
        loss = record.train_loss
        if self._start_loss == math.inf:
            first = record.scores.get("loss", loss)
            self._start_loss = math.inf if first is None else first
        if loss is not None:
            self._losses.append(loss)
        if record.update_norm:  # a round without an update is not a measure for others
            self._updates.append(record.update_norm)
            self._distance = record.distance or 0.0
        if self._distance <= FAR * self._scale:
            self._good = record.round

    def _seen(self, update: float, usual: float, before: float) -> str:
        """Return what is wrong with the round just taken in; empty where nothing is."""
        where = (
            f"the weights are {self._distance:.3g} away from their start, whose norm is "
            f"{self._scale:.3g} (a round earlier: {before:.3g} away)"
        )
        if not self._distance <= LOST * self._scale:  # not a number, too
            return where
        if update > JUMP * usual and update > OUTWEIGHS * max(self._scale, before):
            return f"its update has norm {update:.3g}, where {usual:.3g} was usual, and {where}"
        if self._distance > FAR * self._scale and len(self._losses) >= FEWEST:
            loss, start = median_low(self._losses), self._start_loss
            if loss >= min(start, self._chance):
                return f"the training loss is {loss:.3g}, at the start it was {start:.3g}, {where}"
        return ""


def scale_of(start: Tensor) -> float:
    """Return ||w_0||, or what stands in for it where the start is zero."""
    return max(norm_of(start), SMALLEST * math.sqrt(len(start)))


def chance_of(prompt: Form) -> float:
    """Return the loss of guessing among a prompt's label words; infinite where it has none."""
    answer = prompt.answer
    return math.log(len(answer.words)) if isinstance(answer, LabelWords) else math.inf


def norm_of(vector: Tensor) -> float:
    """Return the norm to six digits: a sum's last ones depend on the number of threads."""
    return float(f"{torch.linalg.vector_norm(vector, dtype=torch.float64).item():.6g}")
