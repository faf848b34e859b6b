from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from fhir_gym import Episode
from fhir_gym.actions import Finish, Post, Put
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.shift.i3_contacts.kind import Contacts
from fhir_gym.tasks.packs.shift.i3_contacts.rules import ContactContent, ContactRequest, agrees, stays_in_window
from fhir_gym.tasks.packs.shift.i3_contacts.scene import parse_parents, parse_rooms, parse_visit, ward_resources
from fhir_gym.tasks.packs.shift.lookups import Named
from fhir_gym.tasks.packs.shift.outcomes import NO_CONTACT, NO_SUCH_PATIENT, SEVERAL_PATIENTS
from fhir_gym.tasks.packs.shift.static_task import ShiftParams
from fhir_gym.types import Resource
from tests.tasks.packs.shift.playing import (
    after_lookups,
    failed,
    finish,
    ids_called,
    names_of_checks,
    opened,
    opened_where,
    params_of,
    play,
    read_all,
)


def requests_of(episode: Episode) -> tuple[ContactRequest, ...]:
    return params_of(episode).requests


@pytest.mark.parametrize(
    ("key", "variation"), [("I3-1", 0), ("I3-2", 0), pytest.param("I3-2", 1_000, marks=pytest.mark.slow)]
)
def test_the_reference_solution_is_right(hospital: World, key: str, variation: int) -> None:
    with opened(hospital, key, variation) as episode:
        step = play(episode)
        assert (step.reward, failed(step)) == (1.0, [])
        assert step.info["step"] <= episode.step_limit


UNREAD: dict[str, Callable[[str], str]] = {
    "own encounters only": lambda url: "/metadata" if url.startswith("/Encounter?location") else url,
    "ids only": lambda url: f"{url}&_elements=id" if url.startswith("/Encounter") else url,
    "another day": lambda url: re.sub(r"date=gt\d{4}", "date=gt2060", url),
}


@pytest.mark.slow
@pytest.mark.parametrize("unread", UNREAD)
def test_a_value_needs_the_encounters_on_which_it_rests(hospital: World, unread: str) -> None:
    with opened(hospital, "I3-1", 2) as episode:
        values = names_of_checks(one.outcome not in Contacts.codes for one in requests_of(episode))
        assert after_lookups(episode, lambda url: url).reward == 1
        assert values and set(values) <= set(failed(after_lookups(episode, UNREAD[unread])))


@pytest.mark.slow
def test_no_contact_needs_a_search_for_every_bed_of_the_room(hospital: World) -> None:
    declined = 0
    for variation in (0, 3, 4, 5):
        with opened(hospital, "I3-1", variation) as episode:
            wrong = names_of_checks(one.outcome == NO_CONTACT for one in requests_of(episode))
            if wrong:
                step = after_lookups(episode, lambda url: "/metadata" if url.startswith("/Encounter?location") else url)
                assert set(wrong) <= set(failed(step))
                declined += len(wrong)
    assert declined


def has_only_short_stays(params: ShiftParams, request: ContactRequest) -> bool:
    """Return whether a patient was in hospital for some time, but for less time than a contact needs."""
    if len(request.patients) != 1:
        return False
    stays = stays_in_window(request.ask, params.scene, request.patients[0])
    total = sum((end - start for _, start, end in stays), timedelta())
    return timedelta() < total < timedelta(minutes=request.ask.minutes)


def test_no_contact_needs_only_the_own_stays_if_they_are_too_short(hospital: World) -> None:
    def with_short_stays(params: ShiftParams) -> bool:
        return any(has_only_short_stays(params, request) for request in params.requests)

    with opened_where(hospital, "I3-2", with_short_stays) as episode:
        checks = {*names_of_checks(has_only_short_stays(params_of(episode), one) for one in requests_of(episode))}
        step = after_lookups(episode, lambda url: "/metadata" if url.startswith("/Encounter?location") else url)
        assert not checks & {*failed(step)}
        step = after_lookups(episode, lambda url: "/metadata" if url.startswith("/Encounter") else url)
        assert checks <= {*failed(step)}


# A solver written from the prompt: it reads the encounters of all rooms first, and counts minutes in sets.

MISTAKES = (
    "encounter status",
    "stay status",
    "ward",
    "bed",
    "beds only",
    "window",
    "any time",
    "longest stay",
    "twice",
    "open end",
    "namesakes are one",
    "name",
    "page",
)


def other_solution(episode: Episode, mistake: str = "") -> list[str]:
    """Solve all questions, with at most one mistake."""
    places = read_all(episode, "/Location?name=Bed&_count=200") + read_all(episode, "/Location?name=Room&_count=200")
    room = {
        one["id"]: one["partOf"]["reference"][9:] if one["name"].startswith("Bed") else one["id"]
        for one in places
        if not (mistake == "beds only" and one["name"].startswith("Room"))
    }
    if mistake == "ward":
        ward = {one["id"]: one["partOf"]["reference"] for one in places if one["name"].startswith("Room")}
        room = {id: ward[its_room] for id, its_room in room.items()}
    if mistake == "bed":
        room = {id: id for id in room}
    count = 20 if mistake == "page" else 500
    encounters = read_all(episode, f"/Encounter?location={','.join(room)}&_count={count}")
    return [_solved(episode, one.ask, room, encounters, mistake) for one in requests_of(episode)]


