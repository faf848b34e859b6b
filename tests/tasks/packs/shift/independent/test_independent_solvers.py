"""Solvers that were written from the prompts alone, without knowledge of the tasks' code, succeed."""

from __future__ import annotations

from importlib import import_module
from itertools import cycle, product

import pytest

from fhir_gym import Episode
from fhir_gym.fhir import World

from .desk import Writing

_KINDS = ["I1", "I2", "I3", "I4", "Q1", "Q2", "Q3", "Q4", "P1", "P2", "P3", "P4", "S1", "S2", "S3", "S4"]
_WRITING: tuple[Writing, Writing] = ("patch", "transaction")
_PLAYS = [(*play, writing) for play, writing in zip(product(_KINDS, (1, 2), (0, 1)), cycle(_WRITING), strict=False)]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "level", "variation", "writing"), _PLAYS)
def test_an_independent_solver_succeeds(
    hospital: World, kind: str, level: int, variation: int, writing: Writing
) -> None:
    solve = import_module(f"{__package__}.solve_{kind.lower()}").solve
    with Episode("FHIRAgent/Shift-v0", task=f"{kind}-{level}", variation=variation, world=hospital) as episode:
        episode.start()
        episode.step(solve(episode.prompt, lambda action: episode.step(action).observation, writing))
        assert episode.verdict().success, episode.verdict().model_dump_json(indent=1)
