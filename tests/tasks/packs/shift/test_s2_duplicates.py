from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from fhir_gym import Episode
from fhir_gym.actions import Patch
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.shift.outcomes import letters
from fhir_gym.tasks.packs.shift.registry import CARD
from fhir_gym.tasks.packs.shift.s2_duplicates.kind import Merge, MergeRequest
from fhir_gym.types import Resource
from tests.tasks.packs.shift.playing import edited, failed, opened, params_of, play

SLOW = pytest.mark.slow


def requests_of(episode: Episode) -> tuple[MergeRequest, ...]:
    return params_of(episode).requests


def due(episode: Episode, number: int) -> dict[str, Resource]:
    """Return the records that a request changes, as they become."""
    scene, request = params_of(episode).scene, requests_of(episode)[number]
    records = [record for record in scene.records if "birthDate" not in record or request.covers(record["birthDate"])]
    return Merge(records, request.organization, request.ask, scene.today).changes


def checks_where(episode: Episode, condition: Callable[[dict[str, Resource]], bool]) -> list[str]:
    """Return the names of the checks of the requests whose changes satisfy a condition."""
    count = len(requests_of(episode))
    return [f"request {letter}" for number, letter in enumerate(letters(count)) if condition(due(episode, number))]


def first_cards(resource: Resource) -> list[Resource]:
    return [card for card in resource.get("identifier", []) if card["use"] != "secondary" or card["system"] != CARD]


@SLOW
def test_a_forgotten_card_number_fails_the_request(hospital: World) -> None:
    forget = partial(
        edited,
        "Patient",
        lambda resource: "identifier" in resource and resource.update(identifier=first_cards(resource)),
    )
    touched = 0
    for variation in range(2):
        with opened(hospital, "S2-1", variation) as episode:
            step = play(episode, forget)
            wrong = checks_where(
                episode,
                lambda due: any(first_cards(resource) != resource.get("identifier", []) for resource in due.values()),
            )
            touched += len(wrong)
            assert failed(step) == wrong
    assert touched


@SLOW
def test_a_record_that_must_stay_costs_a_share(hospital: World) -> None:
    with opened(hospital, "S2-1", 0) as episode:
        scene, request, changes = params_of(episode).scene, requests_of(episode)[0], due(episode, 0)
        other = next(
            f"Patient/{record['id']}"
            for record in scene.records
            if record.get("managingOrganization", {}).get("reference") == request.organization
            and request.covers(record["birthDate"])
            and f"Patient/{record['id']}" not in changes
        )
        patch = Patch(f"/{other}", [{"op": "add", "path": "/active", "value": "false"}])
        again = Patch(f"/{other}", [{"op": "replace", "path": "/gender", "value": "unknown"}])
        step = play(episode, lambda action: [patch, again, action] if action.kind == "FINISH" else [action])
        assert failed(step) == ["request A"]
        assert step.reward == pytest.approx(1 - 1 / len(changes))
