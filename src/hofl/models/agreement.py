"""Whether a split model computes what the model itself computes, checked on a few tokens.

Parts that were found by structure are a guess. The check runs texts through the split, packed and
at two boundaries, and through the model's own forward pass with its own plain attention, padded;
scores and gradients must be the same. It computes in FP32, one part at a time, whatever the run's
precision is: a small leak would drown in the rounding of 16 bits.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hofl.core.batch import Batch, PredictTokens, Texts
from hofl.core.errors import HoflError
from hofl.models.attention import ATTENTION
from hofl.models.split import SplitModel

_LENGTHS = (3, 1, 2)  # the last two share a row also where rows are as long as the longest text
# In FP32 kernels differ by 1e-6 of the norm. A wrong mask, a missing norm or a leak from text to
# text is far larger.
_TOLERANCE = 1e-4


def check_agreement(model: SplitModel) -> None:
    """Refuse a model whose split does not compute what the model computes."""
    precision, model.compute_dtype = model.compute_dtype, torch.float32
    try:
        with _refusing(model.config.model_type):
            differing = next(_differences(model), None)
    finally:
        model.compute_dtype = precision
    if differing is not None:
        raise _refusal(model.config.model_type, differing)


def check_runs(model: SplitModel) -> None:
    """Refuse a model whose blocks cannot be called one by one; weights do not matter."""
    with _refusing(model.config.model_type), torch.no_grad():
        batch = _few_tokens(model)
        inputs = model.inputs(batch.texts)
        model.head(model.forward(inputs.hidden, inputs, 0, model.num_blocks), batch).whole()


@contextmanager
def _refusing(kind: str) -> Iterator[None]:
    """Turn whatever the model's own code raises, when it is called by parts, into a refusal."""
    try:
        yield
    except (HoflError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0].rstrip(".")
        what = f"called by parts, its code fails with {type(error).__name__}: {reason}"
        raise _refusal(kind, what) from None


def _refusal(kind: str, reason: str) -> HoflError:
    return HoflError(
        f"model type {kind!r} cannot be split into blocks: {reason}. Use another model, or add "
        "what this one needs to hofl/models/families.py."
    )


def _differences(model: SplitModel) -> Iterator[str]:
    """Yield what differs, from the plainest to the subtlest."""
    last = model.num_blocks
    boundaries = sorted({last // 3, 2 * last // 3})
    batch = _few_tokens(model)
    expected = _whole_scores(model, batch, "eager")
    wanted = _gradients(model, expected, batch, boundaries[0])
    with torch.no_grad():
        padded = _whole_scores(model, batch, ATTENTION)
    if not (far := _distance(padded, expected)) <= _TOLERANCE:
        yield f"with hofl's attention, scores of padded texts differ by {far:.2g} of their norm"
    inputs = model.inputs(batch.texts)
    z = inputs.hidden.expand(2, -1, -1)  # streams of perturbed weights go through as copies
    for start, boundary in pairwise([0, *boundaries]):
        with torch.no_grad():
            z = model.forward(z, inputs, start, boundary)
        scores = model.head(model.forward(z[1:], inputs, boundary, last), batch).whole()
        if not (far := _distance(scores, expected)) <= _TOLERANCE:
            yield f"block by block, its scores differ by {far:.2g} of their norm"
        got = _gradients(model, scores, batch, boundary)
        if not (far := _distance(got, wanted[-len(got) :])) <= _TOLERANCE:
            yield f"gradients above boundary {boundary} differ by {far:.2g} of their norm"


def _few_tokens(model: SplitModel) -> Batch:
    """Return a few short texts with a next token to predict at every token."""
    count = sum(_LENGTHS)
    words = model.base.get_input_embeddings().num_embeddings
    tokens = (torch.arange(2 * count, device=model.device) * 7919 + 11) % words
    return Batch(
        texts=Texts(tokens[:count], _LENGTHS),
        slots=torch.arange(count, device=model.device),
        goal=PredictTokens(tokens[count:]),
        examples=len(_LENGTHS),
    )


def _gradients(model: SplitModel, scores: Tensor, batch: Batch, boundary: int) -> Tensor:
    """Return the gradient of the loss over the blocks from a boundary on, flat."""
    parameters = model.parameters_in(range(boundary, model.num_blocks))
    assert isinstance(batch.goal, PredictTokens)
    gradients = torch.autograd.grad(cross_entropy(scores, batch.goal.targets), parameters)
    return torch.cat([gradient.reshape(-1) for gradient in gradients])


def _whole_scores(model: SplitModel, batch: Batch, attention: str) -> Tensor:
    """Return scores [N, V] by the model's own forward pass on padded texts."""
    texts = batch.texts.tokens.split(batch.texts.lengths)
    ids = nn.utils.rnn.pad_sequence(list(texts), batch_first=True)
    before = model.config._attn_implementation
    model.base.set_attn_implementation(attention)
    try:
        with _computing_part_by_part(model):
            logits = model.base(input_ids=ids, use_cache=False).logits.float()
    finally:
        model.base.set_attn_implementation(before)
    rows = zip(logits, batch.texts.lengths, strict=True)
    return torch.cat([row[:length] for row, length in rows])


@contextmanager
def _computing_part_by_part(model: SplitModel) -> Iterator[None]:
    """Let the whole model run in the compute dtype, with one part at a time in it."""
    head = model.base.get_output_embeddings()
    parts: Sequence[nn.Module] = [*model.blocks, *model.around, head]
    hook = model.base.get_input_embeddings().register_forward_hook(
        lambda _module, _args, output: output.to(model.compute_dtype)
    )
    for part in parts:
        part.forward = _computing(model, part, part.forward)
    try:
        yield
    finally:
        hook.remove()
        for part in parts:
            del part.forward


def _computing(model: SplitModel, part: nn.Module, run: Callable[..., Any]) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        with model.computing(part):
            return run(*args, **kwargs)

    return forward


def _distance(got: Tensor, expected: Tensor) -> float:
    """Return the norm of the difference, relative to the larger norm."""
    size = max(got.norm().item(), expected.norm().item())
    return (got - expected).norm().item() / size if size else 0.0
