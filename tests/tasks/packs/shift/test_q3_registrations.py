from __future__ import annotations

from collections.abc import Callable

import pytest

from fhir_gym import Episode
from fhir_gym.actions import Patch
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.shift.outcomes import ALREADY_DONE, letters
from fhir_gym.tasks.packs.shift.q3_registrations.rules import RegistrationRequest
from tests.tasks.packs.shift.playing import failed, opened, params_of, play

SLOW = pytest.mark.slow


def requests_of(episode: Episode) -> tuple[RegistrationRequest, ...]:
    return params_of(episode).requests


def checks_where(episode: Episode, condition: Callable[[RegistrationRequest], bool]) -> list[str]:
    """Return the names of the checks of the requests that satisfy a condition."""
    requests = requests_of(episode)
    return [f"request {letter}" for letter, r in zip(letters(len(requests)), requests, strict=True) if condition(r)]


@SLOW
def test_changes_of_patients_on_file_are_wrong(hospital: World) -> None:
    with opened(hospital, "Q3-1", _variation_with(hospital, ALREADY_DONE)) as episode:
        request = next(
            request for request in requests_of(episode) if request.outcome == ALREADY_DONE and request.on_file
        )
        patch = Patch(f"/Patient/{request.on_file[0]}", [{"op": "add", "path": "/gender", "value": "unknown"}])
        step = play(episode, lambda action: [patch, action] if action.kind == "FINISH" else [action])
        assert failed(step) == checks_where(episode, lambda registration_request: registration_request == request)


def _variation_with(world: World, outcome: str) -> int:
    for variation in range(30):
        with opened(world, "Q3-1", variation) as episode:
            if any(request.outcome == outcome and request.on_file for request in requests_of(episode)):
                return variation
    raise AssertionError(outcome)
