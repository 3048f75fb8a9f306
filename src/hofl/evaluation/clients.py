"""Score the held-out examples of every client: means within a client first, then over clients.

That is the paper's objective, f = (1/N) sum_i f_i: a client with few examples counts as much as one
with many, and every resource tier counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hofl.data.encoded import EncodedSet
from hofl.evaluation.scores import OF_TERMS, Progress, evaluate, perplexity
from hofl.models.split import SplitModel


@dataclass(frozen=True)
class ClientScores:
    """Scores of a model on every client's held-out examples.

    Args:
        scores: by name, the mean over the examples of each client, [N].
        examples: number of examples that each client held out, [N].
        boundaries: the tier of each client, [N].
    """

    scores: dict[str, np.ndarray]
    examples: np.ndarray
    boundaries: np.ndarray

    def means(self) -> dict[str, float]:
        """Return unweighted means over clients, named as the scores of a test set."""
        return {
            **self._over(np.full(len(self.examples), True)),
            "examples": int(self.examples.sum()),
        }

    def pooled(self) -> dict[str, float]:
        """Return scores of token losses over the tokens of all clients; empty without any."""
        if "tokens" not in self.scores:
            return {}
        tokens = self.scores["tokens"]
        over_tokens = {
            name: float((self.scores[name] * tokens).sum() / tokens.sum()) for name in OF_TERMS
        }
        return {**over_tokens, "perplexity": perplexity(over_tokens["loss"])}

    def summary(self) -> dict[str, Any]:
        """Return plain values: over all clients, by tier, and of each client."""
        tiers = {
            str(tier): {
                **self._over(self.boundaries == tier),
                "clients": int((self.boundaries == tier).sum()),
            }
            for tier in np.unique(self.boundaries).tolist()
        }
        each = {name: values.tolist() for name, values in self.scores.items()}
        pooled = self.pooled()
        return {
            **self.means(),
            "tiers": tiers,
            "each": each,
            **({"pooled": pooled} if pooled else {}),
        }

    def _over(self, clients: np.ndarray) -> dict[str, float]:
        """Return means over some clients; a perplexity is that of their mean loss."""
        means = {name: float(values[clients].mean()) for name, values in self.scores.items()}
        if "perplexity" in means:
            means["perplexity"] = perplexity(means["loss"])
            means["tokens"] = int(self.scores["tokens"][clients].sum())
        return means


def evaluate_clients(
    model: SplitModel,
    examples: EncodedSet,
    held_out: Sequence[np.ndarray],
    boundaries: Sequence[int] | np.ndarray,
    batch_size: int,
    progress: Progress | None = None,
) -> ClientScores:
    """Evaluate the model as it is on the held-out examples of each client."""
    by_client, done, total = [], 0, sum(map(len, held_out))
    for shard in held_out:
        by_client.append(evaluate(model, examples, batch_size, shard.tolist()))
        done += len(shard)
        if progress is not None:
            progress(done, total)
    names = [name for name in by_client[0] if name != "examples"]
    return ClientScores(
        scores={name: np.array([scores[name] for scores in by_client]) for name in names},
        examples=np.array([scores["examples"] for scores in by_client]),
        boundaries=np.array(boundaries),
    )
