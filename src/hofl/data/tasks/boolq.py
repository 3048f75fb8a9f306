"""BoolQ: a yes/no question about a passage of Wikipedia, scored on the validation set."""

from hofl.data.readers import BadRow, Row, required, text
from hofl.data.sources import Benchmark
from hofl.data.task import Example, LabelWords, Prompt


def _example(_number: int, row: Row) -> Example:
    answer = required(row, "answer")
    if not isinstance(answer, bool):
        raise BadRow(f"unknown answer {answer!r}: allowed are true and false")
    # Questions are written without capital and question mark.
    question = text(row, "question").strip().removesuffix("?").rstrip()
    return Example({"passage": text(row, "passage"), "question": question}, int(answer))


def _prompt(template: str, *words: str) -> Prompt:
    return Prompt(template, cut="passage", answer=LabelWords(words), max_length=512)


BOOLQ = Benchmark(
    name="boolq",
    hub="google/boolq",
    sizes={"train": 9_427, "validation": 3_270},
    prompts={
        "question": _prompt("{passage}\nQuestion: {question}?\nAnswer:", "no", "yes"),
        "bare": _prompt("{passage} {question}?", "No", "Yes"),
        "instruct": _prompt(
            "Passage: {passage}\nAnswer the question about the passage with yes or no.\n"
            "Question: {question}?\nAnswer:",
            "no",
            "yes",
        ),
    },
    example=_example,
    classes=("no", "yes"),
)
