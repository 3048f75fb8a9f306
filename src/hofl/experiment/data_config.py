"""The sections of a configuration that say what is learnt, and from which data."""

from typing import Annotated

from pydantic import Field, StrictStr

from hofl.experiment.section import Section as _Section

_Names = Annotated[tuple[StrictStr, ...], Field(strict=False)]


class TaskConfig(_Section):
    """What is learnt: a task, one of its prompts, and the batches of a local step."""

    name: str = "helpdesk"
    """One of ``hofl data``; ``custom``, ``chat`` or ``text`` for own files."""
    prompt: str | None = None
    """One of the task's prompts. Unset: its first."""
    batch_size: int = Field(default=16, ge=1)
    """Examples of a local step."""
    max_length: int | None = Field(default=None, ge=2)
    """Most tokens of a prompt, of a whole conversation or of a window of documents. Unset: the
    default of the prompt or task."""


class DataConfig(_Section):
    """Where public sets come from, and how examples are split over the clients."""

    dir: str | None = None
    """Folder of files. Unset: HOFL_DATA names one, or else the hub is used."""
    partition: str | None = None
    """How examples are split over clients. Unset: ``natural`` for data that name their clients,
    else ``iid``."""
    alpha: float | None = None
    """Of partitions ``dirichlet`` and ``quantity``: the smaller, the more skewed."""
    per_client: int | None = None
    """Examples of each client, of partition ``dirichlet``. Unset: an equal share."""
    shards_per_client: int | None = None
    """Labels of each client, about, of partition ``label-shards``. Unset: 2."""
    examples_per_client: int = Field(default=0, ge=0)
    """Most examples of a client, training and held-out together, drawn at random; 0 is all."""


class CustomConfig(_Section):
    """The user's own data, for the tasks ``custom``, ``chat`` and ``text``.

    Task ``custom`` needs ``template`` and ``cut``, and ``labels`` or ``target_column``
    (``hofl.data.tasks.custom``). Task ``chat`` recognises its columns, or takes them by name:
    ``messages_column``, or ``prompt_column`` and ``target_column``, with ``input_column`` and
    ``system_column`` where there are any (``hofl.data.conversations``). Task ``text`` reads
    ``text_column``.
    """

    train: str | _Names | None = None
    """A file; or one file per client, as a list or a folder. Rows can be handed over from Python
    instead (``hofl.run``)."""
    test: str | _Names | None = None
    """A file, a list of files or a folder; or rows, as for ``train``."""
    template: str | None = None
    """The prompt, with columns in braces."""
    cut: str | None = None
    """The column that is cut where a prompt is too long."""
    labels: dict[str, str] | None = None
    """Value of the label column -> word that the model answers."""
    label_column: str = "label"
    """Column of the label."""
    target_column: str | None = None
    """Column of the answer, where it is free text."""
    client_column: str | None = None
    """Column that names the client of a row."""
    optional: _Names = ()
    """Columns of the template that may be empty."""
    max_new_tokens: int = Field(default=64, ge=1)
    """Most tokens of a generated answer."""
    messages_column: str | None = None
    """Column of a list of messages, each with role and content."""
    prompt_column: str | None = None
    """Column of the question."""
    input_column: str | None = None
    """Column of what the question is about, which may be empty."""
    system_column: str | None = None
    """Column of the system message, which may be empty."""
    text_column: str | None = None
    """Column of documents. Unset: ``text``."""
