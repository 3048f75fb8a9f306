"""Who hears of what happens in a run: its audit log, its trackers, then whoever started it."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from hofl.experiment.changes import dotted
from hofl.experiment.config import ExperimentConfig
from hofl.experiment.journal import Journal
from hofl.experiment.runs import RunDirectory, plain_values
from hofl.tracking.trackers import tracked

if TYPE_CHECKING:
    from hofl.experiment.rounds import Observer


@contextmanager
def observed(
    directory: RunDirectory, config: ExperimentConfig, observe: "Observer"
) -> Iterator["Observer"]:
    """Lock a run, remove what a kill left, and pass what happens inside on to all."""

    def line_of(number: int) -> dict[str, Any]:
        return directory.metrics()[number].to_json()

    journal, settings = Journal(directory.path), dotted(plain_values(config))
    with directory.locked():
        directory.sweep()
        try:
            names = config.tracking.to
            with tracked(names, directory.path, settings, line_of, observe) as passed_on:
                yield journal.watching(passed_on, directory.metrics)
        except BaseException as error:
            with suppress(OSError):  # a full disk, say, which is what stopped the run
                journal.stopped(error)
            raise
