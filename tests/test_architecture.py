"""The shape of the code: who may import whom, and what must not appear at all."""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest
from import_graph import (
    LAYERS,
    LEVEL,
    ROOT,
    compared,
    edges,
    imports,
    modules,
    named,
    part_of,
    reduced,
)

from hofl import rules, workflows
from hofl.data.partition import PARTITIONS
from hofl.data.tasks import TASKS
from hofl.deploy.transport import TRANSPORTS
from hofl.experiment.config import ExperimentConfig
from hofl.experiment.tasks import OWN_DATA
from hofl.memory.strategies import STRATEGIES
from hofl.methods import METHODS
from hofl.sampling.policies import POLICIES
from hofl.server.aggregate import AGGREGATIONS

TOOLS = Path(__file__).parents[1] / "tools"
MODULES = modules()
SOURCES = {path: (ROOT / path).read_text() for path in MODULES}
IMPORTS = {path: imports(source) for path, source in SOURCES.items()}
SAMPLING = ", ".join(
    "hofl." + ".".join(path.with_suffix("").parts)
    for path in MODULES
    if path.parts[0] == "sampling"
)


def test_every_part_has_one_layer() -> None:
    parts = [part for layer in LAYERS for part in layer]
    assert sorted(parts) == sorted({part_of(path) for path in MODULES} - {"__init__"})


def upward(path: Path, names: set[str]) -> set[str]:
    """Those of these modules that do not lie below a module."""
    mine = part_of(path)
    others = {name: name.split(".")[1] for name in names if name.startswith("hofl.")}
    return {name for name, part in others.items() if part != mine and LEVEL[part] >= LEVEL[mine]}


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_imports_point_downwards(path: Path) -> None:
    if part_of(path) != "__init__":
        assert upward(path, IMPORTS[path]) == set()
        assert "hofl" not in IMPORTS[path] or part_of(path) == "cli", "the public surface"


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_what_is_started_or_loaded_by_name_lies_below_too(path: Path) -> None:
    """Processes (``python -m``) and objects (``module:name``) are imports in disguise.

    ``hofl/__init__`` is the public surface. ``rules`` and ``workflows`` are registries: an entry
    names the code that is imported when that part first runs, so that whoever only reads the entry
    loads nothing.
    """
    if part_of(path) == "__init__":
        return
    listed, tables = set(), {Path("rules.py"): rules.PARTS.values()}
    tables[Path("workflows.py")] = [workflows.WORKFLOWS]
    if path in tables:
        entries = [entry for table in tables[path] for entry in table.values()]
        makers = [maker for entry in entries for maker in vars(entry).values()]
        listed = {maker.split(":")[0] for maker in makers if isinstance(maker, str)}
    assert upward(path, named(SOURCES[path])) <= listed


def test_names_in_texts_are_seen_and_docstrings_are_not() -> None:
    source = '"""See hofl.cli.main."""\nrun([python, "-m", "hofl.deploy.worker", "x"])\n'
    source += 'A = {"b": "hofl.local.bottom:Frozen"}\nlog = getLogger("hofl.device")\n'
    source += 'import_module(f"hofl.cli.{name}")\nsystem("python -m hofl.experiment.runs")\n'
    expected = {"hofl.deploy.worker", "hofl.local.bottom", "hofl.cli", "hofl.experiment.runs"}
    assert named(source) == expected


SAME_WORDS = {"data/columns.py": {"text"}, "data/tasks/ag_news.py": {"text"}}
"""Comparisons of something else that has the same name, by module."""
KINDS = {name for table in rules.PARTS.values() for name in table}.union(
    METHODS, POLICIES, AGGREGATIONS, workflows.WORKFLOWS, TASKS, OWN_DATA, PARTITIONS, STRATEGIES
).union(TRANSPORTS)
"""Names of everything that is one entry of a registry."""


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_nothing_compares_the_name_of_a_kind(path: Path) -> None:
    """What an entry means is in the entry, so that an entry from outside means it, too."""
    assert compared(SOURCES[path]) & KINDS <= SAME_WORDS.get(str(path), set())


