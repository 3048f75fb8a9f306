"""Conversations as token ids through a chat template, with the assistant's tokens marked.

The template is the tokenizer's own. Where an answer begins is not guessed from the template's
words: it is where the template puts the prompt for generation, so a model is trained on what
follows the very text that it is asked to continue later. An answer ends with its end-of-turn token;
white space that the template adds behind that is not trained.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import torch

from hofl.core.batch import Goal, PredictTokens
from hofl.core.errors import HoflError
from hofl.data.conversations import Message, messages_of
from hofl.data.encoded import Encoded, ExampleSet, Question, TokenLine

PLAIN = (
    "{{ lead }}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] + '\\n\\n' }}"
    "{% elif message['role'] == 'user' %}{{ 'User: ' + message['content'] + '\\n' }}"
    "{% else %}{{ 'Assistant: ' + message['content'] + eos_token + '\\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
"""For tokenizers without a chat template."""
TODAY = "26 Jul 2024"
"""Some templates state the date: a fixed one, so that a run repeats on another day."""
_CALENDAR = f"{{%- macro strftime_now(format) -%}}{TODAY}{{%- endmacro -%}}"


@dataclass(frozen=True)
class ChatEncoder:
    """Conversations through a tokenizer's chat template.

    Args:
        tokenizer: of the model, a fast one: places of tokens in the text are needed.
        max_length: most tokens of a conversation.
    """

    tokenizer: Any
    max_length: int

    def __post_init__(self) -> None:
        if not self.tokenizer.is_fast:
            raise HoflError(
                "task 'chat' needs a fast tokenizer (tokenizer.json), which knows the place of "
                "each token in the text: convert this one."
            )
        if not self.tokenizer.chat_template and self.tokenizer.eos_token is None:
            raise HoflError(
                "the tokenizer has neither a chat template nor an end-of-text token, so no answer "
                "would end: add a chat template to the model's folder."
            )

    def encode(self, messages: Sequence[Message]) -> Encoded:
        """Return a conversation with its trained tokens; one that is too long is cut.

        The longest message before the first answer loses its end if otherwise the answer would be
        left with less than a quarter of ``max_length`` (or less than all of it, if it is shorter).
        Then everything behind ``max_length`` tokens is cut off: the start of an answer stays.
        """
        ids, answers = self._tokens(messages)
        whole = len(ids)
        while len(ids) > self.max_length + 1 and (excess := self._excess(answers[0])) > 0:
            messages = self._shortened(messages, excess)
            ids, answers = self._tokens(messages)
        most = self.max_length + 1  # the last token is predicted, not read
        kept = [range(a.start, min(a.stop, most)) for a in answers if a.start < most]
        trained = list(chain(*kept))
        ids = ids[: trained[-1] + 1]
        line = TokenLine(
            tokens=tuple(ids[:-1]),
            slots=tuple(place - 1 for place in trained),
            targets=tuple(ids[place] for place in trained),
        )
        prompt, cut = tuple(ids[: kept[-1].start]), whole - len(ids)
        return Encoded((line,), prompt=prompt, cut=cut, answers=len(kept))

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Return messages up to where the next answer begins, whatever their length."""
        text = self._text(messages, prompt=True)
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    @cached_property
    def stops(self) -> tuple[int, ...]:
        """Return the tokens that end an answer: the template's end of a turn, the end of a text."""
        sample = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})
        last = self._tokens(sample)[0][-1]
        turn = [last] if last in self.tokenizer.added_tokens_decoder else []
        end = self.tokenizer.eos_token_id
        stops = tuple(dict.fromkeys([*turn, *([] if end is None else [end])]))
        if not stops:
            raise HoflError(
                "neither the chat template nor the tokenizer has a token that ends an answer, so "
                "generation could not stop. Use another model."
            )
        return stops

    def _tokens(self, messages: Sequence[Message]) -> tuple[list[int], list[range]]:
        """Return token ids up to the end of the last answer, and the places of each answer's."""
        text, spans = self._rendered(messages)
        encoding = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        offsets = encoding["offset_mapping"]
        answers = []
        for start, end in spans:
            # A prompt may end in a space that the tokenizer joins with the answer's first word.
            places = [
                place
                for place, (first, behind) in enumerate(offsets)
                if first < end and (first >= start or behind > start)
            ]
            answers.append(range(places[0], places[-1] + 1))
        return encoding["input_ids"][: answers[-1].stop], answers

    def _rendered(self, messages: Sequence[Message]) -> tuple[str, list[tuple[int, int]]]:
        """Return the conversation as text, and from where to where in it each answer is."""
        whole, spans = self._text(messages), []
        for turn, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self._text(messages[:turn], prompt=True)
            answer = self._answer(self._text(messages[: turn + 1]).removeprefix(before))
            if not whole.startswith(before + answer) or not answer.strip():
                raise HoflError(
                    f"the chat template writes turn {turn} differently as the last and as an "
                    "earlier one, so its trained tokens are unknown: use conversations with one "
                    "answer, or another template."
                )
            spans.append((len(before), len(before) + len(answer)))
        return whole, spans

    def _answer(self, turn: str) -> str:
        """Return a rendered turn without the white space behind its end-of-turn token."""
        ends = tuple(str(token) for token in self.tokenizer.added_tokens_decoder.values())
        return turn.rstrip() if turn.rstrip().endswith(ends) else turn

    def _text(self, messages: Sequence[Message], *, prompt: bool = False) -> str:
        """Render messages; with ``prompt`` up to where the next answer begins."""
        try:
            text: str = self.tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=prompt,
                chat_template=self._template,
                lead=self._lead,
                date_string=TODAY,
            )
        except Exception as error:  # a template is a program of somebody else
            reason = str(error).rstrip(".")
            raise HoflError(
                f"the model's chat template refuses the conversation: {reason}."
            ) from None
        return text

    @cached_property
    def _template(self) -> str:
        template = self.tokenizer.chat_template
        return _CALENDAR + (self.tokenizer.get_chat_template() if template else PLAIN)

    @cached_property
    def _lead(self) -> str:
        """Return the token that the tokenizer puts before every text, for the plain template."""
        first = self.tokenizer("x")["input_ids"][0]
        return self.tokenizer.bos_token if first == self.tokenizer.bos_token_id else ""

    def _excess(self, answer: range) -> int:
        """Return how many tokens too many there are before the first answer."""
        reserved = min(len(answer), max(1, self.max_length // 4))
        return answer.start + reserved - (self.max_length + 1)

    def _shortened(self, messages: Sequence[Message], excess: int) -> list[Message]:
        """Cut the end of the longest message before the first answer, at most half of it."""
        first = next(i for i, message in enumerate(messages) if message["role"] == "assistant")
        longest = max(range(first), key=lambda i: len(messages[i]["content"]))
        content = messages[longest]["content"]
        encoding = self.tokenizer(content, add_special_tokens=False, return_offsets_mapping=True)
        starts = [start for start, _ in encoding["offset_mapping"]]
        kept = max(len(starts) - excess, len(starts) // 2)  # then another one may be the longest
        shorter = content[: starts[kept]].strip()  # a character of several tokens goes as a whole
        if not shorter:
            raise HoflError(
                f"what comes before the first answer takes more than {self.max_length} tokens even "
                "without its messages: raise task.max_length."
            )
        messages = list(messages)
        messages[longest] = {**messages[longest], "content": shorter}
        return messages


@dataclass(frozen=True)
class ConversationSet(ExampleSet):
    """Conversations through a chat template."""

    encoder: ChatEncoder
    max_new_tokens: int

    def encoded(self, index: int) -> Encoded:
        """Return a conversation in tokens."""
        try:
            return self.encoder.encode(messages_of(self.examples[index]))
        except HoflError as error:
            raise HoflError(f"example {index}: {error}") from None

    def question(self, index: int) -> Question:
        """Ask for the last answer that is trained, after everything before it."""
        encoded, messages = self.encoded(index), messages_of(self.examples[index])
        turns = [turn for turn, message in enumerate(messages) if message["role"] == "assistant"]
        turn = turns[encoded.answers - 1]  # one that was cut may have lost its last answers
        return Question(
            tokens=encoded.prompt,
            stops=self.encoder.stops,
            max_new_tokens=self.max_new_tokens,
            asked=messages[turn - 1]["content"] if turn else "",
            expected=messages[turn]["content"],
        )

    def goal(self, tokens: Sequence[int], options: Sequence[int], labels: Sequence[int]) -> Goal:
        """Predict every token of the answers."""
        return PredictTokens(torch.tensor(tokens))
