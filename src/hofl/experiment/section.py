"""A section of the configuration, and its mistakes as one sentence, in Python as in a file."""

import difflib
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from hofl.core.errors import HoflError
from hofl.methods import PART_OPTIONS


class Section(BaseModel):
    """A section of the configuration: no unknown keys, no conversion of values, immutable.

    The text below a key describes it, in the schema and in docs/configuration.md.

    Raises:
        HoflError: when it is made with a mistake, in the words of the command line.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )
    place: ClassVar[tuple[str, ...]] = ()
    """Keys that lead to it, from the whole configuration; set by :func:`name_places`."""

    if not TYPE_CHECKING:  # else type checkers would lose the names of the fields

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise HoflError(sentence(error, type(self))) from None

        # Inner sections are validated without it: all mistakes of a file are reported at once.
        __init__.__pydantic_base_init__ = True


def name_places(root: type[Section]) -> None:
    """Tell every section of a configuration which keys lead to it."""
    for name, field in root.model_fields.items():
        inner = section_in(field.annotation)
        if inner is not None:
            inner.place = (*root.place, name)
            name_places(inner)


def sentence(error: ValidationError, section: type[Section]) -> str:
    """Return all mistakes that were found in a section, one clause each."""
    problems = dict.fromkeys(_problem(detail, section) for detail in error.errors())
    text = f"configuration: {'; '.join(problems)}"
    return text if text.endswith("?") else f"{text}."


def _problem(detail: Any, section: type[Section]) -> str:
    inside = [str(part) for part in detail["loc"]]
    path = [*section.place, *inside]
    name = ".".join(path)
    if path[0] == "method" and len(path) > 2 and path[1] in PART_OPTIONS:
        return f"method.{path[1]} = {detail['input']!r}: should be a name or a table"
    if detail["type"] == "extra_forbidden":
        known = _keys_at(section, inside[:-1])
        close = difflib.get_close_matches(path[-1], known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"allowed are {', '.join(known)}"
        return f"unknown key {name!r}, {hint}"
    if detail["type"] == "missing":
        return f"{name!r} is required"
    message = detail["msg"][0].lower() + detail["msg"][1:]
    return f"{name} = {detail['input']!r}: {message}"


def _keys_at(section: type[Section], path: list[str]) -> list[str]:
    """Return the keys of the section at a path, through lists and optional sections."""
    for part in path:
        if part in section.model_fields:
            section = section_in(section.model_fields[part].annotation) or section
    return list(section.model_fields)


def section_in(annotation: Any) -> type[Section] | None:
    """Return the section that a field holds, itself, optional or in a list; None without one."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next(filter(None, map(section_in, get_args(annotation))), None)
