"""Prompts and answers as token ids, for any tokenizer.

An answer follows its prompt after one space. What that space becomes differs between tokenizers (a
byte-level BPE attaches it to the word, SentencePiece marks the word), so an answer is never
tokenised alone: its tokens are those that the prompt's last words gain when the answer follows
them.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hofl.core.errors import HoflError
from hofl.data.task import Example, FreeText, Prompt


@dataclass(frozen=True)
class PromptEncoder:
    """A prompt's texts as token ids.

    Args:
        prompt: template and answer.
        tokenizer: of the model.
        max_length: most tokens of a prompt.
        window: most tokens that the model can attend to.
    """

    prompt: Prompt
    tokenizer: Any
    max_length: int
    window: int

    @cached_property
    def _tail(self) -> str:
        """Return the template's last fixed words, which an answer follows."""
        line = self.prompt.template.rsplit("\n", 1)[-1]
        return line.rsplit("}", 1)[-1] or "x"

    def answer(self, text: str) -> tuple[int, ...]:
        """Return the token ids of an answer as it follows the prompt."""
        before = self.tokenizer(self._tail, add_special_tokens=False)["input_ids"]
        together = self.tokenizer(f"{self._tail} {text}", add_special_tokens=False)["input_ids"]
        if together[: len(before)] != before or len(together) == len(before):
            raise HoflError(
                f"this tokenizer does not separate answer {text!r} from its prompt: "
                f"'{self._tail} {text}' becomes {self.pieces(together)}, and without the answer "
                f"{self.pieces(before)}. End the template in another word."
            )
        return tuple(together[len(before) :])

    def pieces(self, ids: Any) -> list[str]:
        """Return token ids as the tokenizer's own pieces, for messages."""
        return self.tokenizer.convert_ids_to_tokens(list(ids))

    def encode(self, example: Example, longest_answer: int) -> tuple[tuple[int, ...], int]:
        """Return the token ids of an example's prompt, and how many had to be cut off.

        The field named by ``prompt.cut`` loses its end until prompt and answer fit; the other
        fields and the place of the answer stay whole.
        """
        # The last token of an answer is predicted, never read.
        most = min(self.max_length, self.window - longest_answer + 1)
        ids = self._ids(example.fields)
        if len(ids) <= most:
            return tuple(ids), 0
        whole = len(ids)
        text = example.fields[self.prompt.cut].strip()
        tokens = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        keep = len(tokens)
        while len(ids) > most and keep > 0:
            keep = max(0, keep - (len(ids) - most))
            shorter = self.tokenizer.decode(tokens[:keep])
            ids = self._ids({**example.fields, self.prompt.cut: shorter})
        if len(ids) > most:
            raise HoflError(
                f"a prompt takes {len(ids)} tokens even without its {self.prompt.cut!r}, and only "
                f"{most} are allowed (task.max_length {self.max_length}, the model's window "
                f"{self.window}). Raise task.max_length or shorten the template."
            )
        return tuple(ids), whole - len(ids)

    def _ids(self, fields: Any) -> list[int]:
        return self.tokenizer(self.prompt.render(fields))["input_ids"]


def reserved(prompt: Prompt) -> int:
    """Return the number of tokens that a generated answer may take."""
    return prompt.answer.max_new_tokens if isinstance(prompt.answer, FreeText) else 1
