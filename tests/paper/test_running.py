"""A scaled study from probe to table, on a tiny model; and what is refused."""

import json
import re
from pathlib import Path

import pytest

from hofl.cli.options import seconds_of
from hofl.comparing.plan import Arm
from hofl.core.errors import HoflError
from hofl.paper import running, studies
from hofl.paper.estimate import TRAINING_TOKENS
from hofl.paper.outcome import outcomes
from hofl.paper.probe import least_seconds
from hofl.paper.running import Work, carry, folder_of, paper_work
from hofl.paper.settings import MODELS
from hofl.paper.studies import Block, PaperTable
from support.runs import quick, run_cli

PAPER = {"HO-FL": {"accuracy": (86.5, 0.2), "loss": (0.35, None)}}


@pytest.fixture
def tiny_study(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Block:
    """A study of one column."""
    base = quick(tiny_folder, name="Tiny", rounds=3)
    arms = (Arm("HO-FL", ("method.name=hofl",)),)
    block = Block("Tiny, SST-2", "OPT-125M", "SST-2", base, arms, (5, 6), PAPER)
    study = PaperTable("tiny", "nowhere", lambda: (block,))
    monkeypatch.setitem(studies.STUDIES, "ablations", study)
    return block


def test_a_scaled_study_is_probed_run_and_set_beside_the_paper(
    tiny_study: Block, tmp_path: Path
) -> None:
    """The time suffices for the whole length on any machine: test examples and a seed are less."""
    out = tmp_path / "runs"
    words = ("paper", "ablations", "--budget", "2h", "--seeds", "5", "--out", str(out))
    code, text = run_cli(*words)
    assert code == 0, text
    assert "probed Tiny, SST-2" in text
    work = Work.open(out)
    assert work.budget == 7200
    (block,) = work.blocks
    assert block.base.rounds == 3
    assert "seeds: [5, 6] -> [5]" in work.reduced
    accuracy, loss = outcomes(block, folder_of(out, block))
    summary = json.loads(
        (folder_of(out, block) / "cells" / "HO-FL-seed-5" / "summary.json").read_text()
    )
    assert accuracy.here is not None
    assert accuracy.here.mean == 100 * summary["final"]["accuracy"]
    assert loss.here is not None
    assert loss.here.mean == summary["final"]["loss"]
    assert "* scaled: smaller runs than the paper's" in text
    assert re.search(rf"86\.50 \(0\.20\) │ +{accuracy.here.mean:.2f} ", text)
    before = (folder_of(out, block) / "cells" / "HO-FL-seed-5" / "summary.json").stat().st_mtime_ns
    code, text = run_cli("paper", "--resume", str(out))
    assert code == 0, text
    after = (folder_of(out, block) / "cells" / "HO-FL-seed-5" / "summary.json").stat().st_mtime_ns
    assert before == after, "finished runs are kept"


def test_a_probe_that_uses_half_of_the_budget_is_stopped_while_it_runs(
    tiny_study: Block, tmp_path: Path
) -> None:
    """No process loads its libraries in half a second."""
    code, text = run_cli("paper", "ablations", "--budget", "1s", "--out", str(tmp_path / "runs"))
    assert code == 2
    assert "half of the budget went to probing up to Tiny, SST-2" in " ".join(text.split())
    assert "probed Tiny" not in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("recipe", ["ablations", "squad"])
def test_a_budget_without_room_for_a_probe_is_refused_by_an_estimate(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operations of its runs, at the speed of a matrix product: no model is loaded for it."""
    monkeypatch.setattr(running, "may_have_gpu", lambda: False)
    monkeypatch.setattr(running, "probe", lambda *_: pytest.fail("the probe was started"))
    code, text = run_cli("paper", recipe, "--budget", "1s", "--out", str(tmp_path / "runs"))
    assert code == 2
    assert text.startswith("error: the budget is too short: short runs to measure this machine's")
    named = re.search(r"more than --budget (\S+),", " ".join(text.split()))
    assert named is not None
    assert seconds_of("--budget", named[1]) > 1
    assert list(tmp_path.iterdir()) == []


def test_where_there_may_be_a_gpu_the_probe_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The estimate knows the speed of processor cores alone."""

    def probed(*_: object) -> None:
        raise HoflError("the probe was started.")

    monkeypatch.setattr(running, "may_have_gpu", lambda: True)
    monkeypatch.setattr(running, "probe", probed)
    code, text = run_cli("paper", "ablations", "--budget", "1s", "--out", str(tmp_path / "runs"))
    assert code == 2
    assert text.startswith("error: the probe was started.")


def test_the_estimate_of_a_probe_is_that_of_its_short_runs() -> None:
    """Of the ablations E = 1 is the lightest and q = 8 the heaviest; their passes by hand."""
    (block,) = studies.STUDIES["ablations"].blocks()
    model, tokens, examples = MODELS["OPT-125M"], TRAINING_TOKENS["SST-2"], 32
    expected = 0.0
    for local_steps, q in ((1, 2), (5, 8)):
        # A batch of 16 on 6 clients for 2 rounds. The anchor and q copies pass the bottom, the top
        # runs forward and backward.
        steps = 2 * 6 * local_steps * 16
        passes = sum((1 + q) * tier + 2 * (12 - tier) for tier in model.tiers) / 3
        scored = 2 * examples * 12
        expected += 2.0 * model.block_weights * tokens * (steps * passes + scored)
    assert least_seconds([block], 1e9) == pytest.approx(expected / 1e9)


def test_when_the_time_is_up_what_is_left_is_unfinished_not_filled(
    tiny_study: Block, tmp_path: Path
) -> None:
    work = Work(tmp_path / "runs", "ablations", (tiny_study,), ("rounds: 1 -> 2",), 1.0)
    work.write()
    assert not carry(work, 1, lambda name: lambda progress: None, until=0.0)
    (one, _) = outcomes(tiny_study, folder_of(work.path, tiny_study))
    assert one.here is None
    assert one.state == "0 of 2 seeds"
    assert Work.open(work.path).blocks[0].seeds == (5, 6)


def test_without_a_budget_the_cells_are_the_papers_setting_unchanged(tmp_path: Path) -> None:
    """Only the threads are settled; a folder that is read again has the same cells."""
    work = paper_work("language-tasks", tmp_path / "runs", None)
    work.write()
    assert work.reduced == ()
    cells = [cell for one in Work.open(work.path).comparisons() for cell in one.cells]
    expected = {
        (block.name, label, seed): config.model_copy(update={"seed": seed})
        for block in studies.STUDIES["language-tasks"].blocks()
        for seed in (42, 43, 44)
        for label, config in block.configs().items()
    }
    assert len(cells) == len(expected) == 180
    for cell in cells:
        name = next(b.name for b in work.blocks if b.base.name == cell.config.name)
        paper = expected[name, cell.label, cell.seed]
        assert cell.config.model_copy(update={"engine": paper.engine}) == paper


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nonsense"], "unknown recipe 'nonsense': choose one of tiers, language-tasks"),
        (["squad"], "give --out DIR"),
        (["squad", "--out", "{tmp}/x", "--model", "m"], "give a --budget"),
        (["squad", "--out", "{tmp}/x", "--budget", "soon"], "--budget 'soon': write a time"),
        (["squad", "--out", "{tmp}/x", "--seeds", "4,4"], "give every seed once"),
        (["squad", "--out", "{tmp}/x", "--seeds", "a"], "write whole numbers"),
        (["--resume", "{tmp}"], "it has no paper.json"),
        (["--resume", "{tmp}/damaged"], "paper.json is damaged"),
        (["squad", "--resume", "{tmp}"], "give nothing else"),
        (["squad", "--out", "{tmp}", "--budget", "5min"], "is not empty"),
        (["squad", "--out", "{tmp}/damaged/paper.json/x"], "cannot use"),
        (["squad", "--out", "{tmp}/x", "--budget", "5min", "--model", "./no"], "no such folder"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    words: list[str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "paper.json").write_text('{"recipe": "squad", "blo')
    code, text = run_cli("paper", *(word.format(tmp=tmp_path) for word in words))
    assert code == 2
    assert message in text.replace("\n", " ")
    assert text.startswith("error: ")
    assert "Traceback" not in text
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "name", ["tiers", "memory", "structure", *studies.STUDIES], ids=lambda name: name
)
def test_every_recipe_shows_settings_and_numbers(name: str) -> None:
    code, text = run_cli("paper", name, "--show", "--json")
    assert code == 0, text
    facts = json.loads(text)
    assert facts["recipe"] == name
    assert facts.get("paper") or len(facts["runs"]) >= 8


def test_the_list_names_every_recipe_with_an_estimate() -> None:
    code, text = run_cli("paper")
    assert code == 0
    for name in studies.STUDIES:
        assert name in text
    assert "GFLOP/s" in text
