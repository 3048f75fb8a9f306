"""Line charts side by side, as an interactive page (plotly) or an image (matplotlib).

Both libraries are optional: ``pip install 'hofl[report]'``. They are imported when a figure is
written, so that nothing else waits for them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hofl.report.files import write_figure


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


def write_panels(panels: Sequence[Panel], path: Path) -> None:
    """Write the panels side by side; the suffix of ``path`` chooses the kind of file."""
    write_figure(panels, path, page=_write_page, image=_write_image)


def _write_page(panels: Sequence[Panel], path: Path) -> None:
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


def _write_image(panels: Sequence[Panel], path: Path) -> None:
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
