"""The picture of docs/architecture.md: one round through the package, and who imports whom."""

import ast
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from import_graph import LAYERS, LEVEL, ROOT, edges, reduced

PLAN, UPLOAD, GREY, INK = "#1d5fd1", "#c2500a", "#8a94a3", "#1f2733"


@dataclass(frozen=True)
class Step:
    """A station of the way.

    Args:
        place: where it is, shown in the picture.
        sources: ``module:object``, which must exist; the page links to them.
        text: what happens there.
        column, row: its place in the picture.
    """

    place: str
    sources: tuple[str, ...]
    text: str
    column: int
    row: int

    @property
    def parts(self) -> list[str]:
        """The parts it takes place in."""
        return [word.split("/")[0].removesuffix(".py") for word in self.place.split(" or ")]


_CARRIERS = ("engines/base.py:Engine", "deploy/engine.py:NetworkEngine")
WAY = [
    Step(
        "experiment/rounds",
        ("experiment/attempt.py:one_attempt",),
        "draw a cohort, make a plan for each client",
        0,
        0,
    ),
    Step("messages.py", ("messages.py:RoundPlan",), "weights, rule and seed, as bytes", 1, 0),
    Step("engines or deploy", _CARRIERS, "take it to the client, here or over a network", 2, 0),
    Step(
        "engines/client",
        ("engines/client.py:LocalClient",),
        "draw minibatches, fit them into memory",
        3,
        0,
    ),
    Step("algorithm.py", ("algorithm.py:client_update",), "run E local steps (ClientUpdate)", 4, 0),
    Step(
        "local/step",
        ("local/step.py:hybrid_gradients",),
        "scalars for the bottom, gradients of the top",
        4,
        1,
    ),
    Step(
        "messages.py", ("messages.py:Upload",), "scalars and the top's difference, as bytes", 3, 1
    ),
    Step("engines or deploy", _CARRIERS, "bring it back, in the cohort's order", 2, 1),
    Step(
        "server/checks",
        ("server/checks.py:check_upload",),
        "refuse what does not answer the plan",
        1,
        1,
    ),
    Step("algorithm.py", ("algorithm.py:reconstruct",), "replay the bottom (Reconstruct)", 0, 1),
    Step(
        "server/aggregate",
        ("server/aggregate.py:RunningMean",),
        "add to the mean, one client after another",
        0,
        2,
    ),
    Step(
        "experiment/checkpoint",
        ("experiment/checkpoint.py:save_state",),
        "record the round, then start the next one",
        1,
        2,
    ),
]
PLAN_STEPS = 6  # the others are the upload's

BANDS = [("commands, networks", 9, 8), ("a run", 7, 5), ("the method", 4, 3), ("foundations", 2, 0)]


def purpose(part: str) -> str:
    """The first line of a part's docstring."""
    path = ROOT / part / "__init__.py"
    text = path if path.is_file() else ROOT / f"{part}.py"
    return (ast.get_docstring(ast.parse(text.read_text())) or "").splitlines()[0]


def caption(part: str, width: float) -> list[str]:
    """That line, or as much of its beginning as makes sense in two lines of a box."""
    text = purpose(part).rstrip(".").replace("``", "")
    for mark in ("", ". ", "; ", ": ", ", "):
        text = text.split(mark)[0] if mark else text
        lines = textwrap.wrap(text, int((width - 12) / 6.5))
        if len(lines) <= 2:
            return lines
    raise SystemExit(f"the first line of the docstring of {part} is too long for the picture.")


class Picture:
    """SVG elements, drawn in the order in which they are added."""

    def __init__(self) -> None:
        self.elements: list[str] = []

    def box(self, x: float, y: float, w: float, h: float, stroke: str, fill: str = "#fff") -> None:
        """Add a rounded rectangle."""
        self.elements.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="6" fill="{fill}" '
            f'stroke="{stroke}"/>'
        )

    def text(self, x: float, y: float, text: str, style: str, extra: str = "") -> None:
        """Add a line of text in one of the styles of the sheet."""
        where = f'x="{x:g}" y="{y:g}"'
        self.elements.append(f'<text {where} class="{style}"{extra}>{escape(text)}</text>')

    def badge(self, x: float, y: float, step: int) -> None:
        """Add the number of a step in the colour of its way."""
        colour = PLAN if step <= PLAN_STEPS else UPLOAD
        self.elements.append(f'<circle cx="{x:g}" cy="{y:g}" r="9.5" fill="{colour}"/>')
        self.text(x, y + 4, str(step), "badge")

    def path(self, data: str, colour: str, width: float, marker: str) -> None:
        """Add a line that ends in an arrow."""
        self.elements.append(
            f'<path d="{data}" fill="none" stroke="{colour}" stroke-width="{width:g}" '
            f'marker-end="url(#{marker})"/>'
        )


