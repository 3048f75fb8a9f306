"""Callbacks: what they hear and when, and the ready-made ones."""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

import hofl
from hofl.experiment.callbacks import EarlyStopping, ProgressBar
from hofl.experiment.events import Callback, Client, End, Evaluation, Round, Start, StopTraining
from hofl.experiment.records import RoundRecord
from hofl.experiment.runs import RunDirectory
from support.runs import adapter_bytes, quick


class Diary(Callback):
    """Writes down every event; stops, or fails, after a round."""

    def __init__(self, last: int = 0, error: type[BaseException] = StopTraining) -> None:
        self.events: list[Any] = []
        self.last, self.error = last, error

    def on_start(self, event: Start) -> None:
        self.events.append(event)

    def on_client(self, event: Client) -> None:
        self.events.append(event)

    def on_evaluation(self, event: Evaluation) -> None:
        self.events.append(event)

    def on_round(self, event: Round) -> None:
        self.events.append(event)
        if event.record.round == self.last:
            raise self.error("enough")

    def on_end(self, event: End) -> None:
        self.events.append(event)


@pytest.fixture(scope="module")
def by_length(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Runs of 1, 2 and 3 rounds without any callback."""
    folder = tmp_path_factory.mktemp("lengths")
    return [
        hofl.run(quick(tiny_folder, rounds=rounds), folder / str(rounds)).path
        for rounds in (1, 2, 3)
    ]


def test_a_callback_hears_of_everything_in_order(tiny_folder: Path, tmp_path: Path) -> None:
    diary = Diary()
    config = quick(tiny_folder, rounds=2, evaluation={"every": 2})
    result = hofl.run(config, tmp_path / "run", callbacks=[diary])
    kinds = [type(event) for event in diary.events]
    first = [Client] * 3 + [Round]
    assert kinds == [Start, Evaluation, *first, *[Client] * 3, Evaluation, Round, End]
    start, *_, end = diary.events
    assert (start.round, start.rounds, len(start.records)) == (0, 2, 1)
    lines = [json.loads(line) for line in (result.path / "metrics.jsonl").read_text().splitlines()]
    heard = [event.record for event in diary.events if isinstance(event, Round)]
    assert heard == [RoundRecord.from_json(line) for line in lines[1:]]
    clients = [(e.round, e.client, e.number, e.of) for e in diary.events if isinstance(e, Client)]
    assert clients == [(t, c, n + 1, 3) for t in (1, 2) for n, c in enumerate(lines[t]["cohort"])]
    scored = [(e.round, e.scores) for e in diary.events if isinstance(e, Evaluation)]
    assert scored == [(0, lines[0]["eval"]), (2, lines[2]["eval"])]
    assert end.summary == result.record


def test_a_callback_that_fails_leaves_a_run_that_can_be_resumed(
    tiny_folder: Path, by_length: list[Path], tmp_path: Path
) -> None:
    with pytest.raises(ZeroDivisionError):
        hofl.run(
            quick(tiny_folder), tmp_path / "run", callbacks=[Diary(2, error=ZeroDivisionError)]
        )
    diary = Diary()
    run = hofl.resume(tmp_path / "run", callbacks=[diary])
    assert adapter_bytes(run.path) == adapter_bytes(by_length[2])
    assert (diary.events[0].round, len(diary.events[0].records)) == (2, 3)


def test_a_stopped_run_is_the_shorter_run_and_can_be_taken_further(
    tiny_folder: Path, by_length: list[Path], tmp_path: Path
) -> None:
    """Also if its result is lost, and with a curve of few examples before the end."""
    stopper, witness = Diary(2), Diary()
    config = quick(tiny_folder, evaluation={"every": 1, "curve_examples": 7})
    run = hofl.run(config, tmp_path / "run", callbacks=[stopper, witness])
    assert [type(event) for event in witness.events[-2:]] == [Round, End], "it hears of the round"
    short = RunDirectory(by_length[1]).summary()
    assert short is not None
    for _ in range(2):
        assert adapter_bytes(run.path) == adapter_bytes(by_length[1])
        assert (run.record.rounds, run.record.stopped) == (2, "enough")
        assert run.record.final == short.final, "on the whole test set"
        (run.path / "summary.json").unlink()
        run = hofl.resume(run.path)
    whole = hofl.resume(run.path, from_round=1)
    assert adapter_bytes(whole.path) == adapter_bytes(by_length[2])
    assert (whole.record.rounds, whole.record.stopped) == (3, None)


def evaluation(number: int, score: float, metric: str = "accuracy") -> Evaluation:
    return Evaluation(Path("run"), number, {metric: score}, lambda folder: folder)


def stop_of(rule: EarlyStopping, scores: list[float], restart: int, metric: str) -> int | None:
    """The evaluation after which a rule stops, if the run is resumed before ``restart``."""
    for number, score in enumerate(scores):
        records = [RoundRecord(round=k, scores={metric: s}) for k, s in enumerate(scores[:number])]
        try:
            if number == restart and number:
                rule = EarlyStopping(rule.patience, rule.metric, rule.min_change)
                rule.on_start(Start(Path("run"), number - 1 or 1, 99, records, ""))
            rule.on_evaluation(evaluation(number, score, metric))
        except StopTraining:
            return number
    return None


@pytest.mark.parametrize("metric", ["accuracy", "perplexity"])
def test_early_stopping_stops_where_a_plain_search_does_resumed_or_not(metric: str) -> None:
    """At the first score whose ``patience`` predecessors and itself do not beat all before."""
    luck = random.Random(3)
    stops, sign = 0, -1 if metric == "perplexity" else 1
    for _ in range(300):
        drift = luck.choice([0.0, 0.3, 0.6])
        scores = [round(luck.random() + sign * drift * n, 1) for n in range(9)]
        patience, least = luck.choice([1, 2, 3]), luck.choice([0.0, 0.15])
        good = [sign * score for score in scores]
        gains = [n for n in range(9) if not n or good[n] > max(good[:n]) + least]
        idle = [n - max(g for g in gains if g <= n) for n in range(9)]
        expected = next((n for n in range(9) if idle[n] >= patience), None)
        rule = EarlyStopping(patience, metric, least)
        assert stop_of(rule, scores, luck.randrange(9), metric) == expected
        stops += expected is not None
    assert 100 < stops < 300


def test_the_best_checkpoint_is_the_adapter_of_its_round(
    tiny_folder: Path, by_length: list[Path], tmp_path: Path
) -> None:
    """By a score that never changes: the first round stays the best, also of a resumed run."""
    config = quick(tiny_folder, evaluation={"every": 1})
    watching = [hofl.BestCheckpoint("examples"), Diary(2, ZeroDivisionError)]
    with pytest.raises(ZeroDivisionError):
        hofl.run(config, tmp_path / "run", callbacks=watching)
    run = hofl.resume(tmp_path / "run", callbacks=[hofl.BestCheckpoint("examples")])
    kept = json.loads((run.path / "best.json").read_text())
    assert kept == {"round": 1, "metric": "examples", "value": 200}
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        best, short = (folder / name for folder in (run.path / "best", by_length[0] / "adapter"))
        assert best.read_bytes() == short.read_bytes()
    assert adapter_bytes(run.path) == adapter_bytes(by_length[2]), "the result is the last round's"


def test_the_best_is_what_a_search_of_all_evaluations_finds(tmp_path: Path) -> None:
    luck, saved = random.Random(5), []
    best = hofl.BestCheckpoint("loss")
    losses = [luck.random() for _ in range(20)]

    def save(folder: Path) -> Path:
        saved.append(len(seen) - 1)
        return folder

    seen: list[float] = []
    for number, loss in enumerate(losses):
        seen.append(loss)
        best.on_evaluation(Evaluation(tmp_path, number, {"loss": loss}, save))
    trained = losses[1:]
    assert saved[-1] == trained.index(min(trained)) + 1
    assert saved == [n for n in range(1, 20) if losses[n] < min([*losses[1:n], math.inf])]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: EarlyStopping(patience=0), "patience must be at least 1, got 0."),
        (
            lambda: EarlyStopping(metric="bleu").on_evaluation(evaluation(1, 0.5)),
            "there is no score 'bleu': choose one of accuracy.",
        ),
    ],
)
def test_mistakes_of_callbacks_are_one_line(make: Any, reason: str) -> None:
    with pytest.raises(hofl.HoflError) as caught:
        make()
    assert str(caught.value) == reason


def test_a_score_that_is_not_a_number_is_no_improvement() -> None:
    rule = EarlyStopping(patience=1)
    rule.on_evaluation(evaluation(0, 0.2))
    with pytest.raises(StopTraining, match="no improvement in 1 evaluations"):
        rule.on_evaluation(evaluation(1, math.nan))


def test_the_bar_is_shown_when_asked_for_and_not_to_files(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hofl.run(quick(tiny_folder, rounds=1), tmp_path / "quiet")
    assert capsys.readouterr() == ("", "")
    assert [ProgressBar.wanted(asked) for asked in (None, True, False)] == [False, True, False]
    hofl.run(quick(tiny_folder, rounds=1), tmp_path / "shown", progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "shown: 100%" in shown.err
    assert "1/1" in shown.err
