"""The documents: links, examples and tables hold, lines are wrapped, nothing is left to fill in."""

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import hofl
from hofl.cli.commands import COMMANDS, LazyGroup, app
from hofl.core.optim import AdamW
from hofl.methods import METHODS, PART_OPTIONS
from hofl.sampling.policies import POLICIES

SECTIONS = {
    name: set(getattr(hofl, f"{name.title()}Config").model_fields)
    for name in hofl.ExperimentConfig.model_fields
    if f"{name.title()}Config" in hofl.__all__
}
ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
WIDTH = 110
FENCE = re.compile(r"^ *```")
UNBREAKABLE = re.compile(r"`[^`]*`|\[[^\]]*\]\([^)]*\)")
CODE_FILE = re.compile(r"`((?:[\w.-]+/)*[\w-]+\.py)`")
KEY = re.compile(rf"(?<![\w./-])({'|'.join(SECTIONS)})\.(\w+)(?:\.(\w+))?(?![\w/])")
HISTORY = ("CHANGELOG.md", "log.md", "messages.md")  # they name keys of earlier versions, too


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a language on a page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_into_pages_lead_to_a_heading(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
        text = (page.parent / target if target else page).read_text()
        titles = re.findall(r"^#+ (.+)$", text, re.M)
        assert anchor in [re.sub(r"[^\w -]", "", t).lower().replace(" ", "-") for t in titles]


def test_the_speed_table_is_what_the_benchmarks_wrote() -> None:
    words = [sys.executable, str(ROOT / "tools" / "speed_table.py"), "--check"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


def test_the_speed_page_says_of_each_subject_how_it_was_measured() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "speed_table.py"))
    machine = {"threads": 2, "cores": 2, "cpu_capability": "AVX2"}
    rows = [{"variant": "plain", "samples_in_seconds": [3.0] * 3}, {"variant": "x", "failed": "no"}]
    results = {
        "evaluation": {"rows": [{}], "repeats": 7, "environment": {**machine, "threads": 1}},
        "real-batches": {"rows": [{}], "repeats": 5, "environment": machine},
    }
    lines = tool["conditions"](results, {"rows": rows, "environment": machine}).splitlines()[2:]
    assert lines == [
        "| steps on real batches | 5 | 2 | 2 | AVX2 |",
        "| rounds | 3 | 2 | 2 | AVX2 |",
        "| evaluation | 7 | 1 | 2 | AVX2 |",
    ]


def test_what_was_not_measured_has_no_row_and_who_did_not_finish_has_one() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "speed_table.py"))
    assert len(tool["table"]({}, {}).splitlines()) == 2
    rows = [{"variant": "flower", "failed": "did not finish"}]
    assert "| FedAvg round of flower | did not finish |" in tool["table"]({}, {"rows": rows})


