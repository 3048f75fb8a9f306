"""Changes to the plain values of a configuration, and what every section of it shares."""

import tomllib
from typing import Any

from pydantic import BaseModel, ConfigDict

from hofl.errors import HoflError


class Section(BaseModel):
    """A part of the configuration: every key is known, nothing is converted, nothing changes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def override(values: dict[str, Any], item: str) -> None:
    """One change in place: ``key=value``, or ``~key`` to take a key out.

    Text that is no TOML is taken as it is.
    """
    key, separator, text = item.removeprefix("~").partition("=")
    removal = item.startswith("~")
    if bool(separator) == removal or not key:
        raise HoflError(
            f"cannot read {item!r}: write changes as key=value, such as method.lr=1e-3, or as ~key "
            "to take a key out."
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
    if not removal:
        values[last] = value
    elif last in values:
        del values[last]
    else:
        raise HoflError(f"cannot take {key!r} out: the configuration does not set it.")
