"""Stacked bars, such as every client's classes, as a page (plotly) or an image (matplotlib)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hofl.report.files import write_figure


@dataclass(frozen=True)
class Bars:
    """A bar for every position, of one part for every name.

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
        """Each name with its sizes over the positions."""
        return [(name, [row[k] for row in self.counts]) for k, name in enumerate(self.names)]


def write_bars(bars: Bars, path: Path) -> None:
    """Write the figure; the suffix of ``path`` chooses the kind of file."""
    write_figure(bars, path, page=_write_page, image=_write_image)


def _write_page(bars: Bars, path: Path) -> None:
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
    # the library is put inside: the page then opens without a network
    figure.write_html(path, include_plotlyjs=True)


def _write_image(bars: Bars, path: Path) -> None:
    # Figure without pyplot: no display, no global state
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
