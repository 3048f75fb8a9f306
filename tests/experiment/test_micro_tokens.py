"""``engine.micro_tokens`` in whole runs."""

from pathlib import Path

import torch
from safetensors.torch import load_file

import hofl
from hofl.experiment.runs import RunDirectory
from support.runs import quick


def test_a_run_in_parts_of_few_tokens_trains_the_same_in_less_memory(
    tiny_folder: Path, tmp_path: Path
) -> None:
    whole = hofl.run(quick(tiny_folder, rounds=1), tmp_path / "whole")
    cut = quick(tiny_folder, rounds=1, engine={"micro_tokens": 30})
    parts = hofl.run(cut, tmp_path / "parts")
    planned = hofl.run(
        quick(
            tiny_folder,
            rounds=1,
            engine={"micro_tokens": 30},
            fleet={"boundaries": [], "budgets": ["1GiB"]},
        ),
        tmp_path / "planned",
    )
    assert parts.summary["peak_bytes"] < 0.8 * whole.summary["peak_bytes"]
    a, b = (load_file(run.adapter / "adapter_model.safetensors") for run in (whole, parts))
    for name, value in a.items():
        torch.testing.assert_close(value, b[name], rtol=0, atol=1e-3)
    (row,) = RunDirectory(planned.path).config().fleet.planned
    assert row.micro_tokens == 30
