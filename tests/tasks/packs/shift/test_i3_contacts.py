from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest

from fhir_gym import Episode
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.shift.i3_contacts.kind import (
    ContactContent,
    ContactRequest,
    Contacts,
    agrees,
    stays_in_window,
)
from fhir_gym.tasks.packs.shift.i3_contacts.scene import parse_parents, parse_rooms, parse_visit
from fhir_gym.tasks.packs.shift.lookups import Named
from fhir_gym.tasks.packs.shift.outcomes import NO_CONTACT
from fhir_gym.tasks.packs.shift.static_task import ShiftParams
from tests.tasks.packs.shift.playing import after_lookups, failed, names_of_checks, opened, opened_where, params_of


def requests_of(episode: Episode) -> tuple[ContactRequest, ...]:
    return params_of(episode).requests


UNREAD: dict[str, Callable[[str], str]] = {
    "own encounters only": lambda url: "/metadata" if url.startswith("/Encounter?location") else url,
    "ids only": lambda url: f"{url}&_elements=id" if url.startswith("/Encounter") else url,
    "another day": lambda url: re.sub(r"date=gt\d{4}", "date=gt2060", url),
}


@pytest.mark.slow
@pytest.mark.parametrize("unread", UNREAD)
def test_a_value_needs_the_encounters_on_which_it_rests(hospital: World, unread: str) -> None:
    with opened(hospital, "I3-1", 2) as episode:
        values = names_of_checks(request.outcome not in Contacts.codes for request in requests_of(episode))
        assert after_lookups(episode, lambda url: url).reward == 1
        assert values and set(values) <= set(failed(after_lookups(episode, UNREAD[unread])))


@pytest.mark.slow
def test_no_contact_needs_a_search_for_every_bed_of_the_room(hospital: World) -> None:
    declined = 0
    for variation in range(12):
        with opened(hospital, "I3-1", variation) as episode:
            params = params_of(episode)
            wrong = names_of_checks(
                request.outcome == NO_CONTACT and not has_only_short_stays(params, request)
                for request in params.requests
            )
            if wrong:
                step = after_lookups(episode, lambda url: "/metadata" if url.startswith("/Encounter?location") else url)
                assert set(wrong) <= set(failed(step))
                declined += len(wrong)
    assert declined


def has_only_short_stays(params: ShiftParams, request: ContactRequest) -> bool:
    """Return whether the only such patient was in hospital for less time than a contact needs."""
    if len(request.patients) != 1 or request.outcome != NO_CONTACT:
        return False
    stays = stays_in_window(request.ask, params.scene, request.patients[0])
    minutes = {
        start + timedelta(minutes=number)
        for _, start, end in stays
        for number in range((end - start) // timedelta(minutes=1))
    }
    return len(minutes) < request.ask.minutes


def test_no_contact_needs_only_the_own_stays_if_they_are_too_short(hospital: World) -> None:
    def with_short_stays(params: ShiftParams) -> bool:
        return any(has_only_short_stays(params, request) for request in params.requests)

    with opened_where(hospital, "I3-2", with_short_stays) as episode:
        checks = {
            *names_of_checks(has_only_short_stays(params_of(episode), request) for request in requests_of(episode))
        }
        step = after_lookups(episode, lambda url: "/metadata" if url.startswith("/Encounter?location") else url)
        assert not checks & {*failed(step)}
        step = after_lookups(episode, lambda url: "/metadata" if url.startswith("/Encounter") else url)
        assert checks <= {*failed(step)}


def test_records_are_read_as_they_are_written(hospital: World) -> None:
    with opened(hospital, "I3-1") as episode:
        scene = params_of(episode).scene
        resources = scene.resources()
        assert (
            tuple(parse_visit(resource) for resource in resources if resource["resourceType"] == "Encounter")
            == scene.visits
        )
        places = [resource for resource in resources if resource["resourceType"] == "Location"]
        assert (parse_rooms(places), parse_parents(places)) == (scene.rooms, scene.parents)


@pytest.mark.parametrize(
    ("measure", "outcome", "answer", "right"),
    [
        ("number", "3", "3", True),
        ("number", "3", "3 patients", True),
        ("number", "3", NO_CONTACT, False),
        ("number", NO_CONTACT, NO_CONTACT, True),
        ("number", NO_CONTACT, "0", False),
        ("longest", "1250", "1,250 minutes", True),
        ("longest", "1250", "1250.0", True),
        ("longest", "1250", "20.8 hours", False),
        ("names", "Ana Lee, Zoë O\u2019Neil", "zoë o'neil; ana lee", True),
        ("names", "Ana Lee, Zoë O\u2019Neil", "ana lee and zoë o'neil", True),
        ("names", "Ana Lee, Zoë O\u2019Neil", "ana lee", False),
        ("names", "Ana Lee", "ana lee, ana lee", False),
        ("names", "Ana Lee", "", False),
    ],
)
def test_answers(measure: str, outcome: str, answer: str, right: bool) -> None:
    who = Named(given="Ana", family="Diaz", birth_date="1980-01-01")
    times = {"first": "2023-01-01T00:00:00Z", "last": "2023-01-02T00:00:00Z"}
    assert (
        agrees(ContactContent.model_validate({"patient": who, "measure": measure, **times}), outcome, answer) is right
    )
