"""The settings of a study's runs: what all have in common, and what each changes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hofl.experiment.changes import dotted
from hofl.experiment.runs import plain_values
from hofl.paper.studies import Block

BF16_NOTE = (
    "The paper's backbone computes in BF16. With mu = 1e-3 the rounding of BF16 was 1.85 times the "
    "signal in the zeroth-order scalars (SmolLM2-135M, boundary 10 of 30; FP32: 0.05 times), and "
    "CPUs only emulate it. model.compute_dtype = float32 stores BF16 and computes in FP32."
)


@dataclass(frozen=True)
class StudySettings:
    """Configurations of several runs, with dotted keys.

    Args:
        common: keys that are equal in all of them.
        varied: (block, arm) -> the other keys that this run sets.
    """

    common: dict[str, Any]
    varied: dict[tuple[str, str], dict[str, Any]]


def settings_of(blocks: Sequence[Block]) -> StudySettings:
    """Sort the keys of all runs of a study; the seed and the run's name are left out."""
    flat = {
        (block.name, label): dotted(plain_values(config))
        for block in blocks
        for label, config in block.configs().items()
    }
    keys = dict.fromkeys(key for values in flat.values() for key in values)
    for key in ("name", "seed"):
        keys.pop(key, None)
    first = next(iter(flat.values()))
    equal = {key for key in keys if all(v.get(key) == first.get(key) for v in flat.values())}
    varied = {
        run: {key: values[key] for key in keys if key not in equal and key in values}
        for run, values in flat.items()
    }
    return StudySettings({key: first[key] for key in keys if key in equal}, varied)


def facts_of(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    """Return every run of a study as plain values: complete configuration, seeds, the paper."""
    return [
        {
            "block": block.name,
            "arm": label,
            "seeds": list(block.seeds),
            "config": plain_values(config),
            "paper": {metric: list(value) for metric, value in block.paper[label].items()},
        }
        for block in blocks
        for label, config in block.configs().items()
    ]
