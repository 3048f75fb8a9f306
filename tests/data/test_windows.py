"""Documents in windows: every token is predicted exactly once, and never after another client's."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from hofl.core.errors import HoflError
from hofl.data.encoded import EncodedSet, TokenLine
from hofl.data.encoding import encode
from hofl.data.task import Documents, Example
from hofl.data.tasks.free_text import load_text
from support.chat_styles import chat_tokenizer
from support.number_texts import number_tokenizer, words

END = 2
TEXTS = ([10, 11, 12, 13, 14], [20], [30, 31, 32, 33, 34, 35, 36], [40, 41], [50, 51, 52])
GROUPS = [np.array([2, 0]), np.array([1]), np.array([3, 4])]
STREAMS = [
    [30, 31, 32, 33, 34, 35, 36, END, 10, 11, 12, 13, 14, END],
    [20, END],
    [40, 41, END, 50, 51, 52, END],
]


def documents(max_length: int) -> EncodedSet:
    examples = [Example({"text": words(text)}) for text in TEXTS]
    return encode(examples, Documents(), number_tokenizer(), max_length, 64)


def lines(examples: EncodedSet, rows: np.ndarray) -> list[TokenLine]:
    return [examples.encoded(int(row)).lines[0] for row in rows]


@pytest.mark.parametrize("most", [2, 3, 4, 5, 7, 14, 60])
def test_every_token_of_a_client_is_predicted_once_after_the_one_before_it(most: int) -> None:
    packed, groups = documents(most).grouped(GROUPS)
    assert [row for rows in groups for row in rows] == list(range(len(packed)))
    for rows, stream in zip(groups, STREAMS, strict=True):
        windows = lines(packed, rows)
        assert [token for line in windows for token in line.targets] == stream
        pairs = [
            (line.tokens[slot], target)
            for line in windows
            for slot, target in zip(line.slots, line.targets, strict=True)
        ]
        assert pairs == list(pairwise([END, *stream]))
        for line in windows:
            assert len(line.tokens) <= most
            assert line.tokens[1:] == line.targets[:-1]
            assert set(line.tokens) <= set(stream), "nothing of another client is read"
        assert all(len(line.tokens) == most for line in windows[:-1])
        assert packed.sizes()[rows].tolist() == [len(line.tokens) for line in windows]


def test_a_tokenizer_with_a_start_token_has_it_before_every_window() -> None:
    tokenizer = chat_tokenizer()
    text = "What is the capital of France? " * 4
    examples = encode([Example({"text": text})] * 2, Documents(), tokenizer, 9, 64)
    packed, (rows,) = examples.grouped([np.array([0, 1])])
    windows = lines(packed, rows)
    assert {line.tokens[0] for line in windows} == {tokenizer.bos_token_id}
    ids = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    assert [token for line in windows for token in line.targets] == 2 * ids


def test_documents_stay_apart_until_they_are_grouped() -> None:
    alone = documents(60)
    assert [alone.encoded(i).lines[0].targets for i in range(len(TEXTS))] == [
        (*text, END) for text in TEXTS
    ]


def test_documents_and_clients_come_from_columns(tmp_path: Path) -> None:
    path = tmp_path / "plays.jsonl"
    rows = [{"who": who, "text": f"{who}:\nwords"} for who in ("Hamlet", "Duke", "Hamlet")]
    path.write_text("\n".join(map(json.dumps, rows)))
    task = load_text(train=path, test=path, client_column="who")
    assert list(task.clients) == list(task.test_clients) == [1, 0, 1]
    assert task.train[0].fields["text"] == "Hamlet:\nwords"
    with pytest.raises(HoflError, match=r"no column 'body' among who, text: name the column"):
        load_text(train=path, test=path, text_column="body")
