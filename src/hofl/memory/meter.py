"""What a traced participation makes, how often it passes through blocks, and what it reads.

A trace would run every block several times, and blocks are alike. A call that frees everything but
its results (a block without a graph, a segment that is differentiated) takes the same memory
whenever it runs on tensors of the same shapes, so it is run once per model and counted again from
then on. Of a long segment a few blocks are run: every further one adds what its graph keeps.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from hofl.core.batch import Batch
from hofl.core.layout import Coordinate
from hofl.local.bottom import BottomRule
from hofl.local.estimators import Estimator, Probe
from hofl.local.site import Site
from hofl.local.surrogates import Feedback
from hofl.memory.alike import BlockKinds
from hofl.memory.hollow import META, described, is_new, read_bytes
from hofl.memory.live import LiveBytes
from hofl.memory.workload import ITEMS
from hofl.models.split import BlockInputs, SplitModel

_, _, ACTIVATIONS, LOGITS, TRANSIENT = ITEMS
FEW = 4
"""Blocks of a segment that are run; from the third on, each adds the same."""


@dataclass(frozen=True)
class Span:
    """What a call takes.

    Args:
        items: bytes at its peak beyond what was live before, by label.
        kept: bytes that its graph holds after the forward pass.
        tokens: that pass through blocks.
        read: bytes from files.
        results: label, shape, stride and dtype of each; None stays None.
    """

    items: dict[str, int]
    kept: int
    tokens: int
    read: int
    results: tuple[Any, ...]

    def plus(self, other: "Span", times: int) -> "Span":
        """Return this span and ``times`` what it has more than another; results stay."""
        kinds = {**self.items, **other.items}
        size = {k: (self.items.get(k, 0), other.items.get(k, 0)) for k in kinds}
        return Span(
            {kind: more + times * (more - less) for kind, (more, less) in size.items()},
            self.kept + times * (self.kept - other.kept),
            self.tokens + times * (self.tokens - other.tokens),
            self.read + times * (self.read - other.read),
            self.results,
        )


class Meter:
    """Label what a traced participation makes, and count its passes through blocks.

    The unit is one block on the whole batch. A backward pass through a frozen block costs what its
    forward pass does, so backpropagation takes 2L; a block that is re-run for its gradient counts
    again. The check of the scalars comes once in a participation, not in every step: it is left
    out.

    Args:
        counter: counts the bytes.
        model: a hollow model.
    """

    def __init__(self, counter: LiveBytes, model: SplitModel) -> None:
        self._counter, self._model, self._real = counter, model, type(model)
        if model not in _known:
            _known[model] = BlockKinds(model), {}
        self._kinds, self._spans = _known[model]
        self._kept = 0
        self._read_again = 0
        self.tokens = 0

    def read_bytes(self) -> int:
        """Return the bytes read from the model's files so far."""
        return read_bytes(self._model) + self._read_again

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Route the model's blocks, passes, head and gradients through this meter inside."""
        replaced: dict[str, Any] = {
            "moved": self._moved,
            "block": self._block,
            "forward": self._forward,
            "loss": self._loss,
            "differentiate": self._differentiate,
        }
        vars(self._model).update(replaced)
        try:
            yield
        finally:
            for name in replaced:
                delattr(self._model, name)

    def _moved(
        self,
        coordinates: Iterable[Coordinate],
        places: Sequence[tuple[int, float]],
        direction: Callable[[int, Coordinate], Tensor],
    ) -> dict[str, Tensor]:
        wanted = tuple(coordinates)

        def run() -> tuple[Tensor, ...]:
            values = self._real.moved(self._model, wanted, places, direction)
            return tuple(values[c.name] for c in wanted)

        shapes = tuple(c.shape for c in wanted)
        moves = tuple((j, bool(scale)) for j, scale in places)
        made = self._repeated(_key("moved", self._counter.kind, shapes, moves), run, ())
        made = made if isinstance(made, tuple) else (made,)
        return {c.name: value for c, value in zip(wanted, made, strict=True)}

    def _block(self, index: int, hidden: Tensor, inputs: BlockInputs, values: Any = None) -> Tensor:
        graph = torch.is_grad_enabled()
        self.tokens += (2 if graph else 1) * hidden.shape[:2].numel()

        def run() -> Tensor:
            return self._real.block(self._model, index, hidden, inputs, values)

        if graph or values is not None:  # values may be dual numbers
            return run()
        called = (self._counter.kind, self._kinds.of(index, inputs), described(hidden))
        output: Tensor = self._repeated(_key("block", *called), run, (hidden,))
        return output

    def _forward(self, hidden: Tensor, inputs: BlockInputs, start: int, stop: int) -> Tensor:
        graph = torch.is_grad_enabled()
        with self._counter.making(ACTIVATIONS if graph else TRANSIENT):
            output = self._real.forward(self._model, hidden, inputs, start, stop)
        self._kept = self._counter.live
        return output

    def _loss(self, hidden: Tensor, batch: Batch) -> Tensor:
        with self._counter.making(LOGITS):
            return self._real.loss(self._model, hidden, batch)

    def _differentiate(
        self,
        entry: Tensor,
        inputs: BlockInputs,
        blocks: range,
        toward: Batch | Tensor,
        *,
        to_entry: bool,
    ) -> Any:
        kinds = [self._kinds.of(index, inputs) for index in blocks]
        end = described(toward)
        if isinstance(toward, Batch):
            end = described(toward.slots, type(toward.goal), vars(toward.goal))
        called = (self._counter.kind, described(entry), end, to_entry)

        def run(part: range) -> Any:
            return self._real.differentiate(
                self._model, entry, inputs, part, toward, to_entry=to_entry
            )

        def key(count: int) -> Hashable | None:
            return _key("gradients", *called, *kinds[:count])

        whole, alike = key(len(kinds)), len(set(kinds)) == 1
        if whole is not None and whole not in self._spans and alike and len(kinds) > FEW:
            parts = [range(blocks.stop - count, blocks.stop) for count in (FEW - 1, FEW)]
            fewer, few = (self._apart(key(len(p)), run, p, (entry, toward)) for p in parts)
            if fewer is not None and few is not None and self._grows_by_graph(few, fewer, blocks):
                self._spans[whole] = self._with_gradient(few.plus(fewer, len(kinds) - FEW), blocks)
        return self._repeated(whole, lambda: run(blocks), (entry, toward))

    def _apart(
        self, key: Hashable | None, run: Callable[[range], Any], part: range, arguments: Any
    ) -> Span | None:
        """Return the span of a call that does not belong to the participation."""
        tokens, read = self.tokens, self.read_bytes()
        peak, items = self._counter.peak, self._counter.items
        self._repeated(key, lambda: run(part), arguments)
        self._counter.peak, self._counter.items = peak, items
        self.tokens = tokens
        self._read_again -= self.read_bytes() - read
        return self._spans.get(key)

    def _grows_by_graph(self, few: Span, fewer: Span, blocks: range) -> bool:
        """Tell whether a further block adds to the peak what its graph keeps.

        No moment of the pass can grow by more, unless gradients are larger than activations (they
        are twice in memory when they are joined). So this moment stays the peak.
        """
        grown = sum(few.items.values()) - sum(fewer.items.values())
        parameters = self._model.parameters_in(blocks[:1])
        gradient = sum(p.numel() * p.element_size() for p in parameters)
        return grown == few.kept - fewer.kept >= 2 * gradient

    def _with_gradient(self, span: Span, blocks: range) -> Span:
        """Return the span of a segment with a gradient [n] of its own length."""
        output, (kind, _, stride, dtype), below = span.results
        size = torch.Size([sum(p.numel() for p in self._model.parameters_in(blocks))])
        return replace(span, results=(output, (kind, size, stride, dtype), below))

    def _repeated(self, key: Hashable | None, run: Callable[[], Any], arguments: Any) -> Any:
        """Run a call that keeps nothing but its results, or count it again."""
        if key is None:
            return run()
        span = self._spans.get(key)
        if span is not None:
            self._counter.repeat(span.items)
            self.tokens += span.tokens
            self._read_again += span.read
            return _first_or_all([self._made(result) for result in span.results])
        before, tokens, read = self._counter.live, self.tokens, self.read_bytes()
        with self._counter.span() as items:
            output = run()
        results = output if isinstance(output, tuple) else (output,)
        if is_new([result for result in results if result is not None], arguments):
            shapes = tuple(self._shape(result) for result in results)
            kept, passed = self._kept - before, self.tokens - tokens
            self._spans[key] = Span(items, kept, passed, self.read_bytes() - read, shapes)
        return output

    def _shape(self, result: Tensor | None) -> Any:
        if result is None:
            return None
        return self._counter.kind_of(result), result.shape, result.stride(), result.dtype

    def _made(self, result: Any) -> Tensor | None:
        if result is None:
            return None
        kind, size, stride, dtype = result
        with self._counter.making(kind):
            return torch.empty_strided(size, stride, dtype=dtype, device=META)

    def without_recheck(self, bottom: BottomRule) -> BottomRule:
        """Return the same rule, with the check of its scalars left out of the count."""
        estimator = getattr(bottom, "estimator", None)
        if estimator is None:
            return bottom
        watched = copy(bottom)
        watched.estimator = _UncountedRecheck(estimator, self)  # type: ignore[attr-defined]
        return watched


@dataclass(frozen=True)
class _UncountedRecheck:
    inner: Estimator
    meter: Meter

    def probe(self, site: Site, inputs: BlockInputs, num_directions: int) -> Probe:
        return self.inner.probe(site, inputs, num_directions)

    def scalars(self, probe: Probe, feedback: Feedback) -> Tensor:
        return self.inner.scalars(probe, feedback)

    def recheck(self, site: Site, inputs: BlockInputs, feedback: Feedback) -> float | None:
        tokens = self.meter.tokens
        scalar = self.inner.recheck(site, inputs, feedback)
        self.meter.tokens = tokens
        return scalar


_known: WeakKeyDictionary[SplitModel, tuple[BlockKinds, dict[Hashable, Span]]] = WeakKeyDictionary()


def _key(*parts: Any) -> Hashable | None:
    """Return a key, or None if a part could not be described."""
    return None if None in parts else parts


def _first_or_all(results: Sequence[Any]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)
