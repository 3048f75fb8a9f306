"""Watches a traced participation: names what is being made, and counts passes through blocks."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hofl.local.bottom import BottomRule, ZerothOrder
from hofl.local.estimators import Estimator, Probe
from hofl.local.site import Site
from hofl.local.surrogates import Feedback
from hofl.memory import LiveBytes
from hofl.models.split import SplitModel
from hofl.planning.workload import ITEMS

WEIGHTS, STATE, ACTIVATIONS, LOGITS, TRANSIENT = ITEMS


class Meter:
    """Block passes in units of one block on the whole batch.

    A backward pass through a frozen block costs what its forward pass does, so backpropagation
    takes 2L; a block that is re-run for its gradient counts again. The check of the scalars, which
    comes once in a participation and not in every step, is left out.

    Args:
        counter: counts the bytes.
        rows: rows of tokens in the traced step.
    """

    def __init__(self, counter: LiveBytes, rows: int) -> None:
        self._counter = counter
        self._rows = rows
        self.passes = 0.0

    @contextmanager
    def watching(self, model: SplitModel) -> Iterator[None]:
        """Inside, the model's blocks, their passes and the head report to this meter."""
        block, forward, loss = model.block, model.forward, model.loss

        def counted_block(index: int, hidden: Tensor, *rest: Any) -> Tensor:
            both_ways = 2 if torch.is_grad_enabled() else 1
            self.passes += both_ways * len(hidden) / self._rows
            return block(index, hidden, *rest)

        def named_forward(*args: Any) -> Tensor:
            with self._counter.making(ACTIVATIONS if torch.is_grad_enabled() else TRANSIENT):
                return forward(*args)

        def named_loss(*args: Any) -> Tensor:
            with self._counter.making(LOGITS):
                return loss(*args)

        replaced: dict[str, Any] = {
            "block": counted_block,
            "forward": named_forward,
            "loss": named_loss,
        }
        vars(model).update(replaced)
        try:
            yield
        finally:
            for name in replaced:
                delattr(model, name)

    def checked(self, bottom: BottomRule) -> BottomRule:
        """The same rule, the check of its scalars not counted."""
        if not isinstance(bottom, ZerothOrder):
            return bottom
        return replace(bottom, estimator=_Watched(bottom.estimator, self))


@dataclass(frozen=True)
class _Watched:
    inner: Estimator
    meter: Meter

    def probe(self, site: Site, num_directions: int) -> Probe:
        return self.inner.probe(site, num_directions)

    def recheck(self, site: Site, feedback: Feedback) -> float | None:
        passes = self.meter.passes
        again = self.inner.recheck(site, feedback)
        self.meter.passes = passes
        return again
