"""Where downloaded and converted things are kept."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """$HOFL_CACHE, or ~/.cache/hofl."""
    return Path(os.environ.get("HOFL_CACHE", Path.home() / ".cache" / "hofl"))
