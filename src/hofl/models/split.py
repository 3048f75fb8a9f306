"""A causal language model as blocks that are called one by one, cut at any boundary 0..L.

The model's own code is never edited or copied. Its forward pass runs once per batch with every
block replaced by a recorder: that gives the embedded input and the exact arguments (rotary tables,
sliding-window masks, positions) that each block would have received. Whatever a family does per
block, such as SmolLM3's blocks without rotary embedding, therefore survives the split.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, nn
from torch.func import functional_call

from hofl.core.batch import Batch, Texts
from hofl.core.errors import BackwardFailed, HoflError, reason_of
from hofl.core.layout import Coordinate, Layout
from hofl.models.adapters import SurrogateParameters, bind_flat, parameter_at, trainable_layout
from hofl.models.attention import ATTENTION, packed_row, row_mask
from hofl.models.families import Family
from hofl.models.head import SlotHead, scaling_of
from hofl.models.precision import Reader, computing_in

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a block after the hidden state."""


class _AllRecorded(Exception):
    """Raised by the last recorder: the rest of the model's forward pass is not needed."""


@dataclass(frozen=True)
class BlockInputs:
    """The embedded texts and the further arguments of every block.

    The arguments hold for one row of tokens, and for any number of copies of it: [S, tokens, D].

    Args:
        hidden: [1, tokens, D] input of block 0.
        calls: of each block, for the whole row or for one piece of it after the other.
        pieces: tokens of each piece.
    """

    hidden: Tensor
    calls: Sequence[Sequence[Call]]
    pieces: Sequence[int]


