"""The split model on PyTorch's meta device: what a GPU would be asked, without values.

An operation that mixes the meta device with the CPU fails, so a tensor that was left on the CPU
shows. Shapes must be those of the same step on the CPU.
"""

import pytest
import torch

from hofl.core.directions import DirectionKey
from hofl.local.streams import ANCHOR, Stream, joint_pass
from hofl.local.top import LocalTop
from hofl.models.adapters import Lora
from hofl.models.loading import build_split
from hofl.models.split import SplitModel
from support.models import BLOCKS, CONFIGS, batch
from support.steps import site_at

KEY = DirectionKey(seed=5, round=2, stream=9)
META = torch.device("meta")


def model_on(device: torch.device, family: str) -> SplitModel:
    return build_split(CONFIGS[family], None, adapter=Lora(rank=2, alpha=4), device=device)


@pytest.mark.parametrize("boundary", [0, 2, BLOCKS])
@pytest.mark.parametrize("family", CONFIGS)
def test_a_step_runs_on_the_models_device_alone(
    family: str, boundary: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # transformers looks at positions to find packed texts, for a mask that is not used here.
    monkeypatch.setattr(
        "transformers.masking_utils.find_packed_sequence_indices", lambda positions: None
    )
    shapes = []
    for device in (torch.device("cpu"), META):
        model, data = model_on(device, family), batch(0).to(device)
        site, inputs = site_at(model, boundary, KEY, 0), model.inputs(data.texts)
        streams = [ANCHOR, Stream(0, 1e-3), Stream(1, 1e-3)]
        z, *moved = joint_pass(site, inputs, streams)  # [1, tokens, D] of each stream
        top = LocalTop.open(site, data, inputs)
        loss, flat, delta = top.gradients(z, to_boundary=True)
        assert delta is not None
        tensors = [z, *moved, loss, flat, delta, model.w]
        assert {tensor.device.type for tensor in tensors} == {device.type}
        shapes.append([tuple(tensor.shape) for tensor in tensors])
    assert shapes[0] == shapes[1]
    assert shapes[0][4] == (model.layout.size - model.layout.cut(boundary),)
