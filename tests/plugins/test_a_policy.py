"""A sampling policy with an option, added from outside the package in one file."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import hofl
from hofl.core.errors import HoflError
from hofl.experiment.config import read_config
from hofl.sampling.policies import POLICIES, Policy, policy_spec
from support.runs import quick


@dataclass(frozen=True)
class Rotating(Policy):
    """Equal shares within a window of clients that moves on by one client per round.

    Args:
        window: how many clients it holds, at least K.
    """

    window: int

    def marginals(
        self, scores: np.ndarray, cohort: int, seed: int, round_number: int = 0, rounds: int = 1
    ) -> np.ndarray:
        """1 / window inside, 0 outside."""
        clients = len(scores)
        if not cohort <= self.window <= clients:
            raise HoflError(f"window must lie in [K, N] = [{cohort}, {clients}].")
        p = np.zeros(clients)
        p[(round_number + np.arange(self.window)) % clients] = 1 / self.window
        return p


@pytest.fixture(autouse=True)
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "rotating", Rotating)


def test_a_policy_from_outside_runs_resumes_and_is_audited(
    tiny_folder: Path, tmp_path: Path
) -> None:
    table = {"name": "rotating", "window": 4}
    config = quick(tiny_folder, rounds=5, method={"policy": table, "local_steps": 1})

    def stop(event: str, facts: dict) -> None:
        if event == "round" and facts["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hofl.run(config, tmp_path / "run", stop)
    done = hofl.resume(tmp_path / "run")
    rows = map(json.loads, (done.path / "metrics.jsonl").read_text().splitlines())
    cohorts = [row["cohort"] for row in rows if row["round"] > 0]
    windows = [{(t + k) % 6 for k in range(4)} for t in range(5)]
    assert [len(cohort) for cohort in cohorts] == [3] * 5
    assert all(set(cohort) <= window for cohort, window in zip(cohorts, windows, strict=True))
    assert done.summary["audit"]["impossible"] == []
    inside = [sum(client in window for window in windows) for client in range(6)]
    assert done.summary["audit"]["expected"] == pytest.approx(np.array(inside) * 3 / 4)
    written = read_config(str(done.path / "config.toml")).method.policy
    assert written == policy_spec(Rotating(4)) == table


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "rotating"}, "policy 'rotating' needs the option 'window'"),
        ({"name": "rotating", "beta": 0.5}, "has no option 'beta': it takes window"),
        ({"name": "rotating", "window": 3.5}, r"method\.policy\.window must be int, got 3\.5"),
        ({"name": "rotating", "window": 2}, r"window must lie in \[K, N\] = \[3, 6\]"),
        ({"name": "rotary", "window": 4}, "unknown policy 'rotary': choose one of .*, rotating"),
    ],
)
def test_its_mistakes_are_one_line_like_any_policys(
    tiny_folder: Path, tmp_path: Path, table: dict, message: str
) -> None:
    with pytest.raises(HoflError, match=message) as refusal:
        hofl.run(quick(tiny_folder, method={"policy": table}), tmp_path / "run")
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "run").exists()
