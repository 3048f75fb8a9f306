"""The small-budget pilot: short runs over candidate betas, successive halving, one choice.

Every candidate is trained with several seeds on one fleet: the same partition, tiers, boundaries
and preferred clients as the formal run, a random subset of each client's examples, part of it held
out.
After each rung the worse half stops; those that go on are continued from their checkpoints, so a
candidate's long run is the one that an uninterrupted run would be. The state of a pilot is its
runs' metrics: whatever was interrupted is decided again from them.

PILOT/pilot.toml     the settings and, as [run], the formal run's configuration
PILOT/runs/...       one run directory per seed and candidate
PILOT/pilot.json     the table of every rung and the choice
PILOT/chosen.toml    the formal run's configuration with the chosen beta, for ``hofl run``
"""

import json
import tomllib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from hofl.engines.launch import advance, prepared, readable_errors
from hofl.engines.rounds import Observer
from hofl.errors import HoflError
from hofl.experiment.build import build_method
from hofl.experiment.config import ExperimentConfig, parse_config
from hofl.experiment.runs import check_new, config_text, write_whole
from hofl.experiment.tasks import fleet_seed
from hofl.sampling.policies import DimensionAware, Uniform
from hofl.sampling.selection import Standing, choice, rungs, standings, survivors

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

    @property
    def rungs(self) -> list[int]:
        """Rounds after which candidates are compared."""
        return rungs(len(self.candidates), self.rounds)


@dataclass(frozen=True)
class Rung:
    """One comparison: after how many rounds, who stood where, and who went on."""

    rounds: int
    standings: list[Standing]
    kept: list[float]


@dataclass(frozen=True)
class Outcome:
    """All rungs and the beta that they lead to."""

    rungs: list[Rung]
    beta: float

    def summary(self) -> dict[str, Any]:
        """Plain values."""
        shown = [
            {
                "rounds": rung.rounds,
                "candidates": [one.summary() for one in rung.standings],
                "kept": rung.kept,
            }
            for rung in self.rungs
        ]
        return {"beta": self.beta, "rungs": shown}


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
        check_new(path, "hofl beta pilot")
        pilot = cls(path, settings, _checked(config, settings))
        values = {**vars(settings), "candidates": list(settings.candidates)}
        values["run"] = pilot.base.model_dump(mode="python", exclude_none=True)
        with readable_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            write_whole(path / "pilot.toml", tomli_w.dumps(values))
        return pilot

    @classmethod
    def open(cls, path: Path) -> "Pilot":
        """A pilot that was started before."""
        file = path / "pilot.toml"
        if not file.is_file():
            raise HoflError(f"{path} is not a pilot: it has no pilot.toml.")
        try:
            values = tomllib.loads(file.read_text(encoding="utf-8"))
            base = parse_config(values.pop("run"))
            settings = Settings(**{**values, "candidates": tuple(values["candidates"])})
        except (tomllib.TOMLDecodeError, KeyError, TypeError, UnicodeDecodeError):
            raise HoflError(f"{file} is damaged. Start the pilot again elsewhere.") from None
        return cls(path, settings, base)

    def config(self, beta: float, seed: int) -> ExperimentConfig:
        """The configuration of one candidate's training: another seed, the same fleet."""
        base, settings = self.base, self.settings
        most = [limit for limit in (settings.examples, base.data.examples_per_client) if limit]
        evaluation = {"every": settings.rungs[0], "holdout": settings.holdout, "test": False}
        sections: dict[str, tuple[Any, dict[str, Any]]] = {
            "method": (base.method, {"beta": beta}),
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
        """Held-out losses after so many rounds, [S, N], trained as far as they are not yet."""
        found = []
        for number in range(self.settings.seeds):
            seed = (self.base.seed + number) % 2**63
            folder = self.path / "runs" / f"seed-{seed}-beta-{beta}"
            with watch(f"beta {beta:g}, seed {seed}, to round {rounds}") as observe:
                rows = advance(self.config(beta, seed), folder, rounds, observe)
            found.append(rows[rounds]["eval"]["clients"]["each"]["loss"])
        return np.array(found)

    def run(self, watch: Watch) -> Outcome:
        """All rungs, from wherever the runs stand; writes the choice."""
        alive, done = list(self.settings.candidates), []
        for rounds in self.settings.rungs:
            losses = {beta: self.losses(beta, rounds, watch) for beta in alive}
            found = standings(losses, self.settings.level)
            alive = survivors(found)
            done.append(Rung(rounds, found, alive))
            if len(alive) == 1:
                break
        outcome = Outcome(done, choice(done[-1].standings))
        with readable_errors(self.path):
            write_whole(self.path / "pilot.json", json.dumps(outcome.summary(), indent=2) + "\n")
            write_whole(self.path / "chosen.toml", self._chosen_text(outcome))
        return outcome

    def _chosen_text(self, outcome: Outcome) -> str:
        """The formal configuration, headed by how its beta was found."""
        settings = self.settings
        best = min(outcome.rungs[-1].standings, key=lambda one: one.loss)
        betas = ", ".join(f"{beta:g}" for beta in settings.candidates)
        lengths = ", ".join(str(rung.rounds) for rung in outcome.rungs)
        lines = [
            f"beta = {outcome.beta:g} was chosen by hofl beta pilot among {betas}:",
            f"{settings.seeds} training(s) each, compared after {lengths} rounds",
            "by the mean client loss on held-out examples; the smallest beta that is not surely",
            f"(p < {settings.level:g}) worse than the best, {best.beta:g}.",
        ]
        method = self.base.method.model_copy(update={"beta": outcome.beta})
        text = config_text(self.base.model_copy(update={"method": method}))
        return "".join(f"# {line}\n" for line in lines) + "\n" + text


def _checked(config: ExperimentConfig, settings: Settings) -> ExperimentConfig:
    """The resolved configuration with a constant beta, or an error when there is none to choose."""
    if not isinstance(build_method(config).policy, Uniform | DimensionAware):
        raise HoflError(
            "a pilot chooses a constant beta: leave out method.beta_schedule and other policies."
        )
    settings.rungs  # noqa: B018 -- too few rounds are told before a model is loaded
    method = config.method.model_copy(update={"policy": "dimension-aware", "beta": 0.0})
    experiment = prepared(config.model_copy(update={"method": method}))
    if np.ptp(experiment.scores()) == 0:
        raise HoflError(
            "all devices have the same zeroth-order dimension under this method: beta changes "
            "nothing, and there is nothing to choose."
        )
    return experiment.config
