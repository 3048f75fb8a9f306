"""The JSON schema of a configuration file, from the sections' own code.

Editors complete and check a TOML file by it; ``docs/configuration.md`` is written from it. What it
cannot say, such as options of a method's parts, the configuration's reader checks.
"""

import math
from collections.abc import Mapping
from typing import Any

from hofl.core.optim import OPTIMIZERS
from hofl.data.partition import PARTITIONS
from hofl.experiment.changes import BASE
from hofl.experiment.config import ExperimentConfig
from hofl.memory.strategies import STRATEGIES
from hofl.methods import METHODS
from hofl.rules import PARTS
from hofl.sampling.policies import POLICIES

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]


def json_schema() -> Schema:
    """Return the schema of a configuration file."""
    schema = _plain(ExperimentConfig.model_json_schema())
    for (section, key), table in _registries().items():
        schema["$defs"][section]["properties"][key]["examples"] = list(table)
    schema["$defs"]["FleetConfig"]["properties"]["strategy"]["enum"] = list(STRATEGIES)
    properties = {
        BASE: {
            "type": "string",
            "description": "Folder, relative to this file, that the paths in it are relative to. "
            "Unset: the working directory.",
        },
        **schema["properties"],
    }
    title = {"$schema": DIALECT, "title": "Configuration of a hofl run"}
    return {**title, **{k: v for k, v in schema.items() if k != "title"}, "properties": properties}


def section_of(schema: Schema, field: Schema) -> Schema | None:
    """Return the section that a key holds, alone or in a list; None where it holds a value."""
    reference = field.get("$ref") or field.get("items", {}).get("$ref")
    if reference is None:
        return None
    section: Schema = schema["$defs"][reference.rsplit("/", 1)[-1]]
    return section


def _registries() -> dict[tuple[str, str], Mapping[str, Any]]:
    """Return the known names of each key that takes one; plug-ins may add others."""
    return {
        ("MethodConfig", "name"): METHODS,
        ("MethodConfig", "optimizer"): OPTIMIZERS,
        ("MethodConfig", "policy"): POLICIES,
        **{("MethodConfig", part): table for part, table in PARTS.items()},
        ("DataConfig", "partition"): PARTITIONS,
    }


def _plain(node: Any) -> Any:
    """Return pydantic's schema without what TOML cannot say: null, and what means infinity."""
    if isinstance(node, list):
        return [_plain(entry) for entry in node]
    if not isinstance(node, dict):
        return node
    result = {key: _plain(value) for key, value in node.items()}
    choices = [choice for choice in result.get("anyOf", []) if choice != {"type": "null"}]
    if len(choices) == 1:
        result = {**{k: v for k, v in result.items() if k != "anyOf"}, **choices[0]}
    elif choices:
        result["anyOf"] = choices
    if isinstance(result.get("title"), str):
        del result["title"]
    if isinstance(text := result.get("description"), str):
        result["description"] = " ".join(text.replace("``", "`").split())
    default = result.get("default", 0)
    if default is None or isinstance(default, dict):  # a section's are those of its keys
        del result["default"]
    elif isinstance(default, float) and math.isinf(default):  # not a number of JSON
        del result["default"]
        result["description"] += " Unset: inf."
    return result
