"""The small-budget pilot: short runs over candidate betas, successive halving, one choice.

Every candidate is trained with several seeds on one fleet: the same partition, tiers, boundaries
and preferred clients as the formal run, a random subset of each client's examples, part of it held
out. After each rung the worse half stops and the others resume from their checkpoints, so that a
candidate's long run equals an uninterrupted one. The state of a pilot is its runs' metrics: an
interrupted pilot repeats its decisions from them.

PILOT/pilot.toml     the settings and, as [run], the formal run's configuration
PILOT/runs/...       one run directory per seed and candidate
PILOT/pilot.json     the table of every rung and the choice
PILOT/chosen.toml    the formal run's configuration with the chosen beta, for ``hofl run``
"""

import json
import math
import tomllib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from hofl.choosing.guide import allowed
from hofl.choosing.selection import CandidateStanding, choice, rungs, standings, survivors
from hofl.core.durable import write_whole
from hofl.core.errors import HoflError
from hofl.experiment.config import ExperimentConfig, parse_config
from hofl.experiment.launch import advance, readable_errors
from hofl.experiment.launcher import prepared
from hofl.experiment.method import build_method
from hofl.experiment.resolved import with_policy
from hofl.experiment.reuse import check_new
from hofl.experiment.rounds import Observer
from hofl.experiment.runs import config_text
from hofl.experiment.tasks import fleet_seed
from hofl.sampling.policies import DimensionAware, Uniform

SHARE = 8
"""Unless its rounds are given, a pilot is this many times shorter than the formal run."""
Watch = Callable[[str], AbstractContextManager[Observer]]
"""Title of a run -> its progress display."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a pilot compares.

    Args:
        candidates: betas, ascending.
        rounds: length of the last rung.
        seeds: trainings per candidate.
        examples: most examples of a client, training and held-out together; 0 for all.
        holdout: share of these that is held out.
        level: p-values below it are conclusive.
    """

    candidates: tuple[float, ...]
    rounds: int
    seeds: int
    examples: int
    holdout: float
    level: float

    def __post_init__(self) -> None:
        if len(set(self.candidates)) < 2:
            raise HoflError(f"a pilot compares at least two betas, got {list(self.candidates)}.")
        for beta in self.candidates:
            DimensionAware(beta)
        if self.seeds < 1:
            raise HoflError(f"seeds must be at least 1, got {self.seeds}.")
        if not 0 < self.level < 0.5:
            raise HoflError(f"level must lie in (0, 0.5), got {self.level}.")
        if not 0 < self.holdout < 1:
            raise HoflError(f"holdout must lie in (0, 1), got {self.holdout}.")
        if self.examples < 0 or self.examples == 1:
            raise HoflError(f"examples must be 0 (all) or at least 2, got {self.examples}.")

    @classmethod
    def of(
        cls,
        config: ExperimentConfig,
        candidates: tuple[float, ...],
        min_participations: float | None = None,
        rounds: int | None = None,
        **others: Any,
    ) -> "Settings":
        """Return settings for a run: betas that its coverage allows, rounds in proportion to its.

        Args:
            config: the formal run.
            candidates: betas, each once.
            min_participations: leave out betas that expect fewer over the formal run.
            rounds: length of the last rung; unset, the formal run's divided by ``SHARE``.
            others: the other settings.
        """
        fleet = {"clients": config.fleet.clients, "cohort": config.fleet.cohort}
        kept = allowed(candidates, min_participations, **fleet, rounds=config.rounds)
        if len(kept) == 1 < len(candidates):
            raise HoflError(
                f"--min-participations leaves one candidate, {kept[0]:g}, so there is nothing to "
                f"compare. Set method.policy.beta={kept[0]:g}."
            )
        least = 2 ** (max(1, math.ceil(math.log2(len(kept)))) - 1)
        default = max(least, math.ceil(config.rounds / SHARE))
        return cls(candidates=kept, rounds=rounds or default, **others)

    @property
    def rungs(self) -> list[int]:
        """Rounds after which candidates are compared."""
        return rungs(len(self.candidates), self.rounds)


@dataclass(frozen=True)
class Rung:
    """One comparison: after how many rounds, how the candidates stood, and which continue."""

    rounds: int
    standings: list[CandidateStanding]
    kept: list[float]


@dataclass(frozen=True)
class PilotOutcome:
    """All rungs and the beta that they lead to."""

    rungs: list[Rung]
    beta: float

    def summary(self) -> dict[str, Any]:
        """Return plain values."""
        rungs = [
            {
                "rounds": rung.rounds,
                "candidates": [standing.summary() for standing in rung.standings],
                "kept": rung.kept,
            }
            for rung in self.rungs
        ]
        return {"beta": self.beta, "rungs": rungs}


