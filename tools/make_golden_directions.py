"""How tests/golden/directions.json was made: a change of that file is a change of the protocol.

Run: python tools/make_golden_directions.py tests/golden/directions.json
"""

import argparse
import hashlib
import json
from pathlib import Path

from hofl.core.directions import DirectionKey, direction

# (seed, round, stream, step, j, index)
KEYS = [
    (0, 0, 0, 0, 0, 0),
    (42, 7, 3, 1, 2, 5),
    (42, 7, 3, 2, 1, 5),
    (1, 159, 2**32 - 1, 4, 0, 95),
    (2**64 - 1, 2**64 - 1, 2**32 - 2, 2**32 - 1, 2**32 - 1, 2**32 - 1),
]
LONG_KEY, LONG_SIZE = (2026, 12, 34, 5, 6, 78), 1_000_003


def draw(key: tuple[int, ...], size: int) -> bytes:
    """The draw as little-endian float32 bytes."""
    values = direction(DirectionKey(*key[:3]), *key[3:], size=size)
    return values.astype("<f4").tobytes()


long_draw = {
    "key": LONG_KEY,
    "size": LONG_SIZE,
    "sha256": hashlib.sha256(draw(LONG_KEY, LONG_SIZE)).hexdigest(),
}
rows = [json.dumps({"key": key, "float32": draw(key, 10).hex(" ", 4)}) for key in KEYS]
lines = ['{"draws": [', ",\n".join(rows), '], "long":', json.dumps(long_draw) + "}"]
parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
parser.add_argument("file", type=Path, help="where to write")
parser.parse_args().file.write_text("\n".join(lines) + "\n", encoding="utf-8")
