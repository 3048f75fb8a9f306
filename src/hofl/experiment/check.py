"""Check a run before it starts: encode every example, and estimate its cost from a few steps.

Nothing is written. What a run would refuse is refused here, with the example's number.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from hofl.core.process import tune_allocator, use_threads
from hofl.data.answers import Text
from hofl.data.encoded import EncodedSet, TokenLine
from hofl.data.encoding import PromptedSet
from hofl.data.task import FreeText, LabelWords
from hofl.evaluation.scores import Progress, evaluate
from hofl.experiment.build import Simulation, build_simulation
from hofl.experiment.config import ExperimentConfig
from hofl.experiment.tiers import TierFacts, elapsed, step_seconds, tier_facts
from hofl.tracking.trackers import makers

RENDERED = 2
"""Examples shown as the model reads them."""
TIMED = 2
"""Local steps that are timed besides the first."""


@dataclass(frozen=True)
class SetFacts:
    """A set of examples in tokens.

    Args:
        examples: number of examples.
        mean_tokens: mean of what the model reads for an example.
        longest: tokens of the longest.
        cut: examples that lost text because they are too long.
        cut_tokens: how many tokens they lost together.
        answers_cut: examples whose free-text answer is longer than may be generated.
        labels: how often each label occurs, empty for free text.
    """

    examples: int
    mean_tokens: float
    longest: int
    cut: int
    cut_tokens: int
    answers_cut: int
    labels: tuple[int, ...]


@dataclass(frozen=True)
class RunCost:
    """Estimated cost of a run, from a few timed local steps and evaluation batches.

    Args:
        tokens: read in training.
        step_seconds: of a local step, without what a participation does once.
        train_seconds: of all participations.
        evaluation_seconds: of all evaluations.
    """

    tokens: int
    step_seconds: float
    train_seconds: float
    evaluation_seconds: float


Piece = tuple[str, bool]
"""A piece of a text, and whether it is trained."""


@dataclass(frozen=True)
class Check:
    """The outcome of a check.

    Args:
        config: the complete, resolved configuration.
        note: what the user should know about the data.
        sets: facts of the training set and of the test set, where there is one.
        rendered: the first training examples, as pieces of text that are trained or not.
        clients: number of training examples of each client.
        cost: what the run will take.
        tiers: every kind of device.
        seen: how many test examples are also training examples.
    """

    config: ExperimentConfig
    note: str
    sets: dict[str, SetFacts]
    rendered: tuple[tuple[Piece, ...], ...]
    clients: tuple[int, ...]
    cost: RunCost
    tiers: tuple[TierFacts, ...] = ()
    seen: int = 0


Encoding = Callable[[str, int, int], None]
"""Called with (name of the set, examples done, of how many)."""


def check(config: ExperimentConfig, progress: Encoding = lambda name, done, of: None) -> Check:
    """Build everything that a configuration names, encode every example, time a few steps."""
    makers(config.tracking.to)
    tune_allocator()
    use_threads(config.engine.threads, config.engine.workers)
    experiment = build_simulation(config)
    sets = {
        name: set_facts(examples, partial(progress, name))
        for name, examples in (("train", experiment.train), ("test", experiment.test))
        if examples is not None and len(examples)
    }
    return Check(
        config=experiment.config,
        note=experiment.note,
        sets=sets,
        rendered=tuple(rendered(experiment.train)),
        clients=tuple(experiment.client.sizes),
        cost=estimate(experiment, sets["train"]),
        tiers=tuple(tier_facts(experiment)),
        seen=also_trained_on(experiment),
    )


def also_trained_on(experiment: Simulation) -> int:
    """Count the test examples whose text is a training example's: scores on them say little."""
    if experiment.test is None:
        return 0

    def texts(examples: EncodedSet) -> Iterator[tuple[Any, ...]]:
        for number in range(len(examples.examples)):
            example = examples.examples[number]
            yield *sorted(example.fields.items()), tuple(example.options)

    trained = set(texts(experiment.train))
    return sum(text in trained for text in texts(experiment.test))


