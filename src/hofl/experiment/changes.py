"""The plain values of a configuration: read from TOML, changed, with paths that can be moved."""

import logging
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from hofl.core.errors import HoflError
from hofl.methods import PART_OPTIONS, SHORT, nested
from hofl.models.sources import SOURCES
from hofl.recipes import recipe_text, recipes

log = logging.getLogger("hofl")


def load_values(source: str) -> dict[str, Any]:
    """Read a TOML file, or a recipe by name."""
    path = Path(source)
    try:
        if path.suffix != ".toml" and source in recipes():
            text = recipe_text(source)
        else:
            text = path.read_text(encoding="utf-8")
        return anchored(tomllib.loads(text), path.parent)
    except tomllib.TOMLDecodeError as error:
        raise HoflError(f"{source} is not valid TOML: {error}.") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise HoflError(
            f"cannot read configuration {source!r}: {reason}. "
            f"Give a TOML file or one of the recipes: {', '.join(recipes())}."
        ) from None


def override(values: dict[str, Any], item: str) -> None:
    """Apply one change in place: ``key=value``, or ``~key`` to remove a key.

    Text that is not a TOML value is taken as a string.
    """
    key, separator, text = item.removeprefix("~").partition("=")
    removal = item.startswith("~")
    if bool(separator) == removal or not key:
        raise HoflError(
            f"cannot read {item!r}: write changes as key=value, such as rounds=3, or as ~key "
            "to remove a key."
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # an unquoted string
    *sections, last = renamed(key.split("."))
    for depth, section in enumerate(sections):
        inner = values.setdefault(section, {})
        if isinstance(inner, str) and depth == 1 and section in PART_OPTIONS:
            inner = values[section] = {"name": inner}
        if not isinstance(inner, dict):
            raise HoflError(f"cannot set {key!r}: {section!r} is a value, not a section.")
        values = inner
    if removal and last not in values:
        raise HoflError(f"cannot remove {key!r}: the configuration does not set it.")
    if removal:
        del values[last]
    else:
        values[last] = value


def dotted(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values under dotted keys.

    >>> dotted({"method": {"name": "hofl", "policy": {"beta": 0.5}}, "rounds": 3})
    {'method.name': 'hofl', 'method.policy.beta': 0.5, 'rounds': 3}
    """
    flat: dict[str, Any] = {}
    for key, value in values.items():
        inner = isinstance(value, Mapping)
        flat |= dotted(value, f"{prefix}{key}.") if inner else {prefix + key: value}
    return flat


def in_order(changes: Sequence[str]) -> list[str]:
    """Return changes as they are applied: a part's name replaces its options, so it comes first."""
    return sorted(changes, key=lambda item: not _names_part(item))


def _names_part(item: str) -> bool:
    """Return whether a change gives one of the method's parts by name."""
    key, _, text = item.partition("=")
    path = key.split(".")
    return len(path) == 2 and path[0] == "method" and path[1] in PART_OPTIONS and "{" not in text


def renamed(path: list[str]) -> list[str]:
    """Return an option's path, with a note where it had another one in earlier versions."""
    if len(path) != 2 or path[0] != "method" or path[1] not in SHORT:
        return path
    log.warning("note: method.%s is now method.%s.", path[1], ".".join(SHORT[path[1]]))
    return ["method", *SHORT[path[1]]]


def with_tables(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with the flat method options of earlier versions in their tables."""
    section = values.get("method")
    if not isinstance(section, dict):
        return values
    for key in sorted(set(section) & set(SHORT)):
        renamed(["method", key])
    return {**values, "method": nested(section)}


BASE = "base"
"""Key of the folder, relative to the file itself, that the paths in a file are relative to. Without
it they are relative to the working directory."""
_PATHS = (
    ("model", "name"),
    ("adapter", "start"),
    ("data", "dir"),
    ("custom", "train"),
    ("custom", "test"),
    ("fleet", "memory_trace"),
    ("method", "statistics"),
    ("method", "policy", "statistics"),
)


def anchored(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the values of a file in ``folder`` with absolute paths, if it states their base."""
    if BASE not in values:
        return values
    base = values.pop(BASE)
    if not isinstance(base, str):
        raise HoflError(f"base must be a folder, relative to the configuration, got {base!r}.")
    start = (folder / base).resolve()

    def absolute(path: str) -> str:
        return os.path.normpath(start / Path(path).expanduser())

    return _with_paths(values, absolute, lambda name: (start / name).is_dir())


def portable(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return values for a file in ``folder``, with paths relative to it as its base says.

    So the folder can be moved together with the files. A path that shares only the root with the
    folder stays absolute.
    """
    start = folder.resolve()

    def relative(path: str) -> str:
        target = Path(os.path.abspath(path))  # links stay: their names have the suffix
        if not target.exists() or os.path.commonpath([start, target]) == os.path.sep:
            return path
        return f"./{steps}" if (steps := os.path.relpath(target, start))[0] != "." else steps

    return {BASE: ".", **_with_paths(values, relative, os.path.isdir)}


def _with_paths(
    values: dict[str, Any], change: Callable[[str], str], is_folder: Callable[[str], bool]
) -> dict[str, Any]:
    """Return a copy of plain values with ``change`` applied to every path."""
    copy = deepcopy(values)
    for *sections, key in _PATHS:
        place: Any = copy
        for section in sections:
            place = place.get(section) if isinstance(place, dict) else None
        value = place.get(key) if isinstance(place, dict) else None
        if sections == ["model"] and not (isinstance(value, str) and _is_path(value, is_folder)):
            continue
        if isinstance(value, str):
            place[key] = change(value)
        elif isinstance(value, list | tuple):
            place[key] = [change(path) if isinstance(path, str) else path for path in value]
    return copy


def _is_path(name: str, is_folder: Callable[[str], bool]) -> bool:
    """Return whether a model's name is a folder or a GGUF file, not built-in or a hub id."""
    return name not in SOURCES and (
        name.startswith(".") or name.endswith(".gguf") or is_folder(name)
    )
