"""Numbers that the paper reports, as (mean, sample SD); None where it gives no SD.

Scores are in percent, losses in nats, memory in GiB. A test reads them from the paper's own file.
"""

from collections.abc import Mapping

Reported = tuple[float, float | None]


def _rows(text: str) -> dict[tuple[str, str], list[Reported]]:
    """Read lines of ``first key | second key | 87.04 0.11 | ...``."""
    rows: dict[tuple[str, str], list[Reported]] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        first, second, *values = (part.strip() for part in line.split("|"))
        pairs = [value.split() for value in values]
        rows[first, second] = [(float(p[0]), float(p[1]) if p[1:] else None) for p in pairs]
    return rows


LANGUAGE_TASKS = _rows("""
OPT-125M | SST-2 | 87.04 0.11 | 87.12 0.13 | 51.95 0.00 | 86.01 0.11 | 86.54 0.24
OPT-125M | BoolQ | 59.84 0.37 | 59.85 0.46 | 55.87 0.05 | 57.91 0.18 | 59.44 0.96
OPT-125M | SciQ | 25.50 1.30 | 25.43 1.04 | 25.53 0.85 | 24.97 0.80 | 26.10 1.64
OPT-125M | AG News | 78.24 2.97 | 78.29 2.99 | 23.38 0.08 | 59.58 2.24 | 62.85 6.52
Qwen2.5-1.5B | SST-2 | 93.27 0.26 | 93.43 0.26 | 71.25 0.18 | 91.09 0.18 | 92.81 0.07
Qwen2.5-1.5B | BoolQ | 79.06 0.19 | 79.11 0.08 | 72.44 0.12 | 77.00 0.40 | 78.72 0.24
Qwen2.5-1.5B | SciQ | 90.83 0.32 | 90.87 0.31 | 88.87 0.46 | 90.17 0.25 | 90.47 0.29
Qwen2.5-1.5B | AG News | 88.15 0.21 | 88.23 0.17 | 55.83 0.08 | 85.51 0.43 | 86.69 0.56
SmolLM3-3B | SST-2 | 94.04 0.11 | 94.07 0.07 | 63.38 0.18 | 93.16 0.07 | 94.04 0.30
SmolLM3-3B | BoolQ | 86.15 0.05 | 86.01 0.14 | 82.59 0.07 | 84.32 0.12 | 85.37 0.43
SmolLM3-3B | SciQ | 90.50 0.17 | 90.57 0.35 | 89.13 0.38 | 89.57 0.35 | 89.77 0.21
SmolLM3-3B | AG News | 89.38 0.14 | 89.37 0.18 | 74.70 0.05 | 87.11 0.22 | 87.52 0.55
""")
"""(model, task) -> accuracy of the methods of ``settings.METHODS``; AG News with alpha = 0.5."""

SQUAD = _rows("""
OPT-125M | em | 43.95 0.04 | 43.92 0.10 | 1.29 0.05 | 37.16 0.26 | 41.87 0.32
OPT-125M | f1 | 54.68 0.02 | 54.65 0.08 | 8.54 0.09 | 47.24 0.21 | 52.43 0.20
Qwen2.5-1.5B | em | 79.65 0.14 | 79.70 0.08 | 61.70 0.11 | 76.67 0.05 | 78.71 0.19
Qwen2.5-1.5B | f1 | 87.59 0.07 | 87.61 0.04 | 73.14 0.16 | 85.34 0.03 | 86.92 0.10
SmolLM3-3B | em | 81.52 0.10 | 81.47 0.20 | 47.98 0.09 | 77.80 0.11 | 79.54 0.20
SmolLM3-3B | f1 | 89.93 0.10 | 89.90 0.16 | 68.43 0.04 | 87.25 0.04 | 88.57 0.13
""")
"""(model, metric) -> score of the same methods."""

