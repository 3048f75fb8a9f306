"""The paper's settings and numbers, against the paper's own LaTeX where HOFL_PAPER names it.

The file is not part of the project. What its tables hold was counted once and is checked always;
with the file, every number is read from it.
"""

import os
import re
from pathlib import Path

import pytest

from hofl.paper import numbers
from hofl.paper.settings import METHODS, MODELS, SEEDS
from hofl.paper.studies import STUDIES, Block

LATEX = Path(os.environ.get("HOFL_PAPER", "paper.tex"))
needs_paper = pytest.mark.skipif(not LATEX.is_file(), reason="HOFL_PAPER names no file")
SHORT = {"OPT": "OPT-125M", "Qwen": "Qwen2.5-1.5B", "Smol": "SmolLM3-3B"}
BLOCKS = {name: study.blocks() for name, study in STUDIES.items()}


def table(label: str) -> list[list[str]]:
    """Cells of a table's body rows, a first cell repeated where it is left out."""
    text = LATEX.read_text()
    body = text[text.index(f"\\label{{{label}}}") :]
    body = body[body.index("\\midrule") : body.index("\\bottomrule")]
    rows, first = [], ""
    for line in body.replace("\\midrule", "").split("\\\\"):
        cells = [cell.strip() for cell in line.split("&")]
        if len(cells) > 1:
            first = cells[0] or first
            rows.append([SHORT.get(first, first), *cells[1:]])
    return rows


def values(cells: list[str]) -> list[numbers.Reported]:
    """Means and deviations in cells such as ``$87.04_{(0.11)}$`` or ``86.47``."""
    found = [list(map(float, re.findall(r"\d+\.\d+", cell))) for cell in cells]
    return [(one[0], one[1] if one[1:] else None) for one in found]


@needs_paper
def test_tiers_are_those_of_the_papers_table() -> None:
    rows = table("tab:hardware-tiers")
    assert [row[0] for row in rows] == list(MODELS)
    for name, blocks, *tiers in rows:
        assert MODELS[name].blocks == int(blocks)
        assert MODELS[name].tiers == tuple(map(int, tiers))


@needs_paper
@pytest.mark.parametrize(
    ("label", "held"),
    [
        ("tab:llm-v2", numbers.LANGUAGE_TASKS),
        ("tab:squad-v2", numbers.SQUAD),
        ("tab:iid-beta-details", numbers.IID_BETA),
        ("tab:squad-beta-details", numbers.SQUAD_BETA),
    ],
)
def test_numbers_are_those_of_the_papers_tables(
    label: str, held: dict[tuple[str, str], list[numbers.Reported]]
) -> None:
    read = {
        (model, second.split(" (")[0].replace("EM", "em").replace("F1", "f1")): values(cells)
        for model, second, *cells in table(label)
    }
    assert read == held


@needs_paper
def test_beta_and_alpha_are_those_of_the_papers_table() -> None:
    for distribution, *cells in table("tab:beta-v2"):
        key = re.sub(r"[^\d.]", "", distribution) or "IID"
        assert numbers.BETA_ALPHA["Qwen2.5-1.5B", key] == values(cells)


@needs_paper
def test_ablations_are_those_of_the_papers_table_with_its_e_q_mu_and_rounds() -> None:
    rows = table("tab:local-sensitivity")
    configs = BLOCKS["ablations"][0].configs()
    assert len(rows) == len(configs) == len(numbers.ABLATIONS)
    for row, (label, config) in zip(rows, configs.items(), strict=True):
        _, local_steps, q, mu, rounds, accuracy, loss = row
        exponent = re.search(r"-\d", mu)
        assert exponent is not None
        read = (int(local_steps), int(q), 10.0 ** int(exponent[0]), int(rounds))
        method = config.method
        assert (method.local_steps, method.q, method.mu, config.rounds) == read, label
        assert numbers.ABLATIONS[label] == tuple(values([accuracy, loss]))
        assert config.method.policy == {"beta": 0.5}


@needs_paper
def test_memory_and_structure_are_stated_in_the_paper() -> None:
    text = LATEX.read_text()
    for value in numbers.MEMORY.values():
        assert re.search(rf"\b{value:.2f}\b", text)
    rows = table("tab:unified-comparison")
    assert len(rows) == len(numbers.STRUCTURE)
    hosl, ho_sfl, _, _ = rows
    assert "2q+1" in hosl[3]
    assert ho_sfl[3].startswith("1 upload")


