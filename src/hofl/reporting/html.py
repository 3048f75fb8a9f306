"""Write a report on runs: one page with their curves, their tables and where they come from."""

from collections.abc import Sequence
from pathlib import Path

from hofl.core.durable import write_whole
from hofl.core.errors import HoflError
from hofl.reporting.cells import read_cells
from hofl.reporting.contents import contents
from hofl.reporting.document import page


def report(
    folders: str | Path | Sequence[str | Path], out: str | Path = "report.html", title: str = ""
) -> Path:
    """Write a report on runs, comparisons and folders of runs; return its file.

    Args:
        folders: one of them, or several.
        out: the file, ending in .html.
        title: of the page.

    Raises:
        HoflError: there is nothing to report on, or the file cannot be written.
    """
    given = [folders] if isinstance(folders, str | Path) else folders
    paths = [Path(folder) for folder in given]
    out = Path(out)
    if out.suffix != ".html":
        raise HoflError(f"cannot write a report to {out.name!r}: end it in .html.")
    if not out.parent.is_dir():
        raise HoflError(f"cannot write {out}: {out.parent} is not a folder.")
    named = title or "hofl: " + ", ".join(path.name for path in paths)
    text = page(contents(read_cells(paths), named), "report.js")
    try:
        write_whole(out, text)
    except OSError as error:
        raise HoflError(f"cannot write {out}: {error.strerror or error}.") from None
    return out