BETA_ALPHA = _rows("""
Qwen2.5-1.5B | IID | 86.75 0.13 | 87.33 0.03 | 87.58 0.08 | 87.91 0.03
Qwen2.5-1.5B | 1 | 86.22 0.47 | 86.64 0.23 | 87.11 0.15 | 87.26 0.29
Qwen2.5-1.5B | 0.5 | 85.51 0.43 | 86.31 0.48 | 86.58 0.44 | 86.69 0.56
Qwen2.5-1.5B | 0.1 | 83.39 1.46 | 83.83 0.92 | 82.53 1.81 | 82.66 3.07
""")
"""(model, alpha) -> accuracy on AG News for beta = 0, 0.25, 0.5, 0.75."""

IID_BETA = _rows("""
OPT-125M | SST-2 | 86.01 | 86.47 | 86.47 | 86.47
OPT-125M | BoolQ | 57.98 | 57.92 | 58.84 | 58.84
OPT-125M | SciQ | 24.20 | 23.90 | 24.50 | 24.30
Qwen2.5-1.5B | SST-2 | 91.28 | 91.86 | 92.78 | 92.78
Qwen2.5-1.5B | BoolQ | 76.54 | 77.74 | 78.29 | 78.84
Qwen2.5-1.5B | SciQ | 89.90 | 89.80 | 90.00 | 90.30
""")
"""(model, task) -> accuracy for beta = 0, 0.25, 0.5, 0.75; seed 42 alone."""

SQUAD_BETA = _rows("""
OPT-125M | em | 37.16 0.26 | 40.68 0.23 | 41.87 0.32
OPT-125M | f1 | 47.24 0.21 | 51.16 0.19 | 52.43 0.20
Qwen2.5-1.5B | em | 76.67 0.05 | 78.32 0.18 | 78.71 0.19
Qwen2.5-1.5B | f1 | 85.34 0.03 | 86.61 0.11 | 86.92 0.10
SmolLM3-3B | em | 77.80 0.11 | 79.23 0.06 | 79.54 0.20
SmolLM3-3B | f1 | 87.25 0.04 | 88.30 0.06 | 88.57 0.13
""")
"""(model, metric) -> score for beta = 0, 0.5, 0.75."""

ABLATIONS: Mapping[str, tuple[Reported, Reported]] = {
    "default": ((86.39, 0.07), (0.3498, 0.0038)),
    "E = 1": ((86.47, 0.41), (0.3489, 0.0033)),
    "E = 10": ((86.58, 0.30), (0.3406, 0.0008)),
    "q = 1": ((86.51, 0.18), (0.3498, 0.0036)),
    "q = 4": ((86.47, 0.00), (0.3498, 0.0038)),
    "q = 8": ((86.47, 0.11), (0.3496, 0.0041)),
    "mu = 1e-4": ((86.31, 0.07), (0.3496, 0.0036)),
    "mu = 1e-2": ((86.35, 0.00), (0.3493, 0.0040)),
}
"""Configuration -> accuracy and validation loss of HO-FL (beta = 0.5), OPT-125M on SST-2."""

MEMORY: Mapping[str, float] = {
    "one device, FedAvg": 40.26,
    "one device, boundary 24": 9.08,
    "cohort, FedAvg": 241.57,
    "cohort, HO-FL (beta = 0)": 117.32,
    "cohort, HO-FL (beta = 0.75)": 163.78,
}
"""The memory figure's numbers that the text states; the drawing has more, without numbers."""

STRUCTURE: Mapping[str, tuple[str, str, str, str]] = {
    "hosl": ("split learning", "fixed, single client", "2q + 1 per step", "not applicable"),
    "ho-sfl": ("split federated learning", "identical", "1 per step", "1"),
    "heron-sfl": ("split federated learning", "identical", "every k local steps", "h >= 1"),
    "hofl": ("federated learning", "one per client", "none", "E >= 1"),
}
"""Method -> paradigm, boundaries, uploads of activations, local steps per aggregation."""
