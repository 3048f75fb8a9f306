"""From a task's examples to token batches, with the label words checked against the tokenizer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hofl.batch import Batch
from hofl.data.task import Example, LabelWords, Task
from hofl.errors import HoflError


@dataclass(frozen=True)
class EncodedSet:
    """Tokenised prompts, their labels, and the token of each label word."""

    prompts: tuple[tuple[int, ...], ...]
    labels: tuple[int, ...]
    words: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.prompts)

    def batch(self, indices: Sequence[int]) -> Batch:
        """The examples at ``indices``, right-padded; the slot is each prompt's last token."""
        prompts = [self.prompts[i] for i in indices]
        ids = torch.zeros(len(prompts), max(map(len, prompts)), dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.tensor(prompt)
        return Batch(
            input_ids=ids,
            rows=torch.arange(len(prompts)),
            columns=torch.tensor([len(prompt) - 1 for prompt in prompts]),
            targets=torch.tensor([self.labels[i] for i in indices]),
            candidates=torch.tensor(self.words),
        )


def encode(task: Task, examples: Sequence[Example], tokenizer: Any, max_length: int) -> EncodedSet:
    """Tokenise examples; a text that is too long loses its end, never the answer slot."""
    if tokenizer is None:
        raise HoflError(f"task {task.name!r} needs a tokenizer, and the model's folder has none.")
    answer = task.prompt().answer
    if not isinstance(answer, LabelWords):
        raise HoflError(f"task {task.name!r} is not answered by label words.")
    words = label_tokens(answer.words, tokenizer)
    prompts = tuple(_prompt(task, example, tokenizer, max_length) for example in examples)
    return EncodedSet(prompts, tuple(example.label for example in examples), words)


def label_tokens(labels: Sequence[str], tokenizer: Any) -> tuple[int, ...]:
    """The single token of each label word as it stands after a blank; they must be distinct."""
    lead = tokenizer("x", add_special_tokens=False)["input_ids"]
    words = []
    for label in labels:
        ids = tokenizer(f"x {label}", add_special_tokens=False)["input_ids"]
        pieces = ids[len(lead) :]
        if ids[: len(lead)] != lead or len(pieces) != 1:
            shown = tokenizer.convert_ids_to_tokens(ids)
            raise HoflError(
                f"label word {label!r} is not one token for this tokenizer: 'x {label}' becomes "
                f"{shown}. Choose a shorter word."
            )
        words.append(pieces[0])
    if len(set(words)) < len(words):
        shown = dict(zip(labels, words, strict=True))
        raise HoflError(f"label words share a token: {shown}. Choose distinct words.")
    return tuple(words)


def _prompt(task: Task, example: Example, tokenizer: Any, max_length: int) -> tuple[int, ...]:
    prompt = task.prompt()
    ids = tokenizer(prompt.render(example.fields))["input_ids"]
    if len(ids) > max_length:
        pieces = tokenizer(example.fields[prompt.cut], add_special_tokens=False)["input_ids"]
        keep = len(pieces)
        while len(ids) > max_length and keep > 0:
            keep = max(0, keep - (len(ids) - max_length))
            shorter = tokenizer.decode(pieces[:keep])
            ids = tokenizer(prompt.render({**example.fields, prompt.cut: shorter}))["input_ids"]
        if len(ids) > max_length:
            raise HoflError(
                f"max_length {max_length} is too short: the prompt of task {task.name!r} alone "
                f"takes {len(ids)} tokens."
            )
    return tuple(ids)
