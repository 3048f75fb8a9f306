"""Accuracy and loss over every example; averages are over examples, never over batches."""

from collections.abc import Iterable

import torch

from hofl.batch import ChooseOption, ChooseWord
from hofl.data.encoding import EncodedSet
from hofl.models.split import SplitModel


@torch.no_grad()
def evaluate(
    model: SplitModel,
    examples: EncodedSet,
    batch_size: int = 16,
    indices: Iterable[int] | None = None,
) -> dict[str, float]:
    """Share of examples whose best-scored label word is the right one, and the mean loss.

    ``indices`` chooses some of the examples; without it, all of them are used.
    """
    # Similar lengths together, so that little padding is computed.
    chosen = range(len(examples)) if indices is None else indices
    order = sorted(chosen, key=lambda i: len(examples.prompts[i]))
    right, loss = 0, 0.0
    for start in range(0, len(order), batch_size):
        batch = examples.batch(order[start : start + batch_size]).to(model.device)
        inputs = model.inputs(batch.input_ids)
        hidden = model.forward(inputs.hidden, inputs, 0, model.num_blocks)
        logits = model.logits(hidden, batch)  # [B, C]
        assert isinstance(batch.goal, ChooseWord | ChooseOption)
        right += int((batch.goal.choices(logits).argmax(1) == batch.goal.targets).sum())
        loss += batch.goal.losses(logits).sum().item()
    return {"accuracy": right / len(order), "loss": loss / len(order), "examples": len(order)}
