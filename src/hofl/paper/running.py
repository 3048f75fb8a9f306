"""Run a study: every block is a comparison in a folder of its own.

OUT/paper.json   which recipe, and what a scaled version reduces
OUT/BLOCK/       one comparison each (``hofl.comparing``); seeds go round over all blocks first

The short runs that a scaled version is fitted by are made in a temporary folder.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hofl.comparing.plan import Comparison, with_threads
from hofl.comparing.schedule import Progress, carry_out, write_table
from hofl.core.durable import write_whole
from hofl.core.errors import HoflError
from hofl.core.process import may_have_gpu, usable_cores
from hofl.experiment.reuse import check_new
from hofl.paper.estimate import core_speed
from hofl.paper.probe import least_seconds, probe
from hofl.paper.scaling import as_budget, fitted, reductions, scaled, substituted
from hofl.paper.settings import MODELS
from hofl.paper.studies import STUDIES, Block

MANIFEST = "paper.json"
LATEST = 1.2
"""Unfinished runs are stopped after this many times the budget; they can be resumed."""
Watch = Callable[[Progress], None]
Tell = Callable[[str], None]


class TimeIsUpError(Exception):
    """A scaled study has used its time."""


@dataclass(frozen=True)
class Work:
    """A study in its folder.

    Args:
        path: the folder.
        recipe: a key of ``STUDIES``.
        blocks: as they are run.
        reduced: what is not as in the paper; empty for the paper's own setting.
        budget: seconds, or None.
    """

    path: Path
    recipe: str
    blocks: tuple[Block, ...]
    reduced: tuple[str, ...] = ()
    budget: float | None = None

    def comparisons(self) -> Iterator[Comparison]:
        """Yield the comparison of every block."""
        for block in self.blocks:
            yield Comparison(folder_of(self.path, block), block.base, block.arms, block.seeds)

    def write(self) -> None:
        """Write the folder; cells are made when they run."""
        names = {block.name: folder_of(self.path, block).name for block in self.blocks}
        values = {
            "recipe": self.recipe,
            "budget": self.budget,
            "reduced": list(self.reduced),
            "blocks": names,
        }
        self.path.mkdir(parents=True, exist_ok=True)
        for comparison in self.comparisons():
            comparison.write()
        write_whole(self.path / MANIFEST, json.dumps(values, indent=2) + "\n")

    @classmethod
    def open(cls, path: Path) -> "Work":
        """Read a study's folder.

        Raises:
            HoflError: it has none, or it is damaged.
        """
        file = path / MANIFEST
        if not file.is_file():
            raise HoflError(f"{path} is not a run of a paper recipe: it has no {MANIFEST}.")
        try:
            values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            paper = {block.name: block for block in STUDIES[values["recipe"]].blocks()}
            blocks = tuple(
                _opened(paper[name], path / folder) for name, folder in values["blocks"].items()
            )
            return cls(path, values["recipe"], blocks, tuple(values["reduced"]), values["budget"])
        except (ValueError, KeyError, TypeError):
            raise HoflError(f"{file} is damaged. Restore it, or run into another folder.") from None


def _opened(block: Block, path: Path) -> Block:
    comparison = Comparison.open(path)
    return replace(block, base=comparison.base, arms=comparison.arms, seeds=comparison.seeds)


def folder_of(path: Path, block: Block) -> Path:
    """Return the folder of a block's comparison."""
    return path / re.sub(r"[^\w.]+", "-", block.name).strip("-").lower()


def paper_work(recipe: str, path: Path, seeds: Sequence[int] | None) -> Work:
    """Return a study exactly as in the paper; nothing is written."""
    check_new(path, f"hofl paper --resume {path}")
    blocks = STUDIES[recipe].blocks()
    cells = sum(len(block.arms) * len(seeds or block.seeds) for block in blocks)
    settled = tuple(
        replace(
            block,
            base=with_threads(block.base, cells),
            seeds=tuple(seeds or block.seeds),
        )
        for block in blocks
    )
    reduced = []
    if seeds and tuple(seeds) != blocks[0].seeds:
        reduced.append(f"seeds: {list(blocks[0].seeds)} -> {list(seeds)}")
    return Work(path, recipe, settled, tuple(reduced))


