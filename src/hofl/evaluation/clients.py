"""Held-out examples of every client: means inside a client first, then over clients.

That is the paper's objective, f = (1/N) sum_i f_i: a client with few examples counts as much as one
with many, and every resource tier is heard.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hofl.data.encoding import EncodedSet
from hofl.evaluation.scores import Progress, evaluate
from hofl.models.split import SplitModel


@dataclass(frozen=True)
class ClientScores:
    """One model on every client's own held-out examples.

    Args:
        scores: by name, the mean over the examples of each client, [N].
        examples: how many examples each client held out, [N].
        boundaries: the tier of each client, [N].
    """

    scores: dict[str, np.ndarray]
    examples: np.ndarray
    boundaries: np.ndarray

    def means(self) -> dict[str, float]:
        """Unweighted means over clients, under the names that a test set's scores have."""
        return {
            **self._over(np.full(len(self.examples), True)),
            "examples": int(self.examples.sum()),
        }

    def summary(self) -> dict[str, Any]:
        """Plain values: over all clients, by tier, and each client."""
        tiers = {
            str(tier): {
                **self._over(self.boundaries == tier),
                "clients": int((self.boundaries == tier).sum()),
            }
            for tier in np.unique(self.boundaries).tolist()
        }
        each = {name: values.tolist() for name, values in self.scores.items()}
        return {**self.means(), "tiers": tiers, "each": each}

    def _over(self, clients: np.ndarray) -> dict[str, float]:
        return {name: float(values[clients].mean()) for name, values in self.scores.items()}


def evaluate_clients(
    model: SplitModel,
    examples: EncodedSet,
    held_out: Sequence[np.ndarray],
    boundaries: Sequence[int],
    batch_size: int,
    progress: Progress | None = None,
) -> ClientScores:
    """Evaluate the model as it is on the held-out examples of each client."""
    found, done, total = [], 0, sum(map(len, held_out))
    for shard in held_out:
        found.append(evaluate(model, examples, batch_size, shard.tolist()))
        done += len(shard)
        if progress is not None:
            progress(done, total)
    names = [name for name in found[0] if name != "examples"]
    return ClientScores(
        scores={name: np.array([scores[name] for scores in found]) for name in names},
        examples=np.array([scores["examples"] for scores in found]),
        boundaries=np.array(boundaries),
    )
