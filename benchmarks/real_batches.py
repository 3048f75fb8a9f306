"""Local steps on real batches against what a PEFT user runs: padded to the longest text of a batch.

hofl lays the texts of a batch end to end and computes no padding. Random batches of 16 texts of
each task, SmolLM2-135M, FP32; a variant's sample is a step on each of them. The plain step computes
the head at the label words alone, as hofl does, so what is left is the padding.
"""

from dataclasses import replace

import numpy as np
from harness import Cell, Subject, interleave
from step_variants import RULE, Step, decomfl_as_written, first_order_steps, local_step

from hofl import load_model
from hofl.core.batch import Batch
from hofl.core.errors import HoflError
from hofl.data.encoding import encode
from hofl.data.tasks import load_task
from hofl.local.site import Execution
from hofl.methods import METHODS
from hofl.models.loading import LoadedModel
from hofl.rules import Part

MODEL, BATCH, MAX_LENGTH = "smollm2-135m-instruct", 16, 256
TASKS = {"sst2": 8, "boolq": 2}
"""Batches of each task: a step on BoolQ's takes five times as long."""
BASELINE = "plain PEFT, padded"
WRITTEN = "DeComFL as written, padded"
COLUMNS = {
    "task": ("task", ""),
    "variant": ("variant", ""),
    "median_ms": ("median ms", ".0f"),
    "min_ms": ("min ms", ".0f"),
    "ratio": ("time / plain, medians", ".3f"),
    "min_ratio": ("minima", ".3f"),
    "target": ("target <=", ".2f"),
    "real_tokens": ("real tokens", ".2f"),
}
TARGETS = {
    "FO": 0.55,
    "HO L/4": 0.62,
    "HO L/2": 0.68,
    "HO 3L/4": 0.75,
    "recompute, segments of 2": 0.80,
    "pure ZO": 0.75,
}


def measure(repeats: int) -> Subject:
    """Every variant on every task whose files are at hand."""
    loaded = load_model(MODEL, device="cpu")
    rows: list[dict[str, Cell]] = []
    samples = {}
    for task, count in TASKS.items():
        try:
            batches = real_batches(loaded, task, count)
        except HoflError as error:
            print(f"{task} is left out: {error}")
            continue
        times = interleave(variants(loaded, batches), repeats)
        plain, share = times[BASELINE], real_tokens(batches)
        for name, timing in times.items():
            samples[f"{task}: {name}"] = timing.samples
            rows.append(
                {
                    "task": task,
                    "variant": name,
                    "median_ms": 1e3 * timing.median,
                    "min_ms": 1e3 * timing.best,
                    "ratio": timing.median / plain.median,
                    "min_ratio": timing.best / plain.best,
                    "target": TARGETS.get(name),
                    "real_tokens": share,
                }
            )
    counts = ", ".join(f"{count} of {task}" for task, count in TASKS.items())
    title = f"real batches of {BATCH} texts ({counts}), {MODEL}, q = {RULE.q}, FP32"
    return Subject("real-batches", title, COLUMNS, rows, samples, TARGETS)


def real_batches(loaded: LoadedModel, name: str, count: int) -> list[Batch]:
    """Random batches of a task's training texts."""
    task = load_task(name)
    examples = encode(task.train, task.prompt(), loaded.tokenizer, MAX_LENGTH, 2048)
    rng = np.random.default_rng(0)
    drawn = rng.choice(len(examples), (count, BATCH), replace=False)
    return [examples.batch(indices) for indices in drawn]


def real_tokens(batches: list[Batch]) -> float:
    """The share of padded batches that is not padding."""
    full = sum(max(b.texts.lengths) * len(b.texts.lengths) for b in batches)
    return sum(len(b.texts.tokens) for b in batches) / full


def variants(loaded: LoadedModel, batches: list[Batch]) -> dict[str, Step]:
    """The plain step and hofl's."""
    model, blocks = loaded.split, loaded.split.num_blocks
    exact = replace(RULE, bottom=Part("recompute"))
    return {
        BASELINE: first_order_steps(loaded.reference, batches)[0],
        "FO": local_step(model, batches, 0),
        **{
            f"HO {name}": local_step(model, batches, blocks * quarter // 4)
            for name, quarter in (("L/4", 1), ("L/2", 2), ("3L/4", 3))
        },
        "recompute, segments of 2": local_step(
            model, batches, blocks, rule=exact, execution=Execution(checkpoint=2)
        ),
        "pure ZO": local_step(model, batches, blocks),
        WRITTEN: decomfl_as_written(loaded.reference, batches),
        "DeComFL in hofl": local_step(model, batches, blocks, rule=METHODS["decomfl"].local),
    }
