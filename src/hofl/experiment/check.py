"""Look a run over before it starts: every example encoded, and its cost measured on one step.

Nothing is written. What a run would refuse is refused here, with the example's number.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from hofl.data.encoding import Encoded, EncodedSet
from hofl.data.task import FreeText, LabelWords
from hofl.evaluation.scores import Progress, evaluate
from hofl.experiment.build import Experiment, build
from hofl.experiment.config import ExperimentConfig
from hofl.process import tune_allocator, use_threads

RENDERED = 2
"""Examples shown as the model reads them."""


@dataclass(frozen=True)
class SetFacts:
    """One set of examples in tokens.

    Args:
        examples: how many.
        mean_tokens: of what the model reads for one example.
        longest: tokens of the longest.
        cut: examples whose text lost its end.
        labels: how often each label occurs, empty for written answers.
    """

    examples: int
    mean_tokens: float
    longest: int
    cut: int
    labels: tuple[int, ...]


@dataclass(frozen=True)
class Estimate:
    """What training costs, from one measured local step and one measured evaluation batch."""

    tokens: int
    step_seconds: float
    train_seconds: float
    evaluation_seconds: float


@dataclass(frozen=True)
class Check:
    """What was found.

    Args:
        config: the complete, resolved configuration.
        note: what the user should know about the data.
        sets: facts of the training set and of the test set, where there is one.
        rendered: the first training examples as (prompt, answer).
        clients: how many training examples each client holds.
        cost: what the run will take.
    """

    config: ExperimentConfig
    note: str
    sets: dict[str, SetFacts]
    rendered: tuple[tuple[str, str], ...]
    clients: tuple[int, ...]
    cost: Estimate


Encoding = Callable[[str, int, int], None]
"""Called with (name of the set, examples done, of how many)."""


def check(config: ExperimentConfig, progress: Encoding = lambda name, done, of: None) -> Check:
    """Build everything that a configuration names, encode every example, time one step."""
    tune_allocator()
    use_threads(config.engine.threads, config.engine.workers)
    experiment = build(config)
    sets = {
        name: set_facts(examples, partial(progress, name))
        for name, examples in (("train", experiment.train), ("test", experiment.test))
        if len(examples)
    }
    return Check(
        config=experiment.config,
        note=experiment.note,
        sets=sets,
        rendered=tuple(rendered(experiment.train)),
        clients=tuple(experiment.client.sizes),
        cost=estimate(experiment, sets["train"], sets.get("test")),
    )


def set_facts(examples: EncodedSet, progress: Progress | None = None) -> SetFacts:
    """Encode every example; the first that cannot be encoded is refused with its number."""
    tokens, cut, labels = [], 0, []
    for number in range(len(examples)):
        one = examples.encoded(number)
        tokens.append(_read(one))
        cut += one.was_cut
        labels.append(one.label)
        if progress is not None and (number % 256 == 0 or number == len(examples) - 1):
            progress(number + 1, len(examples))
    counts = np.bincount(labels).tolist() if min(labels) >= 0 else []
    return SetFacts(len(tokens), float(np.mean(tokens)), max(tokens), cut, tuple(counts))


def rendered(examples: EncodedSet) -> Iterator[tuple[str, str]]:
    """The first examples as (prompt, answer) in the tokenizer's own words."""
    encoder = examples.encoder
    for number in range(min(RENDERED, len(examples))):
        example, one = examples.examples[number], examples.encoded(number)
        answer = encoder.prompt.answer
        if isinstance(answer, LabelWords):
            right = answer.words[example.label]
        elif isinstance(answer, FreeText):
            right = " | ".join(dict.fromkeys(example.golds))
        else:
            right = f"{example.options[example.label]}   (of {', '.join(example.options)})"
        yield encoder.tokenizer.decode(one.prompt), right


def estimate(experiment: Experiment, train: SetFacts, test: SetFacts | None) -> Estimate:
    """Time one client's participation of a single step, then scale to the whole run."""
    config = experiment.config
    steps = experiment.method.local.local_steps
    one_step = replace(experiment.method.local, local_steps=1)
    own = experiment.boundaries()
    middle = int(np.argsort(own)[len(own) // 2])
    plan = replace(experiment.plan(0, middle, experiment.start), rule=one_step).to_bytes()
    experiment.client.answer(plan)  # the first one also measures memory, and warms up
    step = _seconds(lambda: experiment.client.answer(plan))
    participations = config.rounds * config.fleet.cohort
    return Estimate(
        tokens=round(participations * steps * config.task.batch_size * train.mean_tokens),
        step_seconds=step,
        train_seconds=participations * steps * step / config.engine.workers,
        evaluation_seconds=0.0 if test is None else _evaluation_seconds(experiment, test),
    )


def _evaluation_seconds(experiment: Experiment, test: SetFacts) -> float:
    """Of all evaluations of the test set: the start, every so often, and the end."""
    config = experiment.config.evaluation
    some = _spread(len(experiment.test), 2 * config.batch_size)
    model, size = experiment.model.split, config.batch_size
    per_example = _seconds(lambda: evaluate(model, experiment.test, size, some)) / len(some)
    rounds = experiment.config.rounds
    before_end = 1 + (rounds - 1) // config.every if config.every else 1
    curve = test.examples if experiment.curve is None else len(experiment.curve)
    return per_example * (before_end * curve + test.examples)


def _spread(size: int, count: int) -> Sequence[int]:
    """Up to ``count`` numbers below ``size`` at equal distances."""
    return sorted(set(np.linspace(0, size - 1, min(count, size)).astype(int).tolist()))


def _seconds(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _read(one: Encoded) -> int:
    """Tokens that the model reads for one example, all its options included."""
    return sum(len(one.prompt) + len(span) - 1 for span in one.spans)
