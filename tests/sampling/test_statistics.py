"""Statistics of a fleet: entries are checked, and a file serves only the fleet it measured."""

import json
from pathlib import Path

import numpy as np
import pytest

from hofl import ExperimentConfig
from hofl.core.errors import HoflError
from hofl.experiment.build import build_simulation
from hofl.sampling.statistics import Statistics
from support.runs import quick


def with_statistics(folder: Path, file: Path) -> ExperimentConfig:
    return quick(folder, method={"statistics": str(file), "floor": 0.1})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read statistics"),
        ("{}", "does not hold statistics"),
        ("x", "does not hold statistics"),
    ],
)
def test_a_bad_file_is_refused(
    tiny_folder: Path, tmp_path: Path, text: str | None, message: str
) -> None:
    file = tmp_path / "s.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(HoflError, match=message):
        build_simulation(with_statistics(tiny_folder, file))


def test_a_bad_entry_is_named_with_its_file(tiny_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    file.write_text(text_of(variances=[1.0, -2.0, 1.0, 1.0, 1.0, 1.0]))
    with pytest.raises(HoflError, match=r"s\.json.*variances must be .*entry 1 is -2"):
        build_simulation(with_statistics(tiny_folder, file))


@pytest.mark.parametrize(
    ("boundaries", "message"),
    [
        ((1, 1, 1, 1, 1, 1), r"another fleet: client \d had boundary 1 and has [23]"),
        ((1, 2, 3), "holds 3 clients, the fleet 6"),
    ],
)
def test_statistics_of_another_fleet_are_refused(
    tiny_folder: Path, tmp_path: Path, boundaries: tuple[int, ...], message: str
) -> None:
    """The costs would go to the wrong clients."""
    file = tmp_path / "s.json"
    file.write_text(text_of(boundaries=list(boundaries)))
    with pytest.raises(HoflError, match=message):
        build_simulation(with_statistics(tiny_folder, file))


def text_of(**changes: list) -> str:
    good = {
        "boundaries": [1, 2, 3, 1, 2, 3],
        "means": np.eye(6).tolist(),
        "variances": [1.0] * 6,
        "gradient": [0.0] * 6,
        "smoothness": 1.0,
        "step": 0.1,
    }
    return json.dumps({**good, **changes})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variances": np.array([1.0, -2.0])}, "variances .*entry 1 is -2"),
        ({"variances": np.array([1.0, np.nan])}, "variances .*entry 1 is nan"),
        ({"means": np.zeros((3, 2))}, r"means must be \[N, D\] = \[2, 2\].*\(3, 2\)"),
        ({"means": np.array([[0.0, 1.0], [np.nan, 1.0]])}, r"means .*entry \[1, 0\]"),
        ({"gradient": np.array([0.0, np.inf])}, r"gradient .*entry \[1\]"),
        ({"smoothness": -1.0}, "smoothness .*got -1"),
        ({"step": np.nan}, "step .*got nan"),
    ],
)
def test_bad_statistics_are_refused_with_their_entry(change: dict, message: str):
    good = {
        "means": np.eye(2),
        "variances": np.ones(2),
        "gradient": np.ones(2),
        "smoothness": 1.0,
        "step": 0.1,
    }
    with pytest.raises(HoflError, match=message):
        Statistics(**{**good, **change})
