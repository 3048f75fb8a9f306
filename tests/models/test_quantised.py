"""Blocks kept quantised: made whole as the library would, trained through, and small."""

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType, dequantize, quantize

import hofl
from hofl.algorithm import client_update, reconstruct
from hofl.core.directions import DirectionKey
from hofl.core.errors import HoflError
from hofl.core.optim import AdamW
from hofl.local.site import PLAIN, Execution
from hofl.local.step import LocalParts
from hofl.memory.live import resident_bytes
from hofl.messages import RoundPlan, Upload
from hofl.models.adapters import FullBlocks
from hofl.models.loading import load_model
from hofl.models.quantised import FORMS
from hofl.models.split import SplitModel
from hofl.rules import LocalRule
from support.models import BLOCKS, CONFIGS, batch, parts, tiny
from support.runs import quick


def twin(family: str, form: str) -> SplitModel:
    """The oracle: an ordinary model whose matrices went through the library and back."""
    model, kind = tiny(family), GGMLQuantizationType[form.upper()]
    for block in model.blocks:
        for parameter in block.parameters():
            if (
                parameter.dim() == 2
                and not parameter.requires_grad
                and parameter.shape[1] % 32 == 0
            ):
                groups = quantize(parameter.detach().numpy(), kind)
                parameter.data = torch.from_numpy(dequantize(groups, kind))
    return model


def updated(model: SplitModel, boundary: int, execution: Execution, **rule: Any) -> Upload:
    plan = RoundPlan(
        run="q",
        round=0,
        client=0,
        boundary=boundary,
        key=DirectionKey(1, 0, 0),
        seed=1,
        layout=model.layout.digest,
        rule=LocalRule(optimizer=AdamW(lr=0.01), local_steps=2, **rule),
        w=model.w.clone(),
        verify=True,
    )
    steps = [parts(batch(e), execution.micro_batch) for e in range(2)]
    upload = client_update(model, plan, steps, LocalParts.of(plan.rule, boundary), execution)
    assert torch.equal(reconstruct(plan, upload, model.layout), model.w - plan.w)
    return upload


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", CONFIGS)
def test_training_on_quantised_blocks_has_the_bits_of_the_librarys_weights(
    family: str, form: str
) -> None:
    for boundary, rule in ((0, {}), (2, {}), (3, {"bottom": "recompute", "q": 0})):
        wanted = updated(twin(family, form), boundary, PLAIN, **rule)
        found = updated(tiny(family, form=form), boundary, Execution(checkpoint=2), **rule)
        assert torch.equal(found.scalars, wanted.scalars)
        assert torch.equal(found.difference, wanted.difference)
        plain = updated(tiny(family), boundary, PLAIN, **rule)
        assert not torch.equal(found.difference, plain.difference), "nothing was quantised"


@pytest.mark.parametrize(("form", "bits"), [("q8_0", 8.5), ("q4_1", 5.0)])
def test_quantised_matrices_take_their_bits(form: str, bits: float) -> None:
    whole, small = tiny("qwen2"), tiny("qwen2", form=form)
    matrices = [
        p.numel()
        for block in whole.blocks
        for p in block.parameters()
        if p.dim() == 2 and not p.requires_grad and p.shape[1] % 32 == 0
    ]
    assert len(matrices) == 6 * BLOCKS  # down_proj has rows of 48
    saved = resident_bytes(whole.module) - resident_bytes(small.module)
    assert saved == sum(matrices) * (32 - bits) / 8


@pytest.mark.parametrize("form", FORMS)
def test_values_that_came_from_the_form_survive_it(form: str) -> None:
    """What a GGUF file held comes back to the bit after a detour over FP32."""
    kind = GGMLQuantizationType[form.upper()]
    values = torch.randn(64, 256, generator=torch.Generator().manual_seed(0)).numpy()
    once = dequantize(quantize(values, kind), kind)
    again = FORMS[form](torch.from_numpy(quantize(once, kind))).view(64, 256)
    close = (again - torch.from_numpy(once)).abs().max() / abs(once).max()
    assert close < 1e-3
    if form == "q4_1":
        assert (again == torch.from_numpy(once)).float().mean() > 0.99


def test_a_run_on_quantised_blocks_needs_less_memory_and_its_files_name_the_form(
    tiny_folder: Path, tmp_path: Path
) -> None:
    def summary(storage: str) -> dict[str, Any]:
        config = quick(tiny_folder, rounds=1, model={"storage_dtype": storage})
        return hofl.run(config, tmp_path / storage).summary

    assert summary("q4_1")["peak_bytes"] < summary("float32")["peak_bytes"] - 40_000
    assert 'storage_dtype = "q4_1"' in (tmp_path / "q4_1" / "config.toml").read_text()


def test_what_cannot_be_quantised_says_why(tiny_folder: Path) -> None:
    for options in ({"stream": True}, {"adapter": FullBlocks()}):
        with pytest.raises(HoflError, match=r"storage_dtype=q8_0 keeps frozen block weights"):
            load_model(str(tiny_folder), storage_dtype="q8_0", device="cpu", **options)
