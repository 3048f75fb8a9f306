"""Figures as files: line charts side by side, stacked bars; interactive (plotly) or an image.

The suffix of the path chooses the kind of file. Both plotting libraries are optional
(``pip install 'hofl[report]'``) and imported when a figure is written, so that nothing else waits
for them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hofl.core.errors import HoflError

_LIBRARY = {".html": "plotly", ".png": "matplotlib", ".svg": "matplotlib"}
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
    """One chart; lines at the same place share their colour in all panels of a figure."""

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
    if path.suffix not in _LIBRARY:
        raise HoflError(f"cannot plot to {path.name!r}: end it in {', '.join(_LIBRARY)}.")


def write_panels(panels: Sequence[Panel], path: Path) -> None:
    """Write charts side by side."""
    _write(panels, path, page=_panels_page, image=_panels_image)


def write_bars(bars: Bars, path: Path) -> None:
    """Write stacked bars."""
    _write(bars, path, page=_bars_page, image=_bars_image)


def _write(
    figure: _Figure,
    path: Path,
    *,
    page: Callable[[_Figure, Path], None],
    image: Callable[[_Figure, Path], None],
) -> None:
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


def _panels_page(panels: Sequence[Panel], path: Path) -> None:
    import plotly.colors
    import plotly.graph_objects
    import plotly.subplots

    colours = plotly.colors.qualitative.D3
    figure = plotly.subplots.make_subplots(
        rows=1, cols=len(panels), subplot_titles=[panel.title for panel in panels]
    )
    named: set[str] = set()
    for column, panel in enumerate(panels, start=1):
        for k, line in enumerate(panel.lines):
            sizes = [9 if i == line.mark else 0 for i in range(len(line.x))]
            trace = plotly.graph_objects.Scatter(
                x=list(line.x),
                y=list(line.y),
                name=line.name,
                legendgroup=line.name,
                showlegend=line.name not in named,
                mode="lines+markers",
                line={"color": colours[k % len(colours)]},
                marker={"size": sizes, "line": {"width": 0}},
            )
            named.add(line.name)
            figure.add_trace(trace, row=1, col=column)
        figure.update_xaxes(title_text=panel.x_label, row=1, col=column)
        figure.update_yaxes(title_text=panel.y_label, row=1, col=column)
    # the library is put inside: the page then opens without a network
    figure.write_html(path, include_plotlyjs=True)


def _panels_image(panels: Sequence[Panel], path: Path) -> None:
    # Figure without pyplot: no display, no global state
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * len(panels), 3.6), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for ax, panel in zip(axes, panels, strict=True):
        for line in panel.lines:
            (drawn,) = ax.plot(line.x, line.y, label=line.name)
            if line.mark is not None:
                ax.plot(line.x[line.mark], line.y[line.mark], "o", color=drawn.get_color())
        ax.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
        ax.grid(alpha=0.3)
        if ax is axes[0] or {x.name for x in panel.lines} > {x.name for x in panels[0].lines}:
            ax.legend()
    figure.savefig(path, dpi=150)


def _bars_page(bars: Bars, path: Path) -> None:
    import plotly.graph_objects

    figure = plotly.graph_objects.Figure(
        data=[plotly.graph_objects.Bar(name=name, y=sizes) for name, sizes in bars.parts()]
    )
    figure.update_layout(
        barmode="stack",
        bargap=0.15,
        title=bars.title,
        xaxis_title=bars.x_label,
        yaxis_title=bars.y_label,
        legend={"traceorder": "reversed"},  # as the parts are stacked
    )
    figure.write_html(path, include_plotlyjs=True)


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
