"""A task: prompts, the words that answer them, and two sets of examples."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """A text and the index of its right label word."""

    text: str
    label: int


@dataclass(frozen=True)
class Task:
    """Classification by completing a prompt with one of a few words.

    Args:
        name: how it is called in configurations.
        prompt: template with ``{text}``; it ends where the label word begins.
        labels: the words, in the order of the examples' label indices.
        train: examples to split over the clients.
        test: examples to evaluate on.
    """

    name: str
    prompt: str
    labels: tuple[str, ...]
    train: tuple[Example, ...]
    test: tuple[Example, ...]
