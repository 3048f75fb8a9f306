"""Label-word evaluation over scoring with the whole head and padded batches.

The slow way is what a short script does: examples in file order, every batch padded to its longest,
the model's own forward pass with scores of [batch, length, vocabulary], the label words picked from
them. hofl's way computes real tokens alone, and the head at one slot for the label words alone.
Both give the same accuracy. The limit counts what the slow way computes in vain: the padding, and
the head's matrix beside those of the blocks. The demo task's texts are of much the same length;
those of SST-2 and BoolQ, where their files are at hand, differ as real ones do. Both ways take
turns on parts of a set, so that a machine that slows down for a minute slows both; a repeat is the
sum over the parts.
"""

from functools import partial

import numpy as np
import torch
from harness import Cell, Subject, Timing, interleave
from step_variants import padded

from hofl import load_model
from hofl.core.batch import ChooseWord
from hofl.core.errors import HoflError
from hofl.data.encoding import EncodedSet, encode
from hofl.data.tasks import load_task
from hofl.evaluation.scores import evaluate
from hofl.models.split import SplitModel

MODEL, BATCH, PART = "smollm2-135m-instruct", 16, 128
TARGETS = {"of_limit_at_least": 0.9}
TASKS = {"helpdesk": (200, 128), "sst2": (872, 128), "boolq": (500, 512)}
"""Texts and longest prompt of each task."""
SLOW, FAST = "whole head, padded, file order", "label words, real tokens"
COLUMNS = {
    "task": ("task", ""),
    "variant": ("variant", ""),
    "median_ms": ("median ms", ".0f"),
    "min_ms": ("min ms", ".0f"),
    "times_as_fast": ("times as fast", ".2f"),
    "limit": ("limit", ".2f"),
    "of_limit": ("of the limit, target >= 0.9", ".2f"),
    "accuracy": ("accuracy", ".4f"),
}


def measure(repeats: int) -> Subject:
    """Both ways over the first texts of each task's test set, interleaved."""
    loaded = load_model(MODEL, device="cpu")
    rows: list[dict[str, Cell]] = []
    samples = {}
    for name, (texts, longest) in TASKS.items():
        try:
            task = load_task(name)
        except HoflError as error:
            print(f"{name} is left out: {error}")
            continue
        chosen, prompt = task.test[:texts], task.prompt()
        parts = [
            encode(chosen[start : start + PART], prompt, loaded.tokenizer, longest, 2048)
            for start in range(0, texts, PART)
        ]
        times, accuracies = take_turns(loaded.split, parts, repeats)
        most = limit(loaded.split, parts)
        for variant, timing in times.items():
            samples[f"{name}: {variant}"] = timing.samples
            factor = times[SLOW].median / timing.median
            row: dict[str, Cell] = {
                "task": name,
                "variant": variant,
                "median_ms": 1e3 * timing.median,
                "min_ms": 1e3 * timing.best,
                "ratio": 1 / factor,
                "times_as_fast": factor,
                "accuracy": accuracies[variant],
            }
            rows.append(
                row | ({"limit": most, "of_limit": factor / most} if variant == FAST else {})
            )
    title = f"evaluation: {MODEL}, batch {BATCH}"
    return Subject("evaluation", title, COLUMNS, rows, samples, TARGETS)


def take_turns(
    model: SplitModel, parts: list[EncodedSet], repeats: int
) -> tuple[dict[str, Timing], dict[str, float]]:
    """Time both ways over all parts; return seconds and accuracies of the whole set."""
    ways = {SLOW: whole_head, FAST: label_words}
    right = dict.fromkeys(ways, 0.0)
    sums = {way: np.zeros(repeats) for way in ways}

    def score(way: str, part: EncodedSet) -> None:
        right[way] += ways[way](model, part) * len(part)

    for part in parts:
        variants = {way: partial(score, way, part) for way in ways}
        for way, timing in interleave(variants, repeats, warmups=0).items():
            sums[way] += timing.samples
    scored = repeats * sum(map(len, parts))
    times = {way: Timing(tuple(map(float, total))) for way, total in sums.items()}
    return times, {way: count / scored for way, count in right.items()}


def limit(model: SplitModel, parts: list[EncodedSet]) -> float:
    """Tokens times matrix entries of the slow way over those of hofl's."""
    full = real = 0
    for part in parts:
        lengths = [max(part.encoded(i).lengths) for i in range(len(part))]
        batches = [lengths[i : i + BATCH] for i in range(0, len(lengths), BATCH)]
        full += sum(max(batch) * len(batch) for batch in batches)
        real += sum(lengths)
    blocks = sum(p.numel() for b in model.blocks for p in b.parameters() if not p.requires_grad)
    head = model.base.get_output_embeddings().weight.numel()
    return full * (blocks + head) / (real * blocks)


def label_words(model: SplitModel, examples: EncodedSet) -> float:
    """Accuracy by hofl's evaluation."""
    return evaluate(model, examples, BATCH)["accuracy"]


@torch.no_grad()
def whole_head(model: SplitModel, examples: EncodedSet) -> float:
    """Accuracy by the model's own forward pass."""
    right = 0
    for start in range(0, len(examples), BATCH):
        batch = examples.batch(range(start, min(start + BATCH, len(examples))))
        assert isinstance(batch.goal, ChooseWord)
        ids, rows, columns = padded(batch)
        logits = model.module(input_ids=ids, use_cache=False).logits  # [B, T, V]
        words = logits[rows, columns][:, batch.goal.candidates]
        right += int((words.argmax(1) == batch.goal.targets).sum())
    return right / len(examples)
