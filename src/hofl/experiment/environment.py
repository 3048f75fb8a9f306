"""What a run's numbers were made with: versions, machine, git commit."""

import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any


def environment() -> dict[str, Any]:
    """Return what the numbers were made with."""
    packages = ("hofl", "torch", "transformers", "peft", "numpy", "safetensors")
    return {
        "packages": {name: version(name) for name in packages},
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "git": git_commit(Path(__file__).parents[1] / "__init__.py"),
    }


def git_commit(source: Path) -> str | None:
    """Return the commit of a source file, with a mark when something in its folder was changed.

    Documents, tests and tools beside the package may change while runs are made.
    """
    if not _git(source.parent, "ls-files", source.name):
        return None  # installed, perhaps inside somebody else's repository
    # Not describe --dirty, which writes to the index in spite of that setting.
    changed = _git(source.parent, "status", "--porcelain", "--untracked-files=no", "--", ".")
    commit = _git(source.parent, "describe", "--always")
    return f"{commit}-dirty" if commit and changed else commit or None


def _git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    # Without it, looking at a repository would write to it, and could hold its lock.
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=10, env=environment
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
