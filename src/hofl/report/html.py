"""Write a report on runs: one page with their curves, their tables and where they come from."""

from collections.abc import Sequence
from pathlib import Path

from hofl.core.durable import write_whole
from hofl.core.errors import HoflError
from hofl.report.cells import read_cells
from hofl.report.contents import contents
from hofl.report.document import page


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
    text = page(contents(read_cells(paths), named), "report.js")
    try:
        write_whole(out, text)
    except OSError as error:
        raise HoflError(f"cannot write {out}: {error.strerror or error}.") from None
