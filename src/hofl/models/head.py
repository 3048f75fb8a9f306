"""The model's head at some slots, in chunks: scores [M, V] of all slots are never alive at once.

A text of M predicted tokens needs one number per slot, -log p of the right token, and of each the
gradient [D] in the slot's activation. Both are computed a few slots at a time, and the scores
[chunk, V] are dropped before the next chunk. The gradient of slot i depends on slot i alone, so it
is computed in the forward pass and scaled by what comes from above in the backward pass: no score
is computed twice.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

CHUNK = 2**23
"""Scores of a chunk, 32 MiB in FP32 and thrice that with gradients; at least those of one slot."""


def scaling_of(config: Any) -> Callable[[Tensor], Tensor]:
    """Return how a model with this configuration scales and caps its scores after its head."""
    text = config.get_text_config()
    scales = (getattr(text, "logit_scale", None), 1 / getattr(text, "logits_scaling", 1))
    cap = getattr(text, "final_logit_softcapping", None)

    def scaled(scores: Tensor) -> Tensor:
        for scale in scales:
            if scale not in (None, 1):
                scores = scores * scale
        return scores if cap is None else cap * torch.tanh(scores / cap)

    return scaled


class SlotHead:
    """The head at M slots.

    Args:
        at_slots: [M, D] activations behind the last norm.
        head: the model's output embeddings, frozen, [V, D].
        scaled: how the model scales and caps its scores.
    """

    def __init__(
        self, at_slots: Tensor, head: nn.Module, scaled: Callable[[Tensor], Tensor]
    ) -> None:
        self._at_slots = at_slots
        self._weight: Any = head.weight
        self._bias: Any = getattr(head, "bias", None)
        self._scaled = scaled

    def whole(self) -> Tensor:
        """Return the scores of the whole vocabulary, [M, V]: for checks of a few slots."""
        return self._scores(self._at_slots, *self._computing())

    def words(self, candidates: Tensor) -> Tensor:
        """Return the scores of C words at every slot, [M, C], from candidates [C]."""
        bias = None if self._bias is None else self._bias[candidates]
        return self._scores(self._at_slots, self._weight[candidates], bias)

    def surprisals(self, tokens: Tensor) -> Tensor:
        """Return -log p of one token at each slot over the whole vocabulary, [M]."""
        if not torch.is_grad_enabled() or not self._at_slots.requires_grad:
            scored = zip(self._chunks(), self._by_chunk(), strict=True)
            return torch.cat([_losses(scores, tokens[rows]) for rows, scores in scored])
        if len(self._chunks()) == 1:
            return _losses(self.whole(), tokens)
        apply: Callable[..., Tensor] = _Chunked.apply
        return apply(self._at_slots, tokens, self)

    @torch.no_grad()
    def judged(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return -log p of each token, [M], and whether it is the most likely one, [M]."""
        losses, right = [], []
        for rows, scores in zip(self._chunks(), self._by_chunk(), strict=True):
            losses.append(_losses(scores, tokens[rows]))
            right.append(scores.argmax(1) == tokens[rows])
        return torch.cat(losses), torch.cat(right)

    def with_slopes(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return -log p of each token, [M], and its gradient in the slot's activation, [M, D]."""
        weights, losses = self._computing(), []
        slopes = torch.empty_like(self._at_slots)
        for rows in self._chunks():
            at_slots = self._at_slots[rows].detach().requires_grad_()
            with torch.enable_grad():
                loss = _losses(self._scores(at_slots, *weights), tokens[rows])
            (slopes[rows],) = torch.autograd.grad(loss, at_slots, torch.ones_like(loss))
            losses.append(loss.detach())
            del loss  # and its graph, before the next chunk is computed
        return torch.cat(losses), slopes

    def _by_chunk(self) -> Iterator[Tensor]:
        """Yield the scores of one chunk after the other, [chunk, V]."""
        weights = self._computing()
        for rows in self._chunks():
            yield self._scores(self._at_slots[rows], *weights)

    def _chunks(self) -> list[slice]:
        """Cut the slots so that a chunk has at most ``CHUNK`` scores."""
        size = max(1, CHUNK // len(self._weight))
        return [slice(i, i + size) for i in range(0, len(self._at_slots), size)]

    def _computing(self) -> tuple[Tensor, Tensor | None]:
        """Return weight and bias in the dtype of the activations: up-cast once for all chunks."""
        dtype = self._at_slots.dtype
        return self._weight.to(dtype), None if self._bias is None else self._bias.to(dtype)

    def _scores(self, at_slots: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return scores [m, C] of C rows of the head in FP32."""
        dtype = at_slots.dtype
        bias = None if bias is None else bias.to(dtype)
        return self._scaled(linear(at_slots, weight.to(dtype), bias).float())


def _losses(scores: Tensor, tokens: Tensor) -> Tensor:
    """Return -log p of a token at each slot, [m], from scores [m, V]."""
    return cross_entropy(scores, tokens, reduction="none")


class _Chunked(torch.autograd.Function):
    """-log p at every slot, [M], with gradients that were computed on the way."""

    @staticmethod
    def forward(ctx: Any, at_slots: Tensor, tokens: Tensor, head: SlotHead) -> Tensor:
        surprisals, slopes = head.with_slopes(tokens)
        ctx.save_for_backward(slopes)
        return surprisals

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor, None, None]:
        (slopes,) = ctx.saved_tensors
        return slopes * above[0][:, None].to(slopes.dtype), None, None