class SplitModel:
    """A model whose trainable parameters are the flat vector ``w`` and whose blocks run singly.

    Args:
        module: a supported causal LM with its adapters attached.
        family: where its parts are.
        compute_dtype: dtype of activations; frozen weights stored in another one are up-cast block
            by block.
        on_disk: how to read frozen block weights from files, where :meth:`keep` may leave them.
        away: how to restore those that are not in memory as plain tensors now.
        surrogate: a surrogate's parameters, which are trained beside the model's.
    """

    def __init__(
        self,
        module: nn.Module,
        family: Family,
        compute_dtype: torch.dtype,
        on_disk: Mapping[nn.Parameter, Reader] | None = None,
        away: Mapping[nn.Parameter, Reader] | None = None,
        surrogate: SurrogateParameters | None = None,
    ) -> None:
        self.module = module.eval()
        base: Any = module.get_base_model() if isinstance(module, PeftModel) else module
        self.base = base
        if getattr(base.config, "use_bidirectional_attention", False):
            raise HoflError("the model attends to later tokens too: it is not a causal one.")
        self.family = family
        base.set_attn_implementation(ATTENTION)
        # Models with attention of their own, such as GPT-J, stay as they are.
        self._masked = base.config._attn_implementation != ATTENTION
        self.config: Any = base.config
        self.compute_dtype = compute_dtype
        self.on_disk = dict(on_disk or {})
        self._away = dict(away or {})
        self.blocks = family.blocks_of(base)
        if surrogate is not None:
            surrogate = surrogate.with_copies(self.blocks[0])
        self.surrogate = surrogate
        self.layout: Layout = trainable_layout(base, self.blocks, surrogate)
        self.w = bind_flat(self.blocks, self.layout, surrogate)
        self.device = self.w.device
        self._decoder = family.decoder_of(base)
        self._after = family.after_blocks(base)
        # What surrounds the blocks, such as OPT's positions and input projection. The token table
        # is left as stored: up-casting it whole would cost more than a block.
        self.around = [
            part
            for part in self._decoder.children()
            if not isinstance(part, nn.ModuleList) and part is not base.get_input_embeddings()
        ]
        inside = self.layout.coordinates[len(self.layout.surrogate) :]
        self._parameters = {c.index: parameter_at(self.blocks, c) for c in inside}

    @property
    def num_blocks(self) -> int:
        """Return L."""
        return len(self.blocks)

    def load(self, w: Tensor) -> None:
        """Set the trainable parameters to the flat vector ``w`` [d]."""
        with torch.no_grad():
            self.w.copy_(w)

    def keep(self, start: int) -> None:
        """Load the frozen weights of blocks start..L-1; those below are read whenever they run."""
        if start and not self.on_disk:
            raise HoflError(
                "the bottom cannot be streamed: the model has no safetensors files with frozen "
                "block weights. Set engine.stream_bottom=false."
            )
        for index, block in enumerate(self.blocks):
            for parameter in block.parameters():
                if parameter not in self.on_disk:
                    continue
                if index < start and parameter not in self._away:
                    parameter.data = parameter.new_empty(0)
                    self._away[parameter] = self.on_disk[parameter]
                elif index >= start and parameter in self._away:
                    parameter.data = self._away[parameter]()  # may fail for lack of memory
                    del self._away[parameter]

    def computing(self, part: nn.Module) -> AbstractContextManager[None]:
        """Hold the frozen weights of a part in memory and in the compute dtype inside."""
        return computing_in(part, self.compute_dtype, self._away)

    def parameter(self, coordinate: Coordinate) -> nn.Parameter:
        """Return the parameter at a coordinate."""
        return self._parameters[coordinate.index]

    def parameters_in(self, blocks: range) -> list[nn.Parameter]:
        """Return the trainable parameters of some blocks, in layout order."""
        return [self.parameter(c) for index in blocks for c in self.layout.by_block[index]]

    def moved(
        self,
        coordinates: Iterable[Coordinate],
        places: Sequence[tuple[int, float]],
        direction: Callable[[int, Coordinate], Tensor],
    ) -> dict[str, Tensor]:
        """Return parameters at w + scale * u_j for every (j, scale), [S, *shape] by name.

        Args:
            coordinates: of the parameters.
            places: S of them; with scale 0 a parameter stays as it is.
            direction: returns u_j of a parameter, in its shape.
        """
        values = {}
        for c in coordinates:
            anchor = self.w[c.start : c.stop].view(c.shape)
            stacked = anchor.expand(len(places), *c.shape).clone()
            for j in sorted({j for j, scale in places if scale}):
                u = direction(j, c)
                for s, (of, scale) in enumerate(places):
                    if scale and of == j:
                        stacked[s].add_(u, alpha=scale)
            values[c.name] = stacked
        return values

    def inputs(self, texts: Texts) -> BlockInputs:
        """Embed texts and record what the model would pass to each of its blocks."""
        # With masks, scores are [N, N], from tables that may be no longer than one text.
        pieces = texts.in_rows_of(max(texts.lengths)) if self._masked else [texts]
        hidden, calls = zip(*map(self._recorded, pieces), strict=True)
        tokens = [len(piece.tokens) for piece in pieces]
        return BlockInputs(torch.cat(hidden, 1), [*zip(*calls, strict=True)], tokens)

    def _recorded(self, texts: Texts) -> tuple[Tensor, list[Call]]:
        """Return the embedded texts [1, tokens, D], and what each block would be called with."""
        calls: list[Call] = []
        first: list[Tensor] = []

        def recorder(hidden: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            if not first:
                first.append(hidden)
            calls.append((args, kwargs))
            if len(calls) == self.num_blocks:
                raise _AllRecorded
            return hidden

        def cast(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
            # Rotary tables take the dtype of the hidden state: cast before they are made.
            return output.to(self.compute_dtype)

        hook = self.base.get_input_embeddings().register_forward_hook(cast)
        for block in self.blocks:
            block.forward = recorder
        try:
            with torch.no_grad(), packed_row(texts.lengths), ExitStack() as stack:
                for part in self.around:
                    stack.enter_context(self.computing(part))
                self._decoder(texts.tokens[None], use_cache=False, **self._places(texts))
        except _AllRecorded:
            pass
        finally:
            hook.remove()
            for block in self.blocks:
                del block.forward
        return first[0].to(self.compute_dtype), calls

    def _places(self, texts: Texts) -> dict[str, Tensor]:
        """Tell the decoder where each token is in its text, and which tokens share a text."""
        places = {"position_ids": texts.positions()[None]}
        if self._masked:
            places["attention_mask"] = row_mask(texts.lengths, self.compute_dtype, self.device)
        return places

    def block(
        self,
        index: int,
        hidden: Tensor,
        inputs: BlockInputs,
        values: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Run one block on [S, tokens, D], with ``values`` in place of named parameters."""
        block, outputs = self.blocks[index], []
        rows = hidden.split(list(inputs.pieces), 1) if len(inputs.pieces) > 1 else (hidden,)
        with self.computing(block):
            for row, (args, kwargs) in zip(rows, inputs.calls[index], strict=True):
                if values is None:
                    output = block(row, *args, **kwargs)
                else:
                    output = functional_call(block, dict(values), (row, *args), kwargs)
                outputs.append(output[0] if isinstance(output, tuple) else output)
        return torch.cat(outputs, 1) if len(outputs) > 1 else outputs[0]

    def forward(self, hidden: Tensor, inputs: BlockInputs, start: int, stop: int) -> Tensor:
        """Run blocks start..stop-1."""
        for index in range(start, stop):
            hidden = self.block(index, hidden, inputs)
        return hidden

    def head(self, hidden: Tensor, batch: Batch) -> SlotHead:
        """Return the head at the slots, from the output of the last block [1, tokens, D]."""
        at_slots = hidden[0, batch.slots]  # [M, D]
        for part in self._after:
            with self.computing(part):
                at_slots = part(at_slots)
        return SlotHead(at_slots, self.base.get_output_embeddings(), scaling_of(self.config))

    def loss(self, hidden: Tensor, batch: Batch) -> Tensor:
        """Return the mean loss over the goal's terms, from the output of the last block."""
        return batch.goal.losses(self.head(hidden, batch)).mean()

    def differentiate(
        self,
        entry: Tensor,
        inputs: BlockInputs,
        blocks: range,
        toward: Batch | Tensor,
        *,
        to_entry: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Run blocks from their entry and differentiate in their parameters; free everything.

        Args:
            entry: hidden state [1, tokens, D] before the first of them.
            inputs: what the blocks get beside it.
            blocks: a range of them.
            toward: what is differentiated: a batch's loss, behind the last block, or the product of
                their output with this gradient [1, tokens, D].
            to_entry: differentiate in the entry too.

        Returns:
            Loss or output, the gradient [n] and, if asked for, that of the entry.

        Raises:
            BackwardFailed: PyTorch refused. Some devices and kernels cannot run backward, and that
                must be told from other errors.
        """
        entry = entry.detach().requires_grad_(to_entry)
        wanted: list[Tensor] = [*self.parameters_in(blocks), *([entry] if to_entry else [])]
        delta = None if isinstance(toward, Batch) else toward
        grads: list[Tensor] = []
        try:
            with torch.set_grad_enabled(bool(wanted)):
                output = self.forward(entry, inputs, blocks.start, blocks.stop)
                output = self.loss(output, toward) if isinstance(toward, Batch) else output
            if wanted:
                grads = list(torch.autograd.grad(output, wanted, delta))
        except RuntimeError as error:
            if not wanted:
                raise
            raise BackwardFailed(f"cannot run a block backward: {reason_of(error)}") from error
        below = grads.pop() if to_entry else None
        flat = [grad.reshape(-1) for grad in grads]
        gradient = torch.cat(flat) if flat else torch.zeros(0, device=entry.device)
        return output.detach(), gradient, below
