"""What poisoned devices do to a run, under each aggregation.

Run: python tools/measure_poison.py CONFIG [key=value ...] [--devices 0] [--rules mean,median]

Every attack is run with every aggregation on the configuration's fleet; the poisoned devices train
honestly and then change what they send. They know the protocol, so the hash of the bottom segment
fits what they send: it proves that the replay is exact, not that a device is honest.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from hofl.algorithm import replay
from hofl.core.errors import HoflError
from hofl.core.layout import Layout
from hofl.core.process import tune_allocator, use_threads
from hofl.engines.base import Dispatch, Failure
from hofl.engines.client import LocalClient
from hofl.engines.local import InProcess
from hofl.experiment.build import Experiment, build_simulation
from hofl.experiment.config import ExperimentConfig, read_config
from hofl.experiment.records import headline
from hofl.experiment.rounds import evaluation, one_round
from hofl.messages import RoundPlan, Upload, vector_hash
from hofl.server.aggregate import AGGREGATIONS

Attack = Callable[[Upload], Upload]
ATTACKS: dict[str, Attack] = {
    "none": lambda upload: upload,
    "scalars x 1000": lambda upload: replace(upload, scalars=1000 * upload.scalars),
    "signs flipped": lambda upload: replace(
        upload, scalars=-upload.scalars, difference=-upload.difference
    ),
    "both": lambda upload: replace(
        upload, scalars=-1000 * upload.scalars, difference=-1000 * upload.difference
    ),
}


class Poisoned(InProcess):
    """An engine some of whose devices change what they send."""

    def __init__(
        self, client: LocalClient, devices: set[int], attack: Attack, layout: Layout
    ) -> None:
        super().__init__(client)
        self._devices, self._attack, self._layout = devices, attack, layout

    def gather(self, dispatches: Iterable[Dispatch]) -> Iterator[bytes | Failure]:
        """Honest answers, and others."""
        for dispatch in dispatches:
            (answer,) = super().gather([dispatch])
            plan = dispatch.plan
            if plan.client in self._devices and isinstance(answer, bytes):
                answer = self._changed(plan, answer)
            yield answer

    def _changed(self, plan: RoundPlan, answer: bytes) -> bytes:
        upload = self._attack(Upload.from_bytes(answer))
        if upload.bottom_hash:
            bottom = replay(plan, upload.scalars, self._layout)
            upload = replace(upload, bottom_hash=vector_hash(bottom))
        return upload.to_bytes()


def outcome(experiment: Experiment, devices: set[int], attack: Attack) -> str:
    """The final score of one run, and what was refused on the way."""
    engine = Poisoned(experiment.client, devices, attack, experiment.layout)
    state, refused, drawn = experiment.start, 0, 0
    try:
        while state.round < experiment.config.rounds:
            state, row = one_round(experiment, engine, state, lambda *_: None)
            refused += len(row.refused)
            drawn += bool(devices & set(row.cohort))
    except HoflError as error:
        return f"stopped: {error}"[:60]
    scores = evaluation(experiment, state, lambda *_: None)
    name, value = headline(scores)
    note = f", {refused} refused" if refused else ""
    rounds = f"poison in {drawn} of {state.round} rounds"
    return f"{name} {100 * value:.1f} %, loss {scores['loss']:.3g} ({rounds}{note})"


def with_rule(config: ExperimentConfig, rule: str) -> ExperimentConfig:
    """The configuration with another aggregation."""
    method = config.method.model_copy(update={"aggregation": rule})
    return config.model_copy(update={"method": method})


def main() -> None:
    """Print one line per attack, one column per aggregation."""
    parser = argparse.ArgumentParser(description="Poisoned devices against aggregations.")
    parser.add_argument("config", help="TOML file or recipe")
    parser.add_argument("changes", nargs="*", help="key=value")
    parser.add_argument("--devices", default="0", help="poisoned clients, such as 0,3")
    parser.add_argument("--rules", default="mean,median,trimmed-mean", help="aggregations")
    parser.add_argument("--attacks", default=",".join(ATTACKS), help="attacks, by name")
    arguments = parser.parse_args()
    rules = arguments.rules.split(",")
    config = read_config(arguments.config, arguments.changes)
    assert set(rules) <= set(AGGREGATIONS)
    tune_allocator()
    use_threads(config.engine.threads, 1)
    devices = {int(text) for text in arguments.devices.split(",")}
    experiments = {rule: build_simulation(with_rule(config, rule)) for rule in rules}
    table = Table(title=f"poisoned: {sorted(devices)} of {config.fleet.clients} devices")
    for column in ("attack", *rules):
        table.add_column(column)
    console = Console(width=160)
    for name in arguments.attacks.split(","):
        cells = []
        for rule in rules:
            cells.append(outcome(experiments[rule], devices, ATTACKS[name]))
            console.print(f"{name}, {rule}: {cells[-1]}")
        table.add_row(name, *cells)
    console.print(table)


if __name__ == "__main__":
    main()
