"""The pages of docs/results/, from the committed files of rows. Used by make_results.py."""

from collections.abc import Callable, Iterator

from free_text_page import free_text
from results_definitions import DEFINITIONS, FROZEN, HYBRID
from results_devices import devices
from results_equal import PART, equal_table
from results_parts import (
    BY_NAME,
    HEAD,
    Data,
    amount,
    finished,
    groups_of,
    headed,
    interval,
    spread,
    state_of,
    wrapped,
)

from hofl.core.sizes import show_bytes

FROZEN_LABEL = FROZEN
HYBRID_LABEL = HYBRID.replace(":", " ")
EQUAL = (
    "What each method reaches with what HO-FL (beta = 0.75) spent in the same seed, mean (sample "
    f"SD) over seeds. Uplink and compute: the last evaluated round within the limit; {PART} is "
    "before the run's end, on a fixed part of the test set, and 'end at 13 %' is a run that was "
    "over with that share of the limit. Memory: each tier of devices has what HO-FL took there; a "
    "method that takes more on a tier cannot be run by those devices, unless in a leaner way: "
    "'blocks run again' (`engine.checkpoint`) has the same gradients and half as many block passes "
    "again."
)


def method_table(group: Data, reference: str) -> Iterator[str]:
    """Rows of a comparison, each against a reference row."""
    yield (
        f"| method | seeds | accuracy, % | loss | accuracy minus {reference}, points | "
        "loss minus it | client peak | uplink | block passes |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in group["rows"]:
        pair = row["against"].get(reference, {"score": None, "loss": None})
        cells = [
            row["label"] + (" *" if row["chosen"] else ""),
            finished(row),
            spread(row, "score", 100),
            spread(row, "loss", 1, 4),
            interval(pair["score"], 100),
            interval(pair["loss"], 1, 4),
            amount(row, "peak", show_bytes),
            amount(row, "uplink", show_bytes),
            amount(row, "compute", lambda value: f"{value:.3g}"),
        ]
        yield f"| {' | '.join(cells)} |"


def verdict(group: Data) -> str:
    """What the zeroth-order bottom adds to the frozen control, with its interval."""
    row = next((row for row in group["rows"] if row["label"] == HYBRID_LABEL), None)
    pair = row["against"].get(FROZEN_LABEL) if row else None
    if not pair or pair["loss"] is None or pair["loss"]["low"] is None:
        return wrapped(
            "**What the zeroth-order bottom adds to the frozen control** cannot be said yet: that "
            "takes two finished seeds of both."
        )
    loss, seeds = pair["loss"], row["measures"]["loss"]["seeds"] if row else 0
    sure = loss["high"] < 0 or loss["low"] > 0
    ending = "The interval of the loss contains 0: these runs do not show that it earns its cost."
    if sure:
        better = "less" if loss["mean"] < 0 else "more"
        ending = f"The interval of the loss excludes 0: the loss is {better} with it."
    return wrapped(
        f"**What the zeroth-order bottom adds to the frozen control** over {seeds} seeds: "
        f"{interval(pair['score'], 100)} points of accuracy and {interval(loss, 1, 4)} of test "
        f"loss (95 % intervals, paired by seed). {ending}"
    )


def comparison(data: Data, name: str, reference: str) -> Iterator[str]:
    """A section on one comparison: command, machine, table; or that it was not run."""
    yield from headed(data, name)
    for above, group in groups_of(data, name):
        yield from above
        yield "\n".join(method_table(group, reference)) + "\n"


def sst2(data: Data) -> str:
    """Methods on SST-2, and the same at equal cost."""
    parts = ["# Methods on SST-2\n", HEAD + "\n"]
    for name in ("sst2-stories15m", "sst2-smollm2"):
        parts += comparison(data, name, FROZEN_LABEL)
        if name in data:
            group = data[name]["groups"][0]
            parts.append(verdict(group) + "\n")
            parts.append(
                wrapped(
                    "An asterisk marks, of several rows of one method, the one with the least "
                    "held-out loss: for DeComFL the tuned one; 1e-5 is the paper's setting."
                )
                + "\n"
            )
            parts.append("### The same at equal cost\n")
            parts.append(wrapped(EQUAL) + "\n")
            lean = data.get(f"{name}-lean", {"groups": [None]})["groups"][0]
            parts.append("\n".join(equal_table(group, lean, HYBRID_LABEL, "HO-FL")) + "\n")
            if f"{name}-lean" in BY_NAME:
                parts += comparison(data, f"{name}-lean", "fedavg")
    return "\n".join(parts)


def beta_alpha(data: Data) -> str:
    """Beta and label skew on AG News."""
    parts = ["# beta and label skew on AG News\n", HEAD + "\n"]
    for name in ("beta-alpha-iid", "beta-alpha-0.1"):
        parts += comparison(data, name, "hofl policy.beta=0.0")
    return "\n".join(parts)


def directions(data: Data) -> str:
    """The ablation of q."""
    parts = ["# How many directions\n", HEAD + "\n", *comparison(data, "directions", "hofl q=2")]
    return "\n".join(parts)


def memory(data: Data) -> str:
    """The memory figure at the paper's scale."""
    facts = data["memory"]
    parts = ["# Memory at the paper's scale\n", HEAD + "\n", "```\nhofl paper memory\n```\n"]
    parts.append(
        wrapped(
            "Qwen2.5-1.5B, batch 16, length 1024, E = 5, q = 2, BF16 backbone, FP32 LoRA of rank "
            "8. Planned from the model's configuration: nothing was trained or measured. The paper "
            "measured peaks of allocated bytes on a GPU, and drew its cohorts by another generator."
        )
        + "\n"
    )
    lines = ["| GiB | the paper, measured | planned here | deviation |", "|---|---|---|---|"]
    for row in facts["beside"]:
        share = 100 * (row["here"] / row["paper"] - 1)
        lines.append(f"| {row['what']} | {row['paper']:.2f} | {row['here']:.2f} | {share:+.1f} % |")
    parts.append("\n".join(lines) + "\n")
    parts.append("One device, by its order boundary (0 is FedAvg):\n")
    chosen = range(0, len(facts["peaks"]), 4)
    lines = ["| boundary | " + " | ".join(map(str, chosen)) + " | DeComFL |"]
    lines.append("|---" * (len(chosen) + 2) + "|")
    peaks = (f"{facts['peaks'][b]:.2f}" for b in chosen)
    lines.append(f"| peak, GiB | {' | '.join(peaks)} | {facts['pure']:.2f} |")
    parts.append("\n".join(lines) + "\n")
    parts.append("The six devices of a round together, over 160 rounds of seed 42:\n")
    lines = ["| method | drawn cohorts, GiB | expected, GiB |", "|---|---|---|"]
    lines += (f"| {d['name']} | {d['drawn']:.2f} | {d['expected']:.2f} |" for d in facts["demands"])
    parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def index(data: Data) -> str:
    """What there is, and what is missing."""
    parts = ["# Results of this project\n", HEAD + "\n"]
    parts.append(
        wrapped(
            "Everything here is generated by `make results` from run folders, by way of the small "
            "files in `data/`. No trained recipe of the paper was run at the paper's scale: that "
            "takes a GPU. These are small models on two CPU cores."
        )
        + "\n"
    )
    lines = ["| result | page | state |", "|---|---|---|"]
    lines.append("| Memory at the paper's scale | [memory](memory.md) | planned |")
    for definition in DEFINITIONS:
        page = definition.page
        state = state_of(data, definition)
        lines.append(f"| {definition.title} | [{page}]({page}.md) | {state} |")
    parts.append("\n".join(lines) + "\n")
    if "sst2-stories15m" in data:
        parts.append(verdict(data["sst2-stories15m"]["groups"][0]) + "\n")
    parts.append("`python tools/make_results.py --commands` prints what makes or continues runs.\n")
    return "\n".join(parts)


PAGES: dict[str, Callable[[Data], str]] = {
    "README.md": index,
    "sst2.md": sst2,
    "devices.md": devices,
    "beta-alpha.md": beta_alpha,
    "directions.md": directions,
    "free-text.md": free_text,
    "memory.md": memory,
}
