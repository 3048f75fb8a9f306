"""What the roles need: predicted without data, against what real halves hold and allocate."""

import json
import runpy
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from hofl.cli.commands import app
from hofl.core.optim import AdamW
from hofl.family import EXPLAINED
from hofl.memory.hollow import hollow_model
from hofl.memory.live import LiveBytes
from hofl.memory.workload import Workload
from hofl.methods import METHODS
from hofl.models.halves import Half, half_bytes
from hofl.rules import SURROGATES
from hofl.twoparty.plan import role_cost
from hofl.twoparty.training import train
from hofl.workflows import WORKFLOWS
from support.models import CONFIGS, batch_of
from support.twoparty import BOUNDARY, LORA, half, ledger_of, roles, saved, setting_of

ROOT = Path(__file__).parents[2]
LENGTHS = (24, 24, 24, 24)
CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["ho-sfl", "hosl", "heron-sfl"])
def test_predicted_peaks_and_bytes_are_those_of_real_roles(name: str, tmp_path: Path) -> None:
    """The client's peak and the server's within a tenth; activations to the byte."""
    setting = setting_of(name, AdamW(lr=0.01), q=2)
    rule = setting.rule
    surrogate = rule.surrogate.made_by(SURROGATES[rule.surrogate.name].make)
    full = torch.float32
    hollow = hollow_model(
        CONFIGS["llama"],
        adapter=LORA,
        storage_dtype=full,
        compute_dtype=full,
        surrogate=surrogate.parameters(CONFIGS["llama"]),
    )
    travels = WORKFLOWS[METHODS[name].workflow.name].averages_weights
    work = Workload.even(rule=rule, batch_size=4, seq_len=24)
    cost = role_cost(hollow, work, BOUNDARY, travels)
    server, clients, engine = roles(saved("llama", tmp_path), "llama", setting, clients=1)
    clients[0].batches = lambda step, client: [batch_of(step, LENGTHS)]
    records: list = []
    train(server, engine, lambda step: [0], 1, records.append)
    ledger = ledger_of(records)
    assert cost.up_bytes == ledger.bytes["act_up"]
    assert cost.down_bytes == ledger.bytes["grad_down"] + ledger.bytes["loss_down"]
    weights = ledger.bytes["client_weights_up"] + ledger.bytes["auxiliary_weights_up"]
    assert cost.weights_bytes == weights

    answers: list[bytes] = []

    class Replayed:
        def request(self, message: bytes) -> bytes:
            return answers.pop(0)

    class Noting:
        def request(self, message: bytes) -> bytes:
            with LiveBytes(CPU) as counter:
                answers.append(server.answer(0, message))
            peaks.append(counter.peak)
            return answers[-1]

    peaks: list[int] = []
    server.begin([0])
    clients[0].take_turn(1, Noting())
    measured = half_bytes(server.model, Half.TOP, BOUNDARY) + max(peaks)
    assert cost.server_bytes == pytest.approx(measured, rel=0.1)
    again = roles(tmp_path, "llama", setting, clients=1)[1][0]
    again.batches = clients[0].batches
    with LiveBytes(CPU) as counter:
        again.take_turn(1, Replayed())
    measured = half_bytes(again.model, Half.BOTTOM, BOUNDARY) + counter.peak
    assert cost.client_bytes == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize("name", ["ho-sfl", "hosl", "heron-sfl"])
def test_the_explanation_lists_what_the_ledger_has(name: str, tmp_path: Path) -> None:
    setting = setting_of(name)
    server, _, engine = roles(saved("llama", tmp_path), "llama", setting, clients=1)
    records: list = []
    train(server, engine, lambda step: [0], 2, records.append)
    found = {category for record in records for category in record.ledger}
    assert found - {"framing_up", "framing_down"} == set(EXPLAINED[name].travels)


def test_the_structural_table_of_the_docs_is_what_ledgers_say() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "family_table.py"))
    written = (ROOT / "docs" / "family.md").read_text()
    assert f"{tool['START']}\n{tool['table']()}\n{tool['END']}" in written
    assert "| HOSL | 2 q + 1 | 0 | 2 q + 1 | q | 0 | 1 |" in written, "the paper's own count"


def test_a_half_holds_its_own_weights_and_nothing_of_the_other(tmp_path: Path) -> None:
    """Bytes by hand: blocks 0..1 and the token table; blocks 2..3, norm and unembedding."""
    folder, setting = saved("llama", tmp_path), setting_of("ho-sfl")
    hidden, inner, words = 32, 48, 97
    block = 2 * hidden + hidden * (hidden + 16 + 16 + hidden) + 3 * hidden * inner
    for which, around in ((Half.BOTTOM, words * hidden), (Half.TOP, words * hidden + hidden)):
        model = half(folder, "llama", which, setting)
        assert half_bytes(model, which, BOUNDARY) == 4 * (2 * block + around + len(model.w))


@pytest.mark.parametrize("name", ["ho-sfl", "heron-sfl"])
def test_hofl_plan_prints_both_roles(name: str, tiny_folder: Path) -> None:
    words = ["plan", "--model", str(tiny_folder), "--batch-size", "4", "--seq-len", "32"]
    words += ["--method", name]
    result = CliRunner(env={"COLUMNS": "140"}).invoke(app, words)
    assert result.exit_code == 0, result.exception
    assert "between client and server (hofl split)" in result.output
    shown = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)["split"]
    assert [row["boundary"] for row in shown] == [1, 2, 3]
    clients = [row["client_bytes"] for row in shown]
    assert clients == sorted(clients), "a higher boundary leaves the client more"
    budget = [*words, "--budget", f"{clients[1]}B"]
    lines = CliRunner(env={"COLUMNS": "140"}).invoke(app, budget).output.splitlines()
    roles = lines[lines.index(next(line for line in lines if "hofl split" in line)) + 2 :][:3]
    assert [line.split()[0] for line in roles] == ["1", "2", "x"], "the last client is too large"
    refused = CliRunner().invoke(app, [*budget, "--write", str(tiny_folder / "new.toml")])
    assert "set fleet.boundaries=[B]" in str(refused.exception)
    assert not (tiny_folder / "new.toml").exists()
