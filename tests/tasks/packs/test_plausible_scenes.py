"""The records that tasks add contain nothing that no hospital would hold."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise

import pytest

from fhir_gym.fhir import World
from fhir_gym.tasks import get_task, task_keys
from fhir_gym.tasks.authoring import parse_instant
from fhir_gym.tasks.authoring.people import _FAMILY, _GIVEN
from fhir_gym.types import Json, Resource

PACKS = tuple(f"FHIRAgent/{name}-v0" for name in ("Appointment", "GeneticTesting", "MedAgentBench", "Shift"))
TASKS = [(env, key) for env in PACKS for key in task_keys(env) if key != "day-4"]
VARIATIONS = range(2)
ACTIVE = ("booked", "pending", "arrived", "checked-in", "fulfilled")
OVER = ("fulfilled", "noshow", "arrived", "checked-in")
MOST_IN_SLOT = 3
KEEPS_SLOT = "S1"
"""The kind in whose rules an appointment that goes to the waiting list keeps its slot."""
SHORTEST = timedelta(days=7)
LONGER = ("Coverage", "OrganizationAffiliation", "Account", "Consent")
"""Types whose coming periods are contracts or agreements, so that no period lasts only for a few days."""


def moment(text: str) -> datetime:
    return parse_instant(text if "T" in text else f"{text}T00:00:00Z")


def of_type(setup: Sequence[Resource], *types: str) -> list[Resource]:
    return [resource for resource in setup if resource["resourceType"] in types]


def appointment_faults(setup: Sequence[Resource], now: datetime, keeps_slot: bool) -> Iterator[str]:
    by_slot: dict[str, list[str]] = defaultdict(list)
    for appointment in of_type(setup, "Appointment"):
        status, start = appointment["status"], appointment.get("start")
        if start and status in OVER and moment(start) > now:
            yield f"{appointment['id']} is {status}, but lies in the future"
        if status == "waitlist" and not keeps_slot and (start or appointment.get("slot")):
            yield f"{appointment['id']} is on the waiting list, but has a time"
        for slot in appointment.get("slot", []):
            by_slot[slot["reference"]].append(status)
    for slot, statuses in by_slot.items():
        if len(statuses) > MOST_IN_SLOT or sum(status in ACTIVE for status in statuses) > 1:
            yield f"{slot} has the appointments {statuses}"


def slot_faults(setup: Sequence[Resource]) -> Iterator[str]:
    by_schedule: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for slot in of_type(setup, "Slot"):
        if slot["status"] != "entered-in-error":
            by_schedule[slot["schedule"]["reference"]].append((slot["start"], slot["end"]))
    for schedule, times in by_schedule.items():
        for (_, end), (start, _) in pairwise(sorted(times)):
            if moment(start) < moment(end):
                yield f"{schedule} has two slots at {start}"


def periods(value: Json) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        if isinstance(value.get("start"), str) and isinstance(value.get("end"), str):
            yield value["start"], value["end"]
        value = list(value.values())
    if isinstance(value, list):
        for element in value:
            yield from periods(element)


def period_faults(setup: Sequence[Resource], now: datetime) -> Iterator[str]:
    for resource in setup:
        for start, end in periods(resource):
            if moment(end) < moment(start) and resource["resourceType"] != "Encounter":  # I4 asks for such encounters
                yield f"{resource['id']} ends before it starts"
            if resource["resourceType"] in LONGER and moment(start) > now and moment(end) - moment(start) < SHORTEST:
                yield f"{resource['id']} lasts from {start} to {end}"


def name_faults(setup: Sequence[Resource]) -> Iterator[str]:
    documents = Counter(
        (document_reference["subject"]["reference"], document_reference["content"][0]["attachment"]["title"])
        for document_reference in of_type(setup, "DocumentReference")
        if "subject" in document_reference
    )
    yield from (
        f"{patient} has {count} documents {title}" for (patient, title), count in documents.items() if count > 1
    )
    for patient in of_type(setup, "Patient", "Practitioner", "RelatedPerson"):
        for name in patient.get("name", []):
            given, family = name["given"][0], name["family"]
            if given in _FAMILY or family in (*_GIVEN["female"], *_GIVEN["male"]):
                yield f"{patient['id']} is called {given} {family}"


@pytest.mark.parametrize(("env", "key"), TASKS)
def test_a_scene_is_plausible(env: str, key: str, own_world: Callable[[str], World]) -> None:
    world = own_world(env)
    for k in VARIATIONS:
        setup, now = get_task(env, key).variation(k, world).setup, world.now
        assert [*appointment_faults(setup, now, key.startswith((KEEPS_SLOT, "day")))] == []
        assert [*slot_faults(setup)] == []
        assert [*period_faults(setup, now)] == []
        assert [*name_faults(setup)] == []
