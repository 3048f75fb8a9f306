"""One device's side of a round: a plan in, an upload out."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from hofl.algorithm import client_update
from hofl.core.batch import Batch
from hofl.core.errors import BackwardFailed, HoflError, reason_of
from hofl.data.encoded import EncodedSet
from hofl.data.shards import minibatches
from hofl.local.site import LEANEST, PLAIN, Execution
from hofl.local.step import LocalParts
from hofl.memory.live import measure_peak, out_of_memory
from hofl.messages import RoundPlan, Upload, vector_hash
from hofl.models.split import SplitModel


class LocalClient:
    """Answers round plans for any client of a simulated fleet with one model in memory.

    Args:
        model: the split model; its trainable parameters are overwritten by every plan.
        train: all encoded training examples.
        shards: which of them each client holds.
        batch_size: examples per local step.
        execution: how the plan's device runs its steps.
        cannot_run_backward: called with the reason when a block could not run backward.
        start: hash of the adapter that the run starts from; plans of another start are refused.
    """

    def __init__(
        self,
        model: SplitModel,
        train: EncodedSet,
        shards: Sequence[np.ndarray],
        batch_size: int,
        execution: Callable[[RoundPlan], Execution] = lambda _plan: PLAIN,
        cannot_run_backward: Callable[[str], None] = lambda _reason: None,
        start: str | None = None,
    ) -> None:
        self._model = model
        self._train = train
        self._shards = shards
        self._batch_size = batch_size
        self._execution = execution
        self._cannot_run_backward = cannot_run_backward
        self._start = start or ""
        self._peaks: dict[tuple[str, int, Execution], int] = {}

    @property
    def sizes(self) -> list[int]:
        """How many training examples each client holds."""
        return [len(shard) for shard in self._shards]

    def answer(self, message: bytes) -> bytes:
        """Parse a plan, run it and return the upload as bytes: for engines that carry bytes."""
        return self.upload(RoundPlan.from_bytes(message)).to_bytes()

    def upload(self, plan: RoundPlan) -> Upload:
        """Run a plan; where a block cannot run backward, the plan that needs no backward pass."""
        digest = self._model.layout.digest
        if plan.layout != digest:
            raise HoflError(
                f"the plan is for layout {plan.layout}, but this device has {digest}: "
                "use the run's model and adapter settings."
            )
        if len(plan.w) != self._model.layout.size:
            raise HoflError(
                f"the plan's w has {len(plan.w)} values, but its layout has "
                f"{self._model.layout.size}: the server has to send the whole adapter."
            )
        self._check_start(plan)
        try:
            return self._in_memory(plan)
        except BackwardFailed as error:
            other = plan.without_backward(self._model.layout)
            if other is None:
                raise
            self._cannot_run_backward(reason_of(error))
        # The traceback holds the attempt's tensors: retry only outside the handler.
        return self._in_memory(other)

    def _check_start(self, plan: RoundPlan) -> None:
        """Refuse a run that starts from another adapter than the one it was joined for."""
        first = vector_hash(plan.w) if plan.start and plan.round == 0 else self._start
        if plan.start != self._start or first != self._start:
            wrong = first if plan.start == self._start else plan.start
            raise HoflError(
                f"the plan starts from {_named(wrong)}, and this device joined a run that starts "
                f"from {_named(self._start)}: restart the server with the run's own adapter.start."
            )

    def _in_memory(self, plan: RoundPlan) -> Upload:
        """Run a plan; on out-of-memory, retry with leaner executions."""
        *others, last = self._attempts(plan)
        for candidate, execution in others:
            try:
                return self._measured(candidate, execution)
            except (MemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
            # The traceback holds the attempt's tensors: retry only outside the handler.
        return self._measured(*last)

    def _attempts(self, plan: RoundPlan) -> list[tuple[RoundPlan, Execution]]:
        """List what to try: as planned, in the least memory, then with the boundary at L.

        The second gives the same result. The third, where the bottom rule allows it, shows in the
        upload's boundary.
        """
        leanest = replace(LEANEST, stream_bottom=bool(self._model.on_disk))
        planned = self._execution(plan)
        attempts = [(plan, planned)]
        if planned != leanest:
            attempts.append((plan, leanest))
        if plan.boundary < self._model.num_blocks and plan.rule.traits.may_raise_boundary:
            attempts.append((replace(plan, boundary=self._model.num_blocks), leanest))
        return attempts

    def _measured(self, plan: RoundPlan, execution: Execution) -> Upload:
        """Run the update; measure peak memory once per (rule, boundary, execution)."""
        work = partial(
            client_update,
            self._model,
            plan,
            self._batches(plan, execution),
            LocalParts.of(plan.rule, plan.boundary),
            execution,
        )
        # Before the measurement: weights read now are held, and counted with the model.
        self._model.keep(plan.boundary if execution.stream_bottom else 0)
        kind = (plan.rule.bottom.name, plan.boundary, execution)
        if kind in self._peaks:
            upload = work()
        else:
            with measure_peak(self._model.module, self._model.device) as peak:
                upload = work()
            self._peaks[kind] = peak.value
        if plan.privacy is not None:
            return upload  # memory use reveals the lengths of texts
        metrics = replace(upload.metrics, peak_bytes=self._peaks[kind])
        return replace(upload, metrics=metrics)

    def _batches(self, plan: RoundPlan, execution: Execution) -> Iterator[list[Batch]]:
        steps = minibatches(
            self._shards[plan.client],
            seed=plan.seed,
            round_number=plan.round,
            client=plan.client,
            steps=plan.rule.local_steps,
            batch_size=self._batch_size,
        )
        for indices in steps:
            parts = self._train.parts(indices, execution.micro_batch, execution.micro_tokens)
            yield [part.to(self._model.device) for part in parts]


def _named(start: str) -> str:
    return f"the adapter {start[:12]}..." if start else "a fresh adapter"
