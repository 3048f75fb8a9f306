"""A run that is killed at any file operation resumes to the same bits and leaves nothing behind.

Of `hofl run` and of `hofl server`, whose devices are workers in this process, and of their resumes.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import hofl
import hofl.deploy.server
from hofl.deploy.engine import NetworkEngine
from hofl.deploy.processes import free_port
from hofl.deploy.server import server_launcher
from hofl.deploy.transport import Endpoint
from hofl.experiment.launcher import LOCAL, Launcher
from hofl.experiment.runs import RunDirectory
from support.flower_workers import device
from support.in_process import IN_PROCESS, NAME
from support.kill_points import KillPoints, kill_at, kill_points
from support.runs import adapter_bytes, quick

ROUNDS = 2
BOUNDARIES = [1, 2, 3]


class Killed:
    """A small run, what it ends in, and the states in which a kill can leave it."""

    def __init__(self, folder: Path, model: Path, launcher: Launcher[Any]) -> None:
        self.config = quick(
            model,
            rounds=ROUNDS,
            fleet={"clients": 3, "cohort": 2, "boundaries": BOUNDARIES},
            method={"local_steps": 1},
            evaluation={"batch_size": 100, "curve_examples": 10},
            server={"keep": 1},
        )
        # Nothing is built twice: building touches no file of the run.
        experiment = launcher.build(self.config)
        self.launcher = replace(launcher, build=lambda _config: experiment)
        self.folder, whole = folder, folder / "whole"
        self.start(whole)
        self.bits = adapter_bytes(whole)
        self.names = {str(path.relative_to(whole)) for path in whole.rglob("*")}

    def start(self, run: Path) -> None:
        """What a service does when it starts: a new run, or the resume of the one there."""
        if (run / "config.toml").is_file():
            hofl.resume(run, launcher=self.launcher)
        else:
            hofl.run(self.config, run, launcher=self.launcher)

    def points(self, name: str, killed: Path | None = None) -> KillPoints:
        """Of a run, or of the resume of a killed one."""
        run = self.folder / name
        if killed is not None:
            shutil.copytree(killed, run)
        return kill_points(partial(self.start, run), run, self.folder / f"{name}-states")

    def check(self, run: Path) -> None:
        self.start(run)
        assert adapter_bytes(run) == self.bits
        assert {str(path.relative_to(run)) for path in run.rglob("*")} == self.names
        assert [row.round for row in RunDirectory(run).metrics()] == [*range(ROUNDS + 1)]


@pytest.fixture(scope="module", params=["run", "server"])
def killed(
    request: pytest.FixtureRequest, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Killed]:
    folder = tmp_path_factory.mktemp("killed")
    if request.param == "run":
        yield Killed(folder, tiny_folder, LOCAL)
        return
    with pytest.MonkeyPatch.context() as patch:
        # The answers are there at once.
        patch.setattr(hofl.deploy.server, "NetworkEngine", partial(NetworkEngine, pause=0.0))
        workers = {n: device(folder, n, boundary) for n, boundary in enumerate(BOUNDARIES)}
        patch.setattr(IN_PROCESS, "workers", workers)
        endpoint = Endpoint(address=f"127.0.0.1:{free_port()}", transport=NAME)
        yield Killed(folder, tiny_folder, server_launcher(endpoint))


def test_killed_at_any_file_operation_of_a_run_and_of_a_resume(
    killed: Killed, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_run = killed.points("counted")
    early = next(state for state in of_run.states if list(state.glob("checkpoint/*.safetensors")))
    of_resume = killed.points("resumed", early)
    assert of_run.count > 75
    assert of_resume.count > 40
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # a power cut is not what is shown here
    for state in (*of_run.states, *of_resume.states):
        killed.check(state)


def test_killed_while_a_finished_run_gets_its_adapter_again(killed: Killed) -> None:
    """The old adapter is left beside the new one, where the next one would be put aside."""
    run = killed.folder / "returned"
    shutil.copytree(killed.folder / "whole", run)
    again = partial(hofl.resume, run, from_round=ROUNDS, launcher=killed.launcher)
    points = kill_points(again, run, killed.folder / "returned-states")
    left = [state for state in points.states if (state / "adapter.old.tmp").exists()]
    assert any((state / "adapter").exists() for state in left)
    for state in left:
        killed.check(state)


def test_a_killed_process_leaves_the_state_that_was_copied(killed: Killed) -> None:
    """Oracle of the copies: real processes that end at a point."""
    points = killed.points("again")
    for state in [state for state in points.states if state.name.isdecimal()][1::12]:
        run = killed.folder / f"killed-{state.name}"
        kill_at(partial(killed.start, run), run, int(state.name))
        names = [str(path.relative_to(run)) for path in sorted(run.rglob("*"))]
        assert names == [str(path.relative_to(state)) for path in sorted(state.rglob("*"))]
        killed.check(run)
