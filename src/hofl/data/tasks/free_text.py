"""The user's own conversations (``chat``) and documents (``text``), of any number of lines.

Files, clients and errors are those of :mod:`hofl.data.own_files`.
"""

from dataclasses import dataclass

from hofl.core.errors import HoflError
from hofl.data.conversations import ChatColumns
from hofl.data.own_files import Files, first_row, own_task
from hofl.data.readers import Row, cell
from hofl.data.task import Chat, Documents, Example, Task

TEXT = "text"
"""The column of documents, unless another is named."""


@dataclass(frozen=True)
class DocumentColumns:
    """Which column of a row is its document, and which names the client."""

    text: str
    client: str | None

    def example(self, row: Row) -> Example:
        """Return the document of a row."""
        return Example({TEXT: cell(row, self.text)})


def load_chat(
    *,
    train: Files | None,
    test: Files,
    named: ChatColumns | None = None,
    max_new_tokens: int = 128,
    name: str = "chat",
) -> Task:
    """Load conversations.

    Args:
        train: a file; or one file per client, as a list or a folder; None reads no training file.
        test: a file, a list or a folder.
        named: columns that have other names than those recognised.
        max_new_tokens: cap of a generated answer.
        name: of the task in reports.
    """
    place, row = first_row(train, test)
    columns = ChatColumns.found(row, named or ChatColumns(), place)
    return own_task(name, {"chat": Chat(max_new_tokens)}, columns, train, test)


def load_text(
    *,
    train: Files | None,
    test: Files,
    text_column: str | None = None,
    client_column: str | None = None,
    name: str = "text",
) -> Task:
    """Load documents; the arguments are those of :func:`load_chat`."""
    place, row = first_row(train, test)
    column = text_column or TEXT
    if column not in row:
        raise HoflError(
            f"{place}: no column {column!r} among {', '.join(map(str, row))}: name the column of "
            "documents by custom.text_column."
        )
    columns = DocumentColumns(column, client_column)
    return own_task(name, {"text": Documents()}, columns, train, test)
