from __future__ import annotations

import gc

import pytest

from fhir_gym.garbage_collection import garbage_collection_paused


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
