"""Conversations: trained tokens against texts written by hand, truncation, and bad rows."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from hofl.core.errors import HoflError
from hofl.data.chat import ChatEncoder
from hofl.data.conversations import ChatColumns, messages_of
from hofl.data.encoded import Encoded
from hofl.data.readers import BadRow
from hofl.data.task import Chat
from hofl.data.tasks.free_text import load_chat
from hofl.models.sources import fetch
from support.chat_styles import STYLES, Turns, chat_tokenizer, messages

SHORT: Turns = [("user", "What is the capital?"), ("assistant", "Paris,\n\nof course.")]
LONG: Turns = [*SHORT, ("user", "You are a helpful <b>ö</b>?"), ("assistant", "Yes.  {x} 東京")]
SYSTEM: Turns = [("system", "You are Ada.\nof France"), *LONG]
every_style = pytest.mark.parametrize("style", STYLES)


def by_hand(style: str, turns: Turns) -> tuple[list[int], list[bool]]:
    """Token ids and marks of the hand-written pieces, each tokenised alone."""
    tokenizer, ids, marks = chat_tokenizer(), [], []
    for text, trained in STYLES[style].by_hand(turns):
        piece = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids += piece
        marks += [trained] * len(piece)
    while not marks[-1]:  # nothing behind the last answer is used
        ids.pop()
        marks.pop()
    return ids, marks


def encoded(style: str, turns: Turns, max_length: int = 1000) -> Encoded:
    tokenizer = chat_tokenizer(STYLES[style].template)
    return ChatEncoder(tokenizer, max_length).encode(messages(turns))


@every_style
@pytest.mark.parametrize("turns", [SHORT, LONG, SYSTEM])
def test_exactly_the_assistants_tokens_are_trained(style: str, turns: Turns) -> None:
    if turns is SYSTEM and not STYLES[style].system:
        with pytest.raises(HoflError, match="refuses the conversation: System role not supported"):
            encoded(style, turns)
        return
    ids, marks = by_hand(style, turns)
    result = encoded(style, turns)
    (line,) = result.lines
    assert [*line.tokens, line.targets[-1]] == ids
    assert [slot + 1 for slot in line.slots] == [place for place, mark in enumerate(marks) if mark]
    assert list(line.targets) == [token for token, mark in zip(ids, marks, strict=True) if mark]
    assert result.cut == 0


@every_style
def test_marks_equal_those_of_a_template_that_marks_its_answers(style: str) -> None:
    """``transformers`` itself marks what a template puts between generation tags."""
    tokenizer = chat_tokenizer()
    whole = tokenizer.apply_chat_template(
        messages(LONG),
        chat_template=_tagged(style),
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    expected = [place for place, mark in enumerate(whole["assistant_masks"]) if mark]
    (line,) = encoded(style, LONG).lines
    assert [slot + 1 for slot in line.slots] == expected
    assert list(line.tokens) == whole["input_ids"][: len(line.tokens)]


def _tagged(style: str) -> str:
    """The style as a template with generation tags."""
    name, head, end, behind = {
        "chatml": ("assistant", "<|im_start|>ROLE\n", "<|im_end|>", "\n"),
        "llama3": ("assistant", "<|start_header_id|>ROLE<|end_header_id|>\n\n", "<|eot_id|>", ""),
        "gemma": ("model", "<start_of_turn>ROLE\n", "<end_of_turn>", "\n"),
    }[style]
    first = "<|im_start|>system\nYou are Ada<|im_end|>\n" if style == "chatml" else "<s>"
    return (
        f"{first}{{% for m in messages %}}{{% if m.role == 'assistant' %}}"
        f"{{{{ '{head.replace('ROLE', name)}' }}}}"
        f"{{% generation %}}{{{{ m.content + '{end}' }}}}{{% endgeneration %}}{{{{ '{behind}' }}}}"
        f"{{% else %}}{{{{ '{head}'.replace('ROLE', m.role) + m.content + '{end}{behind}' }}}}"
        "{% endif %}{% endfor %}"
    )


def test_the_built_in_models_own_template_is_marked_as_its_pieces_are() -> None:
    """SmolLM2's real tokenizer and template; pieces as its model card shows them, by hand."""
    tokenizer = AutoTokenizer.from_pretrained(fetch("smollm2-135m-instruct"))
    head = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n"
    )
    pieces = [(head, False)]
    for role, content in LONG:
        pieces += [(f"<|im_start|>{role}\n", False), (f"{content}<|im_end|>", role == "assistant")]
        pieces += [("\n", False)]
    ids, marks = [], []
    for text, trained in pieces[:-1]:
        piece = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids += piece
        marks += [trained] * len(piece)
    (line,) = ChatEncoder(tokenizer, 1000).encode(messages(LONG)).lines
    assert [*line.tokens, line.targets[-1]] == ids
    assert [slot + 1 for slot in line.slots] == [place for place, mark in enumerate(marks) if mark]


