"""One device's side of a round: bytes of a plan in, bytes of an upload out."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from hofl.algorithm import client_update
from hofl.batch import Batch
from hofl.data.encoding import EncodedSet
from hofl.data.partition import minibatches
from hofl.errors import HoflError
from hofl.local.execution import PLAIN, Execution
from hofl.local.rules import resolve
from hofl.memory import measure_peak
from hofl.messages import RoundPlan, Upload
from hofl.models.split import SplitModel


class LocalClient:
    """Answers plans for any client of a simulated fleet with one model in memory.

    Args:
        model: the split model; its trainable parameters are overwritten by every plan.
        train: all encoded training examples.
        shards: which of them each client holds.
        batch_size: examples per local step.
        execution: how the device that a plan is for runs its steps.
    """

    def __init__(
        self,
        model: SplitModel,
        train: EncodedSet,
        shards: Sequence[np.ndarray],
        batch_size: int,
        execution: Callable[[RoundPlan], Execution] = lambda _plan: PLAIN,
    ) -> None:
        self._model = model
        self._train = train
        self._shards = shards
        self._batch_size = batch_size
        self._execution = execution
        self._peaks: dict[tuple[str, int, Execution], int] = {}

    @property
    def sizes(self) -> list[int]:
        """How many training examples each client holds."""
        return [len(shard) for shard in self._shards]

    def answer(self, plan_bytes: bytes) -> bytes:
        """Run the plan and return the serialised upload."""
        plan = RoundPlan.from_bytes(plan_bytes)
        if plan.layout != self._model.layout.digest:
            raise HoflError(f"plan is for layout {plan.layout}, not {self._model.layout.digest}.")
        upload = self._measured(plan)
        return upload.to_bytes()

    def _measured(self, plan: RoundPlan) -> Upload:
        """The update; the first one at each boundary also has its peak memory measured."""
        bottom, surrogate = resolve(plan.rule, plan.boundary)
        batches = self._batches(plan)
        kind = (plan.rule.bottom, plan.boundary, self._execution(plan))
        if kind in self._peaks:
            upload = client_update(self._model, plan, batches, bottom, surrogate)
        else:
            with measure_peak(self._model.module, self._model.device) as peak:
                upload = client_update(self._model, plan, batches, bottom, surrogate)
            self._peaks[kind] = peak.value
        metrics = replace(upload.metrics, peak_bytes=self._peaks[kind])
        return replace(upload, metrics=metrics)

    def _batches(self, plan: RoundPlan) -> Iterator[list[Batch]]:
        steps = minibatches(
            self._shards[plan.client],
            seed=plan.seed,
            round_number=plan.round,
            client=plan.client,
            steps=plan.rule.local_steps,
            batch_size=self._batch_size,
        )
        device, size = self._model.device, self._execution(plan).micro_batch
        for indices in steps:
            yield [part.to(device) for part in self._train.parts(indices, size)]
