"""``hofl``: the entry point. A mistake of the user or a stop is one line, never a traceback.

Nothing heavy is loaded before ``main``: a stop while the libraries load is one line, too.
"""

import signal
import sys
from typing import Any

from hofl.errors import HoflError


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        from hofl.cli.commands import app

        app()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    except HoflError as error:
        from rich.console import Console

        Console(stderr=True, soft_wrap=True).print(f"error: {error}", style="red", markup=False)
        sys.exit(2)


def _interrupt(_signal: int, _frame: Any) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