SPACED = (
    "{% for m in messages %}{{ m.role + ': ' + m.content + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
"""Its prompt ends in a space, which a tokenizer joins with the first word of the answer."""


@pytest.mark.parametrize("answer", ["Paris, of course", "Paris", "a"])
def test_a_word_that_is_joined_with_the_prompts_last_space_is_trained(answer: str) -> None:
    tokenizer = chat_tokenizer(SPACED)
    turns: Turns = [SHORT[0], ("assistant", answer), SHORT[0], ("assistant", answer)]
    (line,) = ChatEncoder(tokenizer, 999).encode(messages(turns)).lines
    assert tokenizer.decode(line.targets) == f" {answer}</s>" * 2
    endless = chat_tokenizer(SPACED.replace(" + eos_token", ""))
    (line,) = ChatEncoder(endless, 999).encode(messages(turns[:2])).lines
    assert tokenizer.decode(line.targets) == f" {answer}"


@every_style
def test_the_prompt_of_a_generated_answer_ends_where_the_last_answer_begins(style: str) -> None:
    tokenizer = chat_tokenizer(STYLES[style].template)
    asked = tokenizer.apply_chat_template(
        messages(LONG[:-1]), add_generation_prompt=True, return_dict=True
    )
    assert list(encoded(style, LONG).prompt) == asked["input_ids"]
    end = tokenizer.convert_tokens_to_ids(STYLES[style].end)
    assert ChatEncoder(tokenizer, 99).stops == (end, tokenizer.eos_token_id)


def test_a_tokenizer_without_a_template_gets_a_plain_one() -> None:
    tokenizer = chat_tokenizer()
    (line,) = ChatEncoder(tokenizer, 999).encode(messages(SYSTEM)).lines
    text = tokenizer.decode([*line.tokens, line.targets[-1]])
    assert text == (
        "<s>You are Ada.\nof France\n\nUser: What is the capital?\nAssistant: Paris,\n\nof course."
        "</s>\nUser: You are a helpful <b>ö</b>?\nAssistant: Yes.  {x} 東京</s>"
    )
    assert tokenizer.decode(line.targets) == " Paris,\n\nof course.</s> Yes.  {x} 東京</s>"


@every_style
def test_a_long_answer_loses_its_end_and_the_lost_tokens_are_counted(style: str) -> None:
    ids, marks = by_hand(style, LONG)
    first = marks.index(True)
    for most in range(first + 12, len(ids) - 1):
        result = encoded(style, LONG, most)
        (line,) = result.lines
        kept = len(line.tokens) + 1
        assert kept <= most + 1
        assert [*line.tokens, line.targets[-1]] == ids[:kept]
        assert list(line.targets) == [ids[i] for i in range(kept) if marks[i]]
        assert result.cut == len(ids) - kept
        assert all(not mark for mark in marks[kept : most + 1]), (
            "no trained token that fits is lost"
        )


@every_style
def test_a_long_question_loses_its_end_so_that_the_answers_start_stays(style: str) -> None:
    question = "What is the capital of France? " * 30
    turns: Turns = [("user", question.strip()), ("assistant", "Paris, of course. " * 40)]
    result = encoded(style, turns, 64)
    (line,) = result.lines
    answer = by_hand(style, [("user", "x"), turns[1]])
    wanted = [token for token, mark in zip(*answer, strict=True) if mark]
    assert len(line.tokens) == 64
    assert 64 // 4 <= len(line.targets) <= 64 // 4 + 8
    assert list(line.targets) == wanted[: len(line.targets)]
    whole = len(by_hand(style, turns)[0])
    assert 0 < result.cut < whole
    with pytest.raises(HoflError, match=r"raise task\.max_length"):
        encoded(style, turns, 4)


def test_two_long_messages_before_an_answer_are_both_shortened() -> None:
    turns: Turns = [("system", "You are Ada. " * 60), ("user", "What is France? " * 60), SHORT[1]]
    (line,) = encoded("chatml", turns, 64).lines
    assert len(line.tokens) <= 64
    read = chat_tokenizer().decode(line.tokens)
    system, user = read.split("<|im_end|>")[:2]
    assert system.startswith("<|im_start|>system\nYou are Ada. You")
    assert user.startswith("\n<|im_start|>user\nWhat is France? What")
    assert chat_tokenizer().decode(line.targets) == "Paris,\n\nof course.<|im_end|>"


def test_a_message_is_cut_between_characters() -> None:
    turns: Turns = [("user", "東京" * 60), SHORT[1]]
    for most in range(60, 80):
        (line,) = encoded("chatml", turns, most).lines
        assert "\ufffd" not in chat_tokenizer().decode(line.tokens)


@pytest.mark.parametrize("template", ["{{ messages + 1 }}", "{{ 1 / 0 }}", "{% for m in x %}"])
def test_a_template_that_fails_is_one_line(template: str) -> None:
    with pytest.raises(HoflError, match="chat template refuses the conversation") as raised:
        ChatEncoder(chat_tokenizer(template), 99).encode(messages(SHORT))
    assert "\n" not in str(raised.value)


def test_a_template_that_rewrites_earlier_turns_is_refused() -> None:
    forgetful = (
        "{% for m in messages %}{{ m.role }}: {% if loop.last or m.role == 'user' %}"
        "{{ m.content }}{% else %}...{% endif %}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    encoder = ChatEncoder(chat_tokenizer(forgetful), 999)
    assert encoder.encode(messages(SHORT)).lines
    with pytest.raises(HoflError, match="turn 1 differently"):
        encoder.encode(messages(LONG))


def test_the_date_of_a_template_is_the_same_every_day() -> None:
    dated = "{{ strftime_now('%d %B %Y') }} {{ date_string }}" + STYLES["chatml"].template
    line = ChatEncoder(chat_tokenizer(dated), 999).encode(messages(SHORT)).lines[0]
    text = chat_tokenizer().decode(line.tokens)
    assert text.startswith("26 Jul 2024 26 Jul 2024")


ROWS: dict[str, dict[str, Any]] = {
    "messages": {"messages": messages(SHORT)},
    "JSON in a CSV file": {"messages": json.dumps(messages(SHORT))},
    "instruction": {"instruction": SHORT[0][1], "input": "", "response": SHORT[1][1]},
    "Alpaca": {"instruction": SHORT[0][1], "output": SHORT[1][1], "id": 3},
    "completion": {"prompt": SHORT[0][1], "completion": SHORT[1][1]},
}


@pytest.mark.parametrize("kind", ROWS)
def test_columns_are_recognised(kind: str) -> None:
    columns = ChatColumns.found(ROWS[kind], ChatColumns(), "file line 1")
    assert messages_of(columns.example(ROWS[kind])) == messages(SHORT)


def test_columns_can_be_named_and_an_input_follows_its_instruction() -> None:
    row = {"frage": "What?", "thema": "France", "antwort": "Paris", "rolle": "Ada"}
    named = ChatColumns(prompt="frage", input="thema", system="rolle", target="antwort")
    assert messages_of(ChatColumns.found(row, named, "").example(row)) == messages(
        [("system", "Ada"), ("user", "What?\n\nFrance"), ("assistant", "Paris")]
    )
    with pytest.raises(HoflError, match="no conversation is recognised in the columns frage, the"):
        ChatColumns.found(row, ChatColumns(), "file line 1")
    with pytest.raises(HoflError, match="both"):
        ChatColumns.found(row, ChatColumns(prompt="frage"), "")


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        ([("user", "Hi")], "no assistant turn"),
        ([("user", " "), ("assistant", "x")], "message 0: field 'content' is empty"),
        ([("user", "Hi"), ("bot", "x")], "unknown role 'bot', allowed are system, user, assistant"),
        ([("user", "Hi"), ("system", "x")], "a system message can only be the first"),
        ([("assistant", "Hello!"), ("user", "Hi"), ("assistant", "x")], "message 0: an answer ne"),
        ([], "must list messages"),
    ],
)
def test_bad_conversations_are_refused(turns: Turns, reason: str) -> None:
    with pytest.raises(BadRow, match=reason):
        ChatColumns(messages="messages").example({"messages": messages(turns)})


def test_a_bad_row_is_reported_with_its_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    rows = [ROWS["messages"], {"messages": messages([("user", "Hi")])}]
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(HoflError, match=r"talk\.jsonl line 2: the conversation has no assistant"):
        load_chat(train=path, test=path)


def test_clients_come_from_a_column_or_from_files(tmp_path: Path) -> None:
    row = ROWS["completion"]
    path = tmp_path / "talk.jsonl"
    path.write_text("\n".join(json.dumps({**row, "who": who}) for who in "bab"))
    task = load_chat(train=path, test=path, named=ChatColumns(client="who"))
    assert list(task.clients) == [1, 0, 1]
    assert isinstance(task.prompt(), Chat)
    folder = tmp_path / "clients"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.jsonl").write_text(json.dumps(row) + "\n")
    assert list(load_chat(train=folder, test=path).clients) == [0, 1, 2]
