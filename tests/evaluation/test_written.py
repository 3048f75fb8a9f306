"""Written answers against a slow loop, and ROUGE-L against its definition."""

import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hofl.core.errors import HoflError
from hofl.data.encoded import Question
from hofl.evaluation.written import rouge_l, written
from hofl.models.adapters import Lora
from hofl.models.loading import load_model
from support.models import tiny
from support.written_answers import continued, longest_common


def test_answers_are_those_of_a_slow_loop_in_the_order_of_the_questions(tiny_folder: Path) -> None:
    """Prompts of different lengths, in batches and one by one; a stop token ends an answer."""
    model = load_model(str(tiny_folder), adapter=Lora(rank=2), seed=1)
    plain = AutoModelForCausalLM.from_pretrained(tiny_folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    prompts = [[5, 6, 7], [9], [11, 12, 13, 14, 15], [8, 8]]
    free = [continued(plain, prompt, 6) for prompt in prompts]
    stop = free[2][3]  # an answer that is ended by it
    assert stop not in free[2][:3]
    questions = [Question(tuple(p), (stop,), 3 + n, "", "") for n, p in enumerate(prompts)]
    expected = [
        tokenizer.decode(continued(plain, p, 3 + n, stop), skip_special_tokens=True).strip()
        for n, p in enumerate(prompts)
    ]
    for size in (1, 3):
        assert written(model.split, questions, tokenizer, size) == expected
    assert len(set(expected)) > 1


@pytest.mark.parametrize("family", ["opt", "gpt2", "llama"])
def test_an_answer_ends_where_the_models_window_does(family: str, tiny_folder: Path) -> None:
    """OPT and GPT-2 have learnt positions: 64 here, and none behind them."""
    model, luck = tiny(family), random.Random(2)
    prompts = [[luck.randrange(3, 30) for _ in range(length)] for length in (64, 61, 60, 10, 58)]
    questions = [Question(tuple(prompt), (2,), 6, "", "") for prompt in prompts]
    expected = [continued(model.module, prompt, min(6, 65 - len(prompt)), 2) for prompt in prompts]
    assert [len(one) for one in expected[:3]] == [1, 4, 5], "cut by the window"

    class Numbers:
        def decode(self, ids: list[int], **_: bool) -> str:
            return str(ids)

    for size in (1, 4):
        assert written(model, questions, Numbers(), size) == [str(one) for one in expected]


def test_rouge_l_is_the_f_measure_of_the_longest_common_subsequence() -> None:
    luck = random.Random(1)
    answers, expected, scores = [], [], []
    for _ in range(40):
        one, other = ([luck.choice("abcdef") for _ in range(luck.randint(1, 9))] for _ in range(2))
        common = longest_common(one, other)
        precision, recall = common / len(one), common / len(other)
        scores.append(2 * precision * recall / (precision + recall) if common else 0.0)
        answers.append("  ".join(one).upper() + "!")
        expected.append("\n".join(other))
    assert rouge_l(answers, expected) == pytest.approx(sum(scores) / 40)
    assert 0.1 < sum(scores) / 40 < 0.9


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(HoflError, match=r"needs the package rouge-score: pip install 'hofl\["):
        rouge_l(["a"], ["a"])


def test_the_slow_loop_is_a_loop(tiny_folder: Path) -> None:
    """The oracle itself: each token is the most likely one after all before it."""
    plain = AutoModelForCausalLM.from_pretrained(tiny_folder).eval()
    found = continued(plain, [5, 6], 3)
    with torch.no_grad():
        logits = plain(input_ids=torch.tensor([[5, 6, *found]])).logits[0]
    assert logits[1:4].argmax(1).tolist() == found
