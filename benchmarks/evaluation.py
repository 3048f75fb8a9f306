"""Label-word evaluation over scoring with the whole head and padded batches.

The slow way is what a short script does: examples in file order, every batch padded to its longest,
the model's own forward pass with scores of [batch, length, vocabulary], the label words picked from
them. hofl's way sorts by length and computes the head at one slot for the label words alone. Both
give the same accuracy. The texts are the demo task's, of much the same length, and, where its files
are at hand, sentences of SST-2, whose lengths differ as real ones do.
"""

from functools import partial

import torch
from harness import Cell, Subject, interleave

from hofl import load_model
from hofl.batch import ChooseWord
from hofl.data.encoding import EncodedSet, encode
from hofl.data.tasks import load_task
from hofl.errors import HoflError
from hofl.evaluation.scores import evaluate
from hofl.models.split import SplitModel

MODEL, BATCH = "smollm2-135m-instruct", 16
TARGETS = {"times_as_fast_at_least": 1.5}
TASKS, TEXTS = ("helpdesk", "sst2"), 200
COLUMNS = {
    "task": ("task", ""),
    "variant": ("variant", ""),
    "median_ms": ("median ms", ".0f"),
    "min_ms": ("min ms", ".0f"),
    "times_as_fast": ("times as fast, target >= 1.5", ".2f"),
    "accuracy": ("accuracy", ".4f"),
}


def measure(repeats: int) -> Subject:
    """Both ways over the first texts of each task's test set, interleaved."""
    loaded = load_model(MODEL, device="cpu")
    rows: list[dict[str, Cell]] = []
    samples = {}
    for name in TASKS:
        try:
            task = load_task(name)
        except HoflError:
            continue  # its files are not here
        texts = task.test[:TEXTS]
        examples = encode(texts, task.prompt(), loaded.tokenizer, 128, 2048)
        times = interleave(
            {
                "whole head, file order": partial(whole_head, loaded.split, examples),
                "label words, by length": partial(label_words, loaded.split, examples),
            },
            repeats,
        )
        slow = times["whole head, file order"]
        found = (whole_head(loaded.split, examples), label_words(loaded.split, examples))
        for (variant, timing), accuracy in zip(times.items(), found, strict=True):
            samples[f"{name}: {variant}"] = timing.samples
            rows.append(
                {
                    "task": name,
                    "variant": variant,
                    "median_ms": 1e3 * timing.median,
                    "min_ms": 1e3 * timing.best,
                    "times_as_fast": slow.median / timing.median,
                    "accuracy": accuracy,
                }
            )
    title = f"evaluation: {TEXTS} texts, {MODEL}, batch {BATCH}"
    return Subject("evaluation", title, COLUMNS, rows, samples, TARGETS)


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
        logits = model.module(input_ids=batch.input_ids, use_cache=False).logits  # [B, T, V]
        words = logits[batch.rows, batch.columns][:, batch.goal.candidates]
        right += int((words.argmax(1) == batch.goal.targets).sum())
    return right / len(examples)
