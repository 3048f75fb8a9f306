"""SQuAD 1.1: answer a question in words of a paragraph, by generation; scored by EM and F1."""

from collections.abc import Sequence

from hofl.data.readers import BadRow, Row, required, text
from hofl.data.sources import Benchmark
from hofl.data.task import Example, FreeText, Prompt


def _example(_number: int, row: Row) -> Example:
    fields = {name: text(row, name) for name in ("id", "context", "question")}
    fields["title"] = text(row, "title").replace("_", " ")
    return Example(fields, golds=_golds(row))


def _golds(row: Row) -> tuple[str, ...]:
    """Return the answer texts; the hub has a column of them, files a list of objects."""
    answers = required(row, "answers")
    texts = answers.get("text") if isinstance(answers, dict) else answers
    if not isinstance(texts, Sequence) or isinstance(texts, str) or not texts:
        raise BadRow(f"field 'answers' must list at least one answer, got {answers!r}")
    named = [answer if isinstance(answer, dict) else {"text": answer} for answer in texts]
    return tuple(text(answer, "text") for answer in named)


_ANSWER = FreeText(max_new_tokens=64)

SQUAD = Benchmark(
    name="squad",
    hub="rajpurkar/squad",
    sizes={"train": 87_599, "validation": 10_570},
    prompts={
        "title": Prompt(
            "Title: {title}\nContext: {context}\nQuestion: {question}\nAnswer:",
            cut="context",
            answer=_ANSWER,
            max_length=512,
        ),
        "bare": Prompt(
            "{context}\nQuestion: {question}\nAnswer:",
            cut="context",
            answer=_ANSWER,
            max_length=512,
        ),
        "instruct": Prompt(
            "Context: {context}\nAnswer the question in a few words of the context.\n"
            "Question: {question}\nAnswer:",
            cut="context",
            answer=_ANSWER,
            max_length=512,
        ),
    },
    example=_example,
)