# The upper half: the way.
COLUMN, STATION_W, STATION_H, ROW = 194, 168, 68, 94
LEFT, TOP = 34, 92


def _station(step: Step) -> tuple[float, float]:
    return LEFT + step.column * COLUMN, TOP + step.row * ROW


def draw_way(picture: Picture) -> None:
    """The stations of plan and upload, from the server to a device and back."""
    for title, column, columns, rows in (
        ("the server", 0, 2, 3),
        ("in between", 2, 1, 2),
        ("a device", 3, 2, 2),
    ):
        x, width = LEFT + column * COLUMN - 11, columns * COLUMN
        picture.box(x + 2, TOP - 34, width - 4, 38 + rows * ROW - 14, "none", "#f1f4f8")
        picture.text(x + width / 2, TOP - 14, title, "lane", ' text-anchor="middle"')
    for number, step in enumerate(WAY, start=1):
        x, y = _station(step)
        colour = PLAN if number <= PLAN_STEPS else UPLOAD
        picture.box(x, y, STATION_W, STATION_H, colour)
        picture.badge(x + 3, y + 3, number)
        picture.text(x + 11, y + 24, step.place, "place")
        for line, words in enumerate(textwrap.wrap(step.text, 24)):
            picture.text(x + 11, y + 43 + 16 * line, words, "small")
        if number < len(WAY):
            colour, marker = (PLAN, "plan") if number < PLAN_STEPS else (UPLOAD, "upload")
            picture.path(_hop(step, WAY[number]), colour, 2.2, marker)
    x, y = LEFT + 2 * COLUMN + 6, TOP + 2 * ROW + 24
    for number, title in ((1, "1 to 6: the way of a plan"), (7, "7 to 12: the way of an upload")):
        colour, marker = (PLAN, "plan") if number == 1 else (UPLOAD, "upload")
        picture.path(f"M{x:g} {y:g}h34", colour, 2.2, marker)
        picture.text(x + 48, y + 5, title, "lane")
        y += 26


def _hop(start: Step, end: Step) -> str:
    """A straight line between two neighbouring stations, leaving room for the arrow."""
    (x, y), across = _station(start), end.column - start.column
    if across:
        side = x + STATION_W if across > 0 else x
        return f"M{side:g} {y + STATION_H / 2:g}h{across * (COLUMN - STATION_W - 7):g}"
    return f"M{x + STATION_W / 2:g} {y + STATION_H:g}v{ROW - STATION_H - 7:g}"


# The lower half: the layers.
WIDTH = 2 * LEFT + 5 * COLUMN - 22
GRAPH_TOP, LAYER, BOX_H, BEND = TOP + 3 * ROW + 64, 88, 54, 60


@dataclass(frozen=True)
class Box:
    """Where a part is drawn."""

    x: float
    y: float
    w: float

    @property
    def centre(self) -> float:
        """The middle of its width."""
        return self.x + self.w / 2


def place_boxes() -> dict[str, Box]:
    """One row per layer, the top one first; alone in a row, a box is wider."""
    boxes = {}
    for level, parts in enumerate(LAYERS):
        width = 330 if len(parts) == 1 else 186
        space = (WIDTH - 90 - len(parts) * width) / (len(parts) + 1)
        for number, part in enumerate(parts):
            x = 60 + space + number * (width + space)
            boxes[part] = Box(x, GRAPH_TOP + (len(LAYERS) - 1 - level) * LAYER, width)
    return boxes


def draw_layers(picture: Picture) -> None:
    """All parts, and the imports that the others follow from."""
    for title, first, last in BANDS:
        y = GRAPH_TOP + (len(LAYERS) - 1 - first) * LAYER - 17
        height = (first - last + 1) * LAYER - 6
        picture.box(LEFT - 9, y, 5 * COLUMN - 4, height, "none", "#f1f4f8")
        middle = f' text-anchor="middle" transform="rotate(-90 {LEFT + 9:g} {y + height / 2:g})"'
        picture.text(LEFT + 9, y + height / 2, title, "lane", middle)
    boxes = place_boxes()
    for points in routes(reduced(edges()), boxes):
        (x, y), *rest = points
        data = f"M{x:g} {y:g}"
        for (x0, y0), (x1, y1) in zip(points, rest, strict=False):
            half = (y1 - y0) / 2
            data += f"C{x0:g} {y0 + half:g} {x1:g} {y1 - half:g} {x1:g} {y1:g}"
        picture.path(data, GREY, 1.4, "grey")
    for part, box in boxes.items():
        steps = [number for number, step in enumerate(WAY, start=1) if part in step.parts]
        picture.box(box.x, box.y, box.w, BOX_H, INK if steps else GREY)
        folder = (ROOT / part).is_dir()
        picture.text(box.x + 10, box.y + 19, f"{part}/" if folder else f"{part}.py", "part")
        for line, words in enumerate(caption(part, box.w)):
            picture.text(box.x + 10, box.y + 35 + 13 * line, words, "tiny")
        for place, number in enumerate(reversed(steps)):
            picture.badge(box.x + box.w - 15 - 22 * place, box.y + 14, number)


