"""Held-out examples of every client: means inside a client first, then over clients.

That is the paper's objective, f = (1/N) sum_i f_i: a client with few examples counts as much as one
with many, and every resource tier is heard.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hofl.data.encoding import EncodedSet
from hofl.evaluation.accuracy import evaluate
from hofl.models.split import SplitModel


@dataclass(frozen=True)
class ClientScores:
    """One model on every client's own held-out examples.

    Args:
        losses: mean loss over the examples of each client, [N].
        accuracies: share of right answers of each client, [N].
        examples: how many examples each client held out, [N].
        boundaries: the tier of each client, [N].
    """

    losses: np.ndarray
    accuracies: np.ndarray
    examples: np.ndarray
    boundaries: np.ndarray

    def means(self) -> dict[str, float]:
        """Unweighted means over clients, under the names that a test set's scores have."""
        return {
            "accuracy": float(self.accuracies.mean()),
            "loss": float(self.losses.mean()),
            "examples": int(self.examples.sum()),
        }

    def summary(self) -> dict[str, Any]:
        """Plain values: over all clients, by tier, and each client."""
        tiers = {
            str(tier): {
                "accuracy": float(self.accuracies[self.boundaries == tier].mean()),
                "loss": float(self.losses[self.boundaries == tier].mean()),
                "clients": int((self.boundaries == tier).sum()),
            }
            for tier in np.unique(self.boundaries).tolist()
        }
        return {
            **self.means(),
            "tiers": tiers,
            "losses": self.losses.tolist(),
            "accuracies": self.accuracies.tolist(),
        }


def evaluate_clients(
    model: SplitModel,
    examples: EncodedSet,
    held_out: Sequence[np.ndarray],
    boundaries: Sequence[int],
    batch_size: int,
) -> ClientScores:
    """Evaluate the model as it is on the held-out examples of each client."""
    found = [evaluate(model, examples, batch_size, shard.tolist()) for shard in held_out]
    return ClientScores(
        losses=np.array([scores["loss"] for scores in found]),
        accuracies=np.array([scores["accuracy"] for scores in found]),
        examples=np.array([scores["examples"] for scores in found]),
        boundaries=np.array(boundaries),
    )
