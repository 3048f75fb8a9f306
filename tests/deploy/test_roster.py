"""What a device declares of itself is its own word: what cannot be is refused, with the reason."""

from pathlib import Path
from typing import Any

import pytest

from hofl.core.errors import HoflError
from hofl.deploy.flower.transport import FlowerHub
from hofl.deploy.keys import KeyRing
from hofl.deploy.link import Header
from hofl.deploy.roster import MOST_EXAMPLES, Registry, Roster
from support.damage import flipped
from support.flower_grid import LocalBridge, LocalGrid, NothingToRun
from support.flower_workers import serving

HONEST = {"name": "kitchen", "boundary": 2, "examples": 17, "layout": "abc", "memory": "2GiB"}
CLOCK = {"received": 1.7e9, "replied": 1.7e9}


class Declaring:
    """A device that declares what it likes."""

    def __init__(self, **changes: Any) -> None:
        self._header = {**HONEST, **CLOCK, **changes}

    def answer(self, header: Header, payload: bytes) -> tuple[Header, bytes]:
        return self._header, b""


def asked(folder: Path, device: Declaring) -> tuple[dict[str, int], list[str]]:
    """Who has joined after the device was asked, and what was reported."""
    lines: list[str] = []
    with serving(folder / "socket", device):
        hub = FlowerHub(NothingToRun(), LocalBridge(LocalGrid({5: folder / "socket"})))  # type: ignore[arg-type]
        roster = Roster(hub, b"", "abc", 4, lines.append, KeyRing())
        roster.refresh()
        return roster.refresh(), lines


@pytest.mark.parametrize("examples", [1, 17, MOST_EXAMPLES])
def test_any_possible_number_of_examples_is_taken(examples: int, tmp_path: Path) -> None:
    joined, lines = asked(tmp_path, Declaring(examples=examples))
    assert joined == {"kitchen": 5}
    assert lines[0].startswith("kitchen joined: boundary 2 with 2GiB")


@pytest.mark.parametrize("examples", [0, -1, MOST_EXAMPLES + 1, 10**400, True, 2.0, "17", None])
def test_an_impossible_number_of_examples_is_refused(examples: Any, tmp_path: Path) -> None:
    """It would be the weight of the device in an average by examples."""
    joined, lines = asked(tmp_path, Declaring(examples=examples))
    assert joined == {}
    assert len(lines) == 1
    assert lines[0].startswith(f"node 5 cannot join: it declares {examples!r:.40} training")


@pytest.mark.parametrize("clock", [float("nan"), 1e300, "noon", None])
def test_a_clock_that_shows_no_time_is_refused(clock: Any, tmp_path: Path) -> None:
    joined, lines = asked(tmp_path, Declaring(replied=clock))
    assert joined == {}
    assert lines == [f"node 5 cannot join: its clock shows {clock!r}"]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "3", '{"a": "0"}', '{"a": 1}', '{"a": 0, "b": 0}', '{"a": true}', '{"a": 1e400}'],
)
def test_a_damaged_registry_is_one_line_with_the_way_back(text: str, tmp_path: Path) -> None:
    path = tmp_path / "devices.json"
    path.write_text(text)
    with pytest.raises(HoflError, match=r"is damaged: .* Restore it"):
        Registry(path)
    assert path.read_text() == text


def test_client_numbers_of_an_earlier_version_are_read_and_sealed_with_the_next_device(
    tmp_path: Path,
) -> None:
    path = tmp_path / "devices.json"
    path.write_text('{"attic": 1, "devices": 0}')
    Registry(path).enrol(["kitchen"])
    assert Registry(path).devices() == {0: "devices", 1: "attic", 2: "kitchen"}


def test_no_flipped_bit_of_the_client_numbers_is_silent(tmp_path: Path) -> None:
    """All of its bits, one after another: refused, or without effect."""
    path = tmp_path / "devices.json"
    Registry(path).enrol(["kitchen", "attic", "sha256"])
    data, devices, refused = path.read_bytes(), Registry(path).devices(), 0
    for bit in range(8 * len(data)):
        path.write_bytes(flipped(data, bit))
        try:
            assert Registry(path).devices() == devices, f"bit {bit}"
        except HoflError:
            refused += 1
    assert refused > 4 * len(data)