def _solved(
    episode: Episode, ask: ContactContent, room: dict[str, str], encounters: list[Resource], mistake: str
) -> str:
    called = ids_called(episode, ask.patient, exact=mistake != "name")
    if len(called) != 1 and not (mistake == "name" and called):
        return SEVERAL_PATIENTS if called else NO_SUCH_PATIENT
    stays: dict[str, list[tuple[str, range]]] = {}
    for one in encounters:
        if one["status"] not in ("finished", "in-progress") and mistake != "encounter status":
            continue
        for entry in one["location"]:
            place = entry["location"]["reference"][9:]
            if (entry["status"] in ("active", "completed") or mistake == "stay status") and place in room:
                times = _range(entry["period"], ask, episode.world.now, mistake)
                stays.setdefault(one["subject"]["reference"][8:], []).append((room[place], times))
    mine = stays.pop(called[0], [])
    shared = {other: _minutes([*_overlaps(mine, theirs)], mistake) for other, theirs in stays.items()}
    fewest = 1 if mistake == "any time" else ask.minutes
    contacts = [other for other, minutes in shared.items() if minutes >= fewest]
    if not contacts:
        return NO_CONTACT
    if ask.measure == "longest":
        return f"{max(shared.values())} minutes"
    if ask.measure == "number" and mistake != "namesakes are one":
        return str(len(contacts))
    names = [one["name"][0] for one in read_all(episode, f"/Patient?_id={','.join(contacts)}&_count=100")]
    found = [f"{' '.join(one['given'])} {one['family']}" for one in names]
    return str(len({*found})) if ask.measure == "number" else "; ".join(found)


def _overlaps(mine: list[tuple[str, range]], theirs: list[tuple[str, range]]) -> Iterator[range]:
    for place, own in mine:
        for other_place, other in theirs:
            if place == other_place:
                yield range(max(own.start, other.start), min(own.stop, other.stop))


def _range(period: Resource, ask: ContactContent, now: datetime, mistake: str) -> range:
    """Return the minutes of a period in the window."""
    start, end = _minute(period["start"]), _minute(period["end"]) if "end" in period else int(now.timestamp()) // 60
    if "end" not in period and mistake == "open end":
        return range(0)
    if mistake != "window":
        start, end = max(start, _minute(ask.first)), min(end, _minute(ask.last))
    return range(start, end)


def _minute(text: str) -> int:
    return int(datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()) // 60


def _minutes(times: list[range], mistake: str) -> int:
    if mistake in ("longest stay", "twice"):
        lengths = [len(one) for one in times] or [0]
        return max(lengths) if mistake == "longest stay" else sum(lengths)
    return len({minute for one in times for minute in one})


@pytest.mark.parametrize("key", ["I3-1", pytest.param("I3-2", marks=pytest.mark.slow)])
def test_another_solver_is_right(hospital: World, key: str) -> None:
    for variation in (2, 3):
        with opened(hospital, key, variation) as episode:
            assert failed(episode.step(finish(other_solution(episode)))) == []


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_fails_the_questions_that_it_touches(hospital: World, mistake: str) -> None:
    touched = 0
    for variation in (4, 5, 6, 7, 8, 9):
        with opened(hospital, "I3-2", variation) as episode:
            answers, requests = other_solution(episode, mistake), requests_of(episode)
            same = [_same(answer, one) for answer, one in zip(answers, requests, strict=True)]
            wrong = names_of_checks(not one for one in same)
            found = failed(episode.step(finish(answers)))
            # Who read the wrong encounters, or only a part of them, also lacks evidence where the answer is right.
            assert set(wrong) <= set(found) if mistake in ("name", "page", "beds only") else wrong == found
            touched += len(wrong)
        if touched:
            return
    pytest.fail("the mistake touches no question")


def _same(answer: str, request: ContactRequest) -> bool:
    if {answer, request.outcome} & {NO_SUCH_PATIENT, SEVERAL_PATIENTS}:
        return answer == request.outcome
    return agrees(request.ask, request.outcome, answer.casefold())


def test_writes_fail_the_rest(hospital: World) -> None:
    with opened(hospital, "I3-1", 2) as episode:
        note = Post("/Basic", {"resourceType": "Basic", "code": {"text": "note"}})
        step = play(episode, lambda one: [note, one] if one.kind == "FINISH" else [one])
        assert failed(step) == ["nothing else changed"] and 0 < step.reward < 1
        id = params_of(episode).scene.visits[0].id
        odd = Put(f"/Encounter/{id}", {"resourceType": "Encounter", "id": id, "location": "?"})
        episode.start()
        step = play(episode, lambda one: [one] if one.kind != "FINISH" else [odd, one])
        assert failed(step) == ["nothing else changed"]
        episode.start()
        assert episode.step(Finish(["A: 7.4.1", "B: NaN", "C: , and ,", 7, None])).reward == 0


def test_records_are_read_as_they_are_written(hospital: World) -> None:
    with opened(hospital, "I3-1") as episode:
        scene = params_of(episode).scene
        resources = ward_resources(scene)
        assert tuple(parse_visit(one) for one in resources if one["resourceType"] == "Encounter") == scene.visits
        places = [one for one in resources if one["resourceType"] == "Location"]
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
