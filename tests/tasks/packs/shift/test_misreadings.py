"""An agent that breaks one rule fails, and one that keeps all rules succeeds."""

from __future__ import annotations

import re
from importlib import import_module

import pytest

from fhir_gym import Episode, Step
from fhir_gym.fhir import World
from tests.tasks.packs.shift.independent.one_by_one import solve_one_by_one
from tests.tasks.packs.shift.misreadings import FORGETFUL, MISREADINGS, Misreading, first_page
from tests.tasks.packs.shift.playing import ENV, failed

_MANY_STEPS = 400
_VARIATIONS = 40
_FORGETFUL = frozenset({"P1", "P2", "P3", "Q1", "Q2", "Q3", "Q4", "S1", "S4"})
"""The kinds whose requests depend on earlier ones."""
_MATCHES_ON_PAGE = {"P4": 20}
_NEEDS_ALL_PAGES = frozenset({"P2", "P3"})
"""The kinds in which an agent knows no answer without the policies on later pages."""


def mistakes_of(kind: str) -> dict[str, Misreading]:
    mistakes = dict(MISREADINGS[kind])
    if kind in _FORGETFUL:
        mistakes["never looks again"] = FORGETFUL
    if kind not in _NEEDS_ALL_PAGES:
        mistakes["first page only"] = first_page(_MATCHES_ON_PAGE.get(kind, 3))
    return mistakes


def play(episode: Episode, kind: str, mistake: Misreading) -> tuple[list[str], Step]:
    """Let the independent solver of a kind play; return what it wrote and answered, and the last step."""
    episode.start()
    writes: list[str] = []

    def send(action: str) -> str:
        if not action.startswith("GET "):
            writes.append(action)
        return episode.step(action).observation

    solve = import_module(f"{__package__}.independent.solve_{kind.lower()}").solve
    prompt = re.sub(*mistake.prompt, episode.prompt)
    if mistake.once:
        answer = solve_one_by_one(solve, prompt, mistake.sender(send))
    else:
        answer = solve(prompt, mistake.sender(send), "patch")
    return [*sorted(writes), answer], episode.step(answer)


@pytest.mark.parametrize("kind", MISREADINGS)
def test_an_independent_solver_succeeds(hospital: World, kind: str) -> None:
    with Episode(ENV, task=f"{kind}-1", variation=2, phrasing=2, world=hospital, reward="dense") as episode:
        step = play(episode, kind, Misreading())[1]
        assert (failed(step), step.reward) == ([], 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MISREADINGS)
def test_a_misreading_that_makes_a_difference_fails(hospital: World, kind: str) -> None:
    left = mistakes_of(kind)
    for number in range(_VARIATIONS):
        key, variation = f"{kind}-{2 if number > 2 else 1}", 20 + number
        with Episode(ENV, task=key, variation=variation, world=hospital, max_steps=_MANY_STEPS) as episode:
            right, step = play(episode, kind, Misreading())
            assert step.info["success"], (key, variation, failed(step))
            for name, mistake in [*left.items()]:
                done, step = play(episode, kind, mistake)
                if done != right:
                    assert failed(step) and not step.info["success"], (key, variation, name)
                    del left[name]
        if not left:
            return
    pytest.fail(f"mistakes that made no difference: {[*left]}")
