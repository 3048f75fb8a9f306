"""``hofl``: the entry point. A mistake of the user or a stop is one line, never a traceback.

Nothing heavy is loaded before ``main``: a stop while the libraries load is one line, too.
"""

import gc
import sys

from hofl.cli import interrupts
from hofl.core.errors import HoflError


def main() -> None:
    """Run the command line."""
    interrupts.install()
    try:
        from hofl.cli.commands import app

        app(prog_name="hofl")
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    except HoflError as error:
        from rich.console import Console

        Console(stderr=True, soft_wrap=True).print(f"error: {error}", style="red", markup=False)
        sys.exit(2)
    finally:
        # CPython notes a KeyboardInterrupt that leaves an ``exec`` of text, such as one inside
        # ``dataclass``, as unhandled, and ``python -m`` then ends by SIGINT instead of with our
        # exit code. The next ``exec`` clears the note.
        exec("")
        gc.freeze()  # the process ends: what the libraries made need not be searched for garbage


if __name__ == "__main__":
    main()
