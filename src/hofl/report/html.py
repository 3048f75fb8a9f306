"""``hofl report``: one HTML file with its data, its script and its charting library inside.

The page opens from disk without a network; its content policy forbids any request. The library is
Observable Plot on d3 (``page/LICENSES.txt``), which draws SVG: sharp in print, easy to save.
"""

import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from hofl.core.durable import write_whole
from hofl.core.errors import HoflError
from hofl.report.cells import read_cells
from hofl.report.contents import contents

SCRIPTS = ("d3.min.js", "plot.umd.min.js", "export.js", "page.js")
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
)


def write_report(paths: Sequence[Path], out: Path, title: str = "") -> None:
    """Write a report on runs, comparisons and folders of runs.

    Raises:
        HoflError: there is nothing to report on, or the file cannot be written.
    """
    if out.suffix != ".html":
        raise HoflError(f"cannot write a report to {out.name!r}: end it in .html.")
    if not out.parent.is_dir():
        raise HoflError(f"cannot write {out}: {out.parent} is not a folder.")
    named = title or "hofl: " + ", ".join(path.name for path in paths)
    text = page(contents(read_cells(paths), named))
    try:
        write_whole(out, text)
    except OSError as error:
        raise HoflError(f"cannot write {out}: {error.strerror or error}.") from None


def page(values: Mapping[str, Any]) -> str:
    """Return the whole page for what ``contents`` found."""
    scripts = "\n".join(f"<script>{_asset(name)}</script>" for name in SCRIPTS)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{html.escape(str(values["title"]))}</title>
<style>{_asset("page.css")}</style>
</head>
<body>
<main id="report"></main>
<script type="application/json" id="contents">{embedded(values)}</script>
{scripts}
</body>
</html>
"""


def embedded(values: Mapping[str, Any]) -> str:
    r"""Return JSON that no HTML parser takes for a tag, with null for what JSON has no number for.

    >>> embedded({"name": "</script>", "loss": float("nan")})
    '{"name": "\\u003c/script>", "loss": null}'
    """
    return json.dumps(_finite(values), default=str).replace("<", "\\u003c")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
        return None
    return value


def _asset(name: str) -> str:
    return files("hofl.report").joinpath("page", name).read_text(encoding="utf-8")
