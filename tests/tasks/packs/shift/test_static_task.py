from __future__ import annotations

import pytest

from fhir_gym import get_task, task_keys
from fhir_gym.actions import Finish
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.shift.outcomes import DONE, letters
from fhir_gym.tasks.packs.shift.static_task import StaticShift
from fhir_gym.types import Json
from tests.tasks.packs.shift.playing import ENV, opened, params_of


def cases() -> list[tuple[str, str]]:
    """Return each task of level 1 with each outcome of its kind."""
    tasks = (get_task(ENV, key) for key in task_keys(ENV) if key.endswith("-1"))
    return [(one.key, code) for one in tasks if isinstance(one, StaticShift) for code in (DONE, *one.requests.codes)]


@pytest.mark.parametrize(("key", "outcome"), cases())
def test_an_outcome_without_work_is_worth_nothing(hospital: World, key: str, outcome: str) -> None:
    with opened(hospital, key) as episode:
        count = len(params_of(episode).requests)
        step = episode.step(Finish([f"{one}: {outcome}" for one in letters(count)]))
        assert step.reward == 0 and not step.info["success"]


@pytest.mark.parametrize("key", [one for one in task_keys(ENV) if isinstance(get_task(ENV, one), StaticShift)])
def test_right_outcomes_without_lookups_are_worth_nothing(hospital: World, key: str) -> None:
    with opened(hospital, key) as episode:
        requests = params_of(episode).requests
        right: list[Json] = [f"{one}: {r.outcome}" for one, r in zip(letters(len(requests)), requests, strict=True)]
        assert episode.step(Finish(right)).reward == 0
