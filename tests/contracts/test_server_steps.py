"""What every step of the server promises, checked for each entry of ``SERVER_STEPS``."""

from pathlib import Path
from typing import Any

import pytest
import torch

import hofl
from hofl.catchup import held_by
from hofl.core.errors import HoflError
from hofl.core.layout import Layout
from hofl.methods import method
from hofl.rules import Part
from hofl.server.step import SERVER_STEPS, Momentum, server_step_of
from support.registries import SERVER_STEP_EXAMPLES, check_examples, parts_of, shown
from support.runs import adapter_bytes, quick
from support.server_steps import assert_steps_like

each = pytest.mark.parametrize("part", parts_of(SERVER_STEP_EXAMPLES), ids=shown)


def test_every_step_and_every_option_has_an_example() -> None:
    check_examples(SERVER_STEP_EXAMPLES, SERVER_STEPS, inputs=0)


@each
def test_a_step_leaves_its_inputs_alone_and_keeps_float32(part: Part) -> None:
    step, update = server_step_of(part), torch.linspace(-3, 3, 7, dtype=torch.float64)
    given = update.clone()
    _, memory = step(update, {})
    again = {name: kept.clone() for name, kept in memory.items()}
    move, kept = step(update, memory)
    assert torch.equal(update, given)
    assert all(torch.equal(memory[name], value) for name, value in again.items())
    assert move.dtype == torch.float64
    assert move.shape == update.shape
    assert all(value.dtype == torch.float32 for value in kept.values())


@each
def test_a_step_that_says_it_adds_moves_by_the_update(part: Part) -> None:
    step, update = server_step_of(part), torch.randn(9, dtype=torch.float64)
    first, memory = step(update, {})
    second, _ = step(-2 * update, memory)
    assert step.adds == (torch.equal(first, update) and torch.equal(second, -2 * update))


@pytest.mark.parametrize(("beta", "lr"), [(0.5, 1.0), (0.9, 0.3), (0.0, 2.0)])
def test_momentum_is_that_of_torch(beta: float, lr: float) -> None:
    assert_steps_like(
        Momentum(beta, lr), lambda w: torch.optim.SGD(w, lr=lr, momentum=beta), rounds=8
    )


def test_a_resumed_run_with_momentum_ends_in_the_same_bits(
    tiny_folder: Path, tmp_path: Path
) -> None:
    config = quick(tiny_folder, method={"server_step": {"name": "momentum", "beta": 0.9}}, rounds=3)
    hofl.run(config, tmp_path / "whole")

    def stop(event: str, facts: dict[str, Any]) -> None:
        if event == "round" and facts["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hofl.run(config, tmp_path / "parts", stop)
    hofl.resume(tmp_path / "parts")
    assert adapter_bytes(tmp_path / "parts") == adapter_bytes(tmp_path / "whole")
    plain = quick(tiny_folder, rounds=3)
    hofl.run(plain, tmp_path / "plain")
    assert adapter_bytes(tmp_path / "plain") != adapter_bytes(tmp_path / "whole")


def test_a_client_does_not_repeat_rounds_that_its_scalars_do_not_make() -> None:
    layout = Layout(("a",), ((3, 4),), (0,), 1)
    start = torch.zeros(layout.size)
    assert held_by(method("decomfl-sgd"), layout, start) is not None
    assert held_by(method("decomfl-sgd", server_step="momentum"), layout, start) is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"server_step": "heavy-ball"}, "unknown server_step 'heavy-ball'"),
        ({"server_step": {"name": "momentum", "beta": 1.0}}, "beta must lie in"),
        ({"server_step": {"name": "momentum", "beta": "x"}}, "beta must lie in"),
        ({"server_step": {"name": "momentum", "lr": 0}}, "lr must be a positive"),
        ({"server_step": {"name": "momentum", "rate": 1}}, "no option 'rate'"),
        ({"name": "fedkseed", "server_step": "momentum"}, "needs server_step=add"),
    ],
)
def test_what_cannot_be_a_step_is_refused_before_anything_is_written(
    tiny_folder: Path, tmp_path: Path, given: dict[str, object], said: str
) -> None:
    with pytest.raises(HoflError, match=said):
        hofl.run(quick(tiny_folder, method=given), tmp_path / "run")
    assert not (tmp_path / "run").exists()
