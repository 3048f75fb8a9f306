"""Write the structural table of docs/family.md from ledgers: ``python tools/family_table.py``.

Every split method trains a tiny random model for a few steps, and HO-FL makes one upload. Counts of
tensors at several q, k and E give the formulas; nothing about them is typed. With --check, nothing
is written, and a table that is not what the ledgers say ends in an error.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig

from hofl.algorithm import client_update
from hofl.core.batch import Batch, ChooseWord, Texts
from hofl.core.optim import SGD
from hofl.core.wire import unpack_message
from hofl.experiment.records import RoundRecord, ledger_totals
from hofl.local.step import LocalParts
from hofl.memory.trace import placeholder_plan
from hofl.methods import METHODS
from hofl.models.adapters import Lora
from hofl.models.loading import build_split
from hofl.models.split import SplitModel
from hofl.rules import SURROGATES, LocalRule
from hofl.twoparty.setting import Setting
from hofl.twoparty.store import ClientStore
from hofl.twoparty.training import OneProcess, train
from hofl.workflows import WORKFLOWS

PAGE = Path(__file__).parent.parent / "docs" / "family.md"
START = "<!-- structure: python tools/family_table.py -->"
END = "<!-- end of structure -->"
BOUNDARY, STEPS = 1, 2
CONFIG = LlamaConfig(
    hidden_size=16,
    intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    vocab_size=32,
    max_position_embeddings=32,
)
COLUMNS = ("system", "activations up", "delta down", "losses down", "scalars up")
COLUMNS += ("weights up", "local steps per aggregation")


def data() -> Batch:
    """Two texts of five tokens with a label word each."""
    goal = ChooseWord(torch.tensor([3, 4]), torch.tensor([0, 1]))
    return Batch(Texts(torch.arange(10), (5, 5)), torch.tensor([4, 9]), goal, 2)


def model_for(rule: LocalRule) -> SplitModel:
    """A tiny model with the surrogate's parameters."""
    made = rule.surrogate.made_by(SURROGATES[rule.surrogate.name].make)
    return build_split(CONFIG, None, adapter=Lora(rank=2), surrogate=made.parameters(CONFIG))


def counts(name: str, workflow: Mapping[str, Any], **changes: Any) -> dict[str, int]:
    """Tensors of each category that one client exchanges in a step; of scalars, their number."""
    method = METHODS[name]
    rule = replace(method.local, optimizer=SGD(lr=0.01), **changes)
    maker = WORKFLOWS[method.workflow.name].make
    assert maker is not None
    agreed = method.workflow.changed(dict(workflow)).made_by(maker, rule)
    setting = Setting(rule=rule, boundary=BOUNDARY, seed=0, workflow=agreed)
    model = model_for(rule)

    def batches(step: int, client: int) -> list[Batch]:
        return [data() for _ in range(rule.local_steps)]

    clients = {0: agreed.client(model, setting, 0, batches, ClientStore())}
    server, records = agreed.server(model, setting), list[RoundRecord]()
    train(server, OneProcess(server, clients), lambda step: [0], STEPS, records.append)
    totals = ledger_totals(records)
    found = {category: entry["count"] // STEPS for category, entry in totals.items()}
    if "scalars_up" in totals:
        found["scalars_up"] = totals["scalars_up"]["bytes"] // (4 * STEPS)
    return found


def line(at_2: int, at_3: int) -> str:
    """The count as a function of q, from its values at q = 2 and q = 3."""
    slope = at_3 - at_2
    constant = at_2 - 2 * slope
    terms = [f"{'' if slope == 1 else slope} q".strip()] if slope else []
    return " + ".join([*terms, *([str(constant)] if constant or not slope else [])])


def shared(name: str) -> list[str]:
    """The row of a method whose every step is shared."""
    two, three = (counts(name, {}, q=q) for q in (2, 3))
    columns = ("act_up", "grad_down", "loss_down", "scalars_up", "client_weights_up")
    return [*(line(two.get(c, 0), three.get(c, 0)) for c in columns), "1"]


def alone(name: str) -> list[str]:
    """The row of a method whose clients train alone."""
    found = {(h, k): counts(name, {"upload_every": k}, local_steps=h) for h, k in PAIRS}
    per_step = all(each["act_up"] == -(-h // k) for (h, k), each in found.items())
    assert per_step, "an upload every k local steps"
    one = next(iter(found.values()))
    cells = ["0" if c not in one else str(one[c]) for c in ("grad_down", "loss_down", "scalars_up")]
    names = {"client_weights_up": "bottom", "auxiliary_weights_up": "head"}
    weights = " + ".join(word for category, word in names.items() if category in one)
    return ["1 per k steps", *cells, f"{weights}, per round", "h >= 1"]


PAIRS = ((6, 2), (6, 3), (4, 1))


def whole_model() -> list[str]:
    """HO-FL's row, from the tensors of serialised uploads of E = 3 steps."""
    scalars = {}
    for q in (2, 3):
        rule = replace(METHODS["hofl"].local, local_steps=3, q=q)
        model = model_for(rule)
        plan = placeholder_plan(model, rule, BOUNDARY)
        parts = LocalParts.of(rule, BOUNDARY)
        upload = client_update(model, plan, [[data()] for _ in range(3)], parts)
        _, sent = unpack_message("upload", upload.to_bytes(), ValueError)
        assert set(sent) == {"scalars", "difference"}, "neither activations nor labels"
        assert len(sent["difference"]) == model.layout.size - model.layout.cut(BOUNDARY)
        scalars[q] = sent["scalars"].numel() // 3
    nothing = ["0"] * 3  # one message each way in a round: no step has an answer
    return [*nothing, line(scalars[2], scalars[3]), "top's difference, per round", "E >= 1"]


def table() -> str:
    """The table in Markdown."""
    rows = {
        "HOSL": shared("hosl"),
        "HO-SFL": shared("ho-sfl"),
        "HERON-SFL": alone("heron-sfl"),
        "HO-FL": whole_model(),
    }
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()]
    return "\n".join(lines)


def main() -> None:
    """Write the table, or check it."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    fresh = f"{before}{START}\n{table()}\n{END}{after}"
    if "--check" not in sys.argv:
        PAGE.write_text(fresh, encoding="utf-8")
    elif fresh != text:
        sys.exit("docs/family.md is stale: run python tools/family_table.py")


if __name__ == "__main__":
    main()
