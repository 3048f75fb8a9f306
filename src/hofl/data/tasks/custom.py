"""The user's own data: CSV, JSON Lines or Parquet, a prompt, and labels or one-line answers.

Columns that the template names become fields. Clients come with the data if there is one file for
each, or a column that names them; otherwise a partition makes them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hofl.core.errors import HoflError
from hofl.data.own_files import Files, own_task
from hofl.data.readers import BadRow, Row, cell, required
from hofl.data.task import Answer, Example, FreeText, LabelWords, Prompt, Task


@dataclass(frozen=True)
class PromptColumns:
    """How a row becomes an example.

    Args:
        fields: columns that the template names.
        optional: those of them that may be empty.
        label: column of the label, or None for free text.
        values: the label column's values, in the order of the label words.
        target: column of the free-text answer, or None for labels.
        client: column that names the client, or None.
    """

    fields: tuple[str, ...]
    optional: tuple[str, ...]
    label: str | None
    values: tuple[str, ...]
    target: str | None
    client: str | None

    def example(self, row: Row) -> Example:
        """Check a row and return its example."""
        fields = {name: cell(row, name, empty=name in self.optional) for name in self.fields}
        if self.target is not None:
            return Example(fields, golds=_golds(row, self.target))
        assert self.label is not None
        value = cell(row, self.label)
        if value not in self.values:
            raise BadRow(
                f"unknown {self.label} {value!r}: allowed are {', '.join(map(repr, self.values))}"
            )
        return Example(fields, self.values.index(value))


def load_custom(
    *,
    train: Files | None,
    test: Files,
    template: str,
    cut: str,
    labels: Mapping[str, str] | None = None,
    label_column: str = "label",
    target_column: str | None = None,
    client_column: str | None = None,
    optional: Sequence[str] = (),
    max_new_tokens: int = 64,
    name: str = "custom",
) -> Task:
    """Load a task from the user's own files.

    Args:
        train: a file; or one file per client, as a list or a folder; None reads no training file.
        test: a file, a list or a folder.
        template: prompt with ``{column}``s, ending where the answer begins.
        cut: the column that loses its end when a prompt is too long.
        labels: value in the label column -> the word that answers the prompt.
        label_column: where the labels are.
        target_column: where free-text answers are, instead of labels.
        client_column: which client a training row belongs to.
        optional: columns of the template that may be empty.
        max_new_tokens: cap of a generated answer.
        name: of the task in reports.
    """
    if (labels is None) == (target_column is None):
        raise HoflError("own data need either labels or a target column, and not both.")
    words = {} if labels is None else {key: word.strip() for key, word in labels.items()}
    distinct = {word for word in words.values() if word}
    if labels is not None and (len(words) < 2 or len(distinct) < len(words)):
        raise HoflError(f"labels must map two values or more to distinct words, got {words}.")
    answer: Answer = (
        FreeText(max_new_tokens) if labels is None else LabelWords(tuple(words.values()))
    )
    prompt = Prompt(template, cut, answer)
    columns = PromptColumns(
        fields=prompt.fields,
        optional=tuple(optional),
        label=None if labels is None else label_column,
        values=tuple(words),
        target=target_column,
        client=client_column,
    )
    return own_task(name, {"own": prompt}, columns, train, test, tuple(words.values()))


def _golds(row: Row, name: str) -> tuple[str, ...]:
    value = required(row, name)
    if isinstance(value, list) and not value:
        raise BadRow(f"field {name!r} lists no answer")
    golds = tuple(
        cell({name: gold}, name) for gold in (value if isinstance(value, list) else [value])
    )
    for gold in golds:
        if "\n" in gold:  # an answer is generated up to a newline
            raise BadRow(f"field {name!r} must be one line, got {gold[:60]!r}")
    return golds
