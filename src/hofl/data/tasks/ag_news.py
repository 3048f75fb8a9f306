"""AG News: which of four sections does a news item belong to? Scored on the test set.

Files keep title and description apart; they are joined by a space, as on the hub.
"""

from hofl.data.readers import Row, label_index, text
from hofl.data.sources import Benchmark
from hofl.data.task import Example, LabelWords, Prompt

CLASSES = ("World", "Sports", "Business", "Sci/Tech")


def _example(_number: int, row: Row) -> Example:
    if "text" in row:
        article = text(row, "text")
    else:
        article = f"{text(row, 'title')} {text(row, 'description')}"
    return Example({"article": article}, label_index(row, "label", CLASSES))


def _prompt(template: str, *words: str) -> Prompt:
    return Prompt(template, cut="article", answer=LabelWords(words), max_length=256)


AG_NEWS = Benchmark(
    name="ag_news",
    hub="fancyzhx/ag_news",
    sizes={"train": 120_000, "test": 7_600},
    prompts={
        "topic": _prompt("Article: {article}\nTopic:", "World", "Sports", "Business", "Technology"),
        "science": _prompt("Article: {article}\nTopic:", "World", "Sports", "Business", "Science"),
        "lower": _prompt(
            "{article}\nThis is a news item about", "politics", "sports", "business", "technology"
        ),
        "instruct": _prompt(
            "Is this news item about the world, sports, business or technology?\n"
            "{article}\nAnswer:",
            "World",
            "Sports",
            "Business",
            "Technology",
        ),
    },
    example=_example,
    classes=CLASSES,
)
