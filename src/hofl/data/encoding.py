"""From a task's examples to token batches. Texts are tokenised when they are needed.

A set of prompts or conversations holds no tokens: a thousand clients are a thousand arrays of
indices into one memory-mapped set of examples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hofl.core.batch import Goal
from hofl.core.errors import HoflError
from hofl.data.answers import Answers, answers_of
from hofl.data.chat import ChatEncoder, ConversationSet
from hofl.data.encoded import Encoded, EncodedSet, ExampleSet, TokenLine
from hofl.data.prompts import PromptEncoder, reserved
from hofl.data.task import Chat, Documents, Example, Form
from hofl.data.windows import DocumentSet


@dataclass(frozen=True)
class PromptedSet(ExampleSet):
    """Examples through a prompt's template."""

    encoder: PromptEncoder
    answers: Answers

    def encoded(self, index: int) -> Encoded:
        """Return an example in tokens."""
        example = self.examples[index]
        try:
            spans = self.answers.spans(example)
            longest = max(reserved(self.encoder.prompt), *map(len, spans))
            prompt, cut = self.encoder.encode(example, longest)
        except HoflError as error:
            raise HoflError(f"example {index}: {error}") from None
        label = example.label
        if len(spans) > 1:  # real sets repeat an option: the first of equals stands for both
            label = spans.index(spans[label])
        return Encoded(tuple(TokenLine.after(prompt, span) for span in spans), prompt, label, cut)

    def goal(self, tokens: Sequence[int], options: Sequence[int], labels: Sequence[int]) -> Goal:
        """Return what the prompt's answers ask for."""
        return self.answers.goal(tokens, options, labels)


def encode(
    examples: Sequence[Example],
    form: Form,
    tokenizer: Any,
    max_length: int,
    window: int,
) -> EncodedSet:
    """Pair the examples of a task with a tokenizer, and check label words and chat template.

    Args:
        examples: of the task.
        form: which of its prompts, or how its conversations or documents are read.
        tokenizer: of the model, or None where the model's folder has none.
        max_length: most tokens of a prompt, of a conversation, or of a window of documents.
        window: most tokens that the model can attend to.
    """
    if tokenizer is None:
        raise HoflError(
            "a task needs a tokenizer, and the model's folder has none: add its tokenizer files."
        )
    if isinstance(form, Chat):
        return ConversationSet(examples, ChatEncoder(tokenizer, max_length), form.max_new_tokens)
    if isinstance(form, Documents):
        return DocumentSet.of(examples, tokenizer, max_length)
    encoder = PromptEncoder(form, tokenizer, max_length, window)
    return PromptedSet(examples, encoder, answers_of(encoder))
