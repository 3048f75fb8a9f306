"""Configurations by name: one TOML file each."""

from importlib.resources import files


def recipes() -> list[str]:
    """Return the names of all recipes."""
    entries = files(__name__).iterdir()
    return sorted(entry.name[:-5] for entry in entries if entry.name.endswith(".toml"))


def recipe_text(name: str) -> str:
    """Return the text of a recipe."""
    return files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
