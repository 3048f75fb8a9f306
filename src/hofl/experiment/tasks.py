"""From a configuration to a task, its prompt, and the examples that each client holds."""

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hofl.core.errors import HoflError
from hofl.core.randomness import Purpose, generator
from hofl.data.conversations import ChatColumns
from hofl.data.encoded import EncodedSet, Question
from hofl.data.partition import Pool, split
from hofl.data.shards import hold_out, subset
from hofl.data.task import Chat, Documents, Form, FreeText, Prompt, Task
from hofl.data.tasks import BENCHMARKS, load_task
from hofl.data.tasks.custom import load_custom
from hofl.data.tasks.free_text import load_chat, load_text
from hofl.evaluation.written import scorer
from hofl.experiment.config import EvaluationConfig, ExperimentConfig
from hofl.experiment.data_config import CustomConfig, DataConfig

WRITTEN_EXAMPLES = 1024
"""Examples of a learning curve, where answers are generated."""
SAMPLES = 4
"""Sample answers, where ``evaluation.samples`` is not set and answers are written."""


@dataclass(frozen=True)
class HeldOut:
    """Examples that every client keeps out of its training.

    Args:
        examples: all training examples, encoded.
        rows: which of them each client holds out, [N].
    """

    examples: EncodedSet
    rows: tuple[np.ndarray, ...]


def resolved_task(config: ExperimentConfig) -> tuple[ExperimentConfig, Task]:
    """Load the task that a configuration names; return the configuration with its choices settled.

    Paths become absolute, so that workers and a resume elsewhere read the same files.
    """
    custom = config.custom
    if custom is None:
        return _settled(config, None, None)
    train = _absolute(_given("train", custom.train))
    test = _absolute(_given("test", custom.test))
    custom = custom.model_copy(update={"train": train, "test": test})
    return _settled(config, custom, _paths(train))


def task_to_test(config: ExperimentConfig) -> tuple[ExperimentConfig, Task]:
    """As :func:`resolved_task`, without reading the training files of the user's own data."""
    custom = config.custom
    if custom is not None:
        test = _absolute(_given("test", custom.test))
        custom = custom.model_copy(update={"test": test})
    return _settled(config, custom, None)


def _settled(
    config: ExperimentConfig, custom: CustomConfig | None, train: Path | list[Path] | None
) -> tuple[ExperimentConfig, Task]:
    """Load the task, own data with these training files; settle partition, prompt and length."""
    data = config.data
    if (config.task.name in OWN_DATA) != (custom is not None):
        names = " or ".join(f'"{name}"' for name in OWN_DATA)
        raise HoflError(f"own data need both: task.name = {names}, and a section [custom].")
    if custom is not None:
        _refuse_unused(config.task.name, custom)
        task = OWN_DATA[config.task.name].load(custom, train)
    else:
        folder = data.dir or os.environ.get("HOFL_DATA") or None
        if config.task.name in BENCHMARKS and folder is not None:
            data = data.model_copy(update={"dir": str(Path(folder).resolve())})
        task = load_task(config.task.name, None if data.dir is None else Path(data.dir))
    variant = config.task.prompt or next(iter(task.prompts))
    settled = {
        "custom": custom,
        "data": data.model_copy(update={"partition": partition_of(data, task)}),
        "task": config.task.model_copy(
            update={
                "prompt": variant,
                "max_length": config.task.max_length or task.prompt(variant).max_length,
            }
        ),
    }
    return config.model_copy(update=settled), task


def fleet_seed(config: ExperimentConfig) -> int:
    """Return the seed of what belongs to the fleet: data, tiers, order among equal clients."""
    return config.seed if config.fleet.seed is None else config.fleet.seed


def partition_of(data: DataConfig, task: Task) -> str:
    """Return the partition's name: data that name their clients stay with them."""
    return data.partition or ("iid" if task.clients is None else "natural")


