"""Accuracy and loss against one example at a time, and the finite difference's own error figure."""

import pytest
import torch

from hofl.core.directions import DirectionKey, direction
from hofl.core.optim import SGD
from hofl.data.encoding import EncodedSet
from hofl.data.task import LabelWords
from hofl.evaluation.scores import evaluate
from hofl.local.step import LocalParts, StepGradients, hybrid_gradients
from hofl.local.top import LocalTop
from hofl.models.split import SplitModel
from hofl.rules import LocalRule, Part
from support.models import CONFIGS, batch, tiny
from support.number_texts import number_set
from support.steps import site_at
from support.word_scores import LENGTHS, WORDS, prompts, word_loss, word_scores

BATCH_SIZE = 4


def examples_for(model: SplitModel) -> tuple[EncodedSet, list[float]]:
    """Right labels for the 8 shorter prompts, wrong ones for the 3 longest; and the true losses."""
    by_length = sorted(range(len(LENGTHS)), key=lambda i: LENGTHS[i])
    labels, losses = [], []
    for i, prompt in enumerate(prompts()):
        scores = word_scores(model, prompt)
        best = max(range(len(WORDS)), key=lambda word: scores[word])
        labels.append((best + 1) % len(WORDS) if i in by_length[8:] else best)
        losses.append(word_loss(scores, labels[-1]))
    answer = LabelWords(tuple(map(str, WORDS)))
    return number_set([prompt[:-1] for prompt in prompts()], answer, label=labels), losses


@pytest.mark.parametrize("family", CONFIGS)
def test_evaluation_equals_one_example_at_a_time_over_the_whole_vocabulary(family: str) -> None:
    model = tiny(family)
    examples, losses = examples_for(model)
    found = evaluate(model, examples, batch_size=BATCH_SIZE)
    assert found["accuracy"] == pytest.approx(8 / 11, abs=1e-12)
    assert found["loss"] == pytest.approx(sum(losses) / 11, rel=1e-5)
    assert found["examples"] == 11


def test_averages_are_over_examples_and_do_not_depend_on_the_batch_size() -> None:
    """One batch holds all mistakes and the last is smaller: a mean over batches is off."""
    model = tiny("llama")
    examples, losses = examples_for(model)
    ordered = [losses[i] for i in sorted(range(len(LENGTHS)), key=lambda i: -LENGTHS[i])]
    groups = [ordered[start : start + BATCH_SIZE] for start in range(0, 11, BATCH_SIZE)]
    over_batches = sum(sum(group) / len(group) for group in groups) / len(groups)
    over_examples = sum(losses) / len(losses)
    assert abs(over_batches - over_examples) > 1e-3
    for batch_size in (1, 3, BATCH_SIZE, 11, 64):
        found = evaluate(model, examples, batch_size=batch_size)
        assert found["loss"] == pytest.approx(over_examples, rel=1e-5)
        assert found["accuracy"] == pytest.approx(8 / 11, abs=1e-12)


