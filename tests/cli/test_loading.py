"""What must be quick loads no library of models: each command in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

import hofl
from hofl.cli.commands import COMMANDS, GROUPS
from support.runs import quick

HEAVY = ("torch", "transformers", "peft", "accelerate", "datasets", "pyarrow", "scipy", "flwr")
SOURCE = Path(hofl.__file__).parent
REPORT = [f"hofl.reporting.{path.stem}" for path in (SOURCE / "reporting").glob("[a-z]*.py")]
READING = ["hofl.experiment.records", "hofl.experiment.runs", "hofl.experiment.config"]
MODULES = {
    f"hofl.cli.{module}"
    for table in (COMMANDS, *(group[0] for group in GROUPS.values()))
    for panel in table.values()
    for module, _ in panel.values()
}
COMMAND = """
import sys
from hofl.cli.main import main
sys.argv = ["hofl", *sys.argv[1:]]
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
"""


def loaded(code: str, *words: str) -> list[str]:
    """Heavy libraries that a fresh process has loaded after this code."""
    code += f"\nimport sys\nprint()\nprint(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "--version",
        "methods",
        "models",
        "sample --simulate",
        "theory",
        "beta --help",
        "beta guide",
        "beta coverage",
        "config schema",
        "config show demo",
        "config diff demo sst2",
        "data helpdesk",
        "run --help",
    ],
)
def test_quick_commands_load_no_library_of_models(words: str) -> None:
    assert loaded(COMMAND, *words.split()) == []


def test_modules_of_commands_reports_and_records_are_light() -> None:
    """So are help and completion of every command, and whatever reads runs."""
    names = [*sorted(MODULES), *REPORT, *READING]
    assert len(REPORT) > 1
    assert loaded("\n".join(f"import {name}" for name in names)) == []


def test_reading_a_finished_run_loads_no_library_of_models(
    tiny_folder: Path, tmp_path: Path
) -> None:
    run = str(hofl.run(quick(tiny_folder, rounds=1), tmp_path / "run").path)
    read = "import sys; from pathlib import Path; from hofl.experiment.runs import RunDirectory\n"
    read += "run = RunDirectory.open(Path(sys.argv[1])); run.config(), run.metrics(), run.summary()"
    assert loaded(read, run) == []
    assert loaded(COMMAND, "curve", run, "--json") == []
    assert loaded(COMMAND, "report", run, "-o", f"{run}/report.html") == []
    assert loaded(COMMAND, "run", "--resume", run) == []
    for command in ("server", "fleet"):
        assert loaded(COMMAND, command, f"{run}/config.toml", "--out", run, "--resume") == []
