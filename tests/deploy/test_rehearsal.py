"""A rehearsal's devices: their sizes, and what is refused at once."""

from pathlib import Path
from typing import Any

import pytest

from hofl.core.errors import HoflError
from hofl.deploy.rehearsal import device_sizes, rehearsal_launcher, sized
from hofl.experiment.build import build_server
from hofl.experiment.launch import run
from support.runs import own_files, quick

IMPATIENT = {"wait": 1.0}
"""A fleet that is started after all ends with another error, and soon."""


def sizes(folder: Path, memory: tuple[str, ...] = (), **fleet: Any) -> list[dict[str, Any]]:
    config = quick(folder, fleet={"clients": 4, "cohort": 2, "boundaries": [], **fleet})
    return list(device_sizes(build_server(config), memory))


def test_budgets_of_the_configuration_become_budgets_of_the_devices(tiny_folder: Path) -> None:
    given = sizes(tiny_folder, budgets=["1GiB", "free", "3GiB", "2GiB"])
    assert given == [{"memory": budget} for budget in ("1GiB", "auto", "3GiB", "2GiB")]
    dealt = sizes(tiny_folder, budgets=["1GiB", "2GiB"])
    assert sorted(size["memory"] for size in dealt) == ["1GiB"] * 2 + ["2GiB"] * 2


def test_budgets_of_the_command_come_first_and_in_their_order(tiny_folder: Path) -> None:
    given = sizes(tiny_folder, ("3GiB", "1GiB"), budgets=["5GiB"])
    assert given == [{"memory": budget} for budget in ("3GiB", "1GiB", "3GiB", "1GiB")]


def test_without_budgets_devices_take_the_boundaries_of_the_configuration(
    tiny_folder: Path,
) -> None:
    given = sizes(tiny_folder, boundaries=[3, 0, 2, 1])
    assert given == [{"boundary": cut} for cut in (3, 0, 2, 1)]


@pytest.mark.parametrize(
    ("fleet", "memory", "message"),
    [
        ({}, ["1GiB"] * 4, "--memory lists 4 budgets for 3 devices"),
        ({}, ["1GiB", "much"], "much"),
        ({"boundaries": [9]}, [], "fleet.boundaries holds 9, but the model has 4 blocks"),
        ({"boundaries": [1, 1, 2, 3]}, [], "fleet.boundaries lists 4 tiers for 3 clients"),
        (
            {"boundaries": [], "budgets": ["1GiB"] * 4},
            [],
            "fleet.budgets lists 4 tiers for 3 clients",
        ),
    ],
)
def test_what_cannot_work_is_one_line_and_nothing_is_written(
    fleet: dict[str, Any], memory: list[str], message: str, tiny_folder: Path, tmp_path: Path
) -> None:
    config = sized(quick(tiny_folder, fleet=fleet, server=IMPATIENT), 3)
    with pytest.raises(HoflError) as refusal:
        run(config, tmp_path / "out", launcher=rehearsal_launcher(memory))
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "out").exists()


def test_training_files_that_no_device_could_read_are_refused_at_once(
    tiny_folder: Path, tmp_path: Path
) -> None:
    """The server of other machines' devices does not look for them: they are elsewhere."""
    (tmp_path / "test.jsonl").write_text('{"text": "late", "kind": "a"}\n')
    config = own_files(
        tiny_folder, tmp_path / "none.jsonl", tmp_path / "test.jsonl", server=IMPATIENT
    )
    build_server(config)
    with pytest.raises(HoflError, match=r"none\.jsonl"):
        run(config, tmp_path / "out", launcher=rehearsal_launcher())
    assert not (tmp_path / "out").exists()
