"""Ways to fit a local step into memory, side by side: peak, time and uplink of each.

Every row is hofl's own step on one random batch: first-order (FO) over the whole model, with its
backward pass in segments of k blocks (checkpointing; below a boundary this is the recompute rule),
hybrid-order (HO) at three boundaries with and without segments, pure zeroth-order (ZO), in
micro-batches, with the bottom read from disk, and with blocks kept quantised. The peak is that of
a participation of one step: what the model holds and the most live bytes beside it. The uplink is
the length of the upload. The time is that of a step without error check, variants interleaved.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from harness import Cell, Subject, interleave
from step_variants import BATCH, LENGTH, RULE, make_batch, optimizer_step

from hofl import load_model
from hofl.algorithm import client_update
from hofl.core.batch import Batch, ChooseWord, Texts
from hofl.core.directions import DirectionKey
from hofl.local.site import PLAIN, Execution, Site
from hofl.local.step import LocalParts, hybrid_gradients
from hofl.memory.live import measure_peak, resident_bytes
from hofl.messages import RoundPlan
from hofl.models.split import SplitModel
from hofl.rules import LocalRule, Part

MODEL = "smollm2-135m-instruct"
COLUMNS = {
    "variant": ("variant", ""),
    "peak_mib": ("peak MiB", ".0f"),
    "work_mib": ("of it work", ".0f"),
    "peak_ratio": ("peak / FO", ".2f"),
    "median_ms": ("median ms", ".0f"),
    "ratio": ("time / FO", ".2f"),
    "uplink_kib": ("uplink KiB", ".1f"),
}
FO = replace(RULE, bottom=Part("frozen"), surrogate=Part("none"), q=0)
EXACT = replace(RULE, bottom=Part("recompute"), q=0)
ZO = replace(RULE, surrogate=Part("end-to-end"))
MIB = 2**20


@dataclass(frozen=True)
class Variant:
    """One row: what is computed, where it is cut, and how it is run."""

    rule: LocalRule
    boundary: int
    execution: Execution = PLAIN
    storage: str = "float32"


def measure(repeats: int) -> Subject:
    """Peak and uplink of every variant once, then all of them timed in turn."""
    model = load_model(MODEL, device="cpu").split
    chosen = variants(model.num_blocks)
    batch = make_batch(model.config.vocab_size)
    rows = {name: _measured(variant, batch) for name, variant in chosen.items()}
    times = interleave({name: _step(variant, batch) for name, variant in chosen.items()}, repeats)
    for name, row in rows.items():
        row["variant"] = name
        row["peak_ratio"] = _number(row["peak_mib"]) / _number(rows["FO"]["peak_mib"])
        row["median_ms"] = 1e3 * times[name].median
        row["min_ms"] = 1e3 * times[name].best
        row["ratio"] = times[name].median / times["FO"].median
    samples = {name: timing.samples for name, timing in times.items()}
    title = f"options: {MODEL}, batch {BATCH}, length {LENGTH}, q = {RULE.q}, FP32 arithmetic"
    return Subject("options", title, COLUMNS, list(rows.values()), samples, {})


def variants(blocks: int) -> dict[str, Variant]:
    """The rows by name, for a model of so many blocks."""
    quarter, half, high = (blocks * n // 4 for n in (1, 2, 3))
    found = {"FO": Variant(FO, 0)}
    for k in (1, 2, 5, 10):
        found[f"FO, segments of {k}"] = Variant(FO, 0, Execution(checkpoint=k))
    for b in (quarter, half, high):
        found[f"HO b={b}"] = Variant(RULE, b)
        found[f"HO b={b}, segments of 2"] = Variant(RULE, b, Execution(checkpoint=2))
    found["ZO"] = Variant(ZO, blocks)
    recomputed = Variant(EXACT, high, Execution(checkpoint=5))
    found[f"recompute b={high}, segments of 5"] = recomputed
    for bits in (8, 4):
        rule = replace(EXACT, uplink_bits=bits)
        found[f"the same, uplink in {bits} bits"] = replace(recomputed, rule=rule)
    small = Execution(micro_batch=4, checkpoint=2)
    found["FO, micro-batches of 4"] = Variant(FO, 0, Execution(micro_batch=4))
    found["FO, micro-batches of 4, segments of 2"] = Variant(FO, 0, small)
    found[f"HO b={high}, micro-batches of 4, segments of 2"] = Variant(RULE, high, small)
    streamed = Execution(checkpoint=2, stream_bottom=True)
    found[f"HO b={high}, segments of 2, streamed"] = Variant(RULE, high, streamed)
    lean = replace(streamed, micro_batch=4)
    found[f"HO b={high}, micro-batches of 4, segments of 2, streamed"] = Variant(RULE, high, lean)
    found["ZO, streamed"] = Variant(ZO, blocks, Execution(stream_bottom=True))
    for form in ("q8_0", "q4_1"):
        found[f"HO b={high}, blocks in {form}"] = Variant(RULE, high, storage=form)
    return found


@cache
def _model(storage: str, streamed_below: int) -> SplitModel:
    """A model per way of keeping it, so that no timed step reads what another one put away."""
    split = load_model(MODEL, device="cpu", storage_dtype=storage, stream=streamed_below > 0).split
    split.keep(streamed_below)
    return split


def _of(variant: Variant) -> SplitModel:
    return _model(variant.storage, variant.boundary if variant.execution.stream_bottom else 0)


def _plan(variant: Variant, model: SplitModel) -> RoundPlan:
    return RoundPlan(
        run="bench",
        round=0,
        client=0,
        boundary=variant.boundary,
        key=DirectionKey(0, 0, 0),
        seed=0,
        layout=model.layout.digest,
        rule=replace(variant.rule, local_steps=1),
        w=model.w.clone(),
    )


def _measured(variant: Variant, batch: Batch) -> dict[str, Cell]:
    model = _of(variant)
    plan, parts = _plan(variant, model), parts_of(batch, variant.execution.micro_batch)
    rules = LocalParts.of(plan.rule, plan.boundary)
    with measure_peak(model.module, model.device) as peak:
        upload = client_update(model, plan, [parts], rules, variant.execution)
    model.load(plan.w)
    return {
        "peak_mib": peak.value / MIB,
        "work_mib": (peak.value - resident_bytes(model.module)) / MIB,
        "uplink_kib": len(upload.to_bytes()) / 1024,
    }


def _step(variant: Variant, batch: Batch) -> Callable[[], None]:
    model = _of(variant)
    plan, parts = _plan(variant, model), parts_of(batch, variant.execution.micro_batch)
    rules = LocalParts.of(plan.rule, plan.boundary)
    site = Site(model, plan.boundary, plan.directions(model.layout), 1, variant.execution)
    update = optimizer_step(model, plan)

    def step() -> None:
        update(hybrid_gradients(site, parts, rules))

    return step


def parts_of(batch: Batch, size: int) -> list[Batch]:
    """The batch in micro-batches; its texts are of one length and have one slot each."""
    goal = batch.goal
    assert isinstance(goal, ChooseWord)
    size = size or BATCH
    found = []
    for start in range(0, BATCH, size):
        tokens = batch.texts.tokens[start * LENGTH : (start + size) * LENGTH]
        targets = goal.targets[start : start + size]
        found.append(
            Batch(
                texts=Texts(tokens, batch.texts.lengths[start : start + size]),
                slots=batch.slots[start : start + size] - start * LENGTH,
                goal=ChooseWord(goal.candidates, targets),
                examples=len(targets),
            )
        )
    return found


def _number(cell: Cell) -> float:
    assert isinstance(cell, float)
    return cell
