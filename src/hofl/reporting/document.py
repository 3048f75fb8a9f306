"""A page in one HTML file: its data, its script and its charting library inside.

It opens from disk without a network; its content policy forbids any request. The library is
Observable Plot on d3 (``page/LICENSES.txt``), which draws SVG: sharp in print, easy to save.
"""

import html
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

LIBRARIES = ("d3.min.js", "plot.umd.min.js", "figure.js")
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
)


def page(values: Mapping[str, Any], *own_scripts: str, policy: str = POLICY) -> str:
    """Return the whole page of these values, whose ``title`` it has, as its own scripts show them.

    ``policy`` is what the page may ask for: nothing, unless it is served.
    """
    scripts = "\n".join(f"<script>{_asset(name)}</script>" for name in (*LIBRARIES, *own_scripts))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
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
    return files("hofl.reporting").joinpath("page", name).read_text(encoding="utf-8")
