"""The sections of a configuration that say what is learnt, and from which data."""

from typing import Annotated

from pydantic import Field, StrictStr

from hofl.experiment.changes import Section as _Section

_Names = Annotated[tuple[StrictStr, ...], Field(strict=False)]


class TaskConfig(_Section):
    """What is learnt: a task, one of its prompts, and the batches of a local step.

    ``max_length`` caps the tokens of a prompt, of a whole conversation or of a window of documents.
    Without it the default of the prompt or task holds.
    """

    name: str = "helpdesk"
    prompt: str | None = None
    batch_size: int = Field(default=16, ge=1)
    max_length: int | None = Field(default=None, ge=2)


class DataConfig(_Section):
    """Where public sets come from, and how examples are split over the clients.

    ``dir`` is a folder of files; without it HOFL_DATA names one, or else the hub is used.
    ``partition`` is ``natural`` for data that name their clients and ``iid`` for others, unless
    given. ``examples_per_client`` limits a client's examples, training and held-out together, drawn
    at random from its shard; 0 means all.
    """

    dir: str | None = None
    partition: str | None = None
    alpha: float | None = None
    per_client: int | None = None
    shards_per_client: int | None = None
    examples_per_client: int = Field(default=0, ge=0)


class CustomConfig(_Section):
    """The user's own data, for the tasks ``custom``, ``chat`` and ``text``.

    ``train`` and ``test`` are files, lists of files or folders; ``client_column`` names the client
    of a row. Task ``custom`` needs ``template`` and ``cut``, and ``labels`` or ``target_column``
    (``hofl.data.tasks.custom``). Task ``chat`` recognises its columns, or takes them by name:
    ``messages_column``, or ``prompt_column`` and ``target_column``, with ``input_column`` and
    ``system_column`` where there are any (``hofl.data.conversations``). Task ``text`` reads
    ``text_column``.
    """

    train: str | _Names
    test: str | _Names
    template: str | None = None
    cut: str | None = None
    labels: dict[str, str] | None = None
    label_column: str = "label"
    target_column: str | None = None
    client_column: str | None = None
    optional: _Names = ()
    max_new_tokens: int = Field(default=64, ge=1)
    messages_column: str | None = None
    prompt_column: str | None = None
    input_column: str | None = None
    system_column: str | None = None
    text_column: str | None = None
