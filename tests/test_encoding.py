"""Prompts and label words through real tokenizers: a byte-level BPE and a word-level one."""

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from hofl.batch import ChooseWord
from hofl.data.encoding import EncodedSet, encode, label_tokens
from hofl.data.task import Example, LabelWords, Prompt, Task
from hofl.errors import HoflError

SENTENCES = [
    "Review: the film was great and the cast was great. Sentiment: great",
    "Review: the film was terrible, a terrible bore. Sentiment: terrible",
    "Review: a so-so film with a great cast and a terrible end. Sentiment: terrible",
]
LABELS = ("terrible", "great")
PROMPT = Prompt("Review: {text}\nSentiment:", cut="text", answer=LabelWords(LABELS))
TASK = Task(
    name="films",
    prompts={"review": PROMPT},
    train=(),
    test=(),
)
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


def encode_one(kind: str, text: str, max_length: int) -> tuple[int, ...]:
    encoded = encode(TASK, [Example({"text": text}, 0)], TOKENIZERS[kind], max_length)
    return encoded.prompts[0]


def test_byte_level_label_words_are_the_tokens_with_a_leading_space() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    words = label_tokens(LABELS, tokenizer)
    assert tokenizer.convert_ids_to_tokens(list(words)) == ["Ġterrible", "Ġgreat"]
    assert [tokenizer.decode([word]) for word in words] == [" terrible", " great"]


def test_word_level_label_words_are_their_own_tokens() -> None:
    tokenizer = TOKENIZERS["word-level"]
    words = label_tokens(LABELS, tokenizer)
    assert tokenizer.convert_ids_to_tokens(list(words)) == ["terrible", "great"]


@pytest.mark.parametrize(("kind", "word"), [("byte-level", "wonderful"), ("word-level", "so-so")])
def test_a_label_word_of_several_tokens_is_refused_with_its_pieces(kind: str, word: str) -> None:
    tokenizer = TOKENIZERS[kind]
    pieces = tokenizer.convert_ids_to_tokens(list(ids_of(tokenizer, f"x {word}")))
    assert len(pieces) > 2
    with pytest.raises(HoflError, match=f"'{word}' is not one token") as refusal:
        label_tokens(("great", word), tokenizer)
    assert str(pieces) in str(refusal.value)


def test_label_words_that_share_a_token_are_refused() -> None:
    with pytest.raises(HoflError, match=r"share a token.*'splendid': 0.*'awful': 0"):
        label_tokens(("great", "splendid", "awful"), TOKENIZERS["word-level"])
    with pytest.raises(HoflError, match="share a token"):
        label_tokens(("great", "great"), TOKENIZERS["byte-level"])


@every_tokenizer
def test_a_text_that_fits_is_encoded_as_the_filled_in_template(kind: str) -> None:
    text = "the cast was great {and} the film 100% a bore"
    whole = TOKENIZERS[kind](f"Review: {text}\nSentiment:")["input_ids"]
    assert encode_one(kind, text, len(whole)) == tuple(whole)
    assert encode_one(kind, text, len(whole) - 1) != tuple(whole)


@every_tokenizer
@pytest.mark.parametrize("max_length", [12, 16, 23, 40])
def test_a_too_long_text_loses_its_end_and_the_answer_slot_survives(
    kind: str, max_length: int
) -> None:
    tokenizer = TOKENIZERS[kind]
    whole = tuple(tokenizer(PROMPT.template.format(text=LONG))["input_ids"])
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
    bare = len(TOKENIZERS[kind](PROMPT.template.format(text=""))["input_ids"])
    with pytest.raises(HoflError, match=f"'films' alone takes {bare} tokens"):
        encode_one(kind, LONG, bare - 1)


def test_a_missing_tokenizer_is_reported_with_the_task() -> None:
    with pytest.raises(HoflError, match="'films' needs a tokenizer"):
        encode(TASK, [Example({"text": "the film"}, 0)], None, 32)


@every_tokenizer
def test_encode_keeps_the_order_of_examples_labels_and_words(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    examples = [
        Example({"text": "a great film"}, 1),
        Example({"text": "a bore"}, 0),
        Example({"text": "the cast was great"}, 1),
    ]
    encoded = encode(TASK, examples, tokenizer, 64)
    assert len(encoded) == 3
    assert encoded.labels == (1, 0, 1)
    assert encoded.words == label_tokens(LABELS, tokenizer)
    for prompt, example in zip(encoded.prompts, examples, strict=True):
        assert prompt == tuple(
            tokenizer(PROMPT.template.format(text=example.fields["text"]))["input_ids"]
        )


def test_a_batch_is_padded_on_the_right_and_its_slots_are_the_last_tokens() -> None:
    examples = EncodedSet(((4, 5), (6,), (7, 8, 9, 10)), labels=(1, 0, 2), words=(21, 20, 22))
    batch = examples.batch([2, 0, 1])
    assert batch.input_ids.tolist() == [[7, 8, 9, 10], [4, 5, 0, 0], [6, 0, 0, 0]]
    assert batch.rows.tolist() == [0, 1, 2]
    assert batch.columns.tolist() == [3, 1, 0]
    assert batch.input_ids[batch.rows, batch.columns].tolist() == [10, 5, 6]
    assert isinstance(batch.goal, ChooseWord)
    assert batch.goal.targets.tolist() == [2, 1, 0]
    assert batch.goal.candidates.tolist() == [21, 20, 22]
    assert batch.input_ids.dtype == batch.goal.targets.dtype == torch.long
    assert examples.batch([0, 1]).input_ids.shape == (2, 2), "no wider than its longest prompt"