@dataclass(frozen=True)
class Pilot:
    """A pilot in its folder.

    Args:
        path: the folder.
        settings: how it compares.
        base: the formal run's configuration, resolved, with a constant beta.
    """

    path: Path
    settings: Settings
    base: ExperimentConfig

    @classmethod
    def create(cls, path: Path, settings: Settings, config: ExperimentConfig) -> "Pilot":
        """Check everything, then write the folder."""
        check_new(path, f"hofl beta pilot --resume {path}")
        pilot = cls(path, settings, _checked(config, settings))
        values = {**vars(settings), "candidates": list(settings.candidates)}
        values["run"] = pilot.base.model_dump(mode="python", exclude_none=True)
        with readable_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            write_whole(path / "pilot.toml", tomli_w.dumps(values))
        return pilot

    @classmethod
    def open(cls, path: Path) -> "Pilot":
        """Read a pilot that was started before."""
        file = path / "pilot.toml"
        if not file.is_file():
            raise HoflError(f"{path} is not a pilot: it has no pilot.toml.")
        try:
            values = tomllib.loads(file.read_text(encoding="utf-8"))
            base = parse_config(values.pop("run"))
            settings = Settings(**{**values, "candidates": tuple(values["candidates"])})
        except (tomllib.TOMLDecodeError, KeyError, TypeError, UnicodeDecodeError):
            raise HoflError(f"{file} is damaged. Start the pilot again in a new folder.") from None
        return cls(path, settings, base)

    def config(self, beta: float, seed: int) -> ExperimentConfig:
        """Return the configuration of one candidate's training: another seed, the same fleet."""
        base, settings = with_policy(self.base, DimensionAware(beta)), self.settings
        most = [limit for limit in (settings.examples, base.data.examples_per_client) if limit]
        evaluation = {"every": settings.rungs[0], "holdout": settings.holdout, "test": False}
        sections: dict[str, tuple[Any, dict[str, Any]]] = {
            "fleet": (base.fleet, {"seed": fleet_seed(base)}),
            "data": (base.data, {"examples_per_client": min(most, default=0)}),
            "evaluation": (base.evaluation, evaluation),
        }
        update: dict[str, Any] = {
            key: old.model_copy(update=new) for key, (old, new) in sections.items()
        }
        update |= {"name": f"pilot-{beta:g}", "seed": seed, "rounds": settings.rungs[-1]}
        return base.model_copy(update=update)

    def losses(self, beta: float, rounds: int, watch: Watch) -> np.ndarray:
        """Return held-out losses after so many rounds, [S, N]; train runs only as far as needed."""
        losses = []
        for number in range(self.settings.seeds):
            seed = (self.base.seed + 1 + number) % 2**63  # never the formal run's seed
            folder = self.path / "runs" / f"seed-{seed}-beta-{beta}"
            with watch(f"beta {beta:g}, seed {seed}, to round {rounds}") as observe:
                rows = advance(self.config(beta, seed), folder, rounds, observe)
            losses.append(rows[rounds].scores["clients"]["each"]["loss"])
        return np.array(losses)

    def run(self, watch: Watch) -> PilotOutcome:
        """Run all rungs from where their runs stopped, and write the choice."""
        alive, done = list(self.settings.candidates), []
        for rounds in self.settings.rungs:
            losses = {beta: self.losses(beta, rounds, watch) for beta in alive}
            ranking = standings(losses, self.settings.level)
            alive = survivors(ranking)
            done.append(Rung(rounds, ranking, alive))
            if len(alive) == 1:
                break
        outcome = PilotOutcome(done, choice(done[-1].standings))
        with readable_errors(self.path):
            write_whole(self.path / "pilot.json", json.dumps(outcome.summary(), indent=2) + "\n")
            write_whole(self.path / "chosen.toml", self._chosen_text(outcome))
        return outcome

    def _chosen_text(self, outcome: PilotOutcome) -> str:
        """Return the formal configuration, with a comment on how its beta was chosen."""
        settings = self.settings
        best = min(outcome.rungs[-1].standings, key=lambda standing: standing.loss)
        betas = ", ".join(f"{beta:g}" for beta in settings.candidates)
        lengths = ", ".join(str(rung.rounds) for rung in outcome.rungs)
        lines = [
            f"beta = {outcome.beta:g} was chosen by hofl beta pilot among {betas}:",
            f"{settings.seeds} training(s) each, compared after {lengths} rounds",
            "by the mean client loss on held-out examples; the smallest beta that is not",
            f"significantly (p < {settings.level:g}) worse than the best, {best.beta:g}.",
        ]
        text = config_text(with_policy(self.base, DimensionAware(outcome.beta)))
        return "".join(f"# {line}\n" for line in lines) + "\n" + text


def _checked(config: ExperimentConfig, settings: Settings) -> ExperimentConfig:
    """Return the resolved configuration, or refuse one that leaves no constant beta to choose."""
    policy = build_method(config).policy
    if policy not in (Uniform(), DimensionAware(getattr(policy, "beta", 0.0))):
        raise HoflError(
            "a pilot chooses a constant beta: remove method.policy.beta_schedule and policies "
            "other than uniform and dimension-aware."
        )
    settings.rungs  # noqa: B018 -- refuse too few rounds before a model is loaded
    experiment = prepared(with_policy(config, DimensionAware(0.0)))
    if np.ptp(experiment.scores(experiment.present(0))) == 0:
        raise HoflError(
            "all devices have the same zeroth-order dimension under this method: beta changes "
            "nothing. Use a method such as hofl, with fleet.boundaries or fleet.strategy=paper."
        )
    return experiment.config
