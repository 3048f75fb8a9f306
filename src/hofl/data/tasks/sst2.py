"""SST-2: is a sentence of a film review positive? GLUE's split, scored on its validation set."""

from hofl.data.readers import Row, label_index, text
from hofl.data.sources import Benchmark
from hofl.data.task import Example, LabelWords, Prompt

CLASSES = ("negative", "positive")


def _example(_number: int, row: Row) -> Example:
    return Example({"sentence": text(row, "sentence")}, label_index(row, "label", CLASSES))


def _prompt(template: str, *words: str) -> Prompt:
    return Prompt(template, cut="sentence", answer=LabelWords(words))


SST2 = Benchmark(
    name="sst2",
    hub="stanfordnlp/sst2",
    sizes={"train": 67_349, "validation": 872},
    prompts={
        "review": _prompt("Review: {sentence}\nSentiment:", "negative", "positive"),
        "it-was": _prompt("{sentence} It was", "terrible", "great"),
        "it-was-good": _prompt("{sentence} It was", "bad", "good"),
        "instruct": _prompt(
            "Is the sentiment of this sentence from a film review positive or negative?\n"
            "Sentence: {sentence}\nAnswer:",
            "negative",
            "positive",
        ),
    },
    example=_example,
    classes=CLASSES,
)
