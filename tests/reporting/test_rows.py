"""Tables of cells: statistics against SciPy and NumPy, who is averaged, who stands for a grid."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from hofl.core.errors import HoflError
from hofl.experiment.records import RoundRecord
from hofl.reporting.cells import Cell, read_cells
from hofl.reporting.contents import differences
from hofl.reporting.rows import table_of
from hofl.reporting.tables import plain_table
from support.cells import cell

HOFL = {5: 0.70, 6: 0.74, 7: 0.71}
FEDAVG = {5: 0.75, 6: 0.77, 7: 0.77}


def test_means_deviations_and_paired_differences_are_those_of_scipy() -> None:
    cells = [cell("hofl", s, v) for s, v in HOFL.items()]
    cells += [cell("fedavg", s, v) for s, v in reversed(FEDAVG.items())]  # paired by seed
    (group,) = table_of(cells)
    first, second = group.rows
    spread = first.spread("score")
    assert spread is not None
    assert spread.mean == pytest.approx(np.mean(list(HOFL.values())))
    assert spread.deviation == pytest.approx(np.std(list(HOFL.values()), ddof=1))
    found = second.against(group.reference)
    expected = stats.ttest_rel(list(FEDAVG.values()), list(HOFL.values()))
    assert found is not None
    assert found.interval() == pytest.approx(tuple(expected.confidence_interval()))
    assert found.two_sided == pytest.approx(expected.pvalue)
    assert first.against(group.reference) is None


def test_what_is_not_comparable_stands_apart_and_is_named() -> None:
    other = {"packages": {"hofl": "0.0.9"}}
    cells = [cell("hofl", s, v) for s, v in HOFL.items()]
    cells += [cell("hofl", 8, 0.9, environment=other)]
    cells += [cell("fedavg", 5, 0.8, config={"rounds": 99})]
    groups = table_of(cells)
    assert [list(group.differs) for group in groups] == [[], ["code.hofl"], ["rounds"]]
    assert groups[2].differs["rounds"] == (2, 99)
    assert [len(row.cells) for group in groups for row in group.rows] == [3, 1, 1]
    spread = groups[0].rows[0].spread("score")
    assert spread is not None
    assert spread.seeds == 3, "the other version is not averaged"


def test_what_is_not_begun_stands_with_its_own_comparison() -> None:
    """Two comparisons in one report: a seed of the second does not become a row of the first."""

    def planned(folder: str, label: str, seed: int) -> Cell:
        return Cell(Path(f"/runs/{folder}/cells/{label}-{seed}"), label, seed)

    def begun(folder: str, label: str, **config: Any) -> Cell:
        made = cell("hofl", 5, 0.7, config=config)
        return Cell(**{**vars(made), **vars(planned(folder, label, 5)), **kept(made)})

    def kept(made: Cell) -> dict[str, Any]:
        names = ("config", "environment", "records", "summary")
        return {name: getattr(made, name) for name in names}

    cells = [begun("a", "hofl", name="first"), planned("a", "fedavg", 5)]
    cells += [begun("b", "hofl", name="second", rounds=99), planned("b", "hofl", 6)]
    first, second = table_of(cells)
    assert (first.name, second.name) == ("first", "second")
    assert [(row.label, len(row.cells)) for row in first.rows] == [("hofl", 1), ("fedavg", 1)]
    assert [(row.label, len(row.cells)) for row in second.rows] == [("hofl", 2)]
    assert list(differences([first, second])) == ["rounds"], "what is not begun differs in nothing"


def test_seeds_deal_boundaries_and_that_is_no_other_setting() -> None:
    dealt = {"fleet.boundaries": [3, 1, 3, 1]}
    (group,) = table_of([cell("hofl", 5, 0.7), cell("hofl", 6, 0.8, config=dealt)])
    assert len(group.rows) == 1


def test_seeds_deal_devices_and_plan_for_their_own_data_and_that_is_no_other_setting() -> None:
    def fleet(*memory: str, tokens: int, boundaries: list[int]) -> dict[str, Any]:
        devices = [{"memory": amount, "backward": amount != "1GiB"} for amount in memory]
        planned = [{"budget": "1GiB", "micro_tokens": tokens}]
        return {
            "fleet.devices": devices,
            "fleet.planned": planned,
            "fleet.boundaries": boundaries,
        }

    first = fleet("1GiB", "2GiB", tokens=70, boundaries=[4, 0])
    second = fleet("2GiB", "1GiB", tokens=80, boundaries=[0, 4])
    other = fleet("2GiB", "2GiB", tokens=70, boundaries=[4, 0])
    configs = enumerate((first, second, other), start=5)
    groups = table_of([cell("hofl", seed, 0.7, config=config) for seed, config in configs])
    assert [[len(row.cells) for row in group.rows] for group in groups] == [[2], [1]]
    assert list(groups[1].differs) == ["fleet.devices"]


def test_a_seed_that_was_run_twice_counts_once() -> None:
    twice = cell("hofl", 5, 0.1)
    again = Cell(**{**vars(twice), "path": Path("/runs/elsewhere")})
    (group,) = table_of([cell("hofl", 5, 0.7), cell("hofl", 6, 0.8), again])
    assert list(group.rows[0].values("score").values()) == [0.7, 0.8]


def grid(rate: float, scores: list[float], held_out: float) -> list[Cell]:
    change = {"method.optimizer.lr": rate}
    pairs = enumerate(scores, start=5)
    return [cell("hofl", s, v, held_out=held_out, config=change) for s, v in pairs]


def test_the_grid_is_chosen_by_held_out_loss_even_where_the_test_set_disagrees() -> None:
    cells = [*grid(0.1, [0.9, 0.9], 0.7), *grid(0.01, [0.5, 0.6], 0.6)]
    cells += [cell("fedavg", s, 0.8, held_out=0.1) for s in (5, 6)]
    (group,) = table_of(cells)
    assert [row.label for row in group.rows] == [
        "hofl optimizer.lr=0.1",
        "hofl optimizer.lr=0.01",
        "fedavg",
    ]
    assert [row.chosen for row in group.rows] == [False, True, None]
    assert group.reference.label == "hofl optimizer.lr=0.01"
    found = plain_table([group])["groups"][0]["rows"][2]["difference"]
    assert found["mean"] == pytest.approx(0.8 - 0.55)


def test_a_grid_point_with_a_missing_seed_or_none_held_out_is_not_chosen() -> None:
    change = {"method.optimizer.lr": 0.1}
    unfinished = [cell("hofl", 5, 0.9, held_out=0.1, config=change)]
    unfinished += [cell("hofl", 6, None, config=change)]
    (group,) = table_of([*unfinished, *grid(0.01, [0.5, 0.6], 0.6)])
    assert [row.chosen for row in group.rows] == [False, True]
    (group,) = table_of([cell("hofl", 5, 0.9, config=change), cell("hofl", 5, 0.8)])
    assert [row.chosen for row in group.rows] == [None, None]


def test_failed_and_unfinished_cells_are_shown_and_not_filled_in() -> None:
    cells = [cell("hofl", s, v) for s, v in HOFL.items()]
    cells += [cell("fedavg", 5, 0.75), cell("fedavg", 6, None)]
    cells += [cell("fedavg", 7, None, problem="the loss is not finite")]
    (group,) = table_of(cells)
    row = plain_table([group])["groups"][0]["rows"][1]
    assert [one["state"] for one in row["cells"]] == ["finished", "unfinished", "failed"]
    assert row["cells"][2]["problem"] == "the loss is not finite"
    assert row["measures"]["score"] == {"mean": 0.75, "deviation": None, "seeds": 1}
    assert row["difference"] is None, "one pair has no interval"


def test_a_target_is_reached_where_the_score_first_is_there() -> None:
    scores = [0.2, None, 0.5, 0.4, 0.6]
    records = [
        RoundRecord(
            round=n, uplink_bytes=10 * n, seconds=n, scores={} if s is None else {"accuracy": s}
        )
        for n, s in enumerate(scores)
    ]
    (group,) = table_of([cell("hofl", 5, 0.6, records=records)])
    values = plain_table([group], target=0.45)["groups"][0]["rows"][0]["reached"]
    assert values == [{"rounds": 2, "uplink_bytes": 30, "seconds": 3.0}]
    assert group.rows[0].reached(0.61) == [None]


def test_a_folder_without_runs_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(HoflError, match="neither a run nor a comparison"):
        read_cells([tmp_path])
    (tmp_path / "comparison.toml").write_text("cells = 3")
    with pytest.raises(HoflError, match="is damaged"):
        read_cells([tmp_path])
