"""The shape of the code: who may import whom, and what must not appear at all."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "hofl"

# From the bottom up; a module may import from its own line's package and from lines above it here.
LAYERS = [
    {"cache", "errors", "version", "process"},
    {"randomness", "layout", "batch", "vectors", "secure"},
    {"directions", "optim", "memory", "packing", "privacy"},
    {"messages", "sampling", "theory", "data", "models"},
    {"server", "local", "evaluation", "methods"},
    {"algorithm"},
    {"client"},
    {"planning"},
    {"experiment", "recipes"},
    {"engines", "report"},
    {"choosing"},
    {"cli"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
MODULES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))


SAMPLING = ", ".join(
    "hofl." + ".".join(path.with_suffix("").parts)
    for path in MODULES
    if path.parts[0] == "sampling"
)


def package_of(path: Path) -> str:
    return path.parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Full names of everything a module imports, except for type checking only."""
    found = set()
    tree = ast.parse((ROOT / path).read_text())
    tree.body = [
        n
        for n in tree.body
        if not (isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test))
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_imports_point_downwards(path: Path) -> None:
    mine = package_of(path)
    if mine == "__init__":
        return
    for name in imports(path):
        if name == "hofl":
            assert mine == "cli", f"{path} imports the public surface"
        elif name.startswith("hofl."):
            other = name.split(".")[1]
            assert other == mine or LEVEL[other] < LEVEL[mine], f"{path} must not import {name}"


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
        ("clarabel", {"sampling"}),
        ("scipy", {"sampling"}),
        ("datasets", {"data"}),
        ("huggingface_hub", {"data"}),
        ("pyarrow", {"data"}),
        ("plotly", {"report"}),
        ("matplotlib", {"report"}),
        ("flwr", {"engines"}),
        ("psutil", {"engines"}),
        ("cryptography", {"secure"}),
        ("dp_accounting", {"server"}),
    ],
)
def test_a_library_is_used_in_its_home_only(library: str, homes: set[str]) -> None:
    users = {
        package_of(path)
        for path in MODULES
        if any(name.split(".")[0] == library for name in imports(path))
    }
    assert users <= homes


def test_flower_is_used_in_its_own_folder_only() -> None:
    users = [path for path in MODULES if any(n.split(".")[0] == "flwr" for n in imports(path))]
    assert users
    assert {path.parts[:2] for path in users} == {("engines", "flower")}


def test_flowers_apps_and_the_device_s_supervisor_load_no_model_library() -> None:
    """Flower starts a new process for every message: importing torch would cost seconds each."""
    for module in ("hofl.engines.flower.client_app", "hofl.engines.joining"):
        code = f"import sys; import {module}; print([b for b in ('torch',) if b in sys.modules])"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_server_side_sampling_and_theory_load_without_the_model_libraries() -> None:
    for modules, banned in (
        ("hofl.algorithm, hofl.server.checks", ("transformers", "peft", "accelerate")),
        (SAMPLING, ("torch", "transformers", "scipy", "clarabel")),
        ("hofl.theory.study, hofl.theory.descent, hofl.theory.trajectory", ("torch", "scipy")),
    ):
        code = f"import sys; import {modules}; print([b for b in {banned!r} if b in sys.modules])"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_no_global_randomness() -> None:
    """The one exception: transformers initialises random weights from torch's generator."""
    pattern = re.compile(r"manual_seed|np\.random\.(seed|rand|normal)|\brandom\.(seed|random)\(")
    hits = {
        str(path): pattern.findall((ROOT / path).read_text())
        for path in MODULES
        if pattern.search((ROOT / path).read_text())
    }
    assert set(hits) <= {"models/loading.py"}


def test_files_stay_small() -> None:
    sizes = {str(path): len((ROOT / path).read_text().splitlines()) for path in MODULES}
    assert {path: size for path, size in sizes.items() if size > 300} == {}
