"""Tasks I3-1 and I3-2: questions about who shared a room with a patient."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import IdAllocator, instant, parse_instant
from fhir_gym.tasks.packs.shift.i3_contacts.rules import (
    MEASURES,
    ContactContent,
    ContactJudge,
    ContactRequest,
    Hospital,
    Measure,
    names_of,
    outcome_of,
    qualifies,
    stay_that_would_count,
    stays_in_window,
)
from fhir_gym.tasks.packs.shift.i3_contacts.scene import WardScene, draw_wards, parse_parents, parse_rooms, parse_visit
from fhir_gym.tasks.packs.shift.kind import Knowledge, RequestSampler, ShiftSize, Solution
from fhir_gym.tasks.packs.shift.lookups import Named, search_all
from fhir_gym.tasks.packs.shift.outcomes import NO_CONTACT, NO_SUCH_PATIENT, SEVERAL_PATIENTS
from fhir_gym.tasks.packs.shift.patients import PATIENT_RULE, ids_of, names_for, target_among
from fhir_gym.tasks.packs.shift.questions import QuestionKind
from fhir_gym.tasks.packs.shift.static_task import StaticShift
from fhir_gym.types import Resource

_MINUTES = (15, 30, 45, 60, 90, 120, 180, 240, 360)
_WINDOWS = 60
"""Number of windows that are drawn for a patient."""
_FEWEST_RULES = {"number": 3, "names": 3, "longest": 2}
"""Number of rules that must make a difference to a question."""


class ContactSampler(RequestSampler[WardScene, ContactRequest]):
    """Draws a patient, then windows until the question has an outcome."""

    def __init__(self, rng: random.Random, now: datetime, scene: WardScene, outcomes: Sequence[str]) -> None:
        super().__init__(rng, now, scene, outcomes)
        hospital = Hospital(scene.visits, scene.rooms, scene.parents, now)
        self._names = {
            outcome: [(name, ids_of(name, scene.people)) for name in names_for(rng, scene.people, outcome)]
            for outcome in dict.fromkeys(outcomes)
        }
        self._overlaps = {person.id: hospital.overlaps(person.id) for person in scene.people}
        self._full_names = names_of(scene.people)

    @override
    def add(self, outcome: str, *, depends: bool) -> bool:
        rng, names = self.rng, self._names[outcome]
        used = [request.ask.patient for request in self.chosen]
        measure = rng.choice(MEASURES)
        left = [name for name in names if name[0] not in used] or names
        for name, ids in rng.sample(left, len(left)):  # the patient first, so that all are equally likely
            for _ in range(_WINDOWS):
                ask = self._draw_ask(name, measure)
                value = self._outcome(ask, ids[0], outcome) if len(ids) == 1 else outcome
                if value:
                    aimed = target_among(ids, self.scene.people)
                    self.chosen.append(ContactRequest(ask=ask, outcome=value, patients=ids, **aimed))
                    return True
        return False

    def _draw_ask(self, name: Named, measure: Measure) -> ContactContent:
        rng, scene = self.rng, self.scene
        this_hour = parse_instant(scene.now).replace(minute=0, second=0)
        hours = rng.choice(scene.hours)
        start = this_hour - timedelta(hours=rng.randint(hours, 24 * scene.days))
        return ContactContent(
            patient=name,
            measure=measure,
            first=instant(start),
            last=instant(start + timedelta(hours=hours)),
            minutes=1 if measure == "longest" else rng.choice(_MINUTES),
        )

    def _outcome(self, ask: ContactContent, patient: str, intended: str) -> str:
        """Return the outcome of a question if it is the intended one and the rules matter; otherwise an empty text."""
        overlaps, names, scene = self._overlaps[patient], self._full_names, self.scene
        actual = outcome_of(ask, overlaps, names)
        if (actual == NO_CONTACT) != (intended == NO_CONTACT) or not stays_in_window(ask, scene, patient):
            return ""
        return actual if qualifies(ask, overlaps, names, scene.most_names, _FEWEST_RULES[ask.measure]) else ""


class Contacts(QuestionKind[WardScene, ContactRequest]):
    """Answer questions about who shared a room with a patient."""

    key = "I3"
    title = "Questions about contacts"
    codes = (NO_SUCH_PATIENT, SEVERAL_PATIENTS, NO_CONTACT)
    value = "3"
    sampler_type = ContactSampler
    judge_type = ContactJudge
    resource_types = ("Patient", "Location", "Encounter")
    questions: ClassVar[Mapping[str, tuple[str, str, str]]] = {
        "number": (
            "How many patients shared a room with {who}, born {born}, for at least {minutes} minutes from "
            "{first} to {last}?",
            "Please count the patients who shared a room with {who} (date of birth {born}) for {minutes} "
            "minutes or more between {first} and {last}.",
            "{who}, {born}: number of patients in the same room for at least {minutes} minutes, {first} to {last}.",
        ),
        "names": (
            "Which patients shared a room with {who}, born {born}, for at least {minutes} minutes from "
            "{first} to {last}?",
            "Please list the patients who shared a room with {who} (date of birth {born}) for {minutes} "
            "minutes or more between {first} and {last}.",
            "{who}, {born}: names of the patients in the same room for at least {minutes} minutes, {first} to {last}.",
        ),
        "longest": (
            "What is the longest time, in minutes, that another patient shared a room with {who}, born {born}, "
            "from {first} to {last}?",
            "Please work out the longest time, in minutes, that one patient shared a room with {who} (date of "
            "birth {born}) between {first} and {last}.",
            "{who}, {born}: longest time with another patient in the same room, in minutes, {first} to {last}.",
        ),
    }
    rules = (
        f"{PATIENT_RULE}\n"
        "- Patients stay at places (Location): a bed (physicalType bd) is part of a room (ro), and a room of a ward "
        "(wa). A stay is an entry of Encounter.location; it names a bed or a room.\n"
        "- A stay counts if the status of the Encounter is in-progress or finished, and the status of the entry is "
        "active or completed. It lasts from the start of the entry's period to its end, or until now without an end.\n"
        "- Two patients share a room while both have a stay that counts in the same room, in whatever beds. Only "
        "minutes in the window of the question matter. For each other patient, add up the minutes of all stays and "
        "rooms; each minute counts once, even if stays of a patient overlap.\n"
        "- Two Patient records are two patients, even if their names and dates of birth are the same.\n"
        "- A question for the longest time asks for the most minutes that any one other patient shared a room with the "
        "patient in the window.\n"
        f"- If nobody shared a room with the patient for that long (for the longest time: at all), the outcome is "
        f'"{NO_CONTACT}". Otherwise it is the number alone, or the names: given name and family name, in any order and '
        'separated by commas ("Ana Lee, Grace Diaz").'
    )

    @override
    def draw_scene(self, rng: random.Random, world: World, ids: IdAllocator, size: ShiftSize) -> WardScene:
        if size.level == 1:
            return draw_wards(rng, world, ids, people=(10,), twins=2, wards=2, rooms=2, beds=2, days=6)
        if size.level == 2:
            return draw_wards(rng, world, ids, people=(10, 12), twins=4, wards=3, rooms=2, beds=3, days=8)
        scene = draw_wards(rng, world, ids, people=(10, 12), twins=4, wards=2, rooms=2, beds=4, days=10)
        return scene.model_copy(update={"hours": (18, 36, 48, 60, 72), "most_names": 8})

    @override
    def text_values(self, ask: ContactContent) -> Mapping[str, Any]:
        first, last = (moment[:16].replace("T", " ") for moment in (ask.first, ask.last))
        return {"first": first, "last": last, "minutes": ask.minutes}

    @override
    def solve_for(self, patient: Resource, ask: ContactContent, knowledge: Knowledge) -> Solution:
        id = patient["id"]
        window = (f"gt{ask.first}", f"lt{ask.last}")
        query = {"patient": f"Patient/{id}", "date": window, "_include": "Encounter:location", "_count": "200"}
        resources = yield from search_all("/Encounter", query)
        mine = [encounter for encounter in resources if encounter["resourceType"] == "Encounter"]
        places = [location for location in resources if location["resourceType"] == "Location"]
        rooms = sorted({*parse_rooms(places).values()})
        if not rooms:
            return NO_CONTACT
        places += yield from search_all("/Location", {"partof": ",".join(rooms), "_count": "200"})
        beds = sorted({*parse_rooms(places)} | {*rooms})
        include = {"_include": "Encounter:patient"} if ask.measure == "names" else {}
        query = {"location": ",".join(beds), "date": window, "_count": "200", **include}
        others = yield from search_all("/Encounter", query)
        names = {resource["id"]: _full_name(resource) for resource in others if resource["resourceType"] == "Patient"}
        encounters = {
            encounter["id"]: encounter for encounter in (*mine, *others) if encounter["resourceType"] == "Encounter"
        }
        own_rooms = {room: room for room in rooms}
        visits, parents = [*map(parse_visit, encounters.values())], parse_parents(places)
        hospital = Hospital(visits, {**parse_rooms(places), **own_rooms}, parents, knowledge.now)
        return outcome_of(ask, hospital.overlaps(id), names)

    @override
    def missing_records(self, request: ContactRequest, scene: WardScene) -> list[Resource]:
        return stay_that_would_count(request, scene) if request.outcome == NO_CONTACT else []


def _full_name(patient: Resource) -> str:
    name = patient["name"][0]
    return f"{' '.join(name['given'])} {name['family']}"


class ContactsLevel1(StaticShift, requests=Contacts(), level=1):
    """Answer four or five questions about who shared a room with a patient.

    Starting state: twelve patients with similar names; two of them share name and date of birth with another patient.
        In the last six days they have stayed in the beds of four rooms in two wards, moving several times within an
        encounter. The questions are chosen at random among those to which several rules make a difference.
    Decoys: encounters that were cancelled, planned or entered in error, stays that were only planned or reserved, stays
        in the other room of the ward, times outside the window, short contacts, stays that overlap, and patients with
        similar names.
    Checks: the value is right, and the agent has read the encounters on which it rests. A declined question needs its
        outcome, and lookups that would have shown the opposite. Nothing is changed.
    Light: none of the checks.
    """


class ContactsLevel2(StaticShift, requests=Contacts(), level=2):
    """Answer ten to fourteen questions about who shared a room with a patient.

    Starting state: as at level 1, with 26 patients, six rooms in three wards, and eight days.
    Decoys: as at level 1.
    Checks: as at level 1.
    Light: none of the checks.
    """


TASKS = (ContactsLevel1, ContactsLevel2)
