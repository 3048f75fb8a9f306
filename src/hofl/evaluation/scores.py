"""Scores of a model on a set of examples; averages are over examples, never over batches.

Answers that are chosen give ``accuracy``, answers that are written give ``em`` and ``f1`` by the
rules of SQuAD; both give ``loss``, the mean over the terms of the training loss.
"""

from collections.abc import Callable, Iterator, Sequence

import torch

from hofl.batch import ChooseOption, ChooseWord
from hofl.data.encoding import Encoded, EncodedSet
from hofl.data.task import FreeText
from hofl.evaluation.squad import exact_match, f1
from hofl.models.generation import greedy, stop_tokens
from hofl.models.split import SplitModel

Progress = Callable[[int, int], None]
"""Called with (examples done, of how many)."""


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
    # Similar lengths together, so that little padding is computed; long ones first, so that
    # memory runs out at once or not at all.
    encoded.sort(key=lambda one: one[1].length, reverse=True)
    written = isinstance(examples.encoder.prompt.answer, FreeText)
    score = _written if written else _chosen
    totals: dict[str, float] = {}
    done = 0
    for start in range(0, len(encoded), batch_size):
        some = encoded[start : start + batch_size]
        for name, value in score(model, examples, some):
            totals[name] = totals.get(name, 0.0) + value
        done += len(some)
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
    model: SplitModel, examples: EncodedSet, some: list[tuple[int, Encoded]]
) -> Iterator[tuple[str, float]]:
    batch = examples.collate([one for _, one in some]).to(model.device)
    inputs = model.inputs(batch.input_ids)
    logits = model.logits(model.forward(inputs.hidden, inputs, 0, model.num_blocks), batch)
    yield "loss", batch.goal.losses(logits).sum().item()
    yield "terms", len(batch.goal)
    if isinstance(batch.goal, ChooseWord | ChooseOption):
        best = batch.goal.choices(logits).argmax(1)  # [B]
        yield "accuracy", (best == batch.goal.targets).sum().item()


def _written(
    model: SplitModel, examples: EncodedSet, some: list[tuple[int, Encoded]]
) -> Iterator[tuple[str, float]]:
    yield from _chosen(model, examples, some)
    for (index, _), text in zip(some, answers(model, examples, some), strict=True):
        golds = examples.examples[index].golds
        yield "em", exact_match(text, golds)
        yield "f1", f1(text, golds)


def answers(
    model: SplitModel, examples: EncodedSet, some: Sequence[tuple[int, Encoded]]
) -> list[str]:
    """The model's own answers to some examples, up to a newline."""
    encoder = examples.encoder
    assert isinstance(encoder.prompt.answer, FreeText)
    tokens = greedy(
        model,
        [one.prompt for _, one in some],
        stop_tokens(encoder.tokenizer),
        encoder.prompt.answer.max_new_tokens,
    )
    return [encoder.tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in tokens]