def routes(
    graph: dict[str, set[str]], boxes: dict[str, Box]
) -> Iterator[list[tuple[float, float]]]:
    """The points of each arrow: past the boxes of the layers in between, in lanes of its own."""
    pairs = [(part, target) for part, targets in graph.items() for target in sorted(targets)]
    taken: dict[int, list[float]] = {level: [] for level in range(len(LAYERS))}
    for part, target in sorted(pairs, key=lambda pair: LEVEL[pair[1]] - LEVEL[pair[0]]):
        below = sorted((boxes[t].centre, t) for p, t in pairs if p == part)
        above = sorted((boxes[p].centre, p) for p, t in pairs if t == target)
        start = _port(boxes[part], below.index((boxes[target].centre, target)), len(below))
        end = _port(boxes[target], above.index((boxes[part].centre, part)), len(above))
        points = [(start, boxes[part].y + BOX_H)]
        levels = range(LEVEL[part] - 1, LEVEL[target], -1)
        for level, x in _lanes(start, end, levels, boxes, taken):
            taken[level].append(x)
            y = boxes[LAYERS[level][0]].y
            points += [(x, y - 8), (x, y + BOX_H + 8)]
        yield [*points, (end, boxes[target].y - 7)]


def _port(box: Box, number: int, of: int) -> float:
    """Where the arrow of this number leaves or enters a box."""
    return box.x + box.w * (number + 1) / (of + 1)


def _lanes(
    start: float,
    end: float,
    levels: range,
    boxes: dict[str, Box],
    taken: dict[int, list[float]],
) -> list[tuple[int, float]]:
    """The x at which an arrow passes each layer: the shortest way, and bends count as length."""

    def free(level: int) -> list[float]:
        row = [boxes[part] for part in LAYERS[level]]
        return [
            x
            for x in range(LEFT + 32, int(WIDTH) - 32, 4)
            if all(not box.x - 10 < x < box.x + box.w + 10 for box in row)
            if all(abs(x - other) >= 10 for other in taken[level])
        ]

    ways: dict[float, tuple[float, list[float]]] = {start: (0.0, [])}  # x -> length, lanes so far
    for level in levels:
        ways = {
            x: min(
                (length + abs(x - before) + BEND * (x != before), [*lanes, x])
                for before, (length, lanes) in ways.items()
            )
            for x in free(level)
        }
    _, lanes = min((length + abs(x - end), lanes) for x, (length, lanes) in ways.items())
    return list(zip(levels, lanes, strict=True))


STYLE = """
text { font-family: system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif;
  fill: #1f2733 }
.title { font-size: 19px; font-weight: 650 }
.lane { font-size: 13.5px; fill: #5b6675 }
.place, .part { font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-weight: 700 }
.place { font-size: 11.5px }
.part { font-size: 14.5px }
.small { font-size: 12px }
.tiny { font-size: 11.5px; fill: #414b59 }
.badge { font-size: 11.5px; font-weight: 700; fill: #fff; text-anchor: middle }
"""


def svg() -> str:
    """The whole picture, on white, so that it reads on dark pages, too."""
    picture = Picture()
    height = GRAPH_TOP + len(LAYERS) * LAYER + 4
    picture.elements.append(f'<rect width="{WIDTH:g}" height="{height:g}" fill="#fff"/>')
    picture.text(LEFT - 9, 36, "One round: a plan goes down, an upload comes back", "title")
    draw_way(picture)
    title = "Who imports whom: arrows point downwards only"
    picture.text(LEFT - 9, GRAPH_TOP - 36, title, "title")
    draw_layers(picture)
    markers = "".join(
        f'<marker id="{name}" viewBox="0 0 8 8" refX="2" refY="4" markerUnits="userSpaceOnUse" '
        f'markerWidth="{size}" markerHeight="{size}" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{colour}"/></marker>'
        for name, colour, size in (("plan", PLAN, 10), ("upload", UPLOAD, 10), ("grey", GREY, 8))
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" '
            f'width="{WIDTH:g}" height="{height:g}" role="img">',
            "<title>The way of a plan and an upload, and who imports whom</title>",
            f"<style>{STYLE}</style>",
            f"<defs>{markers}</defs>",
            *picture.elements,
            "</svg>\n",
        ]
    )
