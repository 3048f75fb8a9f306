"""Write docs/configuration.md from the schema of configurations; with --check, say if it is stale.

``python tools/configuration_page.py``
"""

import json
import re
import sys
from pathlib import Path
from textwrap import fill
from typing import Any

from hofl.experiment.schema import json_schema, section_of

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
INTRODUCTION = """# Configuration

<!-- Written by tools/configuration_page.py: change the sections' code in src/hofl/experiment. -->

A configuration is a TOML file of the sections below, or a recipe by name; `key=value` on the
command line changes it, `~key` removes a key. A mistake is one line that says what was got and what
is allowed.

```
hofl config show my.toml rounds=3         # every value, and where it comes from
hofl config diff my.toml runs/a           # files, recipes and folders of runs
hofl config schema > hofl.schema.json     # for editors that check and complete TOML
```

Editors that follow Taplo (such as VS Code's Even Better TOML) use the schema of a file that begins
with `#:schema ./hofl.schema.json`. Every run writes its complete configuration to
`RUN/config.toml`. Keys that are *unset* follow from others when a run is built; those of a method
have the method's own values (`hofl methods NAME`).
"""


def kind(field: dict[str, Any]) -> str:
    """What a key takes, in a few words."""
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(kind(choice) for choice in field["anyOf"]))
    if "enum" in field or "const" in field:
        values = field.get("enum", [field.get("const")])
        return ", ".join(f"`{value}`" for value in values)
    if field.get("type") == "array":
        return f"list of {kind(field['items'])}" if "type" in field["items"] else "list"
    words = {"integer": "whole number", "string": "text", "boolean": "`true`, `false`"}
    words |= {"object": "table", "number": "number"}
    bounds = [
        f"{sign} {field[name]:g}" if field[name] < 2**60 else f"{sign} 2^63"
        for name, sign in BOUNDS.items()
        if name in field
    ]
    if "maxLength" in field:
        bounds.append(f"at most {field['maxLength']} characters")
    return " ".join([words.get(field.get("type", ""), "value"), " and ".join(bounds)]).strip()


BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def rows(section: dict[str, Any], nested: set[str]) -> list[str]:
    """The table of a section's keys."""
    lines = ["| key | takes | default | meaning |", "|---|---|---|---|"]
    for name, field in section["properties"].items():
        if name in nested:
            continue
        default = "required" if name in section.get("required", ()) else "unset"
        if "default" in field:
            default = f"`{json.dumps(field['default'])}`"
        text = field.get("description", "")
        if "examples" in field:
            text += f" Known: {', '.join(f'`{example}`' for example in field['examples'])}."
        cells = (f"`{name}`", kind(field), default, text)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines


def page() -> str:
    """The whole page."""
    schema = json_schema()
    sections = {
        name: section
        for name, field in schema["properties"].items()
        if (section := section_of(schema, field)) is not None
    }
    lines = [INTRODUCTION, "## Top level", "", *rows(schema, set(sections))]
    for name, section in sections.items():
        lines += ["", f"## {name}", "", wrapped(section["description"]), "", *rows(section, set())]
        for key, field in section["properties"].items():
            inner = section_of(schema, field)
            if inner is not None:
                lines += ["", f"### {name}.{key}", "", wrapped(inner["description"]), ""]
                lines += rows(inner, set())
    return "\n".join(lines) + "\n"


def wrapped(text: str) -> str:
    """A paragraph in lines of 110 columns."""
    return fill(re.sub(r"\s+", " ", text), 110, break_long_words=False, break_on_hyphens=False)


def main() -> None:
    """Write the page; with --check only say whether it is up to date."""
    text = page()
    if sys.argv[1:] != ["--check"]:
        PAGE.write_text(text)
    elif not PAGE.is_file() or PAGE.read_text() != text:
        sys.exit(f"docs/{PAGE.name} is stale: run tools/{Path(__file__).name}.")


if __name__ == "__main__":
    main()