def scaled_work(
    recipe: str,
    path: Path,
    budget: float,
    model: str | None,
    seeds: Sequence[int] | None,
    at_once: int | None,
    began: float,
    tell: Tell,
    watch: Watch,
) -> Work:
    """Return the largest version of a study that a time budget allows, by a probe of this machine.

    Args:
        recipe: a key of ``STUDIES``.
        path: folder.
        budget: seconds, the probe included.
        model: to train in place of the paper's.
        seeds: given, or None for as many of the study's as fit.
        at_once: runs at a time; None is one for each core.
        began: on the monotonic clock, when the budget began.
        tell: called with lines about the probe.
        watch: called while the probe runs.
    """
    check_new(path, f"hofl paper --resume {path}")
    paper = STUDIES[recipe].blocks()
    if model is None and not may_have_gpu():
        _check_probe(paper, budget)
    from hofl.models.loading import read_model_config  # takes seconds

    window = 0
    for name in [model] if model else {_described_by(block) for block in paper}:
        longest = getattr(read_model_config(name), "max_position_embeddings", 2048)
        window = min(window or longest, longest)
    blocks = substituted(paper, model, window)
    together = at_once or usable_cores()
    paces = {}
    for block in blocks:
        in_time = partial(_probed_in_time, began + budget / 2, block.name, watch)
        with TemporaryDirectory(prefix="hofl-probe-") as folder:
            pace = probe(block, Path(folder) / "runs", together, in_time)
        paces[block.name] = pace
        tell(
            f"probed {block.name}: {pace.start:.0f} s to start a run, up to "
            f"{max(pace.rounds.values()):.2f} s a round, {1000 * pace.example:.1f} ms to score an "
            "example"
        )
    spent = time.monotonic() - began
    scale = fitted(blocks, paces, budget, spent, together, None if seeds is None else tuple(seeds))
    small = scaled(blocks, scale)
    return Work(path, recipe, small, tuple(reductions(paper, small)), budget)


def _check_probe(blocks: Sequence[Block], budget: float) -> None:
    """Refuse a budget that the paper's models cannot be probed in, before anything is loaded."""
    known = [block for block in blocks if _is_the_papers(block)]
    least = least_seconds(known, usable_cores() * core_speed())
    if 2 * least > budget:
        raise HoflError(
            f"the budget is too short: short runs to measure this machine's speed take at least "
            f"{least:,.0f} s, and may use half of it. Give more than --budget "
            f"{as_budget(2 * least)}, or a smaller --model."
        )


def _is_the_papers(block: Block) -> bool:
    """Tell whether a block trains the model of the paper that it is named after."""
    return block.base.model.name == MODELS[block.model].hub


def _described_by(block: Block) -> str:
    """Return where a block's model is described: the paper's in this package, without a network."""
    return MODELS[block.model].architecture if _is_the_papers(block) else block.base.model.name


def _probed_in_time(until: float, name: str, watch: Watch, progress: Progress) -> None:
    """Watch a probe; refuse one that leaves less than half of the budget, while it runs."""
    watch(progress)
    if time.monotonic() > until:
        raise HoflError(
            f"half of the budget went to probing up to {name}: give a longer --budget, a smaller "
            "--model, or free the machine."
        )


def carry(
    work: Work, at_once: int | None, watch: Callable[[str], Watch], until: float | None = None
) -> bool:
    """Run what is not finished; return whether all of it was run.

    Args:
        work: a study whose folder is written.
        at_once: runs at a time; None is as many as memory and cores allow.
        watch: makes, for the name of a block, what is called while its runs are under way.
        until: on the monotonic clock, when to stop what is not finished.
    """

    def in_time(call: Watch, progress: Progress) -> None:
        call(progress)
        late = until is not None and time.monotonic() > until
        if late and (progress.running or progress.waiting):
            raise TimeIsUpError

    for seed in dict.fromkeys(seed for block in work.blocks for seed in block.seeds):
        for block, comparison in zip(work.blocks, work.comparisons(), strict=True):
            if seed not in block.seeds:
                continue
            try:
                timed = partial(in_time, watch(block.name))
                carry_out(replace(comparison, seeds=(seed,)), at_once, timed)
            except TimeIsUpError:
                write_table(comparison.path)
                return False
    return True