def test_the_comparison_of_the_family_is_what_its_runs_say() -> None:
    words = [sys.executable, str(ROOT / "benchmarks" / "family.py"), "--check"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


def test_the_familys_rates_are_chosen_on_held_out_examples_and_not_on_the_test_set() -> None:
    tool = runpy.run_path(str(ROOT / "benchmarks" / "family.py"))
    rows = [("1e-3", 0.5, 0.9), ("1e-2", 0.6, 0.1), ("1e-1", None, 0.0), ("1e-3", 0.6, 0.9)]
    runs = [{"rate": r, "held_out_loss": held, "loss": loss} for r, held, loss in rows]
    assert tool["best"](runs) == [runs[0], runs[3]], "the lower mean, over both seeds"
    assert tool["best"]([]) == []
    assert set(tool["ENTRIES"]) <= set(METHODS)


def test_the_familys_table_says_where_a_grid_ends_and_which_devices_a_peak_is_of() -> None:
    tool = runpy.run_path(str(ROOT / "benchmarks" / "family.py"))
    runs = [{"rate": rate} for rate in tool["ENTRIES"]["fedavg"].rates]
    shown = [tool["rate_of"]("fedavg", runs, [one]) for one in runs]
    assert shown == ["3e-4 (smallest)", "1e-3", "3e-3 (largest)"]
    assert tool["rate_of"]("fedavg", runs[2:], runs[2:]) == "3e-3 (of 1)"
    assert tool["peaks"]({"client_peak": 2**21}) == "2.0 MiB"
    both = {"client_peak": 2**21, "least_client_peak": 2**20}
    assert tool["peaks"](both) == "1.0 MiB - 2.0 MiB"


def test_the_configuration_page_is_what_the_code_says() -> None:
    words = [sys.executable, str(ROOT / "tools" / "configuration_page.py"), "--check"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_are_wrapped(page: Path) -> None:
    """Tables, code, and what cannot be broken are excepted."""
    inside, long = False, []
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        inside ^= bool(FENCE.match(line))
        exempt = inside or line.startswith(("|", "!", "<"))
        breakable = " " in UNBREAKABLE.sub("", line).strip()
        if len(line) > WIDTH and breakable and not exempt:
            long.append(f"{page.name}:{number}: {len(line)} columns")
    assert long == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    """By their path from the root or the package; in a page about one folder, by their name."""
    known = {path.name for path in (ROOT / "src").rglob("*.py")}
    missing = [
        name
        for name in CODE_FILE.findall(page.read_text())
        if not any((folder / name).is_file() for folder in (ROOT, ROOT / "src" / "hofl"))
        if page.name == "notation.md" or name not in known
        if f"[`{name}`](" not in page.read_text()  # a link, which is checked
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_configuration_keys_of_a_page_exist(page: Path) -> None:
    if page.name in HISTORY:
        return
    options = {"name", "statistics", *vars(AdamW(lr=1.0))}
    options |= {option for kind in POLICIES.values() for option in kind.__annotations__}
    text = re.sub(r"^```python\n.*?^```$", "", page.read_text(), flags=re.M | re.S)
    text = re.sub(r"model.safetensors|fleet.toml|data.md", "", text)
    for section, key, option in KEY.findall(text):
        assert key in SECTIONS[section], f"{section}.{key}"
        if option:
            assert key in PART_OPTIONS, f"{section}.{key}.{option}"
            assert option in options, f"{section}.{key}.{option}"


def test_the_overview_shows_every_command() -> None:
    text = (ROOT / "docs" / "index.md").read_text()
    shown = text.split("## Commands at a glance")[1].split("```")[1]
    names = [name for panel in COMMANDS.values() for name in panel]
    assert [name for name in names if not re.search(rf"^hofl {name}\b", shown, re.M)] == []


def test_the_readme_leads_from_data_to_a_result() -> None:
    text = (ROOT / "README.md").read_text()
    first = ("init", "plan", "check", "compare", "report", "curve")
    assert [name for name in first if f"hofl {name} " not in text] == []
    assert len(text.splitlines()) <= 90, "two screens"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_a_page_exist_with_their_options(page: Path) -> None:
    if page.name in HISTORY:
        return
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.M | re.S)
    text = "".join(body for language, body in fences if language in ("", "sh"))
    for line in re.findall(r"^(hofl [a-z].*)", text.replace("\\\n", " "), re.M):
        command = typer.main.get_command(app)
        words = shlex.split(line, comments=True)[1:]
        while isinstance(command, LazyGroup) and words and not words[0].startswith("-"):
            command = command.load(words.pop(0))
        known = {
            name for option in command.params for name in (*option.opts, *option.secondary_opts)
        }
        given = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert given <= known | {"--help", "--version", "--install-completion"}, line


def test_nothing_is_left_to_fill_in() -> None:
    for page in PAGES:
        assert re.findall(r"\b(?:DEMO|BENCH)_[A-Z]+\b", page.read_text()) == []


TRAIN = """
import sys, tomllib
from pathlib import Path
import hofl
from hofl.experiment.config import parse_config

if __name__ == "__main__":
    values = tomllib.loads(Path(sys.argv[1]).read_text())
    result = hofl.run(parse_config(values), sys.argv[2], observe)
    assert result.record.rounds == 2
"""


def test_the_examples_of_extending_train_together(tiny_folder: Path, tmp_path: Path) -> None:
    """Every entry of the page in one run, whose uploads are all verified by their hashes."""
    extending, sampling = (ROOT / "docs" / f"{name}.md" for name in ("extending", "sampling"))
    (policy,) = (code for code in blocks(sampling, "python") if "POLICIES" in code)
    (table,) = blocks(extending, "toml")
    (tmp_path / "parts.py").write_text("\n".join([*blocks(extending, "python"), policy, TRAIN]))
    fleet = "[fleet]\nclients = 6\ncohort = 3\nboundaries = [1, 2, 3]\n"
    rest = f'rounds = 2\n[model]\nname = "{tiny_folder}"\n[adapter]\nrank = 2\n[task]\n'
    rest += "batch_size = 4\nmax_length = 48\n[engine]\nthreads = 1\nworkers = 2\n"
    (tmp_path / "run.toml").write_text(rest + fleet + table)
    words = [sys.executable, "parts.py", "run.toml", "run"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^round (\d): loss \d", done.stdout, re.M) == ["1", "2"]
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert all('"refused": {}' in row for row in rows)
    figures = (tmp_path / "run" / "figures.txt").read_text().splitlines()
    assert [line.split(" ")[0] for line in figures] == ["0", "1", "2"]
