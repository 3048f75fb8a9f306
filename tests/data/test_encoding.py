"""Prompts and answers through real tokenizers: a byte-level BPE and a word-level one."""

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from hofl.core.batch import ChooseOption, ChooseWord
from hofl.core.errors import HoflError
from hofl.data.encoding import EncodedSet, encode
from hofl.data.task import Example, FreeText, LabelWords, OwnOptions, Prompt
from support.number_texts import END, number_set

SENTENCES = [
    "Review: the film was great and the cast was great. Sentiment: great",
    "Review: the film was terrible, a terrible bore. Sentiment: terrible",
    "Review: a so-so film with a great cast and a terrible end. Sentiment: terrible",
]
TEMPLATE = "Review: {text}\nSentiment:"
TAIL = "\nSentiment:"
LONG = "the film was great, the cast was terrible and a bore. " * 6


def byte_level() -> Any:
    """Byte-level BPE that puts <s> in front, as GPT-2, OPT and Llama 3 tokenizers do."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    inner.train_from_iterator(SENTENCES, trainer)
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", inner.token_to_id("<s>"))]
    )
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>")


def word_level() -> Any:
    """One token per word; unknown words all become [UNK]."""
    inner = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(special_tokens=["[UNK]"], show_progress=False)
    inner.train_from_iterator(SENTENCES, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]")


TOKENIZERS = {"byte-level": byte_level(), "word-level": word_level()}
every_tokenizer = pytest.mark.parametrize("kind", TOKENIZERS)


def ids_of(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def filled(text: str) -> str:
    return f"Review: {text}\nSentiment:"


def films(
    kind: str, texts: list[str], words: tuple[str, ...] = ("terrible", "great"), most: int = 64
) -> EncodedSet:
    prompt = Prompt(TEMPLATE, "text", LabelWords(words))
    examples = [Example({"text": text}, label=0) for text in texts]
    return encode(examples, prompt, TOKENIZERS[kind], most, window=1024)


def encode_one(kind: str, text: str, max_length: int) -> tuple[int, ...]:
    return films(kind, [text], most=max_length).encoded(0).prompt


def candidates(kind: str, words: tuple[str, ...]) -> list[int]:
    goal = films(kind, ["a film"], words).batch([0]).goal
    assert isinstance(goal, ChooseWord)
    return goal.candidates.tolist()


def test_byte_level_label_words_are_the_tokens_with_a_leading_space() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    words = candidates("byte-level", ("terrible", "great"))
    assert tokenizer.convert_ids_to_tokens(words) == ["Ġterrible", "Ġgreat"]
    assert [tokenizer.decode([word]) for word in words] == [" terrible", " great"]


def test_word_level_label_words_are_their_own_tokens() -> None:
    words = candidates("word-level", ("terrible", "great"))
    assert TOKENIZERS["word-level"].convert_ids_to_tokens(words) == ["terrible", "great"]


@every_tokenizer
def test_label_words_of_several_tokens_are_scored_as_spans(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    batch = films(kind, ["a film"], ("great", "a bore")).batch([0])
    assert isinstance(batch.goal, ChooseOption)
    start = len(ids_of(tokenizer, "Sentiment:"))
    spans = [ids_of(tokenizer, f"Sentiment: {word}")[start:] for word in ("great", "a bore")]
    assert len(spans[0]) == 1
    assert len(spans[1]) > 1
    assert batch.goal.tokens.tolist() == [*spans[0], *spans[1]]
    assert batch.goal.options.tolist() == [0] + [1] * len(spans[1])


def test_label_words_that_share_their_tokens_are_refused_with_the_pieces() -> None:
    with pytest.raises(HoflError, match=r"share their tokens.*'great': \['Ġgreat'\]"):
        films("byte-level", [], ("great", "great"))


def test_a_label_word_unknown_to_the_tokenizer_is_refused_with_its_pieces() -> None:
    with pytest.raises(HoflError, match=r"'splendid' is unknown .* \['\[UNK\]'\]"):
        films("word-level", [], ("great", "splendid"))


def test_an_answer_that_melts_into_its_prompt_is_refused() -> None:
    """A tokenizer that drops what stands at the end leaves no token for the answer."""

    class Deaf:
        unk_token_id = None

        def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
            return {"input_ids": [1, 2]}

        def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
            return [f"<{i}>" for i in ids]

    prompt = Prompt(TEMPLATE, "text", LabelWords(("a", "b")))
    with pytest.raises(HoflError, match=r"does not separate answer 'a'.*\['<1>', '<2>'\]"):
        encode([], prompt, Deaf(), 64, 64)


@every_tokenizer
def test_a_text_that_fits_is_encoded_as_the_filled_in_template(kind: str) -> None:
    text = "the cast was great {and} the film 100% a bore"
    whole = TOKENIZERS[kind](filled(text))["input_ids"]
    assert encode_one(kind, text, len(whole)) == tuple(whole)
    assert not films(kind, [text], most=len(whole)).encoded(0).cut
    assert films(kind, [text], most=len(whole) - 1).encoded(0).cut


@every_tokenizer
@pytest.mark.parametrize("max_length", [12, 16, 23, 40])
def test_a_too_long_text_loses_its_end_and_the_answer_slot_survives(
    kind: str, max_length: int
) -> None:
    tokenizer = TOKENIZERS[kind]
    whole = tuple(tokenizer(filled(LONG))["input_ids"])
    tail = ids_of(tokenizer, TAIL)
    prompt = encode_one(kind, LONG, max_length)
    assert max_length - 3 <= len(prompt) <= max_length < len(whole)
    assert prompt[-len(tail) :] == tail
    kept = len(prompt) - len(tail)
    assert prompt[:kept] == whole[:kept], "what is left is the beginning"


@pytest.mark.parametrize("max_length", range(10, 40))
def test_cutting_inside_a_character_keeps_the_length_and_the_slot(max_length: int) -> None:
    tokenizer = TOKENIZERS["byte-level"]
    tail = ids_of(tokenizer, TAIL)
    prompt = encode_one("byte-level", "ein Fläschchen 日本語 🎬🎬🎬 " * 8, max_length)
    assert len(prompt) <= max_length
    assert prompt[-len(tail) :] == tail


@every_tokenizer
def test_a_length_below_the_template_is_refused_with_the_length_it_takes(kind: str) -> None:
    bare = len(TOKENIZERS[kind](filled(""))["input_ids"])
    with pytest.raises(HoflError, match=f"example 0: a prompt takes {bare} tokens even without"):
        encode_one(kind, LONG, bare - 1)


def test_only_the_named_field_is_cut() -> None:
    prompt = Prompt("{context} 9 {question} 4", "context", LabelWords(("5", "6")))
    example = Example({"context": "30 31 32 33 34 35", "question": "40 41 42"}, label=0)
    cut = encode([example], prompt, number_set([], LabelWords(("5",))).encoder.tokenizer, 8, 64)
    assert cut.encoded(0).prompt == (30, 31, 32, 9, 40, 41, 42, 4)


@pytest.mark.parametrize("window", [6, 9])
def test_prompt_and_answer_together_fit_the_models_window(window: int) -> None:
    """The last token of an answer is predicted, never read."""
    own = number_set([range(20, 40)], OwnOptions(), window, label=[0], options=[("50 51 52", "53")])
    assert own.batch([0]).texts.lengths == (window, window - 2)
    text = number_set([range(20, 40)], FreeText(4), window, golds=[("50",)])
    assert len(text.encoded(0).prompt) == window - 4 + 1, "room for all that may be generated"


def test_an_option_that_stands_twice_is_right_wherever_it_stands() -> None:
    """SciQ's test set holds such a question; equal spans have equal scores, and the first wins."""
    own = number_set(
        [[5], [6]], OwnOptions(), label=[2, 1], options=[("8", "7", "8"), ("9", " 10")]
    )
    assert own.encoded(0).spans == ((8,), (7,), (8,))
    assert own.encoded(0).label == 0
    assert own.encoded(1).label == 1
    goal = own.batch([0]).goal
    assert isinstance(goal, ChooseOption)
    assert goal.choices(OnlyEight()).argmax(1).tolist() == goal.targets.tolist() == [0]


