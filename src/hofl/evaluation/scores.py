"""Scores of a model on a set of examples; averages are over examples or tokens, never batches.

Chosen answers give ``accuracy``, one-line answers ``em`` and ``f1`` by the rules of SQuAD. All give
``loss``, the mean over the terms of the training loss. Where these are tokens, there are also
``perplexity``, exp(loss), and ``token_accuracy``, the share of tokens that are the most likely one
after the right text before them.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch

from hofl.core.batch import ChooseOption, ChooseWord, PredictTokens
from hofl.data.encoded import Encoded, EncodedSet
from hofl.data.encoding import PromptedSet
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
    totals: dict[str, float] = {}
    done = 0
    for batch in _batches(encoded, batch_size, _generated(examples)):
        for name, value in _scores(model, examples, batch):
            totals[name] = totals.get(name, 0.0) + value
        done += len(batch)
        if progress is not None:
            progress(done, len(encoded))
    terms = totals.pop("terms")
    of_terms = {name: totals.pop(name) / terms for name in OF_TERMS if name in totals}
    means = {name: total / len(encoded) for name, total in totals.items()}
    if "token_accuracy" in of_terms:
        of_terms |= {"perplexity": perplexity(of_terms["loss"]), "tokens": int(terms)}
    return {**means, **of_terms, "examples": len(encoded)}


OF_TERMS = ("token_accuracy", "loss")
"""Means over the terms of the loss; the others are means over examples."""


def perplexity(loss: float) -> float:
    """Return exp of a mean loss per token, in nats; very large ones are capped."""
    return math.exp(min(loss, 700.0))


def _batches(
    pairs: list[tuple[int, Encoded]], batch_size: int, generated: int
) -> Iterator[list[tuple[int, Encoded]]]:
    """Yield batches of examples, given from long to short, none with more tokens than the first.

    The first has ``batch_size`` examples. Shorter ones go more at a time, in the same memory: the
    matrix products of a few short texts are too small to run at full speed.

    Args:
        pairs: (index, tokens) of the examples.
        batch_size: examples of the first batch.
        generated: tokens that are generated behind each.
    """
    sizes = [sum(encoded.lengths) + generated for _, encoded in pairs]
    most, start, tokens = sum(sizes[:batch_size]), 0, 0
    for place, size in enumerate(sizes):
        if tokens + size > most:
            yield pairs[start:place]
            start, tokens = place, 0
        tokens += size
    yield pairs[start:]


def _generated(examples: EncodedSet) -> int:
    """Return how many tokens an answer has at most that is generated to be scored."""
    answer = examples.encoder.prompt.answer if isinstance(examples, PromptedSet) else None
    return answer.max_new_tokens if isinstance(answer, FreeText) else 0


def _scores(
    model: SplitModel, examples: EncodedSet, pairs: list[tuple[int, Encoded]]
) -> Iterator[tuple[str, float]]:
    """Yield sums over a batch of (index, tokens), and under ``terms`` their number."""
    yield from _predicted(model, examples, [encoded for _, encoded in pairs])
    if isinstance(examples, PromptedSet) and isinstance(examples.encoder.prompt.answer, FreeText):
        for (index, _), text in zip(pairs, answers(model, examples, pairs), strict=True):
            golds = examples.examples[index].golds
            yield "em", exact_match(text, golds)
            yield "f1", f1(text, golds)


@torch.no_grad()
def _predicted(
    model: SplitModel, examples: EncodedSet, encoded: list[Encoded]
) -> Iterator[tuple[str, float]]:
    batch = examples.collate(encoded).to(model.device)
    inputs, goal = model.inputs(batch.texts), batch.goal
    head = model.head(model.forward(inputs.hidden, inputs, 0, model.num_blocks), batch)
    yield "terms", len(goal)
    if isinstance(goal, PredictTokens):
        losses, right = head.judged(goal.targets)
        yield "loss", losses.sum(dtype=torch.float64).item()
        yield "token_accuracy", right.sum().item()
        return
    yield "loss", goal.losses(head).sum().item()
    if isinstance(goal, ChooseWord | ChooseOption):
        best = goal.choices(head).argmax(1)  # [B]
        yield "accuracy", (best == goal.targets).sum().item()


def answers(
    model: SplitModel, examples: PromptedSet, pairs: Sequence[tuple[int, Encoded]]
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
