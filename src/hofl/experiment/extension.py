"""Extend a run: train it for more rounds than it was started with.

All that is random follows from the secret, the round and the client, so the rounds that a run has
trained are also the first rounds of a longer one, unless its sampling policy looks ahead to T.
"""

from dataclasses import replace

import numpy as np

from hofl.core.errors import HoflError
from hofl.experiment.config import ExperimentConfig
from hofl.experiment.journal import Journal
from hofl.experiment.method import build_method
from hofl.experiment.runs import RunDirectory
from hofl.experiment.tasks import fleet_seed
from hofl.sampling.policies import policy_spec


def extend(run: RunDirectory, rounds: int) -> None:
    """Give a run more rounds, as if it had had them from the start; call it under the lock.

    A kill leaves the run as it was or extended: the configuration is written last, and the score
    that is removed before is taken again by a resume.

    Raises:
        HoflError: the run has as many rounds already, or a longer one would have begun otherwise.
    """
    config = run.config()
    if rounds <= config.rounds:
        raise HoflError(
            f"{run.path} has {config.rounds} rounds: give more, such as rounds={2 * config.rounds}."
        )
    longer = config.model_copy(update={"rounds": rounds})
    records = run.metrics()
    reached = len(records) - 1
    _check_cohorts(run, config, longer, reached)
    run.unfinish()
    if reached == config.rounds or records[-1].stopped:
        # The end is scored on the whole test set. In a longer run this round is not the end.
        records[-1] = replace(records[-1], scores={}, eval_seconds=None, stopped=None)
        run.rounds.replace(records)
    asked = run.asked()
    if asked is not None:
        run.write_asked(asked.model_copy(update={"rounds": rounds}))
    Journal(run.path).append("extended", {"round": reached, "rounds": rounds})
    run.write_config(longer)


def _check_cohorts(
    run: RunDirectory, config: ExperimentConfig, longer: ExperimentConfig, reached: int
) -> None:
    """Refuse a policy whose shares in the rounds that were drawn depend on the number of rounds."""
    clients, cohort = config.fleet.clients, config.fleet.cohort
    policy = build_method(config).policy.for_clients(np.arange(clients))
    scores = np.arange(1.0, clients + 1)  # all different: every preference shows
    for number in range(reached):
        now, then = (
            policy.marginals(scores, cohort, fleet_seed(config), number, each.rounds)
            for each in (config, longer)
        )
        if not np.array_equal(now, then):
            spec = policy_spec(policy)
            shown = ", ".join([spec.pop("name"), *(f"{key} {spec[key]}" for key in spec)])
            raise HoflError(
                f"{run.path} cannot be extended to {longer.rounds} rounds: its policy ({shown}) "
                f"depends on the number of rounds, and a longer run would have drawn other clients "
                f"from round {number + 1} on. Start a new run with rounds={longer.rounds}."
            )
