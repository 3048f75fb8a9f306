"""Figures as files: line charts side by side, stacked bars; a page or an image.

The suffix of the path chooses the kind of file. Images need matplotlib, which is optional
(``pip install 'hofl[report]'``) and imported when one is written.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hofl.core.durable import write_whole
from hofl.core.errors import HoflError
from hofl.reporting.document import page

_KINDS = (".html", ".png", ".svg")
_Figure = TypeVar("_Figure")


@dataclass(frozen=True)
class Line:
    """A named curve, and the index of the point to mark, if any."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    mark: int | None = None


@dataclass(frozen=True)
class Panel:
    """One chart; lines of the same name share their colour in all panels of a figure."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]


@dataclass(frozen=True)
class Bars:
    """A bar for every position, stacked of one part for every name.

    Args:
        title: of the figure.
        x_label: what the positions are.
        y_label: what is counted.
        names: of the parts, from the bottom of a bar to its top.
        counts: size of each part, [positions][names].
    """

    title: str
    x_label: str
    y_label: str
    names: Sequence[str]
    counts: Sequence[Sequence[int]]

    def parts(self) -> list[tuple[str, list[int]]]:
        """Return each name with its sizes over the positions."""
        return [(name, [row[k] for row in self.counts]) for k, name in enumerate(self.names)]


def check_figure(path: Path) -> None:
    """Refuse a path that no figure can be written to, before any work is done."""
    if path.suffix not in _KINDS:
        raise HoflError(f"cannot plot to {path.name!r}: end it in {', '.join(_KINDS)}.")


def write_panels(panels: Sequence[Panel], path: Path) -> None:
    """Write charts side by side."""
    _write(panels, path, as_page=_panels_page, as_image=_panels_image)


def write_bars(bars: Bars, path: Path) -> None:
    """Write stacked bars."""
    _write(bars, path, as_page=_bars_page, as_image=_bars_image)


def _write(
    figure: _Figure,
    path: Path,
    *,
    as_page: Callable[[_Figure, Path], None],
    as_image: Callable[[_Figure, Path], None],
) -> None:
    check_figure(path)
    try:
        (as_page if path.suffix == ".html" else as_image)(figure, path)
    except ImportError as error:
        raise HoflError(
            f"{path.suffix} figures need matplotlib: run pip install 'hofl[report]'."
        ) from error
    except OSError as error:
        raise HoflError(f"cannot write {path}: {error.strerror or error}.") from error


def _panels_page(panels: Sequence[Panel], path: Path) -> None:
    plain = [{**vars(panel), "lines": [vars(line) for line in panel.lines]} for panel in panels]
    title = ", ".join(panel.title for panel in panels)
    write_whole(path, page({"title": title, "panels": plain}, "charts.js"))


def _panels_image(panels: Sequence[Panel], path: Path) -> None:
    # Figure without pyplot: no display, no global state
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * len(panels), 4.2), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    colours: dict[str, int] = {}
    for ax, panel in zip(axes, panels, strict=True):
        for k, line in enumerate(panel.lines):
            colour = f"C{colours.setdefault(line.name, k) % 10}"
            point = "o" if len(line.x) == 1 else ""
            ax.plot(line.x, line.y, label=line.name, color=colour, marker=point)
            if line.mark is not None:
                ax.plot(line.x[line.mark], line.y[line.mark], "o", color=colour)
        ax.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
        ax.grid(alpha=0.3)
    # Below the charts, clear of all curves; a name that several charts share stands there once.
    drawn = {line.get_label(): line for ax in reversed(axes) for line in ax.get_lines()}
    named = {name: line for name, line in drawn.items() if not str(name).startswith("_")}
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=150)


def _bars_page(bars: Bars, path: Path) -> None:
    write_whole(path, page({"title": bars.title, "bars": vars(bars)}, "charts.js"))


def _bars_image(bars: Bars, path: Path) -> None:
    from matplotlib.figure import Figure

    width = min(16.0, max(6.0, 0.25 * len(bars.counts)))
    figure = Figure(figsize=(width, 4.0), layout="constrained")
    ax = figure.subplots()
    floor = [0] * len(bars.counts)
    for name, sizes in bars.parts():
        ax.bar(range(len(sizes)), sizes, bottom=floor, width=0.85, label=name)
        floor = [below + size for below, size in zip(floor, sizes, strict=True)]
    ax.set(title=bars.title, xlabel=bars.x_label, ylabel=bars.y_label)
    ax.set_xlim(-0.7, len(bars.counts) - 0.3)
    ax.set_ylim(0, 1.05 * max(floor))
    ax.locator_params(axis="x", integer=True)
    if len(bars.names) > 1:
        figure.legend(loc="outside right upper", reverse=True)
    figure.savefig(path, dpi=150)
