"""Loading the model libraries in less time."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Let no garbage be collected while modules are loaded, and count what they made as old.

    The model libraries make a million objects that live as long as the process. Going through them
    again and again took a sixth of the time of ``hofl plan`` (docs/log.md).
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():  # else a caller's frozen objects would thaw
            gc.freeze()
            gc.unfreeze()  # into the oldest generation
        gc.enable()