def shards_of(config: ExperimentConfig, task: Task) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the training and the held-out examples of every client."""
    seed, data = fleet_seed(config), config.data
    shards = split(
        partition_of(data, task),
        Pool.of(task),
        config.fleet.clients,
        seed,
        alpha=data.alpha,
        per_client=data.per_client,
        shards_per_client=data.shards_per_client,
    )
    if data.examples_per_client:
        shards = subset(shards, data.examples_per_client, seed)
    if config.evaluation.holdout:
        return hold_out(shards, config.evaluation.holdout, seed)
    if not config.evaluation.test:
        raise HoflError("evaluation.test=false leaves nothing to evaluate: set evaluation.holdout.")
    return shards, []


def curve_examples(config: ExperimentConfig, task: Task, size: int) -> list[int] | None:
    """Return which of ``size`` test examples make a learning curve, in order; None is all."""
    most, limit = config.evaluation.curve_examples, config.evaluation.examples
    if most is None:
        written = isinstance(task.prompt(config.task.prompt).answer, FreeText)
        most = WRITTEN_EXAMPLES if written else 0
    return fixed_examples(size, min(filter(None, (most, limit)), default=0))


def fixed_examples(size: int, most: int) -> list[int] | None:
    """Draw at most ``most`` of ``size`` examples, the same ones for every run; None is all."""
    if not 0 < most < size:
        return None
    return sorted(generator(0, Purpose.CURVE).permutation(size)[:most].tolist())


def sample_questions(
    source: EncodedSet, settings: EvaluationConfig, rows: Sequence[int] | None = None
) -> list[Question]:
    """Return fixed questions of a set, or of these rows of it, as many as are asked for."""
    places: Sequence[int] = range(len(source)) if rows is None else rows
    first = source.question(places[0]) if len(places) else None
    count = settings.samples
    if first is None:
        if count or settings.rouge:
            raise HoflError(
                "evaluation.samples and evaluation.rouge need conversations or documents to test "
                "on (tasks chat and text): remove them."
            )
        return []
    count = SAMPLES if count is None else count
    if settings.rouge and not count:
        raise HoflError("evaluation.rouge needs answers: set evaluation.samples.")
    if settings.rouge:
        scorer()  # refuse now what would fail at the end
    drawn = fixed_examples(len(places), count) if count else []
    chosen = places if drawn is None else [places[index] for index in drawn]
    questions = map(source.question, chosen)
    return [question for question in questions if question is not None]


@dataclass(frozen=True)
class OwnData:
    """A task on the user's own files.

    Args:
        load: reads them, with these training files.
        keys: the keys of [custom] that it reads.
        form: how a text is put to a model that was trained on it.
    """

    load: Callable[[CustomConfig, Path | list[Path] | None], Task]
    keys: Collection[str]
    form: Callable[[CustomConfig], Form]


def _prompted(config: CustomConfig, train: Path | list[Path] | None) -> Task:
    if config.template is None or config.cut is None:
        raise HoflError(
            'task "custom" needs custom.template and custom.cut. For conversations set task.name = '
            '"chat", for plain documents "text".'
        )
    return load_custom(
        train=train,
        test=_paths(_given("test", config.test)),
        template=config.template,
        cut=config.cut,
        labels=config.labels,
        label_column=config.label_column,
        target_column=config.target_column,
        client_column=config.client_column,
        optional=config.optional,
        max_new_tokens=config.max_new_tokens,
    )


def _conversations(config: CustomConfig, train: Path | list[Path] | None) -> Task:
    named = ChatColumns(
        messages=config.messages_column,
        prompt=config.prompt_column,
        input=config.input_column,
        system=config.system_column,
        target=config.target_column,
        client=config.client_column,
    )
    return load_chat(
        train=train,
        test=_paths(_given("test", config.test)),
        named=named,
        max_new_tokens=config.max_new_tokens,
    )


def _documents(config: CustomConfig, train: Path | list[Path] | None) -> Task:
    return load_text(
        train=train,
        test=_paths(_given("test", config.test)),
        text_column=config.text_column,
        client_column=config.client_column,
    )


_OF_ALL = {"train", "test", "client_column"}
_OF_CHAT = {"messages_column", "prompt_column", "input_column", "system_column"}
OWN_DATA: dict[str, OwnData] = {
    "custom": OwnData(
        load=_prompted,
        keys=set(CustomConfig.model_fields) - _OF_CHAT - {"text_column"},
        form=lambda custom: Prompt(str(custom.template), str(custom.cut), FreeText()),
    ),
    "chat": OwnData(
        load=_conversations,
        keys=_OF_ALL | _OF_CHAT | {"target_column", "max_new_tokens"},
        form=lambda custom: Chat(),
    ),
    "text": OwnData(
        load=_documents, keys=_OF_ALL | {"text_column"}, form=lambda custom: Documents()
    ),
}
"""Tasks on the user's own files."""


def _refuse_unused(name: str, config: CustomConfig) -> None:
    """Refuse keys that the task does not read, so that no setting is ignored silently."""
    keys = OWN_DATA[name].keys
    for key, field in CustomConfig.model_fields.items():
        if key not in keys and getattr(config, key) != field.default:
            raise HoflError(
                f"task {name!r} does not read custom.{key}: remove it, or choose another task. It "
                f"reads {', '.join(sorted(keys))}."
            )


def _given(name: str, files: str | Sequence[str] | None) -> str | Sequence[str]:
    if not files:  # an empty name would be the working directory
        raise HoflError(
            f"configuration: 'custom.{name}' is required: name a file, or hand rows over from "
            f"Python, hofl.run(..., {name}=rows)."
        )
    return files


def _absolute(files: str | Sequence[str]) -> str | tuple[str, ...]:
    if isinstance(files, str):
        return str(Path(files).resolve())
    return tuple(str(Path(file).resolve()) for file in files)


def _paths(files: str | Sequence[str]) -> Path | list[Path]:
    return Path(files) if isinstance(files, str) else [Path(file) for file in files]
