"""Write docs/results/ from run folders: ``python tools/make_results.py [--check | --commands]``.

A result is a comparison (``hofl compare``) in ``runs/results/NAME``. What its finished runs wrote
down, without adapters and checkpoints, is kept in ``docs/results/records/NAME``, so that runs of
several machines add up to one table; runs of different commits are not averaged. Rows are read into
``docs/results/data/NAME.json``, and pages are written from these files alone, so they can be
checked without the runs. What was not run is said to be missing. --commands prints how to make the
runs; --memory plans the memory figure anew.
"""

import json
import shutil
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w
from results_definitions import DEFINITIONS, Definition
from results_pages import PAGES

from hofl.comparing.plan import arms_of, cell_name
from hofl.experiment.records import Scores
from hofl.reporting.cells import COMPARISON, Cell, read_cells
from hofl.reporting.contents import answers_of
from hofl.reporting.measures import compute
from hofl.reporting.rows import Group, Row, table_of
from hofl.reporting.tables import plain_difference, plain_table

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "results"
RUNS = ROOT / "runs" / "results"
KEPT = ("config.toml", "environment.json", "metrics.jsonl", "summary.json", "samples.json")
"""What is kept of a run, where it has them."""
SCORES = ("accuracy", "token_accuracy", "loss", "perplexity")
Facts = dict[str, Any]


def collected(definition: Definition, folder: Path) -> Facts:
    """The rows of a comparison as plain values, with where they come from."""
    groups = table_of(read_cells([folder]))
    table = plain_table(groups)
    for group, plain in zip(groups, table["groups"], strict=True):
        for row, values in zip(group.rows, plain["rows"], strict=True):
            values["against"] = against(row, group)
            values["cells"] = [cell_facts(cell) for cell in row.cells]
    made = next((c.environment for g in groups for r in g.rows for c in r.finished), {})
    keys = ("packages", "python", "cores", "git")
    return {
        "name": definition.name,
        "command": definition.command(),
        "made_with": {key: made.get(key) for key in keys},
        "groups": table["groups"],
    }


def keep(definition: Definition, runs: Path, records: Path) -> None:
    """Copy what finished runs wrote down, and list all cells that the definition is to have."""
    grid = {
        key: values.split(",") for key, _, values in (g.partition("=") for g in definition.grid)
    }
    cells = [
        {"name": cell_name(arm.label, seed), "label": arm.label, "seed": seed}
        for seed in definition.seeds
        for arm in arms_of(definition.methods, grid)
    ]
    for cell in cells:
        run, kept = runs / "cells" / cell["name"], records / "cells" / cell["name"]
        if (run / "summary.json").is_file():
            kept.mkdir(parents=True, exist_ok=True)
            for name in filter(lambda name: (run / name).is_file(), KEPT):
                shutil.copyfile(run / name, kept / name)
            (kept / "config.toml").write_text(without_places((run / "config.toml").read_text()))
    if records.is_dir():
        (records / COMPARISON).write_text(tomli_w.dumps({"cells": cells}))


def without_places(config: str) -> str:
    """A run's configuration without the folder of its data, hence without its checksum."""
    values = tomllib.loads(config)
    values["data"].pop("dir", None)
    return tomli_w.dumps(values)


def against(row: Row, group: Group) -> Facts:
    """Paired differences of a row from every other, of score and loss."""
    return {
        other.label: {key: plain_difference(row.against(other, key)) for key in ("score", "loss")}
        for other in group.rows
        if other is not row
    }


def cell_facts(cell: Cell) -> Facts:
    """A run in a few numbers: its state, its curve, its peaks by boundary, its digest."""
    return {
        "seed": cell.seed,
        "state": cell.state,
        "problem": cell.problem,
        "digest": cell.digest if cell.config else "",
        "final": chosen_scores(cell.summary.final if cell.summary else {}),
        "peaks": cell.summary.peak_by_boundary if cell.summary else {},
        "curve": list(curve(cell)),
        **written_text(cell),
    }


def chosen_scores(scores: Scores) -> Facts:
    """The scores that the pages show."""
    return {key: round(scores[key], 6) for key in SCORES if key in scores}


def written_text(cell: Cell) -> Facts:
    """Of a free-text run also the scores of its start, and its sample answers."""
    answers = answers_of(cell.path)
    if not answers or not cell.summary:
        return {}
    return {"initial": chosen_scores(cell.summary.initial), "answers": answers}


def curve(cell: Cell) -> Iterator[Facts]:
    """Scores against rounds, bytes up and block passes so far."""
    total, uplink = compute(cell), 0
    rounds = max(len(cell.records) - 1, 1)
    for record in cell.records:
        uplink += record.uplink_bytes
        if record.scores and "accuracy" in record.scores:
            yield {
                "round": record.round,
                "uplink": uplink,
                "passes": None if total is None else round(total * record.round / rounds),
                "accuracy": round(record.scores["accuracy"], 4),
            }


def memory_facts() -> Facts:
    """The memory figure at the paper's scale, planned."""
    from hofl.paper.computed import memory

    figure = memory()
    return {
        "command": "hofl paper memory",
        "peaks": [round(peak, 6) for peak in figure.peaks],
        "pure": round(figure.pure, 6),
        "demands": [
            {
                "name": d.name,
                "drawn": round(d.simulated / 2**30, 6),
                "expected": round(d.expected / 2**30, 6),
            }
            for d in figure.demands
        ],
        "beside": [asdict(row) | {"here": round(row.here, 6)} for row in figure.beside],
    }


def refresh() -> None:
    """Read every comparison whose folder is here."""
    data = FOLDER / "data"
    data.mkdir(exist_ok=True)
    for definition in DEFINITIONS:
        records = FOLDER / "records" / definition.name
        keep(definition, RUNS / definition.name, records)
        if records.is_dir():
            replace_if_more(data / f"{definition.name}.json", collected(definition, records))
    if "--memory" in sys.argv or not (data / "memory.json").is_file():
        write(data / "memory.json", memory_facts())


def replace_if_more(file: Path, facts: Facts) -> None:
    """Write rows, unless the file has more finished runs, of an earlier commit without records."""
    before = finished_runs(json.loads(file.read_text())) if file.is_file() else 0
    now = finished_runs(facts)
    if now < before:
        print(f"{file.name} keeps its {before} runs: the records hold {now} so far")
    else:
        write(file, facts)


def finished_runs(facts: Facts) -> int:
    """How many runs of a comparison are finished."""
    rows = [row for group in facts["groups"] for row in group["rows"]]
    return sum(cell["state"] == "finished" for row in rows for cell in row["cells"])


def write(file: Path, facts: Facts) -> None:
    """Write JSON with short lines, so that a change can be read."""
    file.write_text(json.dumps(facts, indent=1) + "\n")


def pages() -> dict[Path, str]:
    """All pages, from the committed files."""
    data = {file.stem: json.loads(file.read_text()) for file in (FOLDER / "data").glob("*.json")}
    return {FOLDER / name: make(data) for name, make in PAGES.items()}


def main() -> None:
    """Write the pages, or compare them."""
    if "--commands" in sys.argv:
        for definition in DEFINITIONS:
            print(f"# {definition.title}\n{definition.command()}\n")
        return
    if "--check" in sys.argv:
        for page, text in pages().items():
            if not page.is_file() or page.read_text() != text:
                sys.exit(
                    f"{page.relative_to(ROOT)} is not what docs/results/data says: make results"
                )
        return
    refresh()
    for page, text in pages().items():
        page.write_text(text)


if __name__ == "__main__":
    main()
