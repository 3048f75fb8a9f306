"""The head in chunks against the whole head and plain autograd."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig

from hofl.algorithm import client_update
from hofl.core.batch import Batch, PredictTokens, Texts
from hofl.core.optim import AdamW
from hofl.local.step import LocalParts
from hofl.local.top import LocalTop
from hofl.memory.hollow import hollow_model
from hofl.memory.live import measure_peak
from hofl.memory.trace import placeholder_plan, trace
from hofl.memory.workload import Workload
from hofl.models import head
from hofl.models.adapters import Lora
from hofl.models.loading import build_split
from hofl.models.split import SplitModel
from hofl.rules import LocalRule
from support.models import BLOCKS, VOCABULARY, slot_logits, tiny

# Scores that are capped (gemma2), scaled (cohere, granite), of a head with a bias (gptj, phi), of a
# narrow one behind a projection (opt-350m), and plain ones.
KINDS = ("llama", "opt-350m", "gemma2", "cohere", "granite", "gptj", "phi")
CHUNKS = (1, VOCABULARY, 5 * VOCABULARY, 2**24)


def texts(seed: int, lengths: tuple[int, ...] = (9, 4, 11), words: int = VOCABULARY) -> Batch:
    """Random texts of which every next token is predicted, but for the first of each."""
    rng = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, words, (sum(lengths),), generator=rng)
    targets = torch.randint(3, words, (sum(lengths),), generator=rng)
    return Batch(Texts(tokens, lengths), torch.arange(len(tokens)), PredictTokens(targets), 3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", CHUNKS)
def test_loss_and_gradients_equal_those_of_the_whole_head(
    kind: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "CHUNK", chunk)
    model, data = tiny(kind), texts(1)
    inputs = model.inputs(data.texts)
    z = model.forward(inputs.hidden, inputs, 0, 1).detach()
    found = LocalTop(model, inputs, data, 1).gradients(z, to_boundary=True)
    entry = z.clone().requires_grad_()
    scores = model.head(model.forward(entry, inputs, 1, BLOCKS), data).whole()
    loss = cross_entropy(scores, data.goal.targets)
    wanted = torch.autograd.grad(loss, [*model.parameters_in(range(1, BLOCKS)), entry])
    torch.testing.assert_close(scores, slot_logits(model.module, data), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.value, loss.detach(), rtol=1e-5, atol=0)
    flat = torch.cat([gradient.reshape(-1) for gradient in wanted[:-1]])
    torch.testing.assert_close(found.flat, flat, rtol=1e-4, atol=1e-5 * flat.abs().max().item())
    assert found.delta is not None
    close = 1e-5 * wanted[-1].abs().max().item()
    torch.testing.assert_close(found.delta, wanted[-1], rtol=1e-4, atol=close)


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_evaluation_and_forward_mode_read_the_same_chunks(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = tiny(kind), texts(2)
    inputs = model.inputs(data.texts)
    with torch.no_grad():
        hidden = model.forward(inputs.hidden, inputs, 0, BLOCKS)
        scores = slot_logits(model.module, data)
    tangent = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(5))
    wanted = torch.func.jvp(lambda x: model.loss(x, data), (hidden,), (tangent,))[1]
    monkeypatch.setattr(head, "CHUNK", 4 * VOCABULARY)
    losses, right = model.head(hidden, data).judged(data.goal.targets)
    expected = cross_entropy(scores, data.goal.targets, reduction="none")
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)
    assert right.tolist() == (scores.argmax(1) == data.goal.targets).tolist()
    with torch.no_grad(), torch.autograd.forward_ad.dual_level():
        moved = model.loss(torch.autograd.forward_ad.make_dual(hidden, tangent), data)
        slope = torch.autograd.forward_ad.unpack_dual(moved).tangent.clone()
    torch.testing.assert_close(slope, wanted, rtol=1e-4, atol=1e-6)


LARGE: Any = LlamaConfig(
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    vocab_size=150_000,
    tie_word_embeddings=True,
    bos_token_id=1,
    eos_token_id=2,
)
RULE = LocalRule(optimizer=AdamW(lr=1e-3), local_steps=1, bottom="recompute")


def measured(model: SplitModel, length: int) -> int:
    """Peak bytes of a real participation on one text of which every token is predicted."""
    plan = placeholder_plan(model, RULE, 1)
    steps = [[texts(3, (length,), LARGE.vocab_size)]]
    with measure_peak(model.module, model.device) as peak:
        client_update(model, plan, steps, LocalParts.of(RULE, 1))
    return peak.value + plan.w.nbytes


def test_a_large_vocabulary_is_planned_and_does_not_grow_with_the_text() -> None:
    """150,000 words: the scores of 448 further tokens would be 256 MiB, thrice with gradients."""
    model = build_split(LARGE, None, adapter=Lora(rank=2))
    hollow = hollow_model(
        LARGE, adapter=Lora(rank=2), storage_dtype=torch.float32, compute_dtype=torch.float32
    )
    peaks = {}
    for length in (128, 576):
        work = Workload(rule=RULE, examples=((length,),), answer_tokens=length)
        peaks[length] = measured(model, length)
        assert trace(hollow, work, 1).peak_bytes == pytest.approx(peaks[length], rel=0.03)
    of_a_chunk = 3 * 4 * head.CHUNK
    weights = 4 * LARGE.vocab_size * LARGE.hidden_size
    assert peaks[576] < weights + 1.1 * of_a_chunk
    assert peaks[576] - peaks[128] < 2**22, "activations of 448 tokens, and no scores"


def test_a_head_in_sixteen_bits_is_read_in_chunks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = tiny("llama", storage_dtype=torch.bfloat16), texts(4)
    inputs = model.inputs(data.texts)

    def gradient() -> Tensor:
        top = LocalTop(model, inputs, data, 0)
        return top.gradients(inputs.hidden, to_boundary=False).flat

    whole = gradient()
    monkeypatch.setattr(head, "CHUNK", 7 * VOCABULARY)
    torch.testing.assert_close(gradient(), whole, rtol=1e-4, atol=1e-6)
