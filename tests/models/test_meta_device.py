"""The split model on PyTorch's meta device: what a GPU would be asked, without values.

An operation that mixes the meta device with the CPU fails, so a tensor that was left on the CPU
shows. Shapes must be those of the same step on the CPU.
"""

from collections.abc import Callable

import pytest
import torch

from hofl.core.batch import Batch, PredictTokens, Texts
from hofl.core.directions import DirectionKey
from hofl.local.streams import ANCHOR, Stream, joint_pass
from hofl.local.top import LocalTop
from hofl.models import head
from hofl.models.adapters import Lora
from hofl.models.loading import build_split
from hofl.models.split import SplitModel
from support.models import BLOCKS, CONFIGS, VOCABULARY, batch
from support.steps import site_at

KEY = DirectionKey(seed=5, round=2, stream=9)
META = torch.device("meta")


def model_on(device: torch.device, family: str) -> SplitModel:
    return build_split(CONFIGS[family], None, adapter=Lora(rank=2, alpha=4), device=device)


def words(seed: int) -> Batch:
    """Texts of which every token is predicted over the whole vocabulary."""
    tokens = torch.arange(20) % 7 + seed
    return Batch(Texts(tokens, (12, 8)), torch.arange(20), PredictTokens(tokens), 2)


@pytest.mark.parametrize("batch_of", [batch, words])
@pytest.mark.parametrize("boundary", [0, 2, BLOCKS])
@pytest.mark.parametrize("family", CONFIGS)
def test_a_step_runs_on_the_models_device_alone(
    family: str,
    boundary: int,
    batch_of: Callable[[int], Batch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(head, "CHUNK", 3 * VOCABULARY)  # free text: the head in several chunks
    # transformers looks at positions to find packed texts, for a mask that is not used here.
    monkeypatch.setattr(
        "transformers.masking_utils.find_packed_sequence_indices", lambda positions: None
    )
    shapes = []
    for device in (torch.device("cpu"), META):
        model, data = model_on(device, family), batch_of(0).to(device)
        site, inputs = site_at(model, boundary, KEY, 0), model.inputs(data.texts)
        streams = [ANCHOR, Stream(0, 1e-3), Stream(1, 1e-3)]
        z, *moved = joint_pass(site, inputs, streams)  # [1, tokens, D] of each stream
        top = LocalTop.open(site, data, inputs)
        loss, flat, delta = top.gradients(z, to_boundary=True)
        assert delta is not None
        if isinstance(data.goal, PredictTokens):
            hidden = model.forward(inputs.hidden, inputs, 0, BLOCKS)
            moved += model.head(hidden, data).judged(data.goal.targets)  # as evaluation does
        tensors = [z, *moved, loss, flat, delta, model.w]
        assert {tensor.device.type for tensor in tensors} == {device.type}
        shapes.append([tuple(tensor.shape) for tensor in tensors])
    assert shapes[0] == shapes[1]
    assert shapes[0][-3] == (model.layout.size - model.layout.cut(boundary),)