class OnlyEight:
    """A head that is sure of token 8."""

    def words(self, candidates: torch.Tensor) -> torch.Tensor:
        raise AssertionError("options are scored over the whole vocabulary")

    def surprisals(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.where(tokens == 8, 0.1, 5.0)


def test_a_missing_tokenizer_is_reported() -> None:
    with pytest.raises(HoflError, match="a task needs a tokenizer"):
        encode([], Prompt("{text}:", "text", LabelWords(("a", "b"))), None, 32, 64)


def test_a_batch_is_one_row_of_texts_and_its_slots_are_their_last_tokens() -> None:
    prompts = ((14, 5), (6,), (7, 8, 9, 10))
    examples = number_set(prompts, LabelWords(("21", "20", "22")), label=(1, 0, 2))
    batch = examples.batch([2, 0, 1])
    assert batch.texts.tokens.tolist() == [7, 8, 9, 10, END, 14, 5, END, 6, END]
    assert batch.texts.lengths == (5, 3, 2)
    assert batch.texts.positions().tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 0, 1]
    assert batch.slots.tolist() == [4, 7, 9]
    assert isinstance(batch.goal, ChooseWord)
    assert batch.goal.targets.tolist() == [2, 1, 0]
    assert batch.goal.candidates.tolist() == [21, 20, 22]
    assert batch.texts.tokens.dtype == batch.slots.dtype == batch.goal.targets.dtype == torch.long
