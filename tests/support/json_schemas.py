"""The part of JSON Schema (draft 2020-12) that a configuration's schema uses, read literally."""

from typing import Any

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
ABOUT = {"$schema", "$defs", "title", "description", "default", "examples"}
"""Keywords that restrict nothing."""


def fits(value: Any, schema: Any, root: dict[str, Any]) -> bool:
    """Whether a value is an instance of a schema; an unknown keyword is an error of the test."""
    if isinstance(schema, bool):
        return schema
    return all(
        _holds(word, told, value, schema, root)
        for word, told in schema.items()
        if word not in ABOUT
    )


def _holds(word: str, told: Any, value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match word:
        case "$ref":
            return fits(value, root["$defs"][told.removeprefix("#/$defs/")], root)
        case "type":
            return isinstance(value, TYPES[told]) and (told == "boolean") == isinstance(value, bool)
        case "enum":
            return value in told
        case "const":
            return bool(value == told)
        case "anyOf":
            return any(fits(value, choice, root) for choice in told)
        case "properties":
            return not isinstance(value, dict) or all(
                fits(value[key], inner, root) for key, inner in told.items() if key in value
            )
        case "additionalProperties":
            known = schema.get("properties", {})
            return not isinstance(value, dict) or all(
                fits(inner, told, root) for key, inner in value.items() if key not in known
            )
        case "required":
            return not isinstance(value, dict) or set(told) <= set(value)
        case "items":
            return not isinstance(value, list) or all(fits(each, told, root) for each in value)
        case "minimum":
            return not number or value >= told
        case "exclusiveMinimum":
            return not number or value > told
        case "exclusiveMaximum":
            return not number or value < told
        case "maxLength":
            return not isinstance(value, str) or len(value) <= told
    raise AssertionError(f"unknown keyword {word!r}")
