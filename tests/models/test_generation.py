"""Written answers: decoding against a slow loop, and their scores."""

import pytest
import torch

from hofl.data.task import FreeText
from hofl.evaluation.scores import answers, evaluate
from hofl.models.generation import greedy, stop_tokens
from hofl.models.split import SplitModel
from support.models import CONFIGS, tiny
from support.number_texts import END, NEWLINE, number_set, number_tokenizer, random_prompts, words

LENGTHS = (9, 3, 14, 1, 12)
CAP = 8


def slow(model: SplitModel, prompt: tuple[int, ...], stops: set[int], cap: int) -> list[int]:
    """One prompt at a time, the whole text again for every token: no cache, no padding."""
    read: list[int] = list(prompt)
    with torch.no_grad():
        for _ in range(cap):
            best = int(model.module(input_ids=torch.tensor([read])).logits[0, -1].argmax())
            if best in stops:
                break
            read.append(best)
    return read[len(prompt) :]


@pytest.mark.parametrize("family", [*CONFIGS, "gemma2", "gptj"])
def test_batched_decoding_with_a_cache_equals_a_slow_loop(family: str) -> None:
    model = tiny(family)
    prompts = random_prompts(LENGTHS)
    free = [slow(model, prompt, set(), CAP) for prompt in prompts]
    # A token that some answers reach early and others never: rows of a batch end one by one.
    stops = [max({token for tokens in free for token in tokens[1:]}, key=_used_by(free))]
    expected = [slow(model, prompt, set(stops), CAP) for prompt in prompts]
    assert len({len(tokens) for tokens in expected}) > 1
    assert greedy(model, prompts, stops, CAP) == expected


def _used_by(texts: list[list[int]]):
    return lambda token: sum(token in text for text in texts) % len(texts)


def test_a_models_own_settings_do_not_bend_the_decoding() -> None:
    model = tiny("llama")
    prompts = random_prompts(LENGTHS)
    plain = greedy(model, prompts, [2], CAP)
    assert any(len(set(text)) < len(text) for text in plain), "some text repeats a token"
    model.base.generation_config.repetition_penalty = 50.0
    assert greedy(model, prompts, [2], CAP) == plain
    assert model.base.generation_config.repetition_penalty == 50.0


def test_a_backbone_stored_small_decodes_in_the_runs_precision() -> None:
    stored = tiny("llama", storage_dtype=torch.bfloat16, compute_dtype=torch.float32)
    as_fp32 = tiny("llama", storage_dtype=torch.bfloat16, compute_dtype=torch.float32)
    as_fp32.module.float()
    prompts = random_prompts(LENGTHS)
    expected = [slow(as_fp32, prompt, {2}, CAP) for prompt in prompts]
    assert greedy(stored, prompts, [2], CAP) == expected
    assert next(stored.base.model.layers[0].mlp.parameters()).dtype == torch.bfloat16


def test_answers_stop_at_the_end_of_the_text_and_at_every_newline() -> None:
    assert set(stop_tokens(number_tokenizer())) == {2, NEWLINE}


def test_scores_of_written_answers_are_means_over_examples_of_the_models_own_words() -> None:
    model = tiny("qwen2")
    prompts = random_prompts(LENGTHS)
    written = [slow(model, (*prompt, END), {2, NEWLINE}, CAP) for prompt in prompts]
    assert all(len(tokens) >= 2 for tokens in written)
    golds = [
        (words(written[0]),),  # right
        ("90 91", words(written[1])),  # right by the second accepted answer
        ("3",),  # wrong
        (words(written[3][:1]),),  # the first word of several
        ("3 3 3",),
    ]
    examples = number_set(prompts, FreeText(CAP), golds=golds)
    found = evaluate(model, examples, batch_size=2)
    texts = answers(model, examples, [(i, examples.encoded(i)) for i in range(5)])
    assert texts == [words(tokens) for tokens in written]
    assert found["em"] == pytest.approx(2 / 5)
    overlap = 2 / (1 + len(written[3]))
    rest = sum(2 / (len(w) + n) for w, n in ((written[2], 1), (written[4], 3)) if 3 in w)
    assert found["f1"] == pytest.approx((2 + overlap + rest) / 5, rel=1e-6)
    assert found["examples"] == 5
