"""The steps that ``step.py`` compares, on SmolLM2-135M with one random batch.

The first-order steps are what a PEFT user writes: the model's own forward pass, autograd, torch's
AdamW; nothing of hofl is in them. The hybrid-order step calls the parts of
``hofl.algorithm.client_update`` in the same order. At step 1 it has no error check: that runs once
per participation, at step 0.
"""

from collections.abc import Callable
from functools import partial

import torch
from harness import interleave
from peft import LoraConfig, get_peft_model
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from hofl.batch import Batch, ChooseWord
from hofl.local.rules import resolve
from hofl.local.step import StepGradients, hybrid_gradients
from hofl.messages import LocalRule, RoundPlan
from hofl.models.split import SplitModel
from hofl.optim import AdamW, add_proximal

BATCH, LENGTH, CANDIDATES = 16, 40, 4
LEARNING_RATE, WEIGHT_DECAY = 1e-4, 5e-4
RULE = LocalRule(optimizer=AdamW(lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY), q=2)
MATMUL, PRODUCTS = 2048, 5
Step = Callable[[], None]


def make_batch(vocabulary: int) -> Batch:
    """Random ids; four label words to choose from at the last position."""
    rng = torch.Generator().manual_seed(0)
    return Batch(
        input_ids=torch.randint(vocabulary, (BATCH, LENGTH), generator=rng),
        rows=torch.arange(BATCH),
        columns=torch.full((BATCH,), LENGTH - 1),
        goal=ChooseWord(
            targets=torch.randint(CANDIDATES, (BATCH,), generator=rng),
            candidates=torch.randperm(vocabulary, generator=rng)[:CANDIDATES],
        ),
        examples=BATCH,
    )


def first_order_steps(folder: str, batch: Batch) -> tuple[Step, Step]:
    """Steps of a plain PEFT model: loss over the label words, and over the whole vocabulary."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    targets = ["q_proj", "v_proj"]
    config = LoraConfig(r=8, lora_alpha=16, target_modules=targets, task_type="CAUSAL_LM")
    peft_model = get_peft_model(model, config).train()
    trained = [p for p in peft_model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    ids, head = batch.input_ids, model.lm_head.weight[batch.goal.candidates]  # [B, T], [C, D]

    def label_words() -> Tensor:
        decoder = peft_model.base_model.model.model
        hidden = decoder(input_ids=ids, use_cache=False).last_hidden_state  # [B, T, D]
        return cross_entropy(hidden[:, -1] @ head.T, batch.goal.targets)

    def vocabulary() -> Tensor:
        return peft_model(input_ids=ids, labels=ids).loss

    def step(loss: Callable[[], Tensor]) -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    return partial(step, label_words), partial(step, vocabulary)


def hybrid_step(model: SplitModel, batch: Batch, b: int, e: int) -> Step:
    """Local step e of ``client_update`` at boundary b."""
    rules = resolve(RULE, b)
    plan = RoundPlan(
        run="bench",
        round=0,
        client=0,
        boundary=b,
        seed=0,
        layout=model.layout.digest,
        rule=RULE,
        w=model.w.clone(),
    )
    update = optimizer_step(model, plan)

    def step() -> None:
        update(hybrid_gradients(model, plan, e, [batch], *rules))

    return step


def optimizer_step(model: SplitModel, plan: RoundPlan) -> Callable[[StepGradients], None]:
    """Both segments' optimizer steps as ``client_update`` takes them."""
    rule, cut = plan.rule, model.layout.cut(plan.boundary)
    w_zo, w_fo = model.w[:cut], model.w[cut:]
    state_zo, state_fo = rule.optimizer.init(w_zo), rule.optimizer.init(w_fo)

    @torch.no_grad()
    def update(g: StepGradients) -> None:
        if g.bottom.gradient is not None:
            add_proximal(g.bottom.gradient, w_zo, plan.w[:cut], rule.proximal)
            rule.optimizer.step(w_zo, g.bottom.gradient, state_zo)
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
