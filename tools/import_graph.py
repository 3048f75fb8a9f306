"""The shape of src/hofl: its layers, and what each module imports or names. Used by tests, too.

A *part* is a folder of the package, or a module beside the folders.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "hofl"

# From the bottom up: a part imports from lines above its own line here, never from its own line.
# Within a line, from left to right as the picture in docs/architecture.md shows them.
LAYERS = [
    ("core",),
    ("theory", "sampling", "rules", "recipes"),
    ("data", "models", "variants", "workflows"),
    ("messages",),
    ("evaluation", "methods", "local", "server"),
    ("algorithm", "family"),
    ("catchup", "memory", "tracking"),
    ("engines",),
    ("experiment",),
    ("choosing", "reporting", "deploy", "twoparty"),
    ("comparing", "watching"),
    ("paper",),
    ("cli",),
]
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
_NAME = re.compile(r"\bhofl(?:\.[A-Za-z_]\w*)+")


def modules() -> list[Path]:
    """All modules of the package, relative to its folder."""
    return sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))


def part_of(module: Path) -> str:
    """The part that a module belongs to."""
    return module.parts[0].removesuffix(".py")


def imports(source: str) -> set[str]:
    """Full names of everything that a module imports, except for type checking only."""
    names = set()
    tree = ast.parse(source)
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def named(source: str) -> set[str]:
    """Modules of the package whose dotted names are in a module's texts, docstrings left out.

    So are found processes (``python -m hofl.x.y``) and objects loaded by name (``hofl.x.y:Z``).
    """
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return {
        module
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if id(node) not in docstrings
        for name in _NAME.findall(node.value)
        if (module := _module_in(name)) is not None
    }


def compared(source: str) -> set[str]:
    """Texts that a module compares something with, by ``==``, ``!=``, ``in`` or a ``match``."""
    found: list[ast.expr] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            found += [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            found.append(node.value)
    for node in list(found):
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            found += node.elts
    return {
        node.value
        for node in found
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def _module_in(name: str) -> str | None:
    """The longest beginning of a dotted name that is a module or a folder; None for others."""
    words = name.split(".")
    for end in range(len(words), 1, -1):
        path = ROOT.joinpath(*words[1:end])
        if path.is_dir() or path.with_suffix(".py").is_file():
            return ".".join(words[:end])
    return None


def edges() -> dict[str, set[str]]:
    """The parts that each part imports."""
    graph: dict[str, set[str]] = {part: set() for parts in LAYERS for part in parts}
    for module in modules():
        part = part_of(module)
        if part != "__init__":
            names = imports((ROOT / module).read_text())
            targets = {name.split(".")[1] for name in names if name.startswith("hofl.")}
            graph[part] |= targets - {part}
    return graph


def reduced(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """The fewest edges from which all others follow: what is imported by an import is left out.

    >>> reduced({"a": {"b", "c"}, "b": {"c"}, "c": set()})
    {'a': {'b'}, 'b': {'c'}, 'c': set()}
    """

    def reached(part: str) -> set[str]:
        return graph[part].union(*map(reached, graph[part]))

    return {part: targets - set().union(*map(reached, targets)) for part, targets in graph.items()}
