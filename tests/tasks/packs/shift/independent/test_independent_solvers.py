"""Solvers that were written from the prompts alone, without knowledge of the tasks' code, succeed."""

from __future__ import annotations

from importlib import import_module
from itertools import cycle, product
from typing import Any

import pytest

from fhir_gym import Episode
from fhir_gym.fhir import World

from . import desk_shift
from .desk import Send, Writing
from .one_by_one import solve_one_by_one

_KINDS = ["I1", "I2", "I3", "I4", "Q1", "Q2", "Q3", "Q4", "P1", "P2", "P3", "P4", "S1", "S2", "S3", "S4"]
_WRITING: tuple[Writing, Writing] = ("patch", "transaction")
_PLAYS = [(*play, writing) for play, writing in zip(product(_KINDS, (1, 2), (0, 1)), cycle(_WRITING), strict=False)]
_MANY_STEPS = 200
"""More than the step limit: a solver that reads everything again for each request needs up to 120 requests."""


def _solver(kind: str) -> Any:
    return import_module(f"{__package__}.solve_{kind.lower()}").solve


def _sender(episode: Episode) -> Send:
    return lambda action: episode.step(action).observation


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "level", "variation", "writing"), _PLAYS)
def test_an_independent_solver_succeeds(
    hospital: World, kind: str, level: int, variation: int, writing: Writing
) -> None:
    with Episode("FHIRAgent/Shift-v0", task=f"{kind}-{level}", variation=variation, world=hospital) as episode:
        episode.start()
        episode.step(_solver(kind)(episode.prompt, _sender(episode), writing))
        assert episode.verdict().success, episode.verdict().model_dump_json(indent=1)


@pytest.mark.slow
@pytest.mark.parametrize(("key", "variation"), [*((f"{kind}-1", 2) for kind in _KINDS), ("Q3-2", 1)])
def test_a_solver_that_handles_one_request_after_the_other_succeeds(hospital: World, key: str, variation: int) -> None:
    with Episode("FHIRAgent/Shift-v0", task=key, variation=variation, world=hospital, max_steps=_MANY_STEPS) as episode:
        episode.start()
        episode.step(solve_one_by_one(_solver(key[:2]), episode.prompt, _sender(episode)))
        assert episode.verdict().success, episode.verdict().model_dump_json(indent=1)


def _play_shift(hospital: World, key: str, variation: int, dials: dict[str, float]) -> None:
    with Episode("FHIRAgent/Shift-v0", task=key, variation=variation, world=hospital, dials=dials) as episode:
        episode.start()
        episode.step(desk_shift.solve(episode.prompt, _sender(episode)))
        assert episode.verdict().success, episode.verdict().model_dump_json(indent=1)


@pytest.mark.slow
@pytest.mark.parametrize("variation", range(3))
def test_an_independent_solver_works_through_a_short_shift(hospital: World, variation: int) -> None:
    _play_shift(hospital, "day-3", variation, {"minutes": 30, "asking": 3, "events": 3})


@pytest.mark.exhaustive
@pytest.mark.parametrize(("key", "variation"), [*(("day-3", number) for number in range(20)), ("day-4", 6)])
def test_an_independent_solver_works_through_a_shift(hospital: World, key: str, variation: int) -> None:
    _play_shift(hospital, key, variation, {})
