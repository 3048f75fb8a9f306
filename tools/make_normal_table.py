"""How src/hofl/normal_table.npy was made; the committed file, not this script, is the definition.

Run: python tools/make_normal_table.py src/hofl/normal_table.npy
"""

import hashlib
import sys
from pathlib import Path

import numpy as np
from scipy.special import ndtri

quantiles = ndtri((np.arange(65536) + 0.5) / 65536)
table = (quantiles / np.sqrt(np.mean(quantiles**2))).astype("<f4")
path = Path(sys.argv[1])
np.save(path, table)
print(hashlib.sha256(path.read_bytes()).hexdigest())
moments = [float(np.mean(table.astype(np.float64) ** k)) for k in (1, 2, 4, 6)]
print("moments 1, 2, 4, 6:", *(f"{value:.6f}" for value in moments))
