"""A run that is killed at any file operation resumes to the same bits and leaves nothing behind.

Python announces every opening, renaming, linking and removing of a file (audit events). A forked
process ends itself at the n-th of them inside the run's folder, without any clean-up, as a kill
does. Default: a sample of the points; all of them with ``-m network``.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import hofl
from hofl.experiment.runs import RunDirectory
from support.runs import adapter_bytes, quick

KILLED = 9
EVENTS = {"open", "os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree"}
EVENTS |= {"os.listdir", "os.scandir", "os.chmod", "fcntl.flock"}
SAMPLED = 8


def forked(work: Callable[[], None], folder: Path, at: int) -> int:
    """Do the work in a child that ends at the n-th file operation in a folder.

    Returns:
        How many operations there were before its end; with ``at`` 0 in all.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        count, inside = 0, str(folder)

        def watch(event: str, arguments: tuple) -> None:
            nonlocal count
            if event not in EVENTS:
                return
            named = any(str(word).startswith(inside) for word in arguments)
            if named or event == "fcntl.flock":
                count += 1
                if count == at:
                    os.write(writer, str(count).encode())
                    os._exit(KILLED)

        sys.addaudithook(watch)
        code = 1
        try:
            work()
            code = 0
        finally:
            os.write(writer, str(count).encode())
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        count = int(pipe.read())
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == (KILLED if at else 0)
    return count


class Killed:
    """A small run, what it ends in, and how many operations it takes."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder = folder
        self.config = quick(model, rounds=3, method={"local_steps": 1}, server={"keep": 2})
        whole = folder / "whole"
        self.bits = adapter_bytes(hofl.run(self.config, whole).path)
        self.names = {str(path.relative_to(whole)) for path in whole.rglob("*")}
        self.points = forked(lambda: self.work(folder / "counted"), folder / "counted", 0)

    def work(self, run: Path) -> None:
        """What a service does when it starts: a new run, or the resume of the one there."""
        if (run / "config.toml").is_file():
            hofl.resume(run)
        else:
            hofl.run(self.config, run)

    def check(self, run: Path) -> None:
        self.work(run)
        assert adapter_bytes(run) == self.bits
        assert {str(path.relative_to(run)) for path in run.rglob("*")} == self.names
        assert [row.round for row in RunDirectory(run).metrics()] == [0, 1, 2, 3]


@pytest.fixture(scope="module")
def killed(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    return Killed(tmp_path_factory.mktemp("killed"), tiny_folder)


def kill_at(killed: Killed, points: range) -> None:
    for point in points:
        run = killed.folder / f"run-{point}"
        forked(lambda run=run: killed.work(run), run, point)
        killed.check(run)


def kill_twice(killed: Killed, first: int, points: range) -> None:
    """Kill a run, then its resume: a resume has its own file operations."""
    for point in points:
        run = killed.folder / f"resumed-{first}-{point}"
        forked(lambda run=run: killed.work(run), run, first)
        forked(lambda run=run: killed.work(run), run, point)
        killed.check(run)


def test_a_sample_of_the_points(killed: Killed) -> None:
    assert killed.points > 75
    kill_at(killed, range(1, killed.points, -(-killed.points // SAMPLED)))


def test_a_sample_of_the_points_of_a_resume(killed: Killed) -> None:
    middle = killed.points // 2
    kill_twice(killed, middle, range(2, killed.points - middle, 16))


@pytest.mark.network
def test_every_point_of_a_run_and_of_a_resume(killed: Killed, tmp_path: Path) -> None:
    early = killed.points // 3
    assert 2 * killed.points - early >= 150
    kill_at(killed, range(1, killed.points + 1))
    kill_twice(killed, early, range(1, killed.points - early))
