"""A part of a method: an entry of a table by name, with the options it is made with."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from hofl.core.errors import HoflError

Maker = str | Callable[..., Any]
"""What makes a part: a callable, or ``module:name`` of one."""


@dataclass(frozen=True)
class Part:
    """An entry of a table by name, with the options it is made with.

    >>> Part.of({"name": "gaussian", "shared": True}).spec()
    {'name': 'gaussian', 'shared': True}
    """

    name: str
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, spec: "Part | str | Mapping[str, Any]") -> "Part":
        """Make a part from the plain values of a plan or a configuration."""
        if isinstance(spec, Part):
            return spec
        if isinstance(spec, str):
            return cls(spec)
        if not isinstance(spec, Mapping) or not isinstance(spec.get("name"), str):
            raise HoflError(f"a part is a name or a table with a name, got {spec!r:.80}.")
        return cls(spec["name"], tuple(sorted((k, v) for k, v in spec.items() if k != "name")))

    def spec(self) -> str | dict[str, Any]:
        """Return plain values from which :meth:`of` makes the same part."""
        return {"name": self.name, **dict(self.options)} if self.options else self.name

    def changed(self, change: "Part | str | Mapping[str, Any]") -> "Part":
        """Return the changed part; a change with a name replaces the part and all its options.

        >>> Part.of({"name": "gaussian", "shared": True}).changed({"shared": False}).spec()
        {'name': 'gaussian', 'shared': False}
        """
        if isinstance(change, Mapping) and "name" not in change:
            change = {"name": self.name, **dict(self.options), **change}
        return Part.of(change)

    def made_by(self, make: Maker, *inputs: Any) -> Any:
        """Call a maker with these inputs and the part's options; refuse unknown options."""
        function = resolve_name(make) if isinstance(make, str) else make
        parameters = list(inspect.signature(function).parameters.values())[len(inputs) :]
        known = [p.name for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD]
        for name, _ in self.options:
            if name not in known and len(known) == len(parameters):
                takes = ", ".join(known) or "none"
                raise HoflError(f"{self.name!r} has no option {name!r:.80}: it takes {takes}.")
        missing = [p.name for p in parameters if p.name in known and p.default is p.empty]
        missing = [name for name in missing if name not in dict(self.options)]
        if missing:
            raise HoflError(f"{self.name!r} needs the option {missing[0]!r}.")
        return function(*inputs, **dict(self.options))
