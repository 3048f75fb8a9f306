"""The paper's tables that need training: every row a comparison, with the numbers it should match.

A study is a function that returns its blocks. A block is one setting (a model, a task, a split):
the rows of a comparison (``hofl.comparing``) are the paper's columns.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hofl.comparing.plan import Arm, changed
from hofl.experiment.config import ExperimentConfig
from hofl.paper.numbers import (
    ABLATIONS,
    BETA_ALPHA,
    IID_BETA,
    LANGUAGE_TASKS,
    SQUAD,
    SQUAD_BETA,
    Reported,
)
from hofl.paper.settings import METHODS, SEEDS, setting

NOT_RUN = "Not run at the paper's scale by this project, which had no GPU; scaled with --budget."


@dataclass(frozen=True)
class Block:
    """One setting of a study.

    Args:
        name: of the setting, for people.
        model: the paper's model, a key of ``settings.MODELS``.
        task: a key of ``settings.TASKS``.
        base: what its runs have in common.
        arms: the paper's columns.
        seeds: of every arm.
        paper: label of an arm -> metric -> what the paper reports.
    """

    name: str
    model: str
    task: str
    base: ExperimentConfig
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    paper: Mapping[str, Mapping[str, Reported]]

    def configs(self) -> dict[str, ExperimentConfig]:
        """Return the complete configuration of every arm, with the first seed."""
        return {arm.label: changed(self.base, arm.changes) for arm in self.arms}


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper.

    Args:
        title: what it shows.
        place: where it stands in the paper.
        blocks: makes its settings.
        note: what of it this project has run.
    """

    title: str
    place: str
    blocks: Callable[[], tuple[Block, ...]]
    note: str = NOT_RUN


def _arms(columns: Mapping[str, tuple[str, ...]]) -> tuple[Arm, ...]:
    return tuple(Arm(label, changes) for label, changes in columns.items())


def _betas(*betas: float) -> dict[str, tuple[str, ...]]:
    return {
        f"HO-FL (beta = {beta:g})": ("method.name=hofl", f"method.policy.beta={beta:.2f}")
        for beta in betas
    }


def _reported(
    columns: Sequence[str], values: Mapping[str, Sequence[Reported]]
) -> dict[str, dict[str, Reported]]:
    """Turn metric -> numbers by column into column -> metric -> number."""
    return {
        column: {metric: row[place] for metric, row in values.items()}
        for place, column in enumerate(columns)
    }


def _block(
    model: str,
    task: str,
    columns: Mapping[str, tuple[str, ...]],
    values: Mapping[str, Sequence[Reported]],
    *,
    alpha: float | None = None,
    seeds: tuple[int, ...] = SEEDS,
) -> Block:
    base = setting(model, task, alpha)
    name = base.name if alpha is None else f"{base.name}, alpha = {alpha:g}"
    return Block(name, model, task, base, _arms(columns), seeds, _reported(list(columns), values))


def language_tasks() -> tuple[Block, ...]:
    """Return three models on four tasks by five methods; AG News with alpha = 0.5."""
    return tuple(
        _block(model, task, METHODS, {"accuracy": row}, alpha=0.5 if task == "AG News" else None)
        for (model, task), row in LANGUAGE_TASKS.items()
    )


def _by_metric(
    numbers: Mapping[tuple[str, str], Sequence[Reported]],
) -> Iterator[tuple[str, dict[str, Sequence[Reported]]]]:
    """Yield every model with its numbers by metric."""
    for model in dict.fromkeys(model for model, _ in numbers):
        yield model, {metric: row for (name, metric), row in numbers.items() if name == model}


def squad() -> tuple[Block, ...]:
    """Return three models on SQuAD by five methods."""
    return tuple(_block(model, "SQuAD", METHODS, rows) for model, rows in _by_metric(SQUAD))


def beta_alpha() -> tuple[Block, ...]:
    """Return Qwen on AG News: four splits by four betas."""
    return tuple(
        _block(
            model,
            "AG News",
            _betas(0, 0.25, 0.5, 0.75),
            {"accuracy": row},
            alpha=None if alpha == "IID" else float(alpha),
        )
        for (model, alpha), row in BETA_ALPHA.items()
    )


def iid_beta() -> tuple[Block, ...]:
    """Return OPT and Qwen on three IID tasks by four betas, with seed 42 alone."""
    return tuple(
        _block(model, task, _betas(0, 0.25, 0.5, 0.75), {"accuracy": row}, seeds=SEEDS[:1])
        for (model, task), row in IID_BETA.items()
    )


def squad_beta() -> tuple[Block, ...]:
    """Return three models on SQuAD by three betas."""
    columns = _betas(0, 0.5, 0.75)
    return tuple(_block(model, "SQuAD", columns, rows) for model, rows in _by_metric(SQUAD_BETA))


VARIED: dict[str, tuple[str, ...]] = {
    "default": (),
    "E = 1": ("method.local_steps=1", "rounds=800"),
    "E = 10": ("method.local_steps=10", "rounds=80"),
    "q = 1": ("method.q=1",),
    "q = 4": ("method.q=4",),
    "q = 8": ("method.q=8",),
    "mu = 1e-4": ("method.mu=1e-4",),
    "mu = 1e-2": ("method.mu=1e-2",),
}
"""Ablation -> changes to the default; rounds keep the examples at 76,800."""


def ablations() -> tuple[Block, ...]:
    """Return OPT on SST-2 by HO-FL (beta = 0.5), one parameter changed at a time."""
    (fixed,) = _betas(0.5).values()
    columns = {label: (*fixed, *changes) for label, changes in VARIED.items()}
    accuracy, loss = zip(*(ABLATIONS[label] for label in columns), strict=True)
    return (_block("OPT-125M", "SST-2", columns, {"accuracy": accuracy, "loss": loss}),)


STUDIES: dict[str, PaperTable] = {
    "language-tasks": PaperTable("language-task accuracy", "section 5.2", language_tasks),
    "squad": PaperTable("SQuAD 1.1, EM and F1", "section 5.2", squad),
    "beta-alpha": PaperTable(
        "beta and data heterogeneity, Qwen/AG News", "section 5.3", beta_alpha
    ),
    "iid-beta": PaperTable("beta on IID tasks, seed 42", "appendix C", iid_beta),
    "squad-beta": PaperTable("beta on SQuAD", "appendix C", squad_beta),
    "ablations": PaperTable("E, q and mu, OPT/SST-2", "appendix C", ablations),
}
