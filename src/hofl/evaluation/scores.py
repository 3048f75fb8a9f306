"""Scores of a model on a set of examples; averages are over examples, never over batches.

Chosen answers give ``accuracy``, generated ones ``em`` and ``f1`` by the rules of SQuAD; both give
``loss``, the mean over the terms of the training loss.
"""

from collections.abc import Callable, Iterator, Sequence

import torch

from hofl.core.batch import ChooseOption, ChooseWord
from hofl.data.encoding import Encoded, EncodedSet
from hofl.data.task import FreeText
from hofl.evaluation.squad import exact_match, f1
from hofl.models.generation import greedy, stop_tokens
from hofl.models.split import SplitModel

Progress = Callable[[int, int], None]
"""Called with (examples done, examples in all)."""


def evaluate(
    model: SplitModel,
    examples: EncodedSet,
    batch_size: int = 16,
    indices: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Score the model on all examples, or on those at ``indices``."""
    chosen = range(len(examples)) if indices is None else indices
    encoded = [(int(i), examples.encoded(int(i))) for i in chosen]
    # Long ones first: memory runs out at once or not at all, and generation pads little.
    encoded.sort(key=lambda pair: sum(pair[1].lengths), reverse=True)
    generated = isinstance(examples.encoder.prompt.answer, FreeText)
    score = _generated if generated else _chosen
    totals: dict[str, float] = {}
    done = 0
    for start in range(0, len(encoded), batch_size):
        batch = encoded[start : start + batch_size]
        for name, value in score(model, examples, batch):
            totals[name] = totals.get(name, 0.0) + value
        done += len(batch)
        if progress is not None:
            progress(done, len(encoded))
    terms = totals.pop("terms")
    loss = totals.pop("loss") / terms
    return {
        **{name: total / len(encoded) for name, total in totals.items()},
        "loss": loss,
        "examples": len(encoded),
    }


@torch.no_grad()
def _chosen(
    model: SplitModel, examples: EncodedSet, pairs: list[tuple[int, Encoded]]
) -> Iterator[tuple[str, float]]:
    batch = examples.collate([encoded for _, encoded in pairs]).to(model.device)
    inputs = model.inputs(batch.texts)
    logits = model.logits(model.forward(inputs.hidden, inputs, 0, model.num_blocks), batch)
    yield "loss", batch.goal.losses(logits).sum().item()
    yield "terms", len(batch.goal)
    if isinstance(batch.goal, ChooseWord | ChooseOption):
        best = batch.goal.choices(logits).argmax(1)  # [B]
        yield "accuracy", (best == batch.goal.targets).sum().item()


def _generated(
    model: SplitModel, examples: EncodedSet, pairs: list[tuple[int, Encoded]]
) -> Iterator[tuple[str, float]]:
    yield from _chosen(model, examples, pairs)
    for (index, _), text in zip(pairs, answers(model, examples, pairs), strict=True):
        golds = examples.examples[index].golds
        yield "em", exact_match(text, golds)
        yield "f1", f1(text, golds)


def answers(
    model: SplitModel, examples: EncodedSet, pairs: Sequence[tuple[int, Encoded]]
) -> list[str]:
    """Generate the model's answers to examples, up to a newline; ``pairs`` are (index, tokens)."""
    encoder = examples.encoder
    assert isinstance(encoder.prompt.answer, FreeText)
    tokens = greedy(
        model,
        [encoded.prompt for _, encoded in pairs],
        stop_tokens(encoder.tokenizer),
        encoder.prompt.answer.max_new_tokens,
    )
    return [encoder.tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in tokens]