@needs_paper
def test_the_common_setting_is_what_the_paper_states() -> None:
    """The sentence of appendix C that states the defaults, number by number."""
    text = LATEX.read_text()
    defaults = re.search(
        r"default configuration has \$N=(\d+)\$, \$K=(\d+)\$, batch size (\d+), \$E=(\d+)\$, "
        r"\$q=(\d+)\$, \$\\mu=10\^\{(-\d+)\}\$, and (\d+) rounds",
        text,
    )
    assert defaults is not None
    n, k, batch, local_steps, q, exponent, rounds = map(int, defaults.groups())
    for block in BLOCKS["language-tasks"]:
        for config in block.configs().values():
            assert (config.fleet.clients, config.fleet.cohort) == (n, k)
            assert (config.task.batch_size, config.rounds) == (batch, rounds)
            method = config.method
            assert (method.local_steps, method.q, method.mu) == (local_steps, q, 10.0**exponent)
    assert "LoRA adapters use FP32 with rank 8, scaling parameter 16" in text
    assert r"learning rate $10^{-5}$" in text
    assert r"weight decay $5\times10^{-4}$" in text


@pytest.mark.parametrize("name", STUDIES)
def test_every_run_has_the_papers_optimizer_adapter_precision_and_tiers(name: str) -> None:
    for block in BLOCKS[name]:
        assert set(block.paper) == {arm.label for arm in block.arms}
        assert block.seeds == ((42,) if name == "iid-beta" else SEEDS)
        for config in block.configs().values():
            assert config.model.name == MODELS[block.model].hub
            assert config.fleet.boundaries == MODELS[block.model].tiers
            assert config.model.storage_dtype == config.model.compute_dtype == "bfloat16"
            assert (config.adapter.rank, config.adapter.alpha) == (8, 16)
            assert config.adapter.targets == ("q_proj", "v_proj")
            optimizer = config.method.optimizer
            assert isinstance(optimizer, dict)
            assert (optimizer["lr"], optimizer["weight_decay"]) == (1e-5, 5e-4)
            assert (optimizer["beta1"], optimizer["beta2"], optimizer["eps"]) == (0.9, 0.999, 1e-8)
            assert config.evaluation.examples == 0, "full validation sets"
            examples = config.rounds * 6 * (config.method.local_steps or 0) * 16
            assert examples == 76_800


def test_studies_have_the_papers_size() -> None:
    """Runs without seeds: models x tasks x columns."""
    sizes = {name: sum(len(block.arms) for block in blocks) for name, blocks in BLOCKS.items()}
    assert sizes == {
        "language-tasks": 3 * 4 * 5,
        "squad": 3 * 5,
        "beta-alpha": 4 * 4,
        "iid-beta": 2 * 3 * 4,
        "squad-beta": 3 * 3,
        "ablations": 8,
    }


def test_splits_betas_and_methods_are_the_papers() -> None:
    skewed = {b.name: b.base.data.alpha for b in BLOCKS["language-tasks"]}
    assert [alpha for alpha in skewed.values() if alpha] == [0.5] * 3
    assert all((alpha is not None) == ("AG News" in name) for name, alpha in skewed.items())
    assert [b.base.data.alpha for b in BLOCKS["beta-alpha"]] == [None, 1.0, 0.5, 0.1]
    assert all(b.base.data.per_client in (None, 4000) for b in BLOCKS["beta-alpha"])
    assert betas(BLOCKS["beta-alpha"][0]) == betas(BLOCKS["iid-beta"][0]) == [0, 0.25, 0.5, 0.75]
    assert betas(BLOCKS["squad-beta"][0]) == [0, 0.5, 0.75]
    methods = [c.method.name for c in BLOCKS["squad"][0].configs().values()]
    assert methods == ["fedavg", "fedprox", "decomfl", "hofl", "hofl"]
    assert betas(BLOCKS["squad"][0])[-2:] == [0, 0.75]
    assert all(b.base.task.max_length == 512 for b in BLOCKS["squad"])
    assert list(METHODS) == list(BLOCKS["squad"][0].paper)


def betas(block: Block) -> list[float]:
    policies = [config.method.policy for config in block.configs().values()]
    return [policy["beta"] for policy in policies if isinstance(policy, dict)]
