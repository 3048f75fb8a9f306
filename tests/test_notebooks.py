"""The notebooks run from top to bottom, and the Python page's snippet runs as it is printed."""

import io
import json
import os
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import datasets
import nbformat
import pytest

import hofl

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
RESET = "%reset -f"


EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=300).execute(cwd=sys.argv[2])
nbformat.write(notebook, sys.argv[1])
"""


def test_the_notebooks_run_from_top_to_bottom(tmp_path: Path) -> None:
    """In one kernel, so that libraries are loaded once; names are forgotten in between."""
    assert len(NOTEBOOKS) == 2
    together = nbformat.v4.new_notebook()
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        assert not any(cell.get("outputs") for cell in notebook.cells), "committed without outputs"
        cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        together.cells += [nbformat.v4.new_code_cell(RESET), *cells]
    for number, cell in enumerate(together.cells):
        cell["id"] = f"cell-{number}"
    nbformat.write(together, tmp_path / "all.ipynb")
    words = [sys.executable, "-c", EXECUTE, str(tmp_path / "all.ipynb"), str(ROOT / "notebooks")]
    settings = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env={**os.environ, **settings}
    )
    assert done.returncode == 0, done.stderr
    ran = nbformat.read(tmp_path / "all.ipynb", as_version=4).cells
    assert [cell.execution_count for cell in ran] == list(range(1, len(ran) + 1))
    last = [cell for n, cell in enumerate(ran) if n + 1 == len(ran) or ran[n + 1].source == RESET]
    shown = ["".join(output.get("data", {}).get("text/plain", "") for output in cell.outputs)
             for cell in last]  # fmt: skip
    assert "PeftModel" in shown[0]
    assert int(shown[1]) > 100_000, "bytes of the report"


def test_the_ten_lines_of_the_python_page_run_as_printed(
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With a tiny model in place of the real one; nothing else is changed."""
    page = (ROOT / "docs" / "python.md").read_text()
    (page,) = re.findall(r"^## Ten lines.*?(?=^## )", page, re.M | re.S)
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    assert len([token for token in tokens if token.type == tokenize.NEWLINE]) == 10
    rows = [{"prompt": f"my parcel {n}", "completion": "it works\nagain"} for n in range(20)]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    assert code.count('"smollm2-135m-instruct"') == 1
    exec(compile(code.replace("smollm2-135m-instruct", str(tiny_folder)), "page", "exec"), {})
    shown = re.findall(r"^round (\d): perplexity \d", capsys.readouterr().out, re.M)
    assert shown == ["0", "2"]
    assert hofl.evaluate(run="runs/chat")["examples"] == 4
