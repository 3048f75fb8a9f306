"""Figures as files: the suffix chooses the kind, a missing library is one clear line."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hofl.errors import HoflError

_LIBRARY = {".html": "plotly", ".png": "matplotlib", ".svg": "matplotlib"}
_Figure = TypeVar("_Figure")


def check_figure(path: Path) -> None:
    """Refuse a path that no figure can be written to, before any work is done."""
    if path.suffix not in _LIBRARY:
        raise HoflError(f"cannot plot to {path.name!r}: end it in {', '.join(_LIBRARY)}.")


def write_figure(
    figure: _Figure,
    path: Path,
    *,
    page: Callable[[_Figure, Path], None],
    image: Callable[[_Figure, Path], None],
) -> None:
    """Write a figure as an interactive page (plotly) or an image (matplotlib)."""
    check_figure(path)
    library = _LIBRARY[path.suffix]
    try:
        (page if library == "plotly" else image)(figure, path)
    except ImportError as error:
        raise HoflError(
            f"{path.suffix} figures need {library}: run pip install 'hofl[report]'."
        ) from error
    except OSError as error:
        raise HoflError(f"cannot write {path}: {error.strerror or error}.") from error
