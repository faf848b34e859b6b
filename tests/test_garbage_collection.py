from __future__ import annotations

import gc

import pytest

from fhir_gym.tasks.core.variation import garbage_collection_paused


def test_collection_continues_after_the_pause() -> None:
    with garbage_collection_paused(), garbage_collection_paused():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="stop"), garbage_collection_paused():
        raise ValueError("stop")
    assert gc.isenabled()


def test_a_pause_does_not_enable_what_was_disabled() -> None:
    gc.disable()
    try:
        with garbage_collection_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_a_pause_created_is_not_visited_by_the_next_collection() -> None:
    with garbage_collection_paused():
        created = [[number] for number in range(10_000)]
    young = {id(thing) for generation in (0, 1) for thing in gc.get_objects(generation=generation)}
    assert not young.intersection(map(id, created))
