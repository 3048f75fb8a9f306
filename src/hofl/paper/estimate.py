"""How long the paper's runs would take on this machine: operations over the speed of a product.

A forward pass takes two operations for each block weight and token, a backward pass through frozen
weights the same. Attention scores, the head, LoRA, optimizers and loading are left out, and a real
step is slower than one large matrix product: the estimate is a lower bound.
"""

import time
from collections.abc import Callable
from statistics import fmean

import numpy as np

from hofl.experiment.config import ExperimentConfig, method_of
from hofl.paper.settings import MODELS
from hofl.paper.studies import Block
from hofl.reporting.measures import block_passes
from hofl.rules import LocalRule

TRAINING_TOKENS = {"SST-2": 18, "BoolQ": 137, "SciQ": 124, "AG News": 57, "SQuAD": 184}
"""Mean tokens of 1,000 training examples, all texts of each: OPT's tokenizer, default prompts."""
EVALUATED = {"SST-2": 872, "BoolQ": 3270, "SciQ": 1000, "AG News": 7600, "SQuAD": 10570}
"""Examples of the test sets that the paper scores on."""
GENERATED = 64
"""Tokens of an answer to a SQuAD question, at most."""
_SIDE = 1024


def speed(seconds: float = 0.3, clock: Callable[[], float] = time.perf_counter) -> float:
    """Measure operations per second of an FP32 matrix product, the best of repeats."""
    a = np.ones((_SIDE, _SIDE), dtype=np.float32)
    a @ a  # the first one starts threads
    best, until = 0.0, clock() + seconds
    while best == 0.0 or clock() < until:
        began = clock()
        a @ a
        best = max(best, 2.0 * _SIDE**3 / max(clock() - began, 1e-9))
    return best


def core_speed(seconds: float = 0.3) -> float:
    """Measure operations per second of processor time, which other processes do not shorten."""
    a = np.ones((_SIDE, _SIDE), dtype=np.float32)
    a @ a  # the first one starts threads
    products, began = 0, time.process_time()
    while (spent := time.process_time() - began) < seconds:
        a @ a
        products += 1
    return max(products, 1) * 2.0 * _SIDE**3 / spent


def operations(block: Block) -> float:
    """Return the operations of all runs of a block."""
    runs = block.configs().values()
    return len(block.seeds) * sum(run_operations(block, config) for config in runs)


def run_operations(block: Block, config: ExperimentConfig) -> float:
    """Return the operations of one run: training, and two evaluations (start and end)."""
    model, tokens = MODELS[block.model], TRAINING_TOKENS[block.task]
    participations = config.rounds * config.fleet.cohort
    chosen = method_of(config)
    boundaries = chosen.boundary(np.array(config.fleet.boundaries), model.blocks).tolist()
    step = fmean(passes(chosen.local, boundary, model.blocks) for boundary in boundaries)
    trained = participations * chosen.local.local_steps * config.task.batch_size * step
    read = tokens + (tokens + GENERATED if block.task == "SQuAD" else 0)
    examples = config.evaluation.examples or EVALUATED[block.task]
    scored = 2 * examples * model.blocks * read / tokens
    return 2.0 * model.block_weights * tokens * (trained + scored)


def passes(rule: LocalRule, boundary: int, blocks: int) -> int:
    """Return the block passes of a step on one example."""
    count = block_passes(rule, boundary, blocks)
    assert count is not None, "the paper's rules are known"
    return count
