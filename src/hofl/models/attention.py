"""Attention over texts that lie end to end in one row, without padding.

Projections, norms and MLPs treat tokens one by one, so a batch of texts can go through them as one
row of real tokens, [1, tokens, D]. Attention alone must know where a text ends. ``transformers``
lets an attention function and its mask function be registered by name: the mask function hands
every block a :class:`PackedRow` in place of a mask, and the attention function runs text by text.

Models that do not let their attention be replaced get a mask [N, N] instead: slower, and as exact.
Their row is cut into pieces no longer than the longest text, so that N is what they were made for.

Text by text is as fast as laying short texts out as [B, T], and twice as fast for long ones
(docs/log.md): it computes no padding, and a fused kernel needs no mask. Neighbours of one length go
together.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

from hofl.core.errors import HoflError

ATTENTION = "hofl-packed"
"""Name of the attention implementation of every split model that lets it be replaced."""

_COVERED = {"dropout", "scaling", "is_causal", "softcap"}
"""Arguments of attention that are obeyed here."""
_WITHOUT_EFFECT = {"sliding_window", "position_ids", "use_cache", "cache_position"}
"""Arguments that change nothing: the mask says the same, or they are for other kernels."""


@dataclass(frozen=True)
class PackedRow:
    """Where texts end in a row.

    Args:
        runs: neighbouring texts of one length, as (how many, length): each run is one kernel call.
        window: tokens that a position may attend to, itself included; None is all before it.
    """

    runs: tuple[tuple[int, int], ...]
    window: int | None = None

    @classmethod
    def of(cls, lengths: Sequence[int]) -> "PackedRow":
        """Describe texts of these lengths, one after the other.

        >>> PackedRow.of([3, 3, 5]).runs
        ((2, 3), (1, 5))
        """
        return cls(tuple((len(list(same)), length) for length, same in groupby(lengths)))

    def mask(self, length: int, device: torch.device) -> Tensor | None:
        """Return who attends to whom, [1, 1, T, T]; None where that is all before, and itself."""
        if self.window is None or length <= self.window:
            return None
        place = torch.arange(length, device=device)
        back = place[:, None] - place  # how far key j lies before query i, [T, T]
        return ((back >= 0) & (back < self.window))[None, None]


_row: ContextVar[PackedRow | None] = ContextVar("row", default=None)


@contextmanager
def packed_row(lengths: Sequence[int]) -> Iterator[None]:
    """Let models that are called inside take their row for texts of these lengths."""
    token = _row.set(PackedRow.of(lengths))
    try:
        yield
    finally:
        _row.reset(token)


def row_mask(lengths: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return what is added to attention scores so that texts in a row stay apart, [1, 1, N, N]."""
    text = torch.arange(len(lengths), device=device).repeat_interleave(
        torch.tensor(lengths, device=device), output_size=sum(lengths)
    )
    seen = (text[:, None] == text).tril()
    return torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill(
        ~seen, torch.finfo(dtype).min
    )[None, None]


def _mask(
    *args: Any, local_size: int | None = None, config: Any = None, **kwargs: Any
) -> PackedRow | Tensor | None:
    """Return the row for blocks whose attention reaches back ``local_size`` tokens."""
    row = _row.get()
    if row is None:  # padded batches, such as those of ``generate``
        return sdpa_mask(*args, local_size=local_size, config=config, **kwargs)
    _check_temperature(row, config)
    longest = max(length for _, length in row.runs)
    if local_size is None or local_size >= longest:
        return row
    if local_size == getattr(config, "attention_chunk_size", None):
        raise HoflError(
            f"this model attends in chunks of {local_size} tokens, which is not supported for "
            f"texts of {longest}: set task.max_length to {local_size}, or use another model."
        )
    return replace(row, window=local_size)


def _check_temperature(row: PackedRow, config: Any) -> None:
    """Refuse rows in which Llama 4 would scale scores by places in the row, not in the text."""
    tuned = getattr(config, "attn_temperature_tuning", False)
    first = getattr(config, "floor_scale", 0) if tuned else 0
    tokens = sum(count * length for count, length in row.runs)
    if first and tokens >= first and row.runs != ((1, tokens),):
        raise HoflError(
            f"this model scales its attention from token {first} on, which is not supported for "
            f"several texts of {tokens} tokens in all: set engine.micro_tokens to {first - 1} and "
            "evaluation.batch_size to fewer, or use another model."
        )


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: PackedRow | Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Map q, k and v [S, heads, N, d] of S rows, packed alike, to [S, N, heads, d]."""
    unknown = {key for key, value in kwargs.items() if value is not None and value is not False}
    if unknown := unknown - _COVERED - _WITHOUT_EFFECT:
        raise HoflError(
            f"this model's attention takes {', '.join(sorted(unknown))}, which is not supported: "
            "use another model, or extend hofl/models/attention.py."
        )
    kernel: Any = sdpa_attention_forward if kwargs.get("softcap") is None else _capped_attention
    if not isinstance(attention_mask, PackedRow):
        return kernel(module, query, key, value, attention_mask, **kwargs)[0], None
    runs, rows = attention_mask.runs, len(query)
    pieces = (x.split([count * length for count, length in runs], 2) for x in (query, key, value))
    outputs = []
    for (count, length), q, k, v in zip(runs, *pieces, strict=True):
        mask = attention_mask.mask(length, query.device)
        texts = (_texts(x, count, length) for x in (q, k, v))
        output = kernel(module, *texts, mask, **kwargs)[0]
        outputs.append(output.reshape(rows, count * length, *output.shape[2:]))
    return torch.cat(outputs, 1) if len(outputs) > 1 else outputs[0], None


def _capped_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Tensor]:
    """Run attention whose scores are capped before the softmax (Gemma 2): no fused kernel does."""
    queries, keys = query.shape[2], key.shape[2]
    if mask is None:  # queries are the last of the keys: all of them, or the newest
        mask = torch.ones(queries, keys, dtype=torch.bool, device=query.device)
        mask = mask.tril(keys - queries)[None, None]
    lowest = torch.finfo(query.dtype).min
    added = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, lowest)
    return eager_attention_forward(module, query, key, value, added, **kwargs)


def _texts(x: Tensor, count: int, length: int) -> Tensor:
    """View a run [S, heads, count * T, d] as single texts, [S * count, heads, T, d]."""
    if count == 1:
        return x
    return x.unflatten(2, (count, length)).transpose(1, 2).flatten(0, 1)


AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, _mask)
