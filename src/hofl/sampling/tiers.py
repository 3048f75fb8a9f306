"""Resource tiers: which client gets which order boundary."""

from collections.abc import Sequence
from typing import TypeVar

from hofl.core.errors import HoflError
from hofl.core.randomness import Purpose, generator

Tier = TypeVar("Tier")


def deal_tiers(
    tiers: Sequence[float], clients: int, num_blocks: int, seed: int, name: str
) -> tuple[int, ...]:
    """Return one boundary per client: as listed, or the tiers dealt evenly in a seeded order.

    Args:
        tiers: boundaries, as many as there are tiers or clients: numbers of blocks, or (with a
            decimal point) shares of the L blocks, rounded down. Empty means the paper's three, at a
            quarter, half and three quarters of the model.
        clients: N.
        num_blocks: L.
        seed: the fleet's seed.
        name: the option or key that holds ``tiers``, for messages.
    """
    tiers = tiers or tuple(num_blocks * k // 4 for k in (1, 2, 3))[:clients]
    boundaries = []
    for tier in tiers:
        share = isinstance(tier, float)
        if not 0 <= tier <= (1 if share else num_blocks):
            raise HoflError(
                f"{name} holds {tier}, but the model has {num_blocks} blocks. "
                f"Use 0 (all first-order) to {num_blocks} (no first-order block), or a share of "
                "them such as 0.5."
            )
        boundaries.append(int(num_blocks * tier) if share else int(tier))
    return deal(boundaries, clients, seed, name)


def deal(tiers: Sequence[Tier], clients: int, seed: int, name: str) -> tuple[Tier, ...]:
    """Return one tier per client: as listed, or the tiers dealt evenly in a seeded order."""
    if len(tiers) == clients:
        return tuple(tiers)
    if len(tiers) > clients:
        raise HoflError(
            f"{name} lists {len(tiers)} tiers for {clients} clients. List at most one per client."
        )
    dealt = [tiers[i % len(tiers)] for i in range(clients)]
    order = generator(seed, Purpose.FLEET).permutation(clients)
    return tuple(dealt[i] for i in order)
