from __future__ import annotations

import pytest

from fhir_gym import Episode
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.shift.s3_insurers.rules import Ending, InsurerRequest
from tests.tasks.packs.shift.playing import failed, opened, params_of, play

SLOW = pytest.mark.slow


ALL_TYPES = 1


"""A variation of level 1 whose first request changes records of all types."""


def requests_of(episode: Episode) -> tuple[InsurerRequest, ...]:
    return params_of(episode).requests


def ending_of(episode: Episode, number: int) -> Ending:
    """Return what a request changes at the start of the episode."""
    scene, request = params_of(episode).scene, requests_of(episode)[number]
    return Ending(scene.records, request.place, request.insurer, request.ask.last_day)


@SLOW
def test_a_task_too_many_costs_a_share(hospital: World) -> None:
    with opened(hospital, "S3-1", ALL_TYPES) as episode:
        ending = ending_of(episode, 0)
        count = len(ending.changes) + len(ending.tasks)
        step = play(episode, lambda action: [action, action] if action.kind == "POST" else [action])
        assert failed(step) == ["request A"]
        assert step.reward == pytest.approx(1 - len(ending.tasks) / count)