def test_comparisons_of_every_form_are_seen() -> None:
    source = 'a == "mean" or "iid" != b or c in ("frozen", "none")\nd = {"linear": 1}["linear"]\n'
    source += 'match e:\n    case "best" | "paper":\n        f("sphere")\n'
    assert compared(source) == {"mean", "iid", "frozen", "none", "best", "paper"}


READERS = {
    # These make configurations from others.
    "choosing/pilot.py": "the short runs of a pilot",
    "comparing/plan.py": "the cells of a comparison",
    "deploy/rehearsal.py": "a fleet of another size, and the settings of its devices' workers",
    "paper/scaling.py": "the paper's runs within a time budget",
    "paper/running.py": "the same: the paper's models, for the longest text they read",
    # These show what a configuration says.
    "cli/check.py": "hofl check",
    "cli/paper_tables.py": "hofl paper: a note on the precision",
    "paper/estimate.py": "operations of the paper's runs, counted before anything is built",
    # These read it before, or while, a role is built.
    "cli/run.py": "hofl demo fetches the model that its recipe names before the first run",
    "deploy/server.py": "the server's role: threads, deadlines and size of the fleet",
    "deploy/worker.py": "the device's role: if building fails, a private run keeps the reason",
    "twoparty/build.py": "both roles of a split run, which experiment/build does not know",
}
"""Outside ``experiment``: who reads a configuration, and what for."""


def readings(source: str) -> set[str]:
    """Return what a module reads of configurations.

    ``config.fleet``, ``run.config().rounds``, ``base.seed``; under other names, keys of sections:
    ``chosen.method.name``. Neither ``self`` nor ``plan`` is a configuration.
    """
    sections = {
        name: keys(*get_args(field.annotation), field.annotation)
        for name, field in ExperimentConfig.model_fields.items()
        if name != "name"
    }
    seen = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Attribute):
            continue
        base = node.value.func if isinstance(node.value, ast.Call) else node.value
        named = getattr(base, "attr", getattr(base, "id", "")) in ("config", "base")
        inner = getattr(getattr(base, "value", None), "id", "") not in ("self", "plan")
        if (named and node.attr in sections) or (
            inner and node.attr in sections.get(getattr(base, "attr", ""), ())
        ):
            seen.add(ast.unparse(node))
    return seen


def keys(*types: Any) -> set[str]:
    """Return the keys of those of these types that are sections."""
    return {key for part in types for key in getattr(part, "model_fields", ())}


def test_a_configuration_is_read_where_things_are_built_and_nowhere_else() -> None:
    """Everybody else is given values."""
    readers = {path.as_posix() for path, source in SOURCES.items() if readings(source)}
    assert {name for name in readers if not name.startswith("experiment/")} == READERS.keys()
    assert "experiment/build.py" in readers


def test_readings_of_a_configuration_are_seen_under_every_name() -> None:
    source = "config.fleet\nrun.config().rounds\nself.base.seed\nchosen.method.name\n"
    source += "plan.privacy.noise\nsite.model\nself.model.compute_dtype\nrow.method\n"
    expected = {"config.fleet", "run.config().rounds", "self.base.seed", "chosen.method.name"}
    assert readings(source) == expected


