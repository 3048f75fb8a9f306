"""One device's side of a round: bytes of a plan in, bytes of an upload out."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from hofl.algorithm import client_update
from hofl.batch import Batch
from hofl.data.encoding import EncodedSet
from hofl.data.partition import minibatches
from hofl.errors import HoflError
from hofl.local.execution import LEANEST, PLAIN, Execution
from hofl.local.rules import resolve
from hofl.memory import measure_peak, out_of_memory
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
        return self._update(plan).to_bytes()

    def _update(self, plan: RoundPlan) -> Upload:
        """The plan's update; where memory runs out, once more by each leaner way there is."""
        *others, last = self._ways(plan)
        for chosen, execution in others:
            try:
                return self._measured(chosen, execution)
            except (MemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
            # Only here, behind the error and its traceback, is the memory of the attempt free.
        return self._measured(*last)

    def _ways(self, plan: RoundPlan) -> list[tuple[RoundPlan, Execution]]:
        """As planned; the same in the least memory; and that with the boundary at the very end.

        The second is exact, and the server need not know. The third is told by the upload's
        boundary. A bottom that stays as it is has no use for it: nothing would be trained.
        """
        leanest = replace(LEANEST, stream_bottom=bool(self._model.on_disk))
        own = self._execution(plan)
        ways = [(plan, own)]
        if own != leanest:
            ways.append((plan, leanest))
        if plan.boundary < self._model.num_blocks and plan.rule.bottom != "frozen":
            ways.append((replace(plan, boundary=self._model.num_blocks), leanest))
        return ways

    def _measured(self, plan: RoundPlan, execution: Execution) -> Upload:
        """The update; the first one of its kind also has its peak memory measured."""
        bottom, surrogate = resolve(plan.rule, plan.boundary)
        work = partial(
            client_update,
            self._model,
            plan,
            self._batches(plan, execution.micro_batch),
            bottom,
            surrogate,
            execution,
        )
        # Before the measurement: what is read now is held, and counted with the model.
        self._model.keep(plan.boundary if execution.stream_bottom else 0)
        kind = (plan.rule.bottom, plan.boundary, execution)
        if kind in self._peaks:
            upload = work()
        else:
            with measure_peak(self._model.module, self._model.device) as peak:
                upload = work()
            self._peaks[kind] = peak.value
        if plan.privacy is not None:
            return upload  # memory tells of the lengths of texts
        metrics = replace(upload.metrics, peak_bytes=self._peaks[kind])
        return replace(upload, metrics=metrics)

    def _batches(self, plan: RoundPlan, micro_batch: int) -> Iterator[list[Batch]]:
        steps = minibatches(
            self._shards[plan.client],
            seed=plan.seed,
            round_number=plan.round,
            client=plan.client,
            steps=plan.rule.local_steps,
            batch_size=self._batch_size,
        )
        for indices in steps:
            parts = self._train.parts(indices, micro_batch)
            yield [part.to(self._model.device) for part in parts]
