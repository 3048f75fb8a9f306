"""Every value of a configuration with its origin: default, method, recipe, file, command line."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from hofl.experiment.changes import in_order, load_values, override, with_tables
from hofl.experiment.config import ExperimentConfig, checked_method, parse_config
from hofl.methods import PART_OPTIONS, SHORT, method, options_of
from hofl.recipes import recipes

DEFAULT, COMMAND_LINE = "default", "command line"
Key = tuple[str, ...]


@dataclass(frozen=True)
class ConfigValue:
    """One value of a configuration.

    Args:
        key: its path, such as ("method", "policy", "beta").
        value: None where it is not set and follows from others when a run is built.
        origin: where it comes from, for people.
    """

    key: Key
    value: Any
    origin: str

    @property
    def name(self) -> str:
        """The key as ``key=value`` changes write it."""
        return ".".join(self.key)


def settings_of(source: str, changes: list[str] | None = None) -> list[ConfigValue]:
    """Return all settings of a recipe, a TOML file or a run's folder, in their order."""
    place, origin = _located(source)
    values = with_tables(load_values(place))
    given = {key: origin for key, _ in _leaves(values)}
    for change in in_order(changes or []):
        override(values, change)
        path, left = _path(change), [key for key, _ in _leaves(values)]
        given = {key: given.get(key, COMMAND_LINE) for key in left}
        given |= {key: COMMAND_LINE for key in left if key[: len(path)] == path[: len(key)]}
    config = checked_method(parse_config(values))
    method_of = f"method {config.method.name}"
    return [
        ConfigValue(key, value, _origin(key, given, method_of))
        for key, value in _leaves(_complete(config))
    ]


def differences(
    first: list[ConfigValue], second: list[ConfigValue]
) -> Iterator[tuple[str, ConfigValue | None, ConfigValue | None]]:
    """Yield each key whose values differ, with both settings; None where there is no such key."""
    left, right = ({setting.key: setting for setting in side} for side in (first, second))
    for key in dict.fromkeys([*left, *right]):
        a, b = left.get(key), right.get(key)
        if (a and a.value) != (b and b.value):
            yield ".".join(key), a, b


def toml_value(value: Any) -> str:
    """Return a value as TOML on one line; what is None in a table is left out, as TOML has no null.

    >>> toml_value({"a": "delivery", "b c": [1, 2.5], "d": None})
    '{ a = "delivery", "b c" = [1, 2.5] }'
    """
    if isinstance(value, Mapping):
        given = {key: item for key, item in value.items() if item is not None}
        inner = ", ".join(f"{_toml_key(k)} = {toml_value(v)}" for k, v in given.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return tomli_w.dumps({"v": value}).removeprefix("v = ").rstrip("\n")


def _toml_key(key: str) -> str:
    return tomli_w.dumps({key: 0}).removesuffix(" = 0\n")


def _path(change: str) -> Key:
    """Return the path of a change; short options of earlier versions have another one now."""
    words = change.removeprefix("~").partition("=")[0].split(".")
    short = len(words) == 2 and words[0] == "method" and words[1] in SHORT
    return ("method", *SHORT[words[1]]) if short else tuple(words)


def _located(source: str) -> tuple[str, str]:
    """Return what ``read_config`` takes for a source, and how its values are told from others."""
    inside = Path(source) / "config.toml"
    if inside.is_file():
        return str(inside), str(inside)
    is_recipe = Path(source).suffix != ".toml" and source in recipes()
    return source, f"recipe {source}" if is_recipe else source


def _complete(config: ExperimentConfig) -> dict[str, Any]:
    """Return plain values of every section, those of the method as it is made of them."""
    values = config.model_dump(mode="python")
    policy = config.method.options().get("policy")
    if not (isinstance(policy, dict) and "statistics" in policy):  # else a file has its options
        made = method(config.method.name, **config.method.options())
        values["method"] = {"name": config.method.name, **options_of(made)}
    return values


def _leaves(values: Mapping[str, Any]) -> Iterator[tuple[Key, Any]]:
    """Yield the values of sections and of a method's parts; other tables are values themselves."""
    for name, value in values.items():
        if not isinstance(value, Mapping):
            yield (name,), value
            continue
        for key, inner in value.items():
            if name == "method" and key in PART_OPTIONS and isinstance(inner, Mapping):
                yield from (((name, key, option), setting) for option, setting in inner.items())
            else:
                yield (name, key), inner


def _origin(key: Key, given: Mapping[Key, str], chosen: str) -> str:
    """Return where a value comes from; a part given by its name brings its own defaults."""
    for path in (key, key[:2]):
        if path in given and (len(path) == len(key) or key[2] == "name"):
            return given[path]
    replaced = key[:2] in given or (*key[:2], "name") in given
    from_method = key[0] == "method" and key != ("method", "name") and not replaced
    return chosen if from_method else DEFAULT
