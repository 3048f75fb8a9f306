"""An oracle for steps of the server: torch's own optimizers on the negative update."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from hofl.server.step import ServerStep


def assert_steps_like(
    step: ServerStep, oracle: Callable[[list[Tensor]], torch.optim.Optimizer], rounds: int = 5
) -> None:
    """Check that w moves as by torch's optimizer, and that a round can be combined again."""
    rng = torch.Generator().manual_seed(0)
    w = torch.zeros(12, dtype=torch.float64, requires_grad=True)
    optimizer, mine = oracle([w]), torch.zeros(12, dtype=torch.float64)
    memory: Mapping[str, Tensor] = {}
    for _ in range(rounds):
        update = torch.randn(12, generator=rng, dtype=torch.float64)
        before = {name: kept.clone() for name, kept in memory.items()}
        step(update.clone(), memory)
        assert all(torch.equal(memory[name], kept) for name, kept in before.items())
        move, memory = step(update, memory)
        mine += move
        w.grad = -update
        optimizer.step()
    # What is kept is float32.
    assert torch.allclose(mine, w.detach(), rtol=1e-5, atol=1e-6)
