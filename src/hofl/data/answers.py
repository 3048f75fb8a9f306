"""How answers become token spans and goals: label words, options of the example, free text.

Label words of one token each are compared at one slot, which needs C rows of the model's head. If
one of them takes several tokens, all are scored as spans.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from hofl.core.batch import ChooseOption, ChooseWord, Goal, PredictTokens
from hofl.core.errors import HoflError
from hofl.data.encoded import Span
from hofl.data.prompts import PromptEncoder
from hofl.data.task import Example, FreeText, LabelWords


class Answers(Protocol):
    """The answers of a task as token spans."""

    def spans(self, example: Example) -> tuple[Span, ...]:
        """Return what follows the prompt: one span, or one for each option."""
        ...

    def goal(self, tokens: Sequence[int], options: Sequence[int], labels: Sequence[int]) -> Goal:
        """Return the goal of a batch: tokens [M] and options [M] of its slots, labels [B]."""
        ...


@dataclass(frozen=True)
class SingleTokens:
    """Label words of one token each."""

    words: tuple[int, ...]

    def spans(self, example: Example) -> tuple[Span, ...]:
        """Return the right word; it is predicted, never read."""
        return ((self.words[example.label],),)

    def goal(self, tokens: Sequence[int], options: Sequence[int], labels: Sequence[int]) -> Goal:
        """Choose among the words at one slot per example."""
        return ChooseWord(torch.tensor(self.words), torch.tensor(labels))


@dataclass(frozen=True)
class WordSpans:
    """Label words of which some take several tokens."""

    words: tuple[Span, ...]

    def spans(self, example: Example) -> tuple[Span, ...]:
        """Return every word, right or wrong."""
        return self.words

    def goal(self, tokens: Sequence[int], options: Sequence[int], labels: Sequence[int]) -> Goal:
        """Choose among the spans."""
        return ChooseOption(torch.tensor(tokens), torch.tensor(options), torch.tensor(labels))


@dataclass(frozen=True)
class OptionSpans:
    """The options of each example."""

    encoder: PromptEncoder

    def spans(self, example: Example) -> tuple[Span, ...]:
        """Return every option, right or wrong."""
        return tuple(self.encoder.answer(option) for option in example.options)

    def goal(self, tokens: Sequence[int], options: Sequence[int], labels: Sequence[int]) -> Goal:
        """Choose among the spans."""
        return ChooseOption(torch.tensor(tokens), torch.tensor(options), torch.tensor(labels))


@dataclass(frozen=True)
class Text:
    """Free text, trained on the first accepted answer and ended by a newline."""

    encoder: PromptEncoder
    most: int

    def spans(self, example: Example) -> tuple[Span, ...]:
        """Return the target, cut to what would be generated."""
        return (self.whole(example)[: self.most],)

    def whole(self, example: Example) -> Span:
        """Return the target as it is."""
        return self.encoder.answer(f"{example.golds[0].strip()}\n")

    def goal(self, tokens: Sequence[int], options: Sequence[int], labels: Sequence[int]) -> Goal:
        """Predict every token."""
        return PredictTokens(torch.tensor(tokens))


def answers_of(encoder: PromptEncoder) -> Answers:
    """Return the answers that a prompt asks for, checked against the tokenizer."""
    answer = encoder.prompt.answer
    if isinstance(answer, LabelWords):
        spans = word_spans(answer.words, encoder)
        if all(len(span) == 1 for span in spans):
            return SingleTokens(tuple(span[0] for span in spans))
        return WordSpans(spans)
    if isinstance(answer, FreeText):
        return Text(encoder, answer.max_new_tokens)
    return OptionSpans(encoder)


def word_spans(words: Sequence[str], encoder: PromptEncoder) -> tuple[Span, ...]:
    """Return the tokens of each label word; refuse words the tokenizer cannot tell apart."""
    spans = tuple(encoder.answer(word) for word in words)
    shown = {word: encoder.pieces(span) for word, span in zip(words, spans, strict=True)}
    unknown = encoder.tokenizer.unk_token_id
    for word, span in zip(words, spans, strict=True):
        if unknown is not None and unknown in span:
            raise HoflError(
                f"label word {word!r} is unknown to this tokenizer: it becomes {shown[word]}. "
                "Choose another word."
            )
    if len(set(spans)) < len(words):
        raise HoflError(f"label words share their tokens: {shown}. Choose distinct words.")
    return spans
