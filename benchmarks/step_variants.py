"""The steps that ``step.py`` and ``real_batches.py`` compare, on SmolLM2-135M.

The first-order steps are what a PEFT user writes: the model's own forward pass, autograd, torch's
AdamW; nothing of hofl is in them. The hybrid-order step calls the parts of
``hofl.algorithm.client_update`` in the same order. At step 1 it has no error check: that runs once
per participation, at step 0.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from harness import interleave
from peft import LoraConfig, get_peft_model
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM

from hofl.core.batch import Batch, ChooseWord, Texts
from hofl.core.directions import DirectionKey
from hofl.core.optim import AdamW, add_proximal
from hofl.local.site import PLAIN, Execution, Site
from hofl.local.step import LocalParts, StepGradients, hybrid_gradients
from hofl.messages import RoundPlan
from hofl.methods import METHODS
from hofl.models.split import SplitModel
from hofl.rules import LocalRule

BATCH, LENGTH, CANDIDATES = 16, 40, 4
LEARNING_RATE, WEIGHT_DECAY = 1e-4, 5e-4
RULE = LocalRule(optimizer=AdamW(lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY), q=2)
MATMUL, PRODUCTS = 2048, 5
Step = Callable[[], None]


def make_batch(vocabulary: int) -> Batch:
    """Random ids; four label words to choose from at the last position."""
    rng = torch.Generator().manual_seed(0)
    return Batch(
        texts=Texts(torch.randint(vocabulary, (BATCH * LENGTH,), generator=rng), (LENGTH,) * BATCH),
        slots=torch.arange(LENGTH - 1, BATCH * LENGTH, LENGTH),
        goal=ChooseWord(
            targets=torch.randint(CANDIDATES, (BATCH,), generator=rng),
            candidates=torch.randperm(vocabulary, generator=rng)[:CANDIDATES],
        ),
        examples=BATCH,
    )


def padded(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """A batch as people write it: ids [R, T] padded to the longest text, rows and columns [M]."""
    starts = torch.tensor([0, *batch.texts.lengths]).cumsum(0)
    rows = torch.searchsorted(starts, batch.slots, right=True) - 1
    ids = pad_sequence(batch.texts.tokens.split(batch.texts.lengths), batch_first=True)
    return ids, rows, batch.slots - starts[rows]


def peft_model(folder: str) -> Any:
    """A model with a LoRA adapter as PEFT makes it."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    targets = ["q_proj", "v_proj"]
    config = LoraConfig(r=8, lora_alpha=16, target_modules=targets, task_type="CAUSAL_LM")
    return get_peft_model(model, config)


def decomfl_as_written(folder: str, batches: Sequence[Batch]) -> Step:
    """DeComFL's step as its paper writes it: one whole forward pass per direction, end to end."""
    model, rule = peft_model(folder).eval(), METHODS["decomfl"].local
    trained = [p for p in model.parameters() if p.requires_grad]

    def move(seed: int, scale: float) -> None:
        generator = torch.Generator().manual_seed(seed)
        for p in trained:
            p.add_(torch.randn(p.shape, generator=generator), alpha=scale)

    def loss(batch: Batch) -> float:
        ids, rows, columns = padded(batch)
        logits = model(input_ids=ids).logits[rows, columns][:, batch.goal.candidates]
        return cross_entropy(logits, batch.goal.targets).item()

    @torch.no_grad()
    def step() -> None:
        for batch in batches:
            at_anchor, scalars = loss(batch), []
            for seed in range(rule.q):
                move(seed, rule.mu)
                scalars.append((loss(batch) - at_anchor) / rule.mu)
                move(seed, -rule.mu)
            for seed, scalar in enumerate(scalars):
                move(seed, -1e-6 * scalar / rule.q)

    return step


def first_order_steps(folder: str, batches: Sequence[Batch]) -> tuple[Step, Step]:
    """Steps of a plain PEFT model: loss over the label words, and over the whole vocabulary."""
    tuned = peft_model(folder).train()
    model = tuned.get_base_model()
    trained = [p for p in tuned.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)

    def label_words(batch: Batch) -> Tensor:
        ids, rows, columns = padded(batch)
        head = model.lm_head.weight[batch.goal.candidates]  # [C, D]
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state  # [B, T, D]
        return cross_entropy(hidden[rows, columns] @ head.T, batch.goal.targets)

    def vocabulary(batch: Batch) -> Tensor:
        ids, _, _ = padded(batch)
        return tuned(input_ids=ids, labels=ids).loss

    def step(loss: Callable[[Batch], Tensor]) -> None:
        for batch in batches:
            loss(batch).backward()
            optimizer.step()
            optimizer.zero_grad()

    return partial(step, label_words), partial(step, vocabulary)


def local_step(
    model: SplitModel,
    batches: Sequence[Batch],
    b: int,
    e: int = 1,
    *,
    rule: LocalRule = RULE,
    execution: Execution = PLAIN,
) -> Step:
    """Local step e of ``client_update`` at boundary b, on each of the batches."""
    rules = LocalParts.of(rule, b)
    plan = RoundPlan(
        run="bench",
        round=0,
        client=0,
        boundary=b,
        key=DirectionKey(0, 0, 0),
        seed=0,
        layout=model.layout.digest,
        rule=rule,
        w=model.w.clone(),
    )
    update = optimizer_step(model, plan)
    site = Site(model, b, plan.directions(model.layout), e, execution)

    def step() -> None:
        for batch in batches:
            update(hybrid_gradients(site, [batch], rules))

    return step


def optimizer_step(model: SplitModel, plan: RoundPlan) -> Callable[[StepGradients], None]:
    """Both segments' optimizer steps as ``client_update`` takes them."""
    rule, cut = plan.rule, model.layout.cut(plan.boundary)
    w_zo, w_fo = model.w[:cut], model.w[cut:]
    state_zo, state_fo = rule.optimizer.init(w_zo), rule.optimizer.init(w_fo)

    @torch.no_grad()
    def update(g: StepGradients) -> None:
        if g.bottom is not None:
            add_proximal(g.bottom, w_zo, plan.w[:cut], rule.proximal)
            rule.optimizer.step(w_zo, g.bottom, state_zo)
        add_proximal(g.top, w_fo, plan.w[cut:], rule.proximal)
        rule.optimizer.step(w_fo, g.top, state_fo)

    return update


def block_flops(model: SplitModel) -> int:
    """Matrix-multiply FLOPs of one block's forward pass over the batch, adapters left out."""
    frozen = (p for p in model.blocks[0].parameters() if p.dim() == 2 and not p.requires_grad)
    return 2 * sum(p.numel() for p in frozen) * BATCH * LENGTH


def matmul_peak() -> tuple[Step, list[float]]:
    """A variant that multiplies square matrices, and the list of median FLOP/s it appends to."""
    a, b = torch.randn(MATMUL, MATMUL), torch.randn(MATMUL, MATMUL)
    found: list[float] = []

    def multiply() -> None:
        timing = interleave({"product": partial(torch.mm, a, b)}, PRODUCTS, warmups=0)["product"]
        found.append(2 * MATMUL**3 / timing.median)

    return multiply, found
