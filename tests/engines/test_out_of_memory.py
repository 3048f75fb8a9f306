"""A device that runs out of memory answers all the same; a hard limit stands for the memory."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from hofl.algorithm import reconstruct
from hofl.engines.base import Dispatch
from hofl.engines.client import LocalClient
from hofl.experiment.build import Experiment, build_simulation
from hofl.experiment.rounds import one_round
from hofl.local.site import LEANEST, PLAIN
from hofl.memory.live import out_of_memory
from hofl.messages import Upload
from hofl.server.checks import UploadLimits, check_upload, plan_as_answered
from hofl.server.state import ServerState
from support.models import CONFIGS
from support.runs import quick

BLOCKS = 8
# glibc reserves address space that a limit would not see, and keeps what is freed.
STRICT = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
# Each job's device answers its plan with at most so many MiB more than it has; what torch sets up
# on first use is there before.
LIMITED = """
import gc, json, re, resource, sys, torch
from pathlib import Path
from hofl.experiment.build import build_simulation
from hofl.experiment.config import parse_config

torch.set_num_threads(1)
jobs = json.loads(sys.argv[1])
build_simulation(parse_config(jobs[0]["config"])).client.answer(Path(jobs[0]["plan"]).read_bytes())
for job in jobs:
    client = build_simulation(parse_config(job["config"])).client
    plan = Path(job["plan"]).read_bytes()
    gc.collect()
    status = Path("/proc/self/status").read_text()
    used = 1024 * int(re.search(r"VmSize:\\s+(\\d+)", status)[1])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (job["mebibytes"] << 20), hard))
    answer = client.answer(plan)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    Path(job["out"]).write_bytes(answer)
    bottom, boundary, execution = list(client._peaks)[-1]
    print(json.dumps({"boundary": boundary, **vars(execution)}))
"""


def folder_of(tiny: Path, folder: Path, **fields: Any) -> Path:
    """The tiny model's tokenizer with a larger model."""
    shutil.copytree(tiny, folder)
    vocabulary = json.loads((tiny / "config.json").read_text())["vocab_size"]
    common = {**CONFIGS["llama"].to_dict(), "vocab_size": vocabulary, "num_hidden_layers": BLOCKS}
    config = LlamaConfig(**{**common, "head_dim": None, **fields})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def experiment(folder: Path, batch_size: int, **engine: Any) -> Experiment:
    """One step of SGD: AdamW's first would turn the rounding of a tiny gradient into its sign."""
    return build_simulation(
        quick(
            folder,
            task={"batch_size": batch_size},
            fleet={"boundaries": [0]},
            method={"local_steps": 1, "optimizer": "sgd", "lr": 1.0},
            engine={"threads": 1, **engine},
        )
    )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_AS and /proc")
def test_under_a_hard_limit_every_plan_is_answered_with_the_right_numbers(
    tiny_folder: Path, tmp_path: Path
) -> None:
    """Work of 89 MiB for full backpropagation and 27 at boundary 7; weights of 67 MiB."""
    folder = folder_of(tiny_folder, tmp_path / "model", hidden_size=384, intermediate_size=1536)
    plain, streamed = experiment(folder, 16), experiment(folder, 2, stream_bottom=True)
    leanest = vars(LEANEST)
    jobs = [
        # experiment, boundary, MiB to spare, what must have been done
        (plain, BLOCKS - 1, 55, {"boundary": BLOCKS - 1, **vars(PLAIN)}),
        (plain, 0, 55, {"boundary": 0, **leanest}),
        (streamed, 0, 40, {"boundary": BLOCKS, **leanest}),
    ]
    told, wanted = [], []
    for number, (made, boundary, mebibytes, _) in enumerate(jobs):
        plan = replace(made.plan(made.start, 0, made.present(0)), boundary=boundary)
        paths = {"plan": str(tmp_path / f"{number}.plan"), "out": str(tmp_path / str(number))}
        Path(paths["plan"]).write_bytes(plan.to_bytes())
        config = made.config.model_dump(mode="json", exclude_none=True)
        told.append({"config": config, "mebibytes": mebibytes, **paths})
        wanted.append((made, plan))
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, json.dumps(told)],
        capture_output=True,
        text=True,
        env={**os.environ, **STRICT},
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()[-len(jobs) :]]
    assert lines == [way for *_, way in jobs]
    for number, (made, plan) in enumerate(wanted):
        upload = Upload.from_bytes((tmp_path / str(number)).read_bytes())
        carried_out = plan_as_answered(plan, upload, made.layout)
        check_upload(upload, carried_out, made.layout, UploadLimits())
        found = reconstruct(carried_out, upload, made.layout)
        # The oracle: the same plan, whole batch, nothing segmented or streamed, no limit.
        free = Upload.from_bytes(made.client.answer(carried_out.to_bytes()))
        exact = reconstruct(carried_out, free, made.layout)
        largest = exact.abs().max().item()
        assert largest > 5e-3
        # Forward differences round to 1e-4 of it, whatever the processor's instructions.
        torch.testing.assert_close(found, exact, rtol=0, atol=2e-3 * largest)


class ShortOfMemory:
    """An engine whose odd clients all raise their boundary to the last one."""

    def __init__(self, client: LocalClient, last: int) -> None:
        self._client = client
        self._last = last

    def join(self) -> None:
        """Everyone whom the configuration knows."""

    def traffic(self) -> dict[int, dict[str, float]]:
        return {}

    def gather(self, dispatches: Iterable[Dispatch]) -> Iterator[bytes]:
        for plan in (dispatch.plan for dispatch in dispatches):
            if plan.client % 2:
                plan = replace(plan, boundary=self._last)
            yield self._client.answer(plan.to_bytes())

    def close(self) -> None:
        pass


def test_the_server_rebuilds_and_records_a_raised_boundary(tiny_folder: Path) -> None:
    config = quick(tiny_folder, fleet={"clients": 4, "cohort": 4, "boundaries": [1]})
    made = build_simulation(config)
    start, last = made.start.w.clone(), made.layout.num_blocks
    state, row = one_round(
        made, ShortOfMemory(made.client, last), ServerState(start, 0), lambda event, facts: None
    )
    assert row.answered == [0, 1, 2, 3]
    assert row.refused == {}
    assert row.raised == {1: last, 3: last}
    ends = []  # the oracle: where each device's own parameters ended
    for i in range(4):
        plan = replace(made.plan(made.start, i, made.present(0)), boundary=last if i % 2 else 1)
        made.client.answer(plan.to_bytes())
        ends.append(made.model.split.w.double())
    torch.testing.assert_close(state.w.double(), sum(ends) / 4, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("error", "known"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ..."), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("not enough memory of the past"), False),
    ],
)
def test_only_a_lack_of_memory_is_taken_for_one(error: Exception, known: bool) -> None:
    assert out_of_memory(error) is known


def test_an_allocation_that_cannot_be_served_is_recognised() -> None:
    for allocate in (
        lambda: torch.empty(2**60, dtype=torch.uint8),
        lambda: np.empty(2**60, dtype=np.uint8),
        lambda: bytearray(2**60),
    ):
        with pytest.raises((MemoryError, RuntimeError)) as caught:
            allocate()
        assert out_of_memory(caught.value)
