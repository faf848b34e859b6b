"""Which lookups would have shown counterfactuals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fhir_gym.fhir import World
from fhir_gym.tasks.grading.counterfactuals import counterfactuals_shown
from fhir_gym.tasks.grading.plain_requests import PlainRequest, SearchedResource
from fhir_gym.tasks.packs.shift import episode_log
from fhir_gym.tasks.packs.shift.live.kinds import live_kinds
from tests.tasks.packs.shift.playing import opened, play

_KEYS = tuple(f"{key}-1" for key in live_kinds())


def _shown(monkeypatch: pytest.MonkeyPatch, world: World, key: str, variation: int) -> list[Any]:
    """Play the reference solution, and return the counterfactuals that its requests show."""
    found: list[Any] = []

    def recorded(*args: Any, **options: Any) -> Iterator[Any]:
        for arg in counterfactuals_shown(*args, **options):
            found.append(arg)
            yield arg

    monkeypatch.setattr(episode_log, "counterfactuals_shown", recorded)
    with opened(world, key, variation) as episode:
        assert play(episode).info["success"]
    return found


def _compare(monkeypatch: pytest.MonkeyPatch, world: World, key: str, variation: int) -> int:
    """Compare what is shown with what is shown if every request of the same type is repeated."""
    found = _shown(monkeypatch, world, key, variation)

    def has_type(searched: SearchedResource, request: PlainRequest) -> bool:
        return searched._type in request.types

    monkeypatch.setattr(SearchedResource, "may_be_returned", has_type)
    assert _shown(monkeypatch, world, key, variation) == found
    return len(found)


def test_requests_that_are_not_repeated_show_nothing(monkeypatch: pytest.MonkeyPatch, hospital: World) -> None:
    shown = 0
    for key in _KEYS:
        with monkeypatch.context() as patched:
            shown += _compare(patched, hospital, key, 1)
    assert shown > len(_KEYS)


def test_requests_of_a_live_shift_that_are_not_repeated_show_nothing(
    monkeypatch: pytest.MonkeyPatch, hospital: World
) -> None:
    assert _compare(monkeypatch, hospital, "day-3", 1)
