"""The shape of the tests: folders mirror the package, and helpers have one home."""

import ast
from collections import Counter
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "src" / "hofl"
FILES = sorted(path.relative_to(TESTS) for path in TESTS.rglob("*.py"))
BESIDES = {"contracts", "golden", "plugins", "support"}
"""Folders with a meaning of their own: every entry of a registry, bytes, outsiders, helpers."""


def folders(root: Path) -> set[str]:
    """Folders that hold something which is not made by running."""
    return {
        path.relative_to(root).parts[0]
        for path in root.rglob("*.*")
        if path.parent != root and "__pycache__" not in path.parts
    }


def names(path: Path) -> tuple[set[str], set[str]]:
    """What a file defines at its top, and the first word of everything it imports."""
    tree = ast.parse((TESTS / path).read_text())
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module.split(".")[0])
    return defined, imported


def test_every_folder_of_the_package_has_tests_and_there_are_no_others() -> None:
    assert folders(TESTS) == folders(PACKAGE) | BESIDES


def test_no_two_files_have_one_name() -> None:
    """Pytest imports test files by name."""
    assert [name for name, times in Counter(path.name for path in FILES).items() if times > 1] == []


@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_file_holds_tests_or_helpers_and_not_both(path: Path) -> None:
    defined, imported = names(path)
    has_tests = any(name.startswith("test_") for name in defined)
    if path.parts[0] == "support" or path == Path("conftest.py"):
        assert not has_tests, "tests are not in support"
        assert not path.name.startswith("test_")
    else:
        assert has_tests, "helpers are in support"
        assert path.name.startswith("test_")
    modules = {other.stem for other in FILES} | BESIDES - {"support"}
    homes = {other.stem for other in FILES if other.parts[0] == "support"}
    assert not imported & (modules - homes), "only support is imported by others"
