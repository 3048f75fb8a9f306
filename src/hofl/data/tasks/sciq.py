"""SciQ: science questions with four choices, most with a supporting text, scored on the test set.

The files keep the right answer apart from the wrong ones. The choices are put into an order drawn
for each row from a fixed seed, the same on every machine and for every run's seed. The place of the
right one is not a class: there are no labels to split clients by.
"""

from hofl.core.randomness import Purpose, generator
from hofl.data.readers import Row, text
from hofl.data.sources import Benchmark
from hofl.data.task import Example, LabelWords, OwnOptions, Prompt

LETTERS = ("A", "B", "C", "D")
CHOICES = ("correct_answer", "distractor1", "distractor2", "distractor3")
ORDER_SEED = 0


def _example(number: int, row: Row) -> Example:
    order = generator(ORDER_SEED, Purpose.CHOICES, number).permutation(len(CHOICES)).tolist()
    options = tuple(text(row, CHOICES[k]).strip() for k in order)
    fields = {"support": text(row, "support", empty=True), "question": text(row, "question")}
    listed = dict(zip(LETTERS, options, strict=True))
    return Example({**fields, **listed}, order.index(0), options)


_LISTED = "A. {A}\nB. {B}\nC. {C}\nD. {D}"

SCIQ = Benchmark(
    name="sciq",
    hub="allenai/sciq",
    sizes={"train": 11_679, "test": 1_000},
    prompts={
        "letters": Prompt(
            f"{{support}}\nQuestion: {{question}}\n{_LISTED}\nAnswer:",
            cut="support",
            answer=LabelWords(LETTERS),
            max_length=512,
        ),
        "cloze": Prompt(
            "{support}\nQuestion: {question}\nAnswer:",
            cut="support",
            answer=OwnOptions(),
            max_length=512,
        ),
        "instruct": Prompt(
            "{support}\nWhich of the four answers to the science question is right? Give its "
            f"letter.\nQuestion: {{question}}\n{_LISTED}\nLetter:",
            cut="support",
            answer=LabelWords(LETTERS),
            max_length=512,
        ),
    },
    example=_example,
)
