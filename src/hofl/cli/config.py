"""``hofl config``: what a configuration may say, what it says, and where that comes from."""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated

import typer

from hofl.cli.options import AsJson, Changes, Source
from hofl.experiment.origins import ConfigValue, differences, settings_of, toml_value

EXAMPLES = {
    "schema": ("hofl config schema > hofl.schema.json",),
    "show": ("hofl config show demo rounds=3", "hofl config show runs/a"),
    "diff": ("hofl config diff demo my.toml", "hofl config diff runs/a runs/b"),
}
_WHAT = "TOML file, recipe or folder of a run."


def schema() -> None:
    """Print the JSON schema of configuration files: editors check and complete TOML by it."""
    from hofl.experiment.schema import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))


def show(config: Source, changes: Changes = None, as_json: AsJson = False) -> None:
    """Print every value of a configuration as TOML, and where it comes from.

    CONFIG may also be the folder of a run.
    """
    settings = settings_of(config, changes)
    if as_json:
        plain = {s.name: {"value": s.value, "origin": s.origin} for s in settings}
        typer.echo(json.dumps(plain, indent=2))
        return
    for line in _toml(settings):
        typer.echo(line)


def diff(
    first: Annotated[str, typer.Argument(help=_WHAT)],
    second: Annotated[str, typer.Argument(help="Another one.")],
) -> None:
    """Print the keys whose values differ, defaults included, with both values."""
    rows = list(differences(settings_of(first), settings_of(second)))
    for name, a, b in rows:
        typer.echo(f"{name}: {_shown(a)} -> {_shown(b)}")
    if not rows:
        typer.echo("no difference")


def _shown(setting: ConfigValue | None) -> str:
    if setting is None or setting.value is None:
        return "not set"
    return f"{toml_value(setting.value)} ({setting.origin})"


def _toml(settings: Sequence[ConfigValue]) -> Iterator[str]:
    """Yield lines of TOML; keys that are not set are comments."""
    ordered = sorted(settings, key=lambda s: len(s.key) > 1)  # top-level keys before any section
    for section, group in groupby(ordered, key=lambda s: s.key[0] if len(s.key) > 1 else ""):
        if section:
            yield f"\n[{section}]"
        members = [(".".join(s.key[1:] or s.key), s) for s in group]
        lines = [f"{name} = {toml_value(s.value)}" for name, s in members if s.value is not None]
        width = min(max(map(len, lines), default=0), 48)
        for name, setting in members:
            if setting.value is None:
                yield f"# {name} is not set"
            else:
                yield f"{f'{name} = {toml_value(setting.value)}':{width}}  # {setting.origin}"