@pytest.mark.parametrize("batch_size", [1, 2, BATCH_SIZE, 11])
def test_no_pass_has_more_tokens_than_the_longest_texts_of_a_batch(batch_size: int) -> None:
    """Short texts go more at a time, each pass is filled, and all tokens are computed once."""
    model, passes = tiny("llama"), []
    examples, _ = examples_for(model)
    hook = model.blocks[0].mlp.register_forward_pre_hook(
        lambda block, given: passes.append(given[0].shape[1])
    )
    evaluate(model, examples, batch_size=batch_size)
    hook.remove()
    lengths = sorted((examples.encoded(i).lengths[0] for i in range(11)), reverse=True)
    assert sum(passes) == sum(lengths)
    assert max(passes) <= sum(lengths[:batch_size])
    assert len(passes) <= -(-len(lengths) // batch_size)
    # No pass could have held the first text of the next one.
    starts = [sum(passes[:i]) for i in range(1, len(passes))]
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    following = [lengths[ends.index(start) + 1] for start in starts]
    full = sum(lengths[:batch_size])
    assert all(size + more > full for size, more in zip(passes, following, strict=False))


def test_words_outside_the_label_words_never_win() -> None:
    """The vocabulary's best word is elsewhere for these prompts, and accuracy is still not 0."""
    model = tiny("opt")
    examples, _ = examples_for(model)
    with torch.no_grad():
        best = [model.module(input_ids=torch.tensor([p])).logits[0, -1].argmax() for p in prompts()]
    assert sum(word.item() not in WORDS for word in best) >= 8
    assert evaluate(model, examples)["accuracy"] == pytest.approx(8 / 11, abs=1e-12)


def test_evaluation_leaves_the_parameters_untouched_and_repeats_itself() -> None:
    model = tiny("gemma3")
    examples, _ = examples_for(model)
    before = model.w.clone()
    first = evaluate(model, examples, batch_size=BATCH_SIZE)
    assert torch.equal(model.w, before)
    assert evaluate(model, examples, batch_size=BATCH_SIZE) == first
    assert all(p.grad is None for p in model.module.parameters())


def probe(
    model: SplitModel, estimator: str, mu: float, step: int = 0, stream: int = 0
) -> StepGradients:
    """One local step at boundary 2, with its error check."""
    data, key = batch(stream), DirectionKey(seed=5, round=2, stream=stream)
    rule = LocalRule(optimizer=SGD(lr=0.1), estimator=Part(estimator), mu=mu, q=2)
    return hybrid_gradients(site_at(model, 2, key, step), [data], LocalParts.of(rule, 2))


def signal_to_noise(model: SplitModel, estimator: str, mu: float) -> tuple[float, float]:
    """The figure and the truth (by exact derivatives), each pooled over 16 clients.

    One pair of scalars alone can agree by chance.
    """
    found = [probe(model, estimator, mu, stream=stream) for stream in range(16)]
    exact = [probe(model, "forward-mode", mu, stream=stream).scalars[0] for stream in range(16)]
    errors = [(one.scalars[0] - s).item() ** 2 for one, s in zip(found, exact, strict=True)]
    figure = sum(one.scalars[0].item() ** 2 for one in found) / sum(one.error**2 for one in found)
    return figure, sum(s.item() ** 2 for s in exact) / sum(errors)


@pytest.mark.parametrize("estimator", ["forward", "central"])
def test_signal_to_noise_is_high_at_the_papers_radius_and_about_1_where_rounding_rules(
    estimator: str,
) -> None:
    """Two scalars of pure rounding error r / mu and r' / 2 mu give 1 / (1 + 1/4), not 0."""
    model = tiny("llama")
    figure, truth = signal_to_noise(model, estimator, 1e-3)
    assert figure > 500
    assert truth > 500
    figure, truth = signal_to_noise(model, estimator, 1e-9)
    assert figure < 5
    assert truth < 0.5


@pytest.mark.parametrize("mu", [1e-2, 1e-3, 1e-4, 1e-6, 1e-7])
def test_signal_to_noise_of_the_forward_difference_is_near_the_true_one(mu: float) -> None:
    """From truncation (mu large) to rounding (mu small), over four orders of magnitude."""
    figure, truth = signal_to_noise(tiny("llama"), "forward", mu)
    assert truth / 5 < figure < 5 * truth


def test_signal_and_noise_are_those_of_perturbed_models_at_mu_and_twice_mu() -> None:
    """Oracle: load w + c u into the model, run its blocks plainly, and take <delta, z - z_0>."""
    model, mu, data = tiny("opt"), 0.02, batch(0)
    found = probe(model, "forward", mu)
    start, key = model.w.clone(), DirectionKey(seed=5, round=2, stream=0)
    pieces = [direction(key, 0, 0, c.index, c.size) for c in model.layout.coordinates]
    u = torch.cat([torch.from_numpy(piece) for piece in pieces])
    inputs = model.inputs(data.texts)

    def boundary_activation(scale: float) -> torch.Tensor:
        model.load(start + scale * u)
        with torch.no_grad():
            return model.forward(inputs.hidden, inputs, 0, 2)

    z_0, z_1, z_2 = (boundary_activation(scale) for scale in (0.0, mu, 2 * mu))
    model.load(start)
    delta = LocalTop(model, inputs, data, 2).gradients(z_0, to_boundary=True).delta
    s_1 = (delta.double() * (z_1 - z_0)).sum().item() / mu
    s_2 = (delta.double() * (z_2 - z_0)).sum().item() / (2 * mu)
    assert found.scalars[0].item() == pytest.approx(s_1, rel=1e-3)
    assert found.error == pytest.approx(s_1 - s_2, rel=1e-2)


@pytest.mark.parametrize("step", [1, 2])
def test_later_steps_are_not_checked(step: int) -> None:
    found = probe(tiny("llama"), "forward", 1e-3, step=step)
    assert found.error is None
    assert found.scalars.abs().min() > 0


def test_exact_derivatives_have_no_error_to_check() -> None:
    found = probe(tiny("llama"), "forward-mode", 1e-3)
    assert found.error is None
