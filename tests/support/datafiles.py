"""Small files in the layout of the public benchmarks, written by the tests themselves."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROWS: dict[str, dict[str, list[dict[str, Any]]]] = {
    "sst2": {
        "train": [
            {"sentence": "a film of rare charm ", "label": 1},
            {"sentence": "dull , and {very} long ", "label": 0},
            {"sentence": "see it twice ", "label": 1},
        ],
        "validation": [{"sentence": "no wit at all ", "label": 0}],
    },
    "boolq": {
        "train": [
            {
                "question": "is the north sea deep",
                "passage": "The sea is shallow.",
                "answer": False,
                "title": "North Sea",
            },
            {
                "question": "is salt a mineral",
                "passage": "Rock salt is one.",
                "answer": True,
                "title": "Salt",
            },
        ],
        "validation": [
            {"question": "do owls fly", "passage": "Owls fly.", "answer": True, "title": "Owl"}
        ],
    },
    "sciq": {
        "train": [
            {
                "question": f"What is thing {k}?",
                "correct_answer": f"right {k}",
                "distractor1": f"wrong {k}a",
                "distractor2": f"wrong {k}b",
                "distractor3": f"wrong {k}c",
                "support": "" if k % 3 else f"Thing {k} is right {k}.",
            }
            for k in range(40)
        ],
        "test": [
            {
                "question": "What do plants breathe?",
                "correct_answer": "carbon dioxide",
                "distractor1": "iron",
                "distractor2": "salt",
                "distractor3": "rock",
                "support": "",
            }
        ],
    },
    "ag_news": {
        "train": [
            {"label": 3, "title": "A new chip", "description": "It is fast."},
            {"label": 0, "title": "Talks go on", "description": "No end is in sight."},
        ],
        "test": [{"label": 1, "title": "Late goal", "description": "Two to one."}],
    },
    "squad": {
        "train": [
            {
                "id": "t0",
                "title": "Old_Bridge",
                "context": "The bridge was built in 1566.\nIt fell in 1993.",
                "question": "When did it fall?",
                "answers": [{"text": "1993", "answer_start": 41}],
            }
        ],
        "validation": [
            {
                "id": "v0",
                "title": "Old_Bridge",
                "context": "It was built again in 2004.",
                "question": "When was it built again?",
                "answers": [
                    {"text": "2004", "answer_start": 22},
                    {"text": "in 2004", "answer_start": 19},
                ],
            }
        ],
    },
}


def write_jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


def write_benchmarks(folder: Path, suffix: str = ".jsonl.gz") -> Path:
    """All five, laid out as docs/data.md says."""
    for name, splits in ROWS.items():
        for split, rows in splits.items():
            write_jsonl(folder / name / f"{split}{suffix}", rows)
    return folder
