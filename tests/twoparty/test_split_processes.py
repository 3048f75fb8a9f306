"""Processes of their own for server and clients: the same bytes and bits, each with its half.

Started by ``make test-network``.
"""

import os
from pathlib import Path

import pytest

from hofl.experiment.runs import RunDirectory
from hofl.twoparty.link import Link
from hofl.twoparty.processes import train_in_processes
from hofl.twoparty.run import resume_split, run_split
from support.runs import adapter_bytes, stop_at
from support.twoparty import split_config, watched, what_was_read

pytestmark = pytest.mark.network


def test_processes_exchange_the_same_bytes_and_each_reads_its_own_half(
    tiny_folder: Path, tmp_path: Path
) -> None:
    """Steps 2 and 3 of a run in processes, against one process all the way."""
    config = split_config(tiny_folder, "ho-sfl")
    whole = run_split(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run_split(config, tmp_path / "run", stop_at(1))
    directory = RunDirectory(tmp_path / "run")
    steps: list[int] = []
    train_in_processes(
        directory,
        boundary=2,
        rounds=3,
        processes=1,
        observe=lambda event, facts: steps.append(facts["round"]) if event == "round" else None,
        role=watched,
    )
    assert steps == [2, 3]
    resumed = resume_split(directory.path)
    assert adapter_bytes(resumed.path) == adapter_bytes(whole.path)
    one, two = (RunDirectory(run.path).metrics() for run in (whole, resumed))
    assert [r.ledger for r in one] == [r.ledger for r in two]
    assert two[2].server_peak_bytes
    assert two[2].peak_by_boundary[2]
    server, client = (what_was_read(directory.path, rank) for rank in (0, 1))
    blocks = {name.split(".")[2] for name in server if ".layers." in name}
    assert blocks == {"2", "3"}
    assert {name.split(".")[2] for name in client if ".layers." in name} == {"0", "1"}
    around = {name for name in server if ".layers." not in name}
    assert around == {"model.norm.weight", "lm_head.weight"}
    assert {name for name in client if ".layers." not in name} == {"model.embed_tokens.weight"}


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="sockets are listed on Linux alone")
def test_a_role_listens_on_the_loopback_interface_whatever_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    before = listening()
    link = Link(tmp_path / "rendezvous", rank=0, world=1, deadline=30.0, most=100)
    opened = listening() - before
    link.close()
    assert opened
    assert {address for address, _ in opened} == {"0100007F"}, "127.0.0.1, as the kernel writes it"


def listening() -> set[tuple[str, str]]:
    """Address and port of every TCP socket on which this process listens."""
    own = {os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path("/proc/net", table).read_text().splitlines()[1:]
    ]
    return {
        (row[1].partition(":")[0], row[1].partition(":")[2])
        for row in rows
        if row[3] == "0A" and f"socket:[{row[9]}]" in own
    }
