"""Damage to files, one bit at a time."""


def flipped(data: bytes, bit: int) -> bytes:
    """Return the bytes with one bit changed."""
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)
