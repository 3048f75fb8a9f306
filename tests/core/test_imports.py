"""Loading modules while the collector of garbage rests."""

import gc
import weakref

import pytest

from hofl.core.imports import collector_at_rest


class Ring:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.own = self


def test_nothing_is_collected_inside_and_everything_can_be_after() -> None:
    """What was made inside is old afterwards, not out of the collector's reach."""
    gc.unfreeze()  # whatever ran in this process before
    before = gc.get_threshold()
    gc.set_threshold(1)  # collect at every chance
    try:
        with collector_at_rest():
            lost = weakref.ref(Ring())
            filler = [[] for _ in range(1000)]
            assert lost() is not None
        assert gc.isenabled()
    finally:
        gc.set_threshold(*before)
    assert len(filler) == 1000
    gc.collect(1)
    assert lost() is not None, "it belongs to the oldest generation"
    gc.collect()
    assert lost() is None


def test_a_failing_import_leaves_the_collector_on() -> None:
    with pytest.raises(ImportError), collector_at_rest():
        raise ImportError
    assert gc.isenabled()


def test_a_resting_collector_and_frozen_objects_stay_as_they_are() -> None:
    """Both are a caller's own choice."""
    gc.disable()
    try:
        with collector_at_rest():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
    gc.freeze()
    try:
        with collector_at_rest():
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
