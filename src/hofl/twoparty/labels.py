"""What the server must know of a client's batch: lengths of texts, slots, and the goal. No tokens.

A goal travels as its tensors. What a tensor may hold follows from the others, so each kind of goal
has a function that says length and limit of its parts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hofl.core.batch import Batch, ChooseOption, ChooseWord, Goal, PredictTokens, Texts
from hofl.core.errors import printable
from hofl.twoparty.exchange import Message, MessageRefused

Bounds = dict[str, tuple[int | None, int]]
"""Part of a goal -> its length (None is any) and what its values must stay below."""
_PREFIX = "goal."


@dataclass(frozen=True)
class GoalForm:
    """A kind of goal on the wire.

    Args:
        make: makes it from its parts.
        bounds: (parts, slots, vocabulary) -> what each part may hold.
    """

    make: Callable[..., Goal]
    bounds: Callable[[Mapping[str, Tensor], int, int], Bounds]


def _word(parts: Mapping[str, Tensor], slots: int, vocabulary: int) -> Bounds:
    candidates = parts.get("candidates", ())
    return {"candidates": (None, vocabulary), "targets": (slots, len(candidates))}


def _tokens(parts: Mapping[str, Tensor], slots: int, vocabulary: int) -> Bounds:
    return {"targets": (slots, vocabulary)}


def _option(parts: Mapping[str, Tensor], slots: int, vocabulary: int) -> Bounds:
    options, examples = parts.get("options", torch.zeros(0)), len(parts.get("targets", ()))
    count = int(options.max()) + 1 if len(options) else 0
    if not examples or count % examples:
        raise MessageRefused(f"{count} options cannot be shared by {examples} examples")
    each = count // examples
    return {"options": (slots, slots), "tokens": (slots, vocabulary), "targets": (None, each)}


GOALS: dict[str, GoalForm] = {
    "word": GoalForm(ChooseWord, _word),
    "option": GoalForm(ChooseOption, _option),
    "tokens": GoalForm(PredictTokens, _tokens),
}


def labels_of(batch: Batch) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and fields that go up with the first activation of a batch."""
    name = next(name for name, form in GOALS.items() if type(batch.goal) is form.make)
    given = {k: v.cpu() for k, v in vars(batch.goal).items() if isinstance(v, Tensor)}
    tensors = {f"{_PREFIX}{key}": value for key, value in given.items()}
    tensors |= {"lengths": torch.tensor(batch.texts.lengths), "slots": batch.slots.cpu()}
    return tensors, {"goal": name, "examples": batch.examples}


def batch_from(message: Message, width: int, vocabulary: int) -> tuple[Tensor, Batch]:
    """Return z [1, tokens, D] and its batch, whose tokens are zero: the server does not get them.

    Raises:
        MessageRefused: parts do not fit each other, the width or the vocabulary.
    """
    lengths = message.tensor("lengths", (None,), torch.int64).tolist()
    if not lengths or min(lengths) < 1:
        raise MessageRefused("lengths of texts must be positive")
    tokens = sum(lengths)
    z = message.tensor("z", (1, tokens, width))  # before anything of that size is made
    slots = message.tensor("slots", (None,), torch.int64)
    _check("slots", slots, None, tokens)
    goal, examples = _goal(message, len(slots), vocabulary), message.fields.get("examples")
    if type(examples) is not int or not 0 < examples <= len(lengths):
        raise MessageRefused(f"examples is {printable(repr(examples))}, not 1..{len(lengths)}")
    texts = Texts(torch.zeros(tokens, dtype=torch.int64), tuple(lengths))
    return z, Batch(texts, slots, goal, examples)


def _goal(message: Message, slots: int, vocabulary: int) -> Goal:
    form = GOALS.get(str(message.fields.get("goal")))
    if form is None:
        raise MessageRefused(f"unknown goal {printable(repr(message.fields.get('goal')))}")
    parts = {
        name.removeprefix(_PREFIX): message.tensor(name, (None,), torch.int64)
        for name in message.tensors
        if name.startswith(_PREFIX)
    }
    bounds = form.bounds(parts, slots, vocabulary)
    message.only("z", "lengths", "slots", *(f"{_PREFIX}{name}" for name in bounds))
    for name, (length, limit) in bounds.items():
        if name not in parts:
            raise MessageRefused(f"goal lacks {name}")
        _check(name, parts[name], length, limit)
    return form.make(**parts)


def _check(name: str, values: Tensor, length: int | None, limit: int) -> None:
    """Refuse another length than this, no values, and values outside 0..limit-1."""
    if len(values) == 0 or (length is not None and len(values) != length):
        raise MessageRefused(f"{name} has {len(values)} values, expected {length or 'some'}")
    if int(values.min()) < 0 or int(values.max()) >= limit:
        raise MessageRefused(f"{name} must lie in 0..{limit - 1}")
