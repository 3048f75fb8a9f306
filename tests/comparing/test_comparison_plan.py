"""What a comparison consists of: its cells, what they share within a seed, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch

from hofl.comparing.plan import HELD_OUT, Comparison, planned
from hofl.core.errors import HoflError
from hofl.experiment.build import build_simulation
from support.runs import quick

METHODS = ["hofl", "frozen-bottom", "fedavg"]


def test_every_method_grid_point_and_seed_is_a_cell(tiny_folder: Path, tmp_path: Path) -> None:
    grid = {"method.optimizer.lr": ["1e-3", "1e-2"], "data.alpha": ["0.1"]}
    config = quick(tiny_folder, data={"partition": "dirichlet"})
    methods = ["hofl", "recompute:uplink_bits=4"]
    comparison = planned(config, tmp_path / "c", methods, [3, 9], grid)
    cells = comparison.cells
    assert len({cell.name for cell in cells}) == len(cells) == 2 * 2 * 2
    assert (
        [cell.seed for cell in cells] == [cell.config.seed for cell in cells] == [3] * 4 + [9] * 4
    )
    last = cells[-1]
    assert last.label == "recompute uplink_bits=4 optimizer.lr=1e-2 data.alpha=0.1"
    assert last.config.method.uplink_bits == 4
    assert last.config.method.optimizer["lr"] == 0.01
    assert last.config.data.alpha == 0.1
    comparison.write()
    assert [cell.config for cell in Comparison.open(tmp_path / "c").cells] == [
        cell.config for cell in cells
    ]


def test_a_grid_of_method_options_holds_data_out_to_choose_by(tiny_folder: Path) -> None:
    config = quick(tiny_folder)
    for grid, share in (
        ({}, 0.0),
        ({"data.alpha": ["1", "2"]}, 0.0),
        ({"method.q": ["1", "2"]}, HELD_OUT),
    ):
        chosen = planned(config, Path("c"), ["hofl"], [1], grid)
        assert chosen.base.evaluation.holdout == share
    given = quick(tiny_folder, evaluation={"holdout": 0.3})
    assert planned(given, Path("c"), ["hofl"], [1], {"method.q": ["1", "2"]}).base == given


def test_cells_of_a_seed_share_data_initialisation_fleet_and_cohorts(tiny_folder: Path) -> None:
    config = quick(tiny_folder, evaluation={"holdout": 0.25})
    comparison = planned(config, Path("c"), METHODS, [5, 6], {})
    runs = {(c.label, c.seed): build_simulation(c.config) for c in comparison.cells}
    first, control, whole = (runs[name, 5] for name in METHODS)
    for other in (control, whole):
        assert torch.equal(first.start.w, other.start.w)
        for mine, theirs in zip(first.client._shards, other.client._shards, strict=True):
            assert np.array_equal(mine, theirs)
        for mine, theirs in zip(first.held_out.rows, other.held_out.rows, strict=True):
            assert np.array_equal(mine, theirs)
        assert first.fleet == other.fleet
    cohorts = [[run.cohort(t, run.present(t)) for t in range(20)] for run in (first, control)]
    assert cohorts[0] == cohorts[1], "equal marginals, equal cohorts"
    elsewhere = runs["hofl", 6]
    assert not torch.equal(first.start.w, elsewhere.start.w)
    assert not all(map(np.array_equal, first.client._shards, elsewhere.client._shards))


@pytest.mark.parametrize(
    ("methods", "grid", "message"),
    [
        (["nonsense"], {}, "unknown method 'nonsense'"),
        (["hofl", "hofl"], {}, "none twice"),
        ([], {}, "at least one value"),
        (["hofl"], {"method.momentum": ["1"]}, "unknown key 'method.momentum'"),
        (["hofl"], {"fleet.size": ["1", "2"]}, "unknown key 'fleet.size'"),
        (["hofl"], {"method.q": ["1", "no"]}, "method.q = 'no'"),
        (["hofl", "hofl-uniform"], {}, "are the same run"),
        (["hofl:q=2", "hofl:q=+2"], {}, "are the same run"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_written(
    methods: list[str], grid: dict[str, list[str]], message: str, tiny_folder: Path, tmp_path: Path
) -> None:
    config = quick(tiny_folder, method={"policy": {"name": "dimension-aware", "beta": 0.75}})
    with pytest.raises(HoflError, match=message):
        planned(config, tmp_path / "c", methods, [1], grid).write()
    assert not (tmp_path / "c").exists()


def test_seeds_can_be_added_and_another_configuration_is_refused(
    tiny_folder: Path, tmp_path: Path
) -> None:
    config = quick(tiny_folder)
    planned(config, tmp_path / "c", ["hofl"], [1, 2], {}).write()
    planned(config, tmp_path / "c", ["hofl", "fedavg"], [1, 2, 3], {}).write()
    assert len(Comparison.open(tmp_path / "c").cells) == 6
    with pytest.raises(HoflError, match=r"another configuration: rounds differ"):
        planned(quick(tiny_folder, rounds=9), tmp_path / "c", ["hofl"], [1], {}).write()
    assert len(Comparison.open(tmp_path / "c").cells) == 6
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    with pytest.raises(HoflError, match="is not empty"):
        planned(config, tmp_path / "other", ["hofl"], [1], {}).write()
