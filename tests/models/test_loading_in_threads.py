"""Models loaded by several threads at once: transformers changes its classes while it loads."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from hofl.models.loading import load_model
from support.models import CONFIGS
from support.twoparty import saved


def test_threads_that_load_at_once_leave_transformers_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tied weights are tied afterwards.."""
    family = next(name for name, config in CONFIGS.items() if config.tie_word_embeddings)
    folder = str(saved(family, tmp_path))
    monkeypatch.setattr(PreTrainedModel, "tie_weights", PreTrainedModel.tie_weights)  # put back
    before = PreTrainedModel.tie_weights
    with ThreadPoolExecutor(4) as pool:
        models = list(pool.map(lambda _: load_model(folder, device="cpu"), range(24)))
    assert PreTrainedModel.tie_weights is before
    for loaded in models:
        base = loaded.split.base
        assert base.get_output_embeddings().weight is base.get_input_embeddings().weight
