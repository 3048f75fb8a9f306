"""Draw who imports whom, and the way of a plan and an upload: docs/architecture.md and its picture.

Run: python tools/draw_architecture.py [--check]
"""

import ast
import re
import sys
from pathlib import Path
from textwrap import fill

from architecture_figure import PLAN_STEPS, WAY, Step, purpose, svg
from import_graph import LEVEL, ROOT, edges, modules, part_of

DOCS = Path(__file__).parents[1] / "docs"
PAGE, FIGURE = DOCS / "architecture.md", DOCS / "figures" / "architecture.svg"

INTRODUCTION = """\
# Architecture

<!-- Written by tools/draw_architecture.py: change that, or the docstrings it reads. -->

![One round, and who imports whom](figures/architecture.svg)

A part of the package is a folder, or a module beside the folders. It imports only parts below it;
arrows that follow from others are left out. Numbers in the boxes are those of the steps above. Read
`algorithm.py` first, then `rules.py` and `methods.py`: they are the method. The server's side of it
never loads the model. [Extending](extending.md) says where to plug something in.

## One round, step by step
"""


def links(step: Step) -> str:
    """Links to the objects of a step; refuses one that is not there."""
    found = []
    for source in step.sources:
        module, _, name = source.partition(":")
        tree = ast.parse((ROOT / module).read_text())
        if name not in {getattr(node, "name", None) for node in tree.body}:
            raise SystemExit(f"{source} is not there: correct WAY in architecture_figure.py.")
        found.append(f"[`{name}`](../src/hofl/{module})")
    return " or ".join(found)


def page() -> str:
    """The page around the picture."""
    lines = [INTRODUCTION]
    for number, step in enumerate(WAY, start=1):
        if number in (1, PLAN_STEPS + 1):
            lines.append(f"{'The plan' if number == 1 else 'The upload'}:\n")
        text = f"{number}. `{step.place}`, {links(step)}: {step.text}."
        lines.append(fill(text, 110, subsequent_indent="    ", break_long_words=False))
        lines += [""] if number in (PLAN_STEPS, len(WAY)) else []
    lines += [
        "## The parts\n",
        "From the top down. Counts of lines include docstrings and empty lines.\n",
        "| part | what it is for | imports | files | lines, about |",
        "|---|---|---|---|---|",
    ]
    graph, count = edges(), {part: [0, 0] for part in LEVEL}
    for module in modules():
        if part_of(module) in count:
            count[part_of(module)][0] += 1
            count[part_of(module)][1] += len((ROOT / module).read_text().splitlines())
    for part in sorted(LEVEL, key=LEVEL.__getitem__, reverse=True):
        files, total = count[part]
        names = ", ".join(sorted(graph[part], key=lambda name: (-LEVEL[name], name))) or "-"
        name = f"{part}/" if (ROOT / part).is_dir() else f"{part}.py"
        text = purpose(part).replace("``", "`").replace("|", "\\|")
        lines.append(
            f"| [`{name}`](../src/hofl/{name}) | {text} | {names} | {files} "
            f"| {max(round(total, -2), 100)} |"
        )
    return "\n".join(lines) + "\n"


def is_current(old: str, new: str) -> bool:
    """Whether a file still holds; counts of lines may be off by a tenth and a hundred."""
    counts = re.compile(r"\| (\d+) \|$", re.M)
    pairs = zip(map(int, counts.findall(old)), map(int, counts.findall(new)), strict=False)
    near = all(abs(before - now) <= 100 + now / 10 for before, now in pairs)
    return near and counts.sub("", old) == counts.sub("", new)


def main() -> None:
    """Write both files; with --check only say whether they are up to date."""
    texts = {PAGE: page(), FIGURE: svg()}
    for path, text in texts.items():
        if sys.argv[1:] != ["--check"]:
            path.write_text(text)
        elif not path.is_file() or not is_current(path.read_text(), text):
            sys.exit(f"docs/{path.relative_to(DOCS)} is stale: run tools/{Path(__file__).name}.")


if __name__ == "__main__":
    main()
