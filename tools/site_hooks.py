"""Hooks of the site's generator (mkdocs.yml): what the pages link to outside docs/ becomes pages.

The documents are written for the repository, where a link leads to a source file or a folder. On
the site such a link leads to a page with that file, or with the folder's files and what each is
for; no address on a network is needed. Pages of docs/results/ enter the navigation by themselves.
"""

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(\]\()(\.\.?/[^)#\s]+|[\w./-]+)((?:#[^)]*)?\))")
FENCES = {".py": "python", ".toml": "toml", ".json": "json", ".js": "javascript"}
PROJECT = {"Changes": "CHANGELOG.md", "Contributing": "CONTRIBUTING.md"}
OPTIONAL = {"Reference": {"Configuration": "configuration.md"}}
"""Pages that are listed where they are there."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Complete the navigation."""
    nav: list[dict[str, list[Any]]] = config.nav or []
    for section in nav:
        for name, pages in OPTIONAL.items():
            if name in section:
                there = [{t: f} for t, f in pages.items() if (DOCS / f).is_file()]
                section[name][1:1] = there
        if "Development" in section:
            section["Development"] += [{title: copied(ROOT / f)} for title, f in PROJECT.items()]
    results = sorted((DOCS / "results").glob("*.md"), key=lambda p: (p.stem != "README", p.stem))
    if results:
        nav.insert(2, {"Results": [path.relative_to(DOCS).as_posix() for path in results]})
    config.nav = nav
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for everything outside docs/ that a page links to, and for what those link to."""
    waiting = {ROOT / name for name in PROJECT.values()}
    for path in DOCS.rglob("*.md"):
        waiting |= outside(path)
    done: set[Path] = set()
    while waiting:
        target = waiting.pop()
        done.add(target)
        if target.suffix == ".md":
            waiting |= outside(target) - done
        shown = target.name in PROJECT.values() and target.parent == ROOT
        level = InclusionLevel.INCLUDED if shown else InclusionLevel.NOT_IN_NAV
        page = File.generated(config, copied(target), content=page_of(target), inclusion=level)
        files.append(page)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links that leave docs/ to the pages of their targets."""
    generated = page.file.generated_by is not None
    home = original(page.file.src_uri) if generated else DOCS / page.file.src_uri
    text = LINK.sub(lambda match: led(match, home.parent, page.file.src_uri), markdown)
    # An inner product, <delta, z>, is not a tag.
    text = re.sub(r"`[^`]*`|<(?=\w+,)", lambda m: "&lt;" if m[0] == "<" else m[0], text)
    return "\n".join(four_spaces(text.split("\n")))


def four_spaces(lines: list[str]) -> Iterator[str]:
    """Indent what belongs to a list item by four columns, as the generator's Markdown wants it.

    The pages are written in CommonMark, where it starts below the item's text.
    """
    fenced, offset, loose, before = False, 0, False, ""
    for line in lines:
        fenced ^= line.startswith("```")
        item = None if fenced else re.match(r"(?:[-*]|\d+\.) +", line)
        if item:
            if loose and before.strip():
                yield ""  # after an item of several paragraphs it wants an empty line
            offset, loose = len(item[0]), False
        elif line.strip() and line[:offset].strip():
            offset = 0
        belongs = bool(offset and not item and line.strip())
        loose |= belongs and not before.strip()
        yield " " * (4 - offset) + line if belongs else line
        before = line


def outside(page: Path) -> set[Path]:
    """Existing files and folders of the repository that a page links to and that docs/ lacks."""
    targets = {(page.parent / m[2]).resolve() for m in LINK.finditer(page.read_text("utf-8"))}
    return {t for t in targets if t.exists() and t.is_relative_to(ROOT) and not inside(t)}


def inside(target: Path) -> bool:
    """Whether the site has it anyway."""
    return target.is_relative_to(DOCS)


def led(match: re.Match[str], folder: Path, source: str) -> str:
    """A link as the site needs it."""
    target = (folder / match[2]).resolve()
    if not target.exists() or not target.is_relative_to(ROOT):
        return match[0]
    place = target.relative_to(DOCS).as_posix() if inside(target) else copied(target)
    # An anchor into a source file is a line on other sites; here the page has none.
    end = match[3] if inside(target) or target.suffix == ".md" else ")"
    return match[1] + os.path.relpath(place, Path(source).parent) + end


def copied(target: Path) -> str:
    """Where the page of a file or folder outside docs/ is."""
    name = target.relative_to(ROOT).as_posix()
    return f"source/{name}" if target.suffix == ".md" else f"source/{name}.md"


def original(place: str) -> Path:
    """The file or folder that such a page is about."""
    path = ROOT / place.removeprefix("source/")
    return path if path.exists() else path.with_suffix("")


def page_of(target: Path) -> str:
    """The page itself."""
    name = target.relative_to(ROOT).as_posix()
    if target.is_dir():
        rows = [f"| `{f.name}` | {purpose(f)} |" for f in sorted(target.glob("*.py"))]
        return "\n".join([f"# {name}/", "", "| file | |", "|---|---|", *rows, ""])
    text = target.read_text(encoding="utf-8")
    if target.suffix == ".md":
        return text
    fence = "`" * 4
    return f"# {name}\n\n{fence}{FENCES.get(target.suffix, 'text')}\n{text}\n{fence}\n"


def purpose(module: Path) -> str:
    """First line of a module's docstring."""
    line = (ast.get_docstring(ast.parse(module.read_text("utf-8"))) or "").split("\n")[0]
    return line.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
