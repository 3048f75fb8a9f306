"""The page docs/results/free-text.md: perplexity of chat and text runs, and answers they wrote."""

from collections.abc import Iterator
from statistics import fmean

from results_parts import HEAD, Data, amount, finished, groups_of, headed, spread, wrapped

from hofl.core.sizes import show_bytes

COMPARISONS = ("roleplay-smollm2", "shakespeare-smollm2", "shakespeare-stories15m")
ANSWERS = 2
"""Sample prompts of a comparison that the page shows; the data file has all."""
LONGEST = 400
"""Characters of a sample that the page shows."""
SOURCES = (
    "The configurations read `data/roleplay` and `data/shakespeare`, each with `train.jsonl.gz` "
    "and `test.jsonl.gz`. Role play: the 1,923 rows of `Roleplay/roleplay-simple-deduped-roleplay-"
    "instruct.json` of teknium1/GPTeacher (MIT; written by a language model) as instruction, input "
    "and response, every tenth row for the test; clients are dealt. Shakespeare: "
    "`data/tinyshakespeare/input.txt` of karpathy/char-rnn (public domain), every speech a row, "
    "its speaker the client: 299 speakers; the last tenth of the speeches of each with at least 10 "
    "is the test set."
)
READING = (
    "All methods have the same rounds, clients, boundaries and start. `recompute uplink_bits=4` is "
    "the exact plan: the bottom is trained exactly, its blocks re-run one at a time, and what goes "
    "up has 4 bits per value. Perplexity is over the tokens that are trained: the assistant's, or "
    "all of a document. Runs are short, with one or two seeds: they show that the whole path "
    "learns, not small differences between methods."
)


def before(row: Data, key: str) -> float | None:
    """A score of the start, mean over the finished seeds."""
    found = [cell["initial"][key] for cell in row["cells"] if cell["state"] == "finished"]
    return fmean(found) if found else None


def score_table(group: Data) -> Iterator[str]:
    """Scores before and after, and what they cost."""
    yield (
        "| method | seeds | perplexity before | after | token accuracy before, % | after, % | "
        "loss | client peak | uplink | block passes |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for row in group["rows"]:
        perplexity, accuracy = before(row, "perplexity"), before(row, "token_accuracy")
        cells = [
            row["label"],
            finished(row),
            "-" if perplexity is None else f"{perplexity:.2f}",
            spread(row, "perplexity"),
            "-" if accuracy is None else f"{100 * accuracy:.2f}",
            spread(row, "score", 100),
            spread(row, "loss", 1, 4),
            amount(row, "peak", show_bytes),
            amount(row, "uplink", show_bytes),
            amount(row, "compute", lambda value: f"{value:.3g}"),
        ]
        yield f"| {' | '.join(cells)} |"


def ranking(group: Data) -> str:
    """What came out, in a sentence: who lowered the loss by how much of what FedAvg did."""
    start = {row["label"]: before(row, "loss") for row in group["rows"]}
    ends = {
        row["label"]: row["measures"]["loss"]["mean"]
        for row in group["rows"]
        if "loss" in row["measures"]
    }
    if "fedavg" not in ends or len(ends) < 2:
        return "Shares of what FedAvg learnt cannot be said yet: too few runs are finished.\n"
    falls = {label: (start[label] or 0.0) - end for label, end in ends.items()}
    shares = ", ".join(
        f"{label} {100 * fall / falls['fedavg']:.0f} %"
        for label, fall in falls.items()
        if label != "fedavg"
    )
    worse = [label for label, fall in falls.items() if fall <= 0]
    fell = "of every finished method" if not worse else f"of all but {', '.join(worse)}"
    return (
        wrapped(
            f"Test loss, and with it perplexity, fell in the runs {fell}. Of the fall that FedAvg "
            f"reached: {shares}."
        )
        + "\n"
    )


def shown(text: str) -> str:
    """A sample as one line of at most so many characters."""
    text = " / ".join(line.strip() for line in text.splitlines() if line.strip())
    return text if len(text) <= LONGEST else text[:LONGEST].rstrip() + " ..."


def sample_answers(group: Data) -> Iterator[str]:
    """What the model wrote for fixed prompts: before, and after each method of one seed."""
    rows = [
        (row["label"], row["cells"][0]["answers"])
        for row in group["rows"]
        if row["cells"] and row["cells"][0].get("answers")
    ]
    if not rows:
        return
    yield "### Sample answers\n"
    yield (
        wrapped(
            "Greedy, to fixed test prompts, of the first seed; cut where they are long, with a "
            "slash for the end of a line."
        )
        + "\n"
    )
    for number, one in enumerate(rows[0][1][:ANSWERS]):
        written = {"prompt": one["prompt"], "in the data": one["expected"], "before": one["before"]}
        written |= {f"after {label}": answers[number]["after"] for label, answers in rows}
        for title, text in written.items():
            yield wrapped(f"- **{title}:** {shown(text) or '(nothing)'}", indent="  ")
        yield ""


def free_text(data: Data) -> str:
    """Chat and text tasks on real files."""
    parts = ["# Conversations and documents\n", HEAD + "\n", wrapped(READING) + "\n"]
    parts.append(wrapped(SOURCES) + "\n")
    for name in COMPARISONS:
        parts += headed(data, name)
        for above, group in groups_of(data, name):
            parts += above
            parts += ["\n".join(score_table(group)) + "\n", ranking(group)]
            parts += sample_answers(group)
    return "\n".join(parts).rstrip() + "\n"