def set_facts(examples: EncodedSet, progress: Progress | None = None) -> SetFacts:
    """Encode every example; refuse the first that cannot be encoded, with its number."""
    tokens, cut, short, labels = [], [], 0, []
    for number in range(len(examples)):
        encoded = examples.encoded(number)
        tokens.append(sum(encoded.lengths))
        cut.append(encoded.cut)
        if isinstance(examples, PromptedSet) and isinstance(examples.answers, Text):
            short += len(examples.answers.whole(examples.examples[number])) > len(encoded.spans[0])
        labels.append(encoded.label)
        if progress is not None and (number % 256 == 0 or number == len(examples) - 1):
            progress(number + 1, len(examples))
    counts = np.bincount(labels).tolist() if min(labels) >= 0 else []
    return SetFacts(
        examples=len(tokens),
        mean_tokens=float(np.mean(tokens)),
        longest=max(tokens),
        cut=int(np.count_nonzero(cut)),
        cut_tokens=sum(cut),
        answers_cut=short,
        labels=tuple(counts),
    )


def rendered(examples: EncodedSet) -> Iterator[tuple[Piece, ...]]:
    """Yield the first examples in pieces, as the tokenizer decodes them."""
    for number in range(min(RENDERED, len(examples))):
        if isinstance(examples, PromptedSet):
            yield tuple(_prompted(examples, number))
        else:
            (line,) = examples.encoded(number).lines
            yield tuple(_marked(line, examples.tokenizer))


def _prompted(examples: PromptedSet, number: int) -> Iterator[Piece]:
    """Yield a prompt and its right answer."""
    example, answer = examples.examples[number], examples.encoder.prompt.answer
    if isinstance(answer, LabelWords):
        right = answer.words[example.label]
    elif isinstance(answer, FreeText):
        right = " | ".join(dict.fromkeys(example.golds))
    else:
        right = f"{example.options[example.label]}   (of {', '.join(example.options)})"
    yield examples.tokenizer.decode(examples.encoded(number).prompt), False
    yield f" {right}", True


def _marked(line: TokenLine, tokenizer: Any) -> Iterator[Piece]:
    """Yield runs of tokens that are trained or not, special tokens shown."""
    trained = {slot + 1 for slot in line.slots}
    tokens = [*line.tokens, line.targets[-1]]
    for mark, run in groupby(range(len(tokens)), lambda place: place in trained):
        yield tokenizer.decode([tokens[place] for place in run]), mark


def estimate(experiment: Simulation, train: SetFacts) -> RunCost:
    """Time short participations of the client in the middle, then scale to the whole run."""
    config, present = experiment.config, experiment.present(0)
    middle = int(np.argsort(present.boundaries)[len(present.boundaries) // 2])
    plan = experiment.plan(experiment.start, int(present.clients[middle]), present)
    first, step = step_seconds(experiment.client, plan, TIMED)
    local_steps = plan.rule.local_steps
    participations = config.rounds * config.fleet.cohort
    seconds = participations * (first + (local_steps - 1) * step)
    steps = participations * local_steps
    return RunCost(
        tokens=round(steps * config.task.batch_size * train.mean_tokens),
        step_seconds=step,
        train_seconds=seconds / config.engine.workers,
        evaluation_seconds=_evaluation_seconds(experiment),
    )


def _evaluation_seconds(experiment: Simulation) -> float:
    """Estimate all evaluations, of test and held-out examples: start, every so often, end."""
    config, rounds = experiment.config.evaluation, experiment.config.rounds
    before_end = 1 + (rounds - 1) // config.every if config.every else 1
    held_out, test = experiment.held_out, experiment.test
    held = 0 if held_out is None else sum(map(len, held_out.rows))
    limit = config.examples or (0 if test is None else len(test))
    tested = 0 if test is None else min(len(test), limit)
    curve = tested if experiment.curve is None else len(experiment.curve)
    work = [
        (test, before_end * curve + tested),
        (experiment.train, (before_end + 1) * held),
    ]
    total = 0.0
    for examples, count in work:
        if count and examples is not None:
            sample = _spread(len(examples), 2 * config.batch_size)
            model, size = experiment.model.split, config.batch_size
            seconds = elapsed(partial(evaluate, model, examples, size, sample))
            total += count * seconds / len(sample)
    return total


def _spread(size: int, count: int) -> Sequence[int]:
    """Return up to ``count`` numbers below ``size`` at equal distances."""
    return sorted(set(np.linspace(0, size - 1, min(count, size)).astype(int).tolist()))
