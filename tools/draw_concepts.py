"""Draw the pictures of docs/concepts.md: the cut of the model on three devices, and one round.

Run: python tools/draw_concepts.py [--check]
"""

import sys
from html import escape
from pathlib import Path

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
STYLE = """\
<style>
svg { --ground: #fff; --ink: #1f2733; --soft: #566173; --line: #c3cad4; --panel: #f1f4f8;
  --bottom: #a9cdee; --top: #1f6fb4; --down: #1d5fd1; --up: #b84a08 }
@media (prefers-color-scheme: dark) {
  svg { --ground: #14171b; --ink: #e8eaed; --soft: #a8b0bb; --line: #475060; --panel: #1e232a;
    --bottom: #35597c; --top: #5aa9ec; --down: #8ab4f8; --up: #f0a26a }
}
text { font: 14px system-ui, -apple-system, "Segoe UI", Arial, sans-serif; fill: var(--ink) }
.title { font-weight: 650; font-size: 16px }
.soft { fill: var(--soft); font-size: 13px }
.math { font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 13px }
.ground { fill: var(--ground) }
.panel { fill: var(--panel) }
.bottom { fill: var(--bottom) }
.top { fill: var(--top) }
.down { stroke: var(--down); fill: none; stroke-width: 2.4 }
.up { stroke: var(--up); fill: none; stroke-width: 2.4 }
.cut { stroke: var(--ink); stroke-width: 2; stroke-dasharray: 6 4 }
</style>"""
BLOCKS = 12


def picture(width: int, height: int, title: str, parts: list[str]) -> str:
    """An SVG that follows the reader's light or dark setting."""
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<title>{title}</title>'
    ground = f'<rect class="ground" width="{width}" height="{height}" rx="8"/>'
    return "\n".join([head, STYLE, ground, *parts, "</svg>"]) + "\n"


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """A line of text."""
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str) -> str:
    """A rectangle."""
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" class="{kind}"/>'


def arrow(x: float, y: float, to: float, kind: str) -> str:
    """A horizontal arrow."""
    tip = 9 if to > x else -9
    line = f'<path class="{kind}" d="M{x} {y}H{to}m{-tip} -6l{tip} 6l{-tip} 6"/>'
    return line


def split() -> str:
    """Three devices, one model: where each cuts it."""
    parts = [
        text(
            24, 34, "One model, one adapter: every device cuts it where its memory allows", "title"
        )
    ]
    devices = [("little memory", 9), ("more", 5), ("plenty", 0)]
    for k, (name, boundary) in enumerate(devices):
        x = 150 + 210 * k
        parts.append(text(x + 60, 68, name, anchor="middle"))
        for block in range(BLOCKS):
            kind = "bottom" if block < boundary else "top"
            parts.append(box(x, 80 + 20 * (BLOCKS - 1 - block), 120, 16, kind))
        if boundary:
            y = 80 + 20 * (BLOCKS - boundary) - 2
            parts.append(f'<path class="cut" d="M{x - 10} {y}H{x + 130}"/>')
            parts.append(text(x + 136, y + 5, f"b = {boundary}", "math"))
        else:
            parts.append(text(x + 136, 80 + 20 * BLOCKS + 2, "b = 0", "math"))
    parts += [
        text(24, 94, "last block", "soft"),
        text(24, 80 + 20 * BLOCKS - 8, "first block", "soft"),
    ]
    y = 80 + 20 * BLOCKS + 34
    parts += [
        box(24, y - 12, 28, 14, "top"),
        text(60, y, "top: backpropagation, activations are kept"),
    ]
    parts += [box(24, y + 14, 28, 14, "bottom")]
    parts += [
        text(
            60,
            y + 26,
            "bottom: forward passes only (zeroth-order), or re-run block by block (exact)",
        )
    ]
    return picture(800, y + 48, "Where three devices cut the model", parts)


def one_round() -> str:
    """What travels in a round, and what each side does with it."""
    parts = [text(24, 34, "One round: a plan goes down, a small upload comes back", "title")]
    parts += [box(24, 56, 250, 330, "panel"), text(149, 82, "server", anchor="middle")]
    parts += [
        box(490, 56, 306, 330, "panel"),
        text(643, 82, "device i of the cohort", anchor="middle"),
    ]
    for y, line in (
        (118, "draws K of N devices"),
        (300, "replays the bottom from the"),
        (320, "key and the scalars, bit for bit"),
        (344, "checks a hash of it,"),
        (364, "adds both parts to the mean"),
    ):
        parts.append(text(44, y, line))
    parts += [arrow(274, 126, 490, "down"), text(382, 114, "plan", anchor="middle")]
    parts += [
        text(382, 146, "adapter w, boundary b,", "soft", "middle"),
        text(382, 164, "key of the directions u_j", "soft", "middle"),
    ]
    steps = [
        (118, "bottom: q + 1 forward passes"), (138, "z_0 = f(w),  z_j = f(w + mu u_j)"),
        (170, "top: forward and backward"), (190, "its gradient, and delta at z_0"),
        (222, "q scalars for the bottom"), (242, "s_j = <delta, z_j - z_0> / mu"),
        (274, "one step of both, E times over"),
    ]  # fmt: skip
    for k, (y, line) in enumerate(steps):
        parts.append(text(508, y, line, "math" if k in (1, 3, 5) else ""))
    parts += [arrow(490, 314, 274, "up"), text(382, 302, "upload", anchor="middle")]
    parts += [
        text(382, 334, "E q scalars and the", "soft", "middle"),
        text(382, 352, "difference of the top", "soft", "middle"),
    ]
    return picture(820, 410, "What travels in one round", parts)


PICTURES = {"split.svg": split, "round.svg": one_round}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        if "--check" not in sys.argv:
            (FIGURES / name).write_text(draw(), encoding="utf-8")
        elif (FIGURES / name).read_text(encoding="utf-8") != draw():
            sys.exit(f"docs/figures/{name} is out of date: run python tools/draw_concepts.py")
