"""``key=value`` changes to the plain values of a configuration, and what every section shares."""

import tomllib
from typing import Any

from pydantic import BaseModel, ConfigDict

from hofl.errors import HoflError


class Section(BaseModel):
    """A part of the configuration: every key is known, nothing is converted, nothing changes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def override(values: dict[str, Any], item: str) -> None:
    """Set one value in place; text that is no TOML is taken as it is."""
    key, separator, text = item.partition("=")
    if not separator or not key:
        raise HoflError(
            f"cannot read {item!r}: write changes as key=value, such as method.lr=1e-3."
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # an unquoted string
    *sections, last = key.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise HoflError(f"cannot set {key!r}: {section!r} is a value, not a section.")
    values[last] = value
