"""What stays on the screen of a run, on a terminal and elsewhere."""

import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from hofl.cli.display import RunDisplay, summary_table, wire_line
from hofl.cli.tables import show_table
from hofl.experiment.records import Attempt, RoundRecord, RunSummary
from hofl.reporting.rows import table_of
from support.cells import cell

SCORES = {"accuracy": 0.5}
START = {"round": 0, "rounds": 9, "scores": {"accuracy": 0.25}, "note": ""}


def screen(written: str) -> list[str]:
    """Lines that a terminal shows after this: it knows line breaks, erasing, and going up."""
    lines, row = [""], 0
    for text, code in re.findall(r"([^\x1b]*)(\x1b\[[?0-9;]*[A-Za-z])?", written):
        for part in re.findall(r"\n|\r|[^\n\r]+", text):
            if part == "\n":
                row += 1
                lines += [""] * (row + 1 - len(lines))
            elif part != "\r":
                lines[row] += part
        if code == "\x1b[2K":
            lines[row] = ""
        elif code.endswith("A"):
            row -= int(code[2:-1] or 1)
    return [line.strip() for line in lines if line.strip()]


def shown(events: Callable[[RunDisplay], None], terminal: bool) -> list[str]:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=200, color_system=None)
    with RunDisplay(console, "run") as display:
        events(display)
    return screen(file.getvalue())


def three_rounds(display: RunDisplay) -> None:
    display("start", START)
    for number in (1, 2, 3):
        display("client", {"client": 4, "number": 1, "of": 2})
        display("evaluation", {"done": 10, "of": 200})
        scores = SCORES if number == 2 else {}
        record = RoundRecord(round=number, answered=[4], train_loss=1.25, scores=scores)
        display("round", record.to_json())


def test_scores_stay_on_a_terminal_when_the_bar_has_moved_on() -> None:
    lines = shown(three_rounds, terminal=True)
    assert lines[:2] == [
        "run: start, accuracy 25.0 %",
        "run: round 2, loss 1.2500, 0.0 s, accuracy 50.0 %",
    ]
    assert len(lines) == 3, "and the bar"
    assert "3/9 rounds" in lines[2]


def test_every_round_is_a_line_where_there_is_no_terminal() -> None:
    lines = shown(three_rounds, terminal=False)
    assert [line.split(",")[0] for line in lines] == [
        "run: start",
        "run: round 1",
        "run: round 2",
        "run: round 3",
    ]


def test_the_place_of_a_client_is_that_of_its_attempt() -> None:
    def repeated(display: RunDisplay) -> None:
        display("start", START)
        for number in (1, 2, 1):
            display("client", {"client": 4, "number": number, "of": 2})

    assert "client 1/2" in shown(repeated, terminal=True)[-1]


def test_a_round_repeated_for_dropouts_says_so() -> None:
    def dropouts(display: RunDisplay) -> None:
        repeats = [Attempt(cohort=[1, 2, 3], dropped=[2, 3], answered=[1])]
        display("round", RoundRecord(round=1, repeats=repeats).to_json())

    assert "round 1 was repeated: 2 of 3 clients dropped out" in shown(dropouts, terminal=False)


@pytest.mark.parametrize(
    ("ratios", "warned"),
    [
        ([0.0], True),
        ([30.0, 0.5], True),
        ([30.0, 20.0, 10.0, 0.0], False),
        ([None, None], False),
    ],
    ids=["lost from the start", "mostly noise", "faded with the gradient", "not measured"],
)
def test_a_warning_about_noise_speaks_of_the_settings(
    ratios: list[float | None], warned: bool
) -> None:
    def rounds(display: RunDisplay) -> None:
        for number, ratio in enumerate(ratios, start=1):
            display("round", RoundRecord(round=number, zo_snr=ratio).to_json())

    text = "\n".join(shown(rounds, terminal=False))
    assert text.count("learns noise") == warned


def test_a_table_of_runs_with_and_without_measured_peaks() -> None:
    facts = {"model": "m", "task": "t", "rounds": 1, "initial": SCORES, "final": SCORES}
    sizes = {"uplink_bytes": 2048, "downlink_bytes": 3}
    peaks = {1: 600 * 2**20, 2: 700 * 2**20}
    console = Console(file=io.StringIO(), width=120, record=True)
    console.print(
        summary_table(
            [
                RunSummary(method="measured", peak_by_boundary=peaks, **facts, **sizes),
                RunSummary(method="small", peak_by_boundary={1: 9, 2: 9 * 2**20}, **facts, **sizes),
                RunSummary(method="private", **facts, **sizes),
            ]
        )
    )
    cells = {
        line.split("│")[1].strip(): line.split("│")[4].strip()
        for line in console.export_text().splitlines()
        if line.startswith("│")
    }
    assert cells == {"measured": "600.0 - 700.0 MiB", "small": "9 B - 9.0 MiB", "private": "-"}


def test_bytes_on_the_wire_are_compared_with_what_had_to_be_sent() -> None:
    line = wire_line({"plan": 600, "upload": 400, "down": 650, "up": 400})
    assert line == "messages: 650 B down, 400 B up, 5.00 % more than plans and uploads"


def test_the_folder_of_the_adapter_is_the_last_line(tmp_path: Path) -> None:
    from hofl.cli.display import show_result

    console = Console(file=io.StringIO(), width=20, record=True)
    facts = {"method": "a", "model": "m", "task": "t", "rounds": 1}
    summary = RunSummary(
        **facts, initial=SCORES, final=SCORES, uplink_bytes=0, downlink_bytes=0, adapter="[b]"
    )
    show_result(console, tmp_path, summary)
    assert console.export_text().splitlines()[-1] == f"adapter: {tmp_path / '[b]'}"


def test_free_text_is_shown_with_its_perplexity_and_chosen_answers_without() -> None:
    free = {"token_accuracy": 0.4, "perplexity": 12.5, "rouge_l": 0.37}
    summary = cell("hofl", 5, 0.5).summary
    assert summary is not None
    run = replace(summary, initial={"token_accuracy": 0.3, "perplexity": 20.0}, final=free)
    console = Console(file=io.StringIO(), width=200)
    console.print(summary_table([run, summary]))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert any("30.0 %, ppl 20.00" in line and "40.0 %, ppl 12.50" in line for line in lines)
    assert "ppl" not in lines[-2]
    for scores, words in ((free, {"perplexity", "ROUGE-L", "12.50", "37.00 %"}), ({}, set())):
        console = Console(file=io.StringIO(), width=200)
        show_table(console, table_of([cell("hofl", 5, 0.5, scores=scores)]))
        text = console.file.getvalue()  # type: ignore[attr-defined]
        assert {w for w in ("perplexity", "ROUGE-L", "12.50", "37.00 %") if w in text} == words
