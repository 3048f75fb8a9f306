r"""A task: prompts, how they are answered, and two sets of examples.

>>> prompt = Prompt("Review: {text}\nSentiment:", cut="text", answer=LabelWords(("bad", "good")))
>>> prompt.render({"text": "A film of {rare} charm. "})
'Review: A film of {rare} charm.\nSentiment:'
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from string import Formatter

import numpy as np

from hofl.core.errors import HoflError


@dataclass(frozen=True)
class Example:
    """An example of any task.

    Args:
        fields: what the prompt's template names.
        label: index of the right label word or option; -1 where there is none.
        options: its options, where they differ from example to example.
        golds: accepted free-text answers; the first is the target of training.
    """

    fields: Mapping[str, str]
    label: int = -1
    options: tuple[str, ...] = ()
    golds: tuple[str, ...] = ()


@dataclass(frozen=True)
class LabelWords:
    """The answer is one of a few words, the same for every example, in the order of labels."""

    words: tuple[str, ...]


@dataclass(frozen=True)
class OwnOptions:
    """The answer is one of the example's options, each scored as a span of tokens."""


@dataclass(frozen=True)
class FreeText:
    """The answer is generated, up to a newline or the end of the text."""

    max_new_tokens: int = 64


Answer = LabelWords | OwnOptions | FreeText


@dataclass(frozen=True)
class Prompt:
    """A template and how it is answered.

    Args:
        template: text with ``{field}``s, ending where the answer begins; ``{{`` is a brace.
        cut: the field that loses its end when the prompt is too long.
        answer: label words, options or free text.
        max_length: most tokens of a filled-in prompt, unless the configuration sets it.
    """

    template: str
    cut: str
    answer: Answer
    max_length: int = 128

    def __post_init__(self) -> None:
        shown = f"prompt template {self.template!r}"
        if self.template != self.template.rstrip():
            raise HoflError(f"{shown} ends in white space: an answer brings its own, so remove it.")
        if self.cut not in self.fields:
            raise HoflError(
                f"{shown} does not hold {{{self.cut}}}, the field to cut: it holds "
                f"{', '.join(self.fields) or 'no field'}."
            )

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """Return the names in the template, in order."""
        return tuple(dict.fromkeys(name for line in self._lines for _, name in line if name))

    @cached_property
    def _lines(self) -> tuple[tuple[tuple[str, str | None], ...], ...]:
        """Return each line as pieces (literal text, name of the field after it)."""
        return tuple(_pieces(line, self.template) for line in self.template.split("\n"))

    def render(self, fields: Mapping[str, str]) -> str:
        """Fill in the template, without spaces around the values.

        A line that holds nothing but empty fields is left out, newline included. Values are
        inserted as they are: a brace in a user's text is a brace.
        """
        filled = []
        for pieces in self._lines:
            text = "".join(
                literal + (fields[name].strip() if name else "") for literal, name in pieces
            )
            named = any(name for _, name in pieces)
            if text.strip() or not named:
                filled.append(text)
        return "\n".join(filled)


@dataclass(frozen=True)
class Chat:
    """Conversations through the tokenizer's own chat template; the assistant's tokens are trained.

    Args:
        max_new_tokens: most tokens of a generated answer.
        max_length: most tokens of a conversation, unless the configuration sets it.
    """

    max_new_tokens: int = 128
    max_length: int = 512

    answer = None
    template = "(the tokenizer's chat template)"
    fields = ("messages",)


@dataclass(frozen=True)
class Documents:
    """Plain texts, a client's joined and cut into windows; every token is trained.

    Args:
        max_length: most tokens of a window, unless the configuration sets it.
    """

    max_length: int = 256

    answer = None
    template = "(plain text)"
    fields = ("text",)


Form = Prompt | Chat | Documents
"""How examples are read."""


@dataclass(frozen=True)
class Task:
    """A named set of examples with prompts.

    Args:
        name: in configurations.
        prompts: variants by name; the first is the default.
        train: examples to split over the clients; memory-mapped for the large sets.
        test: examples to evaluate on.
        classes: names of the classes of ``label``, empty where there are none.
        clients: the client that each training example belongs to in the data, or None.
        test_clients: the same of each test example.
        note: what the user should know about the data, such as an incomplete file.
    """

    name: str
    prompts: Mapping[str, Form]
    train: Sequence[Example]
    test: Sequence[Example]
    classes: tuple[str, ...] = ()
    clients: Sequence[int] | np.ndarray | None = field(default=None, repr=False)
    note: str = ""
    test_clients: Sequence[int] | np.ndarray | None = field(default=None, repr=False)

    def prompt(self, variant: str | None = None) -> Form:
        """Return a variant by name, or the default."""
        if variant is None:
            return next(iter(self.prompts.values()))
        if variant not in self.prompts:
            raise HoflError(
                f"task {self.name!r} has no prompt {variant!r}: choose one of "
                f"{', '.join(self.prompts)}."
            )
        return self.prompts[variant]


def _pieces(line: str, template: str) -> tuple[tuple[str, str | None], ...]:
    try:
        parsed = list(Formatter().parse(line))
    except ValueError as error:
        raise HoflError(
            f"prompt template {template!r}: {error}. Write a field as {{field}}, and a literal "
            "brace twice."
        ) from None
    for _, name, style, conversion in parsed:
        if name is not None and (not name or style or conversion):
            raise HoflError(f"prompt template {template!r}: write fields as {{field}} only.")
    return tuple((literal, name) for literal, name, _, _ in parsed)
