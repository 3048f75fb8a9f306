"""``hofl methods``: what can be run."""

from rich.console import Console
from rich.table import Table

import hofl

EXAMPLE = "Example:\n\n`hofl methods`"


def methods() -> None:
    """List the federated methods, one line each."""
    table = Table("method", "what it does", box=None)
    for name, method in hofl.METHODS.items():
        table.add_row(name, method.summary)
    Console().print(table)
