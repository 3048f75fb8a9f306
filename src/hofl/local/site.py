"""Where and with which directions a bottom segment is probed in one local step."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from hofl.directions import DirectionKey
from hofl.local.execution import PLAIN, Execution

if TYPE_CHECKING:  # the algorithm imports this file, and the server has no model
    from hofl.models.split import SplitModel


@dataclass(frozen=True)
class Site:
    """One batch at one boundary in one local step.

    Args:
        model: the split model, at its current parameters.
        input_ids: [B, T].
        boundary: b.
        key: names the participation's directions.
        step: local step e.
        execution: how to spend less memory on it.
    """

    model: "SplitModel"
    input_ids: Tensor
    boundary: int
    key: DirectionKey
    step: int
    execution: Execution = PLAIN
