"""Records of rounds and runs: old files load, figures are what was measured, rounds count."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import hofl
from hofl.engines.local import InProcess
from hofl.experiment.build import Simulation, build_simulation
from hofl.experiment.records import Attempt, RoundRecord, RunSummary
from hofl.experiment.rounds import one_round
from hofl.experiment.runs import RunDirectory
from hofl.experiment.tally import RoundTally, summarise
from hofl.messages import ClientMetrics
from support.runs import quick

# Lines as version 0.1.0 has written them: simulated, private, and on a network.
OLD = [
    '{"round": 1, "cohort": [1, 2], "answered": [1], "refused": {"2": "no power"}, "dropped": [], '
    '"raised": {"1": 3}, "train_loss": 1.5, "uplink_bytes": 8, "downlink_bytes": 9, "seconds": 0.3,'
    ' "zo_snr": 7.5, "examples": 16, "peak_bytes": 70, "peak_by_boundary": {"3": 70}, '
    '"eval": {"accuracy": 0.5, "loss": 1.0, "examples": 200}, "eval_seconds": 0.1}',
    '{"round": 2, "cohort": [1], "answered": [1], "refused": {}, "dropped": [], "raised": {}, '
    '"train_loss": null, "uplink_bytes": 8, "downlink_bytes": 9, "seconds": 0.3, "zo_snr": null, '
    '"examples": 0, "peak_bytes": 0, "peak_by_boundary": {"1": 0}, "epsilon": {"1": 9.5}}',
    '{"round": 3, "cohort": [0], "answered": [0], "refused": {}, "present": {"0": 1, "7": 2}, '
    '"resting": [7], "dropped": [], "raised": {}, "train_loss": 1.0, "uplink_bytes": 8, '
    '"downlink_bytes": 9, "seconds": 0.3, "zo_snr": 1.5, "examples": 8, "peak_bytes": 5, '
    '"peak_by_boundary": {"1": 5}, "waited": 0.25, "wire": {"0": {"up": 5, "seconds": 0.1}}, '
    '"repeats": [{"cohort": [7], "answered": [], "refused": {"7": "late"}, "present": {"7": 2}}], '
    '"lost": [[0]]}',
]


@pytest.mark.parametrize("line", OLD, ids=["simulated", "private", "network"])
def test_old_lines_are_read_and_written_with_the_same_keys(line: str) -> None:
    old = json.loads(line)
    record = RoundRecord.from_json({**old, "written by a later version": 1})
    written = json.loads(json.dumps(record.to_json()))
    assert record == RoundRecord.from_json(written)
    for later in ("update_norm", "distance", "norm"):
        assert written.pop(later) is None
    assert set(written) == set(old)
    if old["peak_bytes"] == 0:  # nothing was measured, and 0 said something else
        old |= {"peak_bytes": None, "peak_by_boundary": {}}
    for attempt in old.get("repeats", ()):
        attempt["dropped"] = []
    assert written == old


def test_numbers_are_numbers_and_everyone_who_was_asked_is_known() -> None:
    simulated, private, network = (RoundRecord.from_json(json.loads(line)) for line in OLD)
    assert simulated.refused == {2: "no power"}
    assert simulated.raised == {1: 3}
    assert simulated.scores["accuracy"] == 0.5
    assert private.epsilon == {1: 9.5}
    assert private.peak_bytes is None
    assert network.present == {0: 1, 7: 2}
    assert network.wire[0]["up"] == 5
    assert [attempt.refused for attempt in network.attempts] == [{7: "late"}, {}]
    assert network.participations == [7, 0, 0], "repeated, recorded and lost attempts"


@pytest.mark.parametrize("line", ["[1]", '{"cohort": []}', '{"round": 1, "refused": [2]}'])
def test_something_else_is_not_taken_for_a_round(line: str) -> None:
    with pytest.raises(ValueError, match="not the record of a round"):
        RoundRecord.from_json(json.loads(line))


def test_forgetting_rounds_keeps_what_a_later_version_wrote(tmp_path: Path) -> None:
    start = '{"round": 0, "new": {"kept": [1, 2]}}'
    (tmp_path / "metrics.jsonl").write_text(f"{start}\n" + OLD[0] + "\n" + OLD[1][:30])
    run = RunDirectory(tmp_path)
    assert [record.round for record in run.metrics()] == [0, 1]
    run.rounds.forget_after(0)
    assert (tmp_path / "metrics.jsonl").read_text() == f"{start}\n"


def test_a_summary_of_an_earlier_version_is_read() -> None:
    old: dict[str, Any] = {
        "method": "hofl",
        "model": "m",
        "task": "t",
        "rounds": 2,
        "initial": {"accuracy": 0.25},
        "final": {"accuracy": 0.5},
        "uplink_bytes": 3,
        "downlink_bytes": 4,
        "peak_bytes": 0,
        "peak_by_boundary": {"10": 0, "2": 7},
        "seconds": 1.5,
    }
    summary = RunSummary.from_json({**old, "unknown": 1})
    assert summary.peak_by_boundary == {2: 7}
    assert (summary.audit, summary.wire, summary.epsilon) == ({}, {}, {})
    assert RunSummary.from_json(json.loads(json.dumps(summary.to_json()))) == summary
    with pytest.raises(ValueError, match="not the summary of a run"):
        RunSummary.from_json({"method": "hofl"})


def upload(client: int, boundary: int, **metrics: Any) -> Any:
    """What a tally reads of an upload."""
    given = ClientMetrics(**{"loss": 1.0, "examples": 4, **metrics})
    return SimpleNamespace(client=client, boundary=boundary, metrics=given)


@pytest.fixture(scope="module")
def experiment(tiny_folder: Path) -> Simulation:
    return build_simulation(quick(tiny_folder, method={"local_steps": 1}))


def test_peaks_are_the_largest_seen_in_a_round_and_in_the_run(experiment: Simulation) -> None:
    tally = RoundTally([0, 1, 2])
    for client, (boundary, peak) in enumerate([(1, 50), (1, 30), (2, 20), (3, 0)]):
        tally.take(upload(client, boundary, peak_bytes=peak), 1.0)
    first = tally.record(1, 0.0)
    assert first.peak_by_boundary == {1: 50, 2: 20}, "boundary 3 was not measured"
    assert first.peak_bytes == 50
    second = replace(first, round=2, peak_by_boundary={1: 40, 2: 60}, peak_bytes=60)
    summary = summarise(experiment, [RoundRecord(round=0), first, second])
    assert summary.peak_by_boundary == {1: 50, 2: 60}
    assert summary.peak_bytes == 60


def test_private_clients_leave_no_peaks_behind(tiny_folder: Path, tmp_path: Path) -> None:
    private = {"noise": 1.0, "scalar_clip": 1.0, "difference_clip": 1.0}
    run = hofl.run(quick(tiny_folder, rounds=1, privacy=private), tmp_path / "run").path
    row = json.loads((run / "metrics.jsonl").read_text().splitlines()[1])
    summary = json.loads((run / "summary.json").read_text())
    for written in (row, summary):
        assert (written["peak_by_boundary"], written["peak_bytes"]) == ({}, None)


def test_scalars_of_a_converged_client_do_not_count_as_noise() -> None:
    """Where the loss is gone, so is the gradient: no signal is no fault of the radius."""
    tally = RoundTally([0, 1])
    tally.take(upload(0, 1, loss=1e-6, checks=1, signal=0.0, noise=0.0), 1.0)
    assert tally.record(1, 0.0).zo_snr is None
    tally.take(upload(1, 1, loss=1.4, checks=1, signal=2.0, noise=0.5), 1.0)
    assert tally.record(1, 0.0).zo_snr == pytest.approx(1.25 * 2.0 / 0.5 - 1)
    lost = RoundTally([0])
    lost.take(upload(0, 1, loss=1.4, checks=1, signal=0.0, noise=0.0), 1.0)
    assert lost.record(1, 0.0).zo_snr == 0


def dropping(tiny_folder: Path, dropout: float, **server: int) -> Simulation:
    config = quick(
        tiny_folder, fleet={"dropout": dropout}, method={"local_steps": 1}, server=server
    )
    return build_simulation(config)


def test_a_round_with_dropouts_counts_only_with_enough_answers(tiny_folder: Path) -> None:
    """Client by client, against the dropouts of each attempt; places count anew in each."""
    experiment = dropping(tiny_folder, 0.5, min_answers=2, attempts=50)
    engine, state, repeated, events = InProcess(experiment.client), experiment.start, 0, []
    for number in range(8):
        state, record = one_round(experiment, engine, state, lambda *seen: events.append(seen))
        for attempt, draw in enumerate(record.attempts):
            drops = [i for i in draw.cohort if experiment.drops_out(number, i, attempt)]
            assert draw.dropped == drops
            assert draw.answered == draw.asked
            assert (len(draw.answered) >= 2) == (draw is record)
        repeated += len(record.repeats)
        places = [facts["number"] for event, facts in events if event == "client"]
        assert places == [k + 1 for draw in record.attempts for k in range(len(draw.asked))]
        events.clear()
    assert repeated > 2


def test_dropouts_that_leave_too_few_end_the_run_in_one_line(tiny_folder: Path) -> None:
    experiment = dropping(tiny_folder, 0.999, min_answers=2, attempts=3)
    with pytest.raises(hofl.HoflError, match=r"^round 1: .*3 of 3 dropped out.*fleet\.dropout"):
        one_round(experiment, InProcess(experiment.client), experiment.start, lambda *_: None)


def test_a_simulated_cohort_may_drop_out_as_a_whole_when_one_answer_is_enough(
    tiny_folder: Path,
) -> None:
    experiment = dropping(tiny_folder, 0.999)
    engine = InProcess(experiment.client)
    state, record = one_round(experiment, engine, experiment.start, lambda *_: None)
    assert record.dropped == record.cohort
    assert record.repeats == []
    assert record.train_loss is None
    assert torch.equal(state.w, experiment.start.w)
    assert state.round == 1


def test_an_attempt_knows_who_was_asked() -> None:
    assert Attempt(cohort=[3, 4, 5], dropped=[4]).asked == [3, 5]


def test_events_and_their_facts_are_those_that_are_documented(
    tiny_folder: Path, tmp_path: Path
) -> None:
    seen: dict[str, list[Any]] = {}
    config = quick(tiny_folder, rounds=2, fleet={"budgets": ["1GiB"], "boundaries": []})
    run = hofl.run(
        config, tmp_path / "run", lambda event, facts: seen.setdefault(event, []).append(facts)
    )
    keys = {
        "start": {"round", "rounds", "scores", "note"},
        "client": {"round", "client", "number", "of"},
        "evaluation": {"done", "of"},
    }
    for event, names in keys.items():
        assert all(set(facts) == names for facts in seen[event]), event
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    written = [json.loads(line) for line in (*lines[1:], (run.path / "summary.json").read_text())]
    for values in written:
        del values["sha256"]  # of the file's own text
    assert [*seen["round"], *seen["end"]] == written
    assert seen["plan"] == [json.loads((run.path / "plan.json").read_text())]
    assert set(seen) <= described_events()


def described_events() -> set[str]:
    """Events in the table of docs/extending.md."""
    page = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
    table = page.split("## Watching a run")[1].split("\n## ")[0]
    return set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))


def test_every_event_that_is_sent_is_described_and_no_other() -> None:
    sources = [path.read_text() for path in Path(hofl.__file__).parent.rglob("*.py")]
    sent = {event for text in sources for event in re.findall(r'(?:observe|seen)\("(\w+)"', text)}
    rounds = (Path(hofl.__file__).parent / "experiment" / "rounds.py").read_text()
    assert sent == described_events()
    assert sent == set(re.findall(r"^``(\w+)``  ", rounds, re.MULTILINE))
