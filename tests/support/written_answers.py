"""Oracles of written answers: one token at a time, and a longest common subsequence."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch


def continued(model: Any, prompt: Sequence[int], most: int, stop: int | None = None) -> list[int]:
    """Continue a prompt by the most likely token, one whole forward pass each."""
    found: list[int] = []
    for _ in range(most):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*prompt, *found]])).logits[0, -1]
        token = int(logits.argmax())
        if token == stop:
            break
        found.append(token)
    return found


def longest_common(one: Sequence[str], other: Sequence[str]) -> int:
    """The length of the longest common subsequence, by its recursion."""

    @cache
    def of(i: int, j: int) -> int:
        if i == len(one) or j == len(other):
            return 0
        if one[i] == other[j]:
            return 1 + of(i + 1, j + 1)
        return max(of(i + 1, j), of(i, j + 1))

    return of(0, 0)
