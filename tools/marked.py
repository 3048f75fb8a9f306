"""Parts of a page that a tool writes, each between two comments that name the part and the tool."""

import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent


def ends(name: str, tool: str) -> tuple[str, str]:
    """Return the comments around a part."""
    return f"<!-- {name}: python tools/{tool} -->", f"<!-- end of {name} -->"


def renewed(text: str, parts: Mapping[str, str], tool: str) -> str:
    """Return a page with its parts replaced.

    Raises:
        ValueError: a part's comments are not there, each once and in order.
    """
    for name, new in parts.items():
        start, end = ends(name, tool)
        if not text.count(start) == text.count(end) == 1 or text.index(end) < text.index(start):
            raise ValueError(f"{name} stands between {start} and {end}, each once; add them.")
        before, _, rest = text.partition(start)
        text = f"{before}{start}\n\n{new}\n\n{end}{rest.partition(end)[2]}"
    return text


def renew(pages: Mapping[str, Mapping[str, str]], tool: str, check: bool) -> None:
    """Write the parts of pages below the root or, to check, compare them.

    Raises:
        SystemExit: a page has no place for a part or, when checked, another text there.
    """
    for name, parts in pages.items():
        page = ROOT / name
        text = page.read_text(encoding="utf-8")
        try:
            fresh = renewed(text, parts, tool)
        except ValueError as error:
            sys.exit(f"{name}: {error}")
        if check and fresh != text:
            sys.exit(f"{name} is not what its data say: run python tools/{tool}")
        if not check:
            page.write_text(fresh, encoding="utf-8")
