"""Rows of a user's files as conversations: lists of messages, each with a role and a content.

A row holds ``messages``, or an instruction (with an input) and a response, or a prompt and a
completion. Columns of these names are recognised; others are named in the configuration.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hofl.core.errors import HoflError
from hofl.data.readers import BadRow, Row, cell, required, text
from hofl.data.task import Example

ROLES = ("system", "user", "assistant")
Message = Mapping[str, str]

_PAIRS = (
    ("instruction", "response"),
    ("instruction", "output"),
    ("prompt", "completion"),
    ("prompt", "response"),
)
"""Recognised columns of one question and its answer."""
_INPUT, _SYSTEM, _MESSAGES = "input", "system", "messages"


@dataclass(frozen=True)
class ChatColumns:
    """Which columns of a row hold its conversation, and its client.

    Args:
        messages: column of a list of messages; None where the row is one question and its answer.
        prompt: column of the question.
        input: column of what the question is about, which may be empty; or None.
        system: column of a system message, which may be empty; or None.
        target: column of the answer.
        client: column that names the client, or None.
    """

    messages: str | None = None
    prompt: str | None = None
    input: str | None = None
    system: str | None = None
    target: str | None = None
    client: str | None = None

    @classmethod
    def found(cls, row: Row, named: "ChatColumns", place: str) -> "ChatColumns":
        """Complete the columns that the user named by those that a first row has."""
        if named.messages is not None or (named.prompt is not None and named.target is not None):
            return named
        if named.prompt is not None or named.target is not None:
            raise HoflError(
                "a conversation of one question needs both custom.prompt_column and "
                "custom.target_column, or neither."
            )
        if _MESSAGES in row:
            return cls(messages=_MESSAGES, client=named.client)
        for prompt, target in _PAIRS:
            if prompt in row and target in row:
                about = named.input or (_INPUT if _INPUT in row else None)
                system = named.system or (_SYSTEM if _SYSTEM in row else None)
                return cls(None, prompt, about, system, target, named.client)
        known = ", ".join(f"{prompt} and {target}" for prompt, target in _PAIRS)
        raise HoflError(
            f"{place}: no conversation is recognised in the columns {', '.join(map(str, row))}: "
            f"expected {_MESSAGES}, or {known}. Name yours by custom.messages_column, or by "
            "custom.prompt_column and custom.target_column."
        )

    def example(self, row: Row) -> Example:
        """Check a row and return its conversation as an example."""
        messages = list(self._messages(row))
        answers = tuple(m["content"] for m in messages if m["role"] == "assistant")
        if not answers:
            raise BadRow("the conversation has no assistant turn, so there is nothing to learn")
        return Example({"messages": json.dumps(messages, ensure_ascii=False)}, golds=answers[-1:])

    def _messages(self, row: Row) -> Iterator[Message]:
        if self.messages is not None:
            yield from _checked(required(row, self.messages), self.messages)
            return
        assert self.prompt is not None
        assert self.target is not None
        system = "" if self.system is None else cell(row, self.system, empty=True)
        about = "" if self.input is None else cell(row, self.input, empty=True)
        if system:
            yield {"role": "system", "content": system}
        question = cell(row, self.prompt)
        yield {"role": "user", "content": f"{question}\n\n{about}" if about else question}
        yield {"role": "assistant", "content": cell(row, self.target)}


def messages_of(example: Example) -> list[dict[str, str]]:
    """Return the messages of a stored conversation."""
    return json.loads(example.fields["messages"])


def _checked(value: Any, name: str) -> Iterator[Message]:
    """Yield the messages of a list, each with a known role and some text."""
    if isinstance(value, str):  # a CSV file holds lists as JSON
        try:
            value = json.loads(value)
        except ValueError:
            raise BadRow(f"field {name!r} is not a JSON list: {value[:60]!r}") from None
    if not isinstance(value, Sequence) or not value:
        raise BadRow(f"field {name!r} must list messages, got {str(value)[:60]!r}")
    for number, message in enumerate(value):
        if not isinstance(message, Mapping):
            raise BadRow(f"message {number} must have a role and a content, got {message!r}")
        try:
            role, content = text(message, "role"), text(message, "content").strip()
        except BadRow as error:
            raise BadRow(f"message {number}: {error}") from None
        if role not in ROLES:
            raise BadRow(f"message {number}: unknown role {role!r}, allowed are {', '.join(ROLES)}")
        if role == "system" and number:
            raise BadRow(f"message {number}: a system message can only be the first")
        if role == "assistant" and not number:
            raise BadRow("message 0: an answer needs a message of the user or the system before it")
        yield {"role": role, "content": content}
