"""Goals and parts of a batch against autograd on the model's whole-vocabulary head."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from hofl.core.batch import ChooseOption, ChooseWord, PredictTokens
from hofl.core.directions import DirectionKey
from hofl.core.optim import SGD
from hofl.data.conversations import ChatColumns
from hofl.data.encoding import EncodedSet, encode
from hofl.data.task import Chat, Documents, Example, FreeText, LabelWords, OwnOptions
from hofl.local.step import LocalParts, StepGradients, hybrid_gradients
from hofl.models.split import SplitModel
from hofl.rules import LocalRule
from support.models import tiny
from support.number_texts import END, NEWLINE, number_set, number_tokenizer, random_prompts, words
from support.steps import site_at

LENGTHS = (9, 3, 14, 1, 12, 6, 5)
PROMPTS = random_prompts(LENGTHS)
LABELS = (1, 0, 2, 1, 0, 2, 2)
WORDS = (40, 11, 77)
OPTIONS = ((20,), (21, 22, 23), (24, 25))
UNKNOWN, STOP = 0, 2
TEXTS = ((30,), (31, 32, 33), (34, 35), (36,), (37, 38), (39,), (41, 42, 43, 44))


def word_set() -> EncodedSet:
    return number_set(PROMPTS, LabelWords(tuple(map(str, WORDS))), label=LABELS)


def span_set() -> EncodedSet:
    return number_set(PROMPTS, LabelWords(tuple(map(words, OPTIONS))), label=LABELS)


def option_set() -> EncodedSet:
    own = [tuple(words([*option, i + 50]) for option in OPTIONS) for i in range(len(PROMPTS))]
    return number_set(PROMPTS, OwnOptions(), label=LABELS, options=own)


def text_set() -> EncodedSet:
    golds = [(words(text),) for text in TEXTS]
    return number_set(PROMPTS, FreeText(8), golds=golds)


def chat_set() -> EncodedSet:
    """Conversations in the plain template, whose words the tokenizer does not know."""
    pairs = zip(PROMPTS, TEXTS, strict=True)
    rows = [{"prompt": words(prompt), "completion": words(text)} for prompt, text in pairs]
    examples = [ChatColumns.found(row, ChatColumns(), "").example(row) for row in rows]
    return encode(examples, Chat(), number_tokenizer(), 64, 64)


def window_set() -> EncodedSet:
    """All texts as the documents of one client, in windows of at most 5 tokens."""
    documents = [Example({"text": words(text)}) for text in TEXTS]
    whole = encode(documents, Documents(), number_tokenizer(), 5, 64)
    return whole.grouped([np.arange(len(TEXTS))])[0]


def log_probability(model: SplitModel, prompt: tuple[int, ...], span: tuple[int, ...]) -> Tensor:
    """Of a span behind a prompt, token by token, each from its own forward pass, [len(span)]."""
    return continued(model, [*prompt, END], span)


def continued(model: SplitModel, before: list[int], span: Sequence[int]) -> Tensor:
    read, found = [*before], []
    for token in span:
        logits = model.module(input_ids=torch.tensor([read])).logits[0, -1]
        found.append(logits.log_softmax(0)[token])
        read.append(token)
    return torch.stack(found)


def word_loss(model: SplitModel) -> Tensor:
    return spans_loss(model, [tuple((word,) for word in WORDS)] * len(PROMPTS))


def span_loss(model: SplitModel) -> Tensor:
    return spans_loss(model, [OPTIONS] * len(PROMPTS))


def option_loss(model: SplitModel) -> Tensor:
    own = [tuple((*option, i + 50) for option in OPTIONS) for i in range(len(PROMPTS))]
    return spans_loss(model, own)


def spans_loss(model: SplitModel, spans: list[tuple[tuple[int, ...], ...]]) -> Tensor:
    losses = []
    for prompt, options, label in zip(PROMPTS, spans, LABELS, strict=True):
        scores = torch.stack([log_probability(model, prompt, o).sum() for o in options])
        losses.append(-scores.log_softmax(0)[label])
    return torch.stack(losses).mean()


def text_loss(model: SplitModel) -> Tensor:
    found = [
        log_probability(model, prompt, (*text, NEWLINE))
        for prompt, text in zip(PROMPTS, TEXTS, strict=True)
    ]
    return -torch.cat(found).mean()


def chat_loss(model: SplitModel) -> Tensor:
    found = [
        continued(model, [UNKNOWN, *prompt, NEWLINE, UNKNOWN], [*text, STOP])
        for prompt, text in zip(PROMPTS, TEXTS, strict=True)
    ]
    return -torch.cat(found).mean()


def window_loss(model: SplitModel) -> Tensor:
    stream = [token for text in TEXTS for token in (*text, STOP)]
    found = [
        continued(model, [stream[start - 1]], stream[start : start + 5])
        for start in range(0, len(stream), 5)
    ]
    return -torch.cat(found).mean()


CASES: dict[str, tuple[Callable[[], EncodedSet], Callable[[SplitModel], Tensor], type]] = {
    "words": (word_set, word_loss, ChooseWord),
    "word spans": (span_set, span_loss, ChooseOption),
    "own options": (option_set, option_loss, ChooseOption),
    "free text": (text_set, text_loss, PredictTokens),
    "chat": (chat_set, chat_loss, PredictTokens),
    "windows": (window_set, window_loss, PredictTokens),
}


def gradients(
    model: SplitModel, examples: EncodedSet, size: int, boundary: int, bottom: str, tokens: int = 0
) -> StepGradients:
    q = 3 if bottom == "zeroth-order" else 0
    rule = LocalRule(optimizer=SGD(lr=0.1), bottom=bottom, q=q, estimator="forward-mode")
    parts = examples.parts(range(len(examples)), size, tokens)
    assert tokens or len(parts) == (1 if size == 0 else -(-len(examples) // size))
    site = site_at(model, boundary, DirectionKey(3, 1, 2), 1)
    return hybrid_gradients(site, parts, LocalParts.of(rule, boundary))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [0, 1, 2, 3])
def test_loss_and_gradient_equal_autograds_over_the_whole_vocabulary(case: str, size: int) -> None:
    make, oracle, kind = CASES[case]
    model, examples = tiny("llama"), make()
    assert isinstance(examples.batch([0]).goal, kind)
    loss = oracle(model)
    parameters = [p for p in model.module.parameters() if p.requires_grad]
    expected = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters)])
    found = gradients(model, examples, size, 2, "recompute")
    assert found.bottom is not None
    whole = torch.cat([found.bottom, found.top])
    assert found.loss == pytest.approx(loss.item(), rel=1e-5)
    assert found.examples == len(examples)
    torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("family", ["opt", "gemma3"])
def test_scalars_of_parts_equal_those_of_the_whole_batch(case: str, family: str) -> None:
    model, examples = tiny(family), CASES[case][0]()
    whole = gradients(model, examples, 0, 3, "zeroth-order")
    for size, tokens in ((1, 0), (3, 0), (0, 20), (2, 20)):
        parts = gradients(model, examples, size, 3, "zeroth-order", tokens)
        torch.testing.assert_close(parts.scalars, whole.scalars, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(parts.top, whole.top, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("make", [word_set, option_set])
@pytest.mark.parametrize(("most", "tokens"), [(2, 0), (0, 9), (2, 9), (0, 1), (0, 60)])
def test_parts_keep_every_example_within_both_bounds(
    make: Callable[[], EncodedSet], most: int, tokens: int
) -> None:
    """Of options that are texts of their own, all count."""
    examples = make()
    (whole,) = examples.parts(range(7))
    assert whole.texts.tokens.tolist() == examples.batch(range(7)).texts.tokens.tolist()
    parts = examples.parts(range(7), most, tokens)
    for part in parts:
        assert part.examples <= (most or 7)
        assert part.examples == 1 or len(part.texts.tokens) <= (tokens or 1000)
    assert sum(len(part.texts.tokens) for part in parts) == len(whole.texts.tokens)
    assert sorted(label for part in parts for label in part.goal.targets.tolist()) == sorted(LABELS)


def test_a_whole_batch_keeps_the_order_of_its_examples() -> None:
    goal = word_set().batch([4, 0, 2]).goal
    assert isinstance(goal, ChooseWord)
    assert goal.targets.tolist() == [0, 1, 2]
