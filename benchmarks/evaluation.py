"""Label-word evaluation over scoring with the whole head and padded batches.

The slow way is what a short script does: examples in file order, every batch padded to its longest,
the model's own forward pass with scores of [batch, length, vocabulary], the label words picked from
them. hofl's way sorts by length and computes the head at one slot for the label words alone. Both
give the same accuracy; the texts are the demo task's.
"""

import torch
from harness import Cell, Subject, interleave

from hofl import load_model
from hofl.batch import ChooseWord
from hofl.data.encoding import EncodedSet, encode
from hofl.data.tasks import load_task
from hofl.evaluation.scores import evaluate
from hofl.models.split import SplitModel

MODEL, BATCH = "smollm2-135m-instruct", 16
TARGETS = {"times_as_fast_at_least": 1.5}
COLUMNS = {
    "variant": ("variant", ""),
    "median_ms": ("median ms", ".0f"),
    "min_ms": ("min ms", ".0f"),
    "times_as_fast": ("times as fast, target >= 1.5", ".2f"),
    "accuracy": ("accuracy", ".4f"),
}


def measure(repeats: int) -> Subject:
    """Both ways over the demo task's test set, interleaved."""
    loaded = load_model(MODEL, device="cpu")
    model, task = loaded.split, load_task("helpdesk")
    examples = encode(task.test, task.prompt(), loaded.tokenizer, 128, 2048)
    times = interleave(
        {
            "whole head, file order": lambda: whole_head(model, examples),
            "label words, by length": lambda: evaluate(model, examples, BATCH),
        },
        repeats,
    )
    slow = times["whole head, file order"]
    found = {
        "whole head, file order": whole_head(model, examples),
        "label words, by length": evaluate(model, examples, BATCH)["accuracy"],
    }
    rows: list[dict[str, Cell]] = [
        {
            "variant": name,
            "median_ms": 1e3 * timing.median,
            "min_ms": 1e3 * timing.best,
            "times_as_fast": slow.median / timing.median,
            "accuracy": found[name],
        }
        for name, timing in times.items()
    ]
    title = f"evaluation: {len(examples)} texts of the demo task, {MODEL}, batch {BATCH}"
    samples = {name: timing.samples for name, timing in times.items()}
    return Subject("evaluation", title, COLUMNS, rows, samples, TARGETS)


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