def test_a_class_has_a_name_of_its_own() -> None:
    names = [
        node.name
        for source in SOURCES.values()
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert [name for name, times in Counter(names).items() if times > 1] == []


VAGUE = {"found", "one", "own", "told"}


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_no_variable_has_a_name_that_fits_everything(path: Path) -> None:
    names = [
        node.id if isinstance(node, ast.Name) else node.arg
        for node in ast.walk(ast.parse(SOURCES[path]))
        if isinstance(node, ast.arg)
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    ]
    assert not VAGUE & set(names)


def test_the_picture_keeps_what_follows_from_the_imports() -> None:
    """Fewer arrows, and the same parts can be reached from every part."""

    def reached(graph: dict[str, set[str]], part: str) -> set[str]:
        return graph[part].union(*(reached(graph, target) for target in graph[part]))

    whole, drawn = edges(), reduced(edges())
    assert sum(map(len, drawn.values())) < sum(map(len, whole.values())) / 2
    for part in whole:
        assert reached(drawn, part) == reached(whole, part)
        for target in drawn[part]:
            fewer = {**drawn, part: drawn[part] - {target}}
            assert target not in reached(fewer, part), f"{part} -> {target} is not needed"


def test_the_page_and_the_picture_are_up_to_date() -> None:
    words = [sys.executable, str(TOOLS / "draw_architecture.py"), "--check"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("library", "homes"),
    [
        ("transformers", {"models"}),
        ("peft", {"models"}),
        ("accelerate", {"models"}),
        ("gguf", {"models"}),
        ("typer", {"cli"}),
        ("rich", {"cli"}),
        ("pydantic", {"experiment"}),
        ("tqdm", {"experiment"}),
        ("clarabel", {"choosing"}),
        ("scipy", {"choosing"}),
        ("datasets", {"data"}),
        ("huggingface_hub", {"data", "experiment"}),
        ("pyarrow", {"data"}),
        ("matplotlib", {"reporting"}),
        ("flwr", {"deploy"}),
        ("psutil", {"core", "deploy"}),
        ("cryptography", {"deploy"}),
        ("dp_accounting", {"server"}),
        ("tensorboard", {"tracking"}),
        ("wandb", {"tracking"}),
        ("mlflow", {"tracking"}),
        ("rouge_score", {"evaluation"}),
    ],
)
def test_a_library_is_used_in_its_home_only(library: str, homes: set[str]) -> None:
    users = {
        part_of(path)
        for path in MODULES
        if any(name.split(".")[0] == library for name in IMPORTS[path])
    }
    assert users <= homes


def test_flower_is_used_in_its_own_folder_only() -> None:
    users = [path for path in MODULES if any(n.split(".")[0] == "flwr" for n in IMPORTS[path])]
    assert users
    assert {path.parts[:2] for path in users} == {("deploy", "flower")}


def test_flowers_folder_is_imported_by_nobody_else() -> None:
    """It is named once, where transports are listed; its bundled app names it for Flower."""
    users = {path for path in MODULES if any("deploy.flower" in name for name in IMPORTS[path])}
    assert {path.parts[:2] for path in users} == {("deploy", "flower")}
    named = {path for path in MODULES if "hofl.deploy.flower" in SOURCES[path]}
    assert named - users <= {Path("deploy/transport.py"), Path("deploy/flower/commands.py")}


def test_a_devices_worker_does_not_load_the_servers_loop() -> None:
    code = "import sys, hofl.deploy.worker; print('hofl.experiment.rounds' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stdout + done.stderr


def test_flowers_apps_and_the_device_s_supervisor_load_no_model_library() -> None:
    """Flower starts a new process for every message: importing torch would cost seconds each."""
    for module in ("flower.client_app", "flower.transport", "device"):
        code = f"import sys; import hofl.deploy.{module}; print('torch' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout.strip() == "False", done.stdout + done.stderr


def test_server_side_sampling_and_theory_load_without_the_model_libraries() -> None:
    for names, banned in (
        ("hofl.algorithm, hofl.server.checks", ("transformers", "peft", "accelerate")),
        (SAMPLING, ("torch", "transformers", "scipy", "clarabel")),
        ("hofl.theory.study, hofl.theory.lemmas", ("torch", "scipy")),
    ):
        code = f"import sys; import {names}; print([b for b in {banned!r} if b in sys.modules])"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_no_global_randomness() -> None:
    """The one exception: transformers initialises random weights from torch's generator."""
    pattern = re.compile(r"manual_seed|np\.random\.(seed|rand|normal)|\brandom\.(seed|random)\(")
    hits = {
        str(path): pattern.findall(source)
        for path, source in SOURCES.items()
        if pattern.search(source)
    }
    assert set(hits) <= {"models/loading.py"}


def test_files_stay_small() -> None:
    sizes = {str(path): len(source.splitlines()) for path, source in SOURCES.items()}
    assert {path: size for path, size in sizes.items() if size > 300} == {}
