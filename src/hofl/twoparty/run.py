"""A split run from start to end: the same folder, records and adapter as any other run.

The process that starts a run holds the whole model, to score its start and its end. The roles hold
what their workflow gives them: in one process they share that model's segments, in processes of
their own (``processes``) each reads its own half.
"""

from dataclasses import replace
from pathlib import Path

import torch

from hofl.core.errors import HoflError
from hofl.data.store import digest_of
from hofl.experiment.build import Simulation
from hofl.experiment.config import ExperimentConfig
from hofl.experiment.launch import SPLIT_STATE, readable_errors
from hofl.experiment.launcher import prepared
from hofl.experiment.method import build_method
from hofl.experiment.observing import observed
from hofl.experiment.records import RoundRecord
from hofl.experiment.result import Result
from hofl.experiment.reuse import check_new
from hofl.experiment.rounds import Observer, conclude, is_scored, rescored, scored
from hofl.experiment.runs import RunDirectory
from hofl.server.state import ServerState
from hofl.twoparty.build import batches_of, check_split, cohorts_of, common_boundary_of, setting_of
from hofl.twoparty.processes import train_in_processes
from hofl.twoparty.server import SplitServer
from hofl.twoparty.setting import Setting
from hofl.twoparty.store import ClientStore, load_server, save_server
from hofl.twoparty.training import OneProcess, train

RESUME = "hofl split --resume {path}"


def run_split(
    config: ExperimentConfig,
    out: str | Path,
    observe: Observer = lambda event, facts: None,
    processes: int = 0,
) -> Result:
    """Run a split workflow into a new folder.

    Args:
        config: its method has a split workflow.
        out: the new folder.
        observe: as for any run (``hofl.experiment.rounds.Observer``); a round is a step.
        processes: of clients, beside one of the server; 0 runs all roles in this process.
    """
    path = Path(out)
    with readable_errors(path):
        check_new(path, RESUME.format(path=path))
        check_split(config, build_method(config), processes)
        simulation = prepared(config)
        setting = _setting(simulation)
        data = {"train": digest_of(simulation.train.examples)}
        directory = RunDirectory.create(path, simulation.config, simulation.secret, data=data)
        return _trained(simulation, setting, directory, observe, processes)


def resume_split(
    path: str | Path,
    observe: Observer = lambda event, facts: None,
    processes: int = 0,
) -> Result:
    """Resume a split run after its last step, with any number of processes: the bits are equal."""
    with readable_errors(Path(path)):
        directory = RunDirectory.open(Path(path))
        finished = directory.finished()
        if finished is not None:
            return Result(directory.path, finished)
        config = directory.config()
        check_split(config, build_method(config), processes)
        begun = (directory.checkpoint / SPLIT_STATE).exists()
        if not begun and directory.metrics()[1:]:
            raise HoflError(f"{path} is not a split run: resume it with hofl run --resume {path}")
        simulation = replace(prepared(config), secret=directory.secret())
        return _trained(simulation, _setting(simulation), directory, observe, processes)


def _setting(simulation: Simulation) -> Setting:
    boundary = common_boundary_of(simulation)
    return setting_of(simulation.config, simulation.method, boundary)


def _trained(
    simulation: Simulation,
    setting: Setting,
    directory: RunDirectory,
    observe: Observer,
    processes: int,
) -> Result:
    """Train from the last step, or the start, to the end; score; write adapter and summary."""
    rounds, folder = simulation.rounds, directory.checkpoint
    with observed(directory, simulation.config, observe) as seen:
        model = simulation.model.split
        model.load(simulation.start.w)
        server = setting.workflow.server(model, setting)
        if not (folder / SPLIT_STATE).exists():
            first = scored(RoundRecord(round=0), simulation, simulation.start, seen)
            directory.rounds.start_again(first)
            save_server(folder, server)
        load_server(folder, server)
        directory.rounds.forget_after(server.step)
        scores = directory.metrics()[0].scores
        facts = {"rounds": rounds, "scores": scores, "note": simulation.note}
        seen("start", {"round": server.step, **facts})
        if processes and server.step < rounds:
            train_in_processes(directory, setting.boundary, rounds, processes, seen)
            load_server(folder, server)
        else:
            _in_one_process(simulation, server, directory, seen)
        state = _state(simulation, server)
        rescored(directory, simulation, state, seen)
        return Result(directory.path, conclude(simulation, state, directory, seen))


def _in_one_process(
    simulation: Simulation, server: SplitServer, directory: RunDirectory, observe: Observer
) -> None:
    """Run all clients and the server here, on the two segments of one model."""
    config, method, setting = simulation.config, simulation.method, server.setting
    loaded, store = simulation.model, ClientStore(directory.checkpoint)
    data = batches_of(config, method, loaded)
    loaded.split.load(simulation.start.w)  # clients start from it
    clients = {
        i: setting.workflow.client(loaded.split, setting, i, data, store)
        for i in range(len(simulation.boundaries()))
    }

    def record(made: RoundRecord) -> None:
        if is_scored(simulation, made.round):
            made = scored(made, simulation, _state(simulation, server), observe)
        directory.record(made)
        save_server(directory.checkpoint, server)
        observe("round", made.to_json())

    cohorts = cohorts_of(config, method, simulation.secret)
    train(server, OneProcess(server, clients), cohorts, simulation.rounds, record)


def _state(simulation: Simulation, server: SplitServer) -> ServerState:
    """Return the parameters of both segments after the server's last step."""
    cut = simulation.layout.cut(server.setting.boundary)
    bottom = server.bottom(simulation.start.w[:cut])
    return ServerState(torch.cat([bottom, server.top.w]), server.step)
