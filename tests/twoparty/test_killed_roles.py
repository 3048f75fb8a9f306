"""Processes of a split run that are killed, silent or wrong. Started by ``make test-network``."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import hofl
from hofl.experiment.runs import RunDirectory
from hofl.twoparty.processes import train_in_processes
from hofl.twoparty.roles import play
from hofl.twoparty.run import resume_split, run_split
from support.runs import adapter_bytes, start_cli
from support.twoparty import (
    SPLIT,
    idle,
    killed_client,
    killed_server,
    liar,
    noisy,
    silent,
    split_config,
)

pytestmark = pytest.mark.network


@pytest.mark.parametrize("name", SPLIT)
def test_either_side_killed_and_resumed_ends_in_the_same_bits(
    name: str, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_role(role: Any) -> None:
        started = partial(train_in_processes, role=role)
        monkeypatch.setattr("hofl.twoparty.run.train_in_processes", started)

    config = split_config(tiny_folder, name, rounds=6)
    whole = run_split(config, tmp_path / "whole")
    path = tmp_path / "run"
    with_role(partial(killed_client, victim=2, step=1))
    with pytest.raises(hofl.HoflError, match=r"client process 2 was killed \(SIGKILL\)"):
        run_split(config, path, processes=2)
    assert 1 <= lines(path) - 1 < 4
    with_role(partial(killed_server, step=4))
    with pytest.raises(hofl.HoflError, match=r"the server process was killed.*resume with"):
        resume_split(path, processes=2)
    assert lines(path) - 1 == 3  # the step was over, and not yet recorded
    with_role(play)
    resumed = resume_split(path, processes=1)
    assert adapter_bytes(resumed.path) == adapter_bytes(whole.path)
    # A client that had caught up when the step was lost is not sent those scalars again.
    one, two = (RunDirectory(run.path).metrics()[1:] for run in (whole, resumed))
    assert [row.ledger["act_up"] for row in one] == [row.ledger["act_up"] for row in two]
    assert [row.cohort for row in one] == [row.cohort for row in two]


def test_the_starting_process_killed_ends_the_others_and_resumes(
    tiny_folder: Path, tmp_path: Path
) -> None:
    config = split_config(tiny_folder, "ho-sfl", rounds=40)
    whole = run_split(config, tmp_path / "whole")
    path = tmp_path / "run"
    source = tmp_path / "whole" / "config.toml"
    process = start_cli("split", str(source), "--processes", "1", "--out", str(path))
    while lines(path) < 4:
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    process.communicate()
    for pid in children:
        while alive(pid):
            time.sleep(0.1)
    resumed = resume_split(path)
    assert adapter_bytes(resumed.path) == adapter_bytes(whole.path)


def alive(pid: str) -> bool:
    """Whether a process runs; one that has ended and waits to be noticed has no command line."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def lines(path: Path) -> int:
    """How many rounds a run has recorded."""
    file = path / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.mark.parametrize(
    ("role", "reason"),
    [
        (silent, "no answer within 3 s"),
        (liar, "is not a message of a client"),
        (idle, "a process ended too early.*resume with"),
    ],
)
def test_a_silent_or_wrong_client_is_one_line(
    role: Any, reason: str, tiny_folder: Path, tmp_path: Path
) -> None:
    config = split_config(tiny_folder, "ho-sfl", rounds=2, server={"deadline": 3.0})
    with pytest.raises(KeyboardInterrupt):
        run_split(config, tmp_path / "run", stop_at_start)
    directory = RunDirectory(tmp_path / "run")
    with pytest.raises(hofl.HoflError, match=reason):
        train_in_processes(directory, 2, 2, 1, lambda event, facts: None, role)
    assert len(directory.metrics()) == 1


def test_steps_go_on_without_a_process_whose_messages_are_refused(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients 1 and 3 are in it; what it sent is in the ledger."""
    role = partial(train_in_processes, role=noisy)
    monkeypatch.setattr("hofl.twoparty.run.train_in_processes", role)
    config = split_config(tiny_folder, "ho-sfl", rounds=2, fleet={"cohort": 4})
    result = run_split(config, tmp_path / "run", processes=2)
    for row in RunDirectory(result.path).metrics()[1:]:
        assert sorted(row.answered) == [0, 2]
        assert sorted(row.refused) == [1, 3]
        assert all("not a hofl message" in reason for reason in row.refused.values())
        assert row.ledger["refused_up"] == {"bytes": 80, "count": 2}


def stop_at_start(event: str, facts: Any) -> None:
    """Stop before the first step."""
    if event == "start":
        raise KeyboardInterrupt
