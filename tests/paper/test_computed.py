"""What is computed of the paper without training, against the paper's own numbers."""

import pytest

from hofl.memory.plan import memory_plan
from hofl.methods import METHODS
from hofl.paper import computed
from hofl.paper.settings import MODELS


@pytest.fixture(scope="module")
def figure() -> computed.MemoryFigure:
    return computed.memory()


def test_planned_memory_is_what_the_paper_measured(figure: computed.MemoryFigure) -> None:
    """The paper measured on a GPU; its cohorts are drawn by another generator."""
    assert {row.what: row.deviation for row in figure.beside} == {
        "one device, FedAvg": pytest.approx(0, abs=0.02),
        "one device, boundary 24": pytest.approx(0, abs=0.02),
        "cohort, FedAvg": pytest.approx(0, abs=0.02),
        "cohort, HO-FL (beta = 0)": pytest.approx(0, abs=0.03),
        "cohort, HO-FL (beta = 0.75)": pytest.approx(0, abs=0.03),
    }
    assert 1 - figure.peaks[24] / figure.peaks[0] == pytest.approx(0.774, abs=0.005), "77.4 % less"
    drawn = [demand.simulated for demand in figure.demands]
    assert sorted(drawn[:5]) == drawn[:5], "more memory for a larger beta, FedAvg the most"


@pytest.mark.parametrize("name", MODELS)
def test_the_packaged_architectures_are_the_published_sizes(name: str) -> None:
    """Parameters of the whole models: 125,239,296, 1,543,714,304 and 3,075,098,624."""
    published = {
        "OPT-125M": 125_239_296,
        "Qwen2.5-1.5B": 1_543_714_304,
        "SmolLM3-3B": 3_075_098_624,
    }
    local = METHODS["hofl"].local
    model = memory_plan(MODELS[name].architecture, local, batch_size=1, seq_len=8).model
    assert model.num_blocks == MODELS[name].blocks
    frozen = [sum(p.numel() for p in b.parameters() if not p.requires_grad) for b in model.blocks]
    assert set(frozen) == {MODELS[name].block_weights}
    whole = {id(p): p.numel() for p in model.module.parameters() if not p.requires_grad}
    assert sum(whole.values()) == published[name]


def test_tiers_are_dealt_evenly_and_cost_less_the_deeper_they_are() -> None:
    """d_ZO of rank 8 on query and value: 8 (rows + columns) each, below the boundary."""
    (opt,) = computed.tiers(["OPT-125M"])
    assert opt.blocks == (12, 12)
    assert opt.clients == (10, 10, 10)
    peaks = [tier.peak for tier in opt.tiers]
    assert sorted(peaks, reverse=True) == peaks
    assert [t.zo_params for t in opt.tiers] == [b * 2 * 8 * (768 + 768) for b in (3, 6, 9)]


def test_activations_cross_the_boundary_as_often_as_the_paper_counts() -> None:
    rows = {row.method: row for row in computed.structure()}
    q = METHODS["hosl"].local.q
    assert rows["hosl"].crossings == 2 * q + 1
    assert rows["ho-sfl"].crossings == rows["hofl"].crossings == 1
    assert rows["ho-sfl"].local_steps == 1
    assert rows["hofl"].local_steps > 1
    assert [row.boundaries for row in rows.values()].count("one per client") == 2
