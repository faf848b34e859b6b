"""Tasks I3-1 and I3-2: questions about who shared a room with a patient."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from random import Random
from typing import Any, ClassVar, Literal, NamedTuple, get_args

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import IdAllocator, Person, instant, parse_instant
from fhir_gym.tasks.core.ids import seeded_random
from fhir_gym.tasks.grading.comparison import plain
from fhir_gym.tasks.packs.shift.i3_contacts.scene import (
    HELD,
    MINUTES,
    OCCUPIED,
    Stay,
    Visit,
    WardScene,
    draw_wards,
    parse_parents,
    parse_rooms,
    parse_visit,
    visit_resource,
)
from fhir_gym.tasks.packs.shift.kind import Knowledge, RequestContent, RequestSampler, ShiftSize, Solution
from fhir_gym.tasks.packs.shift.lookups import Named, search_all
from fhir_gym.tasks.packs.shift.outcomes import NO_CONTACT, NO_SUCH_PATIENT, SEVERAL_PATIENTS
from fhir_gym.tasks.packs.shift.patients import PATIENT_RULE, PatientRequest, ids_of, names_for, target_among
from fhir_gym.tasks.packs.shift.questions import QuestionJudge, QuestionKind, items_in, number_in
from fhir_gym.tasks.packs.shift.static_task import StaticShift
from fhir_gym.types import Resource

Measure = Literal["number", "names", "longest"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
Rule = Literal["encounter status", "stay status", "room", "bed", "window", "minutes", "sum", "twice"]
RULES: tuple[Rule, ...] = get_args(Rule)
"""The rules; a function that is told to ignore a rule does not apply it."""
_ANOTHER_ROOM: frozenset[Rule] = frozenset({"room"})


_SUPPOSED = 3
"""Number of patients who are supposed, one after the other, in a bed that nobody was in."""


class ContactContent(RequestContent):
    """A question about the patients who shared a room with a patient.

    Attributes:
        measure: The number of patients, their names, or the longest time in minutes.
        first: Start of the window (instant, inclusive).
        last: End of the window (instant, exclusive).
        minutes: Fewest minutes of a contact; 1 for ``longest``.
    """

    patient: Named
    measure: Measure
    first: str
    last: str
    minutes: int = 1


class ContactRequest(PatientRequest):
    """A question about the patients who shared a room with a patient."""

    ask: ContactContent


@dataclass(frozen=True, slots=True)
class Overlap:
    """A time for which a patient and another patient were in the same room, or would have been without a rule.

    Attributes:
        other: Id of the other patient.
        records: References to the two encounters.
        start: The first moment.
        end: The moment after the last.
        breaks: The rules because of which the time does not count.
        same_bed: Whether the two stays name the same bed or room.
    """

    other: str
    records: tuple[str, str]
    start: datetime
    end: datetime
    breaks: frozenset[Rule]
    same_bed: bool


class _Known(NamedTuple):
    """A stay with what does not depend on questions."""

    patient: str
    record: str
    place: str
    room: str
    ward: str
    start: datetime
    end: datetime
    breaks: frozenset[Rule]


class Hospital:
    """The stays of all patients, by room and ward."""

    def __init__(
        self, visits: Sequence[Visit], rooms: Mapping[str, str], parents: Mapping[str, str], now: datetime
    ) -> None:
        self._by_ward: dict[str, list[_Known]] = {}
        self._by_patient: dict[str, list[_Known]] = {}
        for visit in visits:
            for stay in visit.stays:
                room = rooms.get(stay.place)
                if room is None:
                    continue
                ward, end = parents.get(room, ""), parse_instant(stay.end) if stay.end else now
                record, breaks = f"Encounter/{visit.id}", _broken(visit, stay)
                stay_facts = _Known(
                    visit.patient, record, stay.place, room, ward, parse_instant(stay.start), end, breaks
                )
                self._by_ward.setdefault(ward, []).append(stay_facts)
                self._by_patient.setdefault(visit.patient, []).append(stay_facts)

    def overlaps(self, patient: str) -> list[Overlap]:
        """Return the times for which a patient and other patients were in the same ward."""
        overlaps = []
        for mine in self._by_patient.get(patient, ()):
            start, end, room = mine.start, mine.end, mine.room
            for other in self._by_ward[mine.ward]:
                if other.start < end and other.end > start and other.patient != patient:
                    breaks = mine.breaks | other.breaks
                    if other.room != room:
                        breaks |= _ANOTHER_ROOM
                    records, same_bed = (mine.record, other.record), other.place == mine.place
                    times = max(start, other.start), min(end, other.end)
                    overlaps.append(Overlap(other.patient, records, *times, breaks, same_bed))
        return overlaps


def _broken(visit: Visit, stay: Stay) -> frozenset[Rule]:
    """Return the rules because of which a stay does not count."""
    broken: list[Rule] = []
    if visit.status not in HELD:
        broken.append("encounter status")
    if stay.status not in OCCUPIED:
        broken.append("stay status")
    return frozenset(broken)


def counted(ask: ContactContent, overlaps: Sequence[Overlap], ignoring: Rule | None = None) -> Iterator[Overlap]:
    """Yield the times that count, within the window."""
    first, last = parse_instant(ask.first), parse_instant(ask.last)
    for overlap in overlaps:
        if overlap.breaks - {ignoring} or (ignoring == "bed" and not overlap.same_bed):
            continue
        start, end = (
            (overlap.start, overlap.end)
            if ignoring == "window"
            else (max(overlap.start, first), min(overlap.end, last))
        )
        if start < end:
            yield Overlap(overlap.other, overlap.records, start, end, overlap.breaks, overlap.same_bed)


def minutes_by_patient(
    ask: ContactContent, overlaps: Sequence[Overlap], ignoring: Rule | None = None
) -> dict[str, int]:
    """Return the number of minutes that each other patient shared a room with the patient."""
    times: dict[str, list[tuple[datetime, datetime]]] = {}
    for overlap in counted(ask, overlaps, ignoring):
        times.setdefault(overlap.other, []).append((overlap.start, overlap.end))
    minutes = {}
    for other, parts in times.items():
        lengths = [end - start for start, end in (parts if ignoring == "twice" else _merged(parts))]
        total = max(lengths) if ignoring == "sum" else sum(lengths, timedelta())
        minutes[other] = total // timedelta(minutes=1)
    return minutes


def _merged(parts: Sequence[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    merged: list[tuple[datetime, datetime]] = []
    for start, end in sorted(parts):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def outcome_of(
    ask: ContactContent, overlaps: Sequence[Overlap], names: Mapping[str, str], ignoring: Rule | None = None
) -> str:
    """Return the outcome of a question."""
    shared = minutes_by_patient(ask, overlaps, ignoring)
    fewest = 1 if ignoring == "minutes" else ask.minutes
    contacts = [other for other, minutes in shared.items() if minutes >= fewest]
    if not contacts:
        return NO_CONTACT
    if ask.measure == "longest":
        return str(max(shared.values()))
    return str(len(contacts)) if ask.measure == "number" else ", ".join(sorted(names[contact] for contact in contacts))


def qualifies(
    ask: ContactContent, overlaps: Sequence[Overlap], names: Mapping[str, str], most_names: int, intended: int
) -> bool:
    """Whether enough rules make a difference to a question, and the names of its answer are unambiguous."""
    outcome = outcome_of(ask, overlaps, names)
    if ask.measure == "names":
        told = outcome.split(", ")
        if len(told) > most_names or len({*told}) < len(told):
            return False
    contacts = 0
    for number, rule in enumerate(RULES):
        contacts += outcome_of(ask, overlaps, names, rule) != outcome
        if contacts >= intended:
            return True
        if contacts + len(RULES) - number - 1 < intended:
            return False
    return False


def agrees(ask: ContactContent, outcome: str, answer: str) -> bool:
    """Whether an answer in lower case says the same as an outcome; names may be in any order."""
    if outcome == NO_CONTACT or answer == NO_CONTACT:
        return answer == outcome
    if ask.measure == "names":
        return items_in(answer) == sorted(plain(name).casefold() for name in outcome.split(", "))
    units = ("patients", "patient") if ask.measure == "number" else ("minutes", "min", "minute")
    return number_in(answer, units) == int(outcome)


def names_of(people: Sequence[Person]) -> dict[str, str]:
    """Return the full name of each person by id."""
    return {person.id: person.name for person in people}


def stay_that_would_count(request: ContactRequest, scene: WardScene) -> list[Resource]:
    """Return encounters that do not exist and would be contacts, for each other bed of a room of the patient.

    The stay lasts for a random part of the patient's longest stay in the window, and the encounter began as one of the
    scene did, so that it is not among the newest. Several patients could have been in a bed, because an agent may have
    read the encounters of one of them for another request.
    """
    ask, patient = request.ask, request.patients[0]
    longest = max(stays_in_window(ask, scene, patient), key=lambda stay: (stay[2] - stay[1], stay[0].place))
    stay, start, end = longest
    room = scene.rooms[stay.place]
    spare = max(0, (end - start) // timedelta(minutes=1) - ask.minutes) // (2 * MINUTES)
    candidates = []
    for place in sorted(place for place, its_room in scene.rooms.items() if its_room == room and place != stay.place):
        rng = seeded_random("contact", ask, place)
        for other in rng.sample([person.id for person in scene.people if person.id != patient], _SUPPOSED):
            first, last = (timedelta(minutes=MINUTES * rng.randint(0, spare)) for _ in range(2))
            times = {"start": instant(start + first), "end": instant(end - last)}
            stays = (*_stays_before(times["start"], scene, rng), Stay(place=place, status="completed", **times))
            visit = Visit(id=f"contact-{patient}-{place}-{other}", patient=other, status="finished", stays=stays)
            candidates.append(visit_resource(visit))
    return candidates


def _stays_before(moment: str, scene: WardScene, rng: Random) -> list[Stay]:
    """Return the stays of a random encounter until a moment; none if no encounter began before."""
    begun = [visit.stays for visit in scene.visits if visit.status in HELD and visit.stays[0].start < moment]
    if not begun:
        return []
    *stays, last = [stay for stay in rng.choice(begun) if stay.start < moment]
    return [*stays, last.model_copy(update={"end": min(last.end or moment, moment), "status": "completed"})]


def stays_in_window(ask: ContactContent, scene: WardScene, patient: str) -> list[tuple[Stay, datetime, datetime]]:
    """Return the stays of a patient that count, with their start and end within the window."""
    first, last, now = parse_instant(ask.first), parse_instant(ask.last), parse_instant(scene.now)
    stays = []
    for visit in scene.visits:
        for stay in visit.stays if visit.patient == patient and visit.status in HELD else ():
            start, end = parse_instant(stay.start), parse_instant(stay.end) if stay.end else now
            if stay.status in OCCUPIED and start < last and end > first:
                stays.append((stay, max(start, first), min(end, last)))
    return stays


def _is_in_window(request: ContactRequest, scene: WardScene, visit: Visit) -> bool:
    """Whether an encounter of the patient counts and has a stay in the window."""
    alone = scene.model_copy(update={"visits": (visit,)})
    return bool(stays_in_window(request.ask, alone, request.patients[0]))


def _longest_contact(request: ContactRequest, scene: WardScene) -> int:
    """Return the number of minutes that the patient was in any room in the window."""
    parts = [(start, end) for _, start, end in stays_in_window(request.ask, scene, request.patients[0])]
    return sum((end - start for start, end in _merged(parts)), timedelta()) // timedelta(minutes=1)


class ContactJudge(QuestionJudge[WardScene, ContactRequest]):
    """Judges answers; they count only if the agent has read the encounters on which they rest."""

    @cached_property
    def _hospital(self) -> Hospital:
        return Hospital(self.scene.visits, self.scene.rooms, self.scene.parents, parse_instant(self.scene.now))

    @override
    def check(self, request: ContactRequest, answer: str) -> tuple[bool, bool]:
        scene, overlaps = self.scene, self._hospital.overlaps(request.patients[0])
        outcome = outcome_of(request.ask, overlaps, names_of(scene.people))
        records = {record for overlap in counted(request.ask, overlaps) for record in overlap.records}
        records_needed: list[Resource] = []
        if outcome == NO_CONTACT and _longest_contact(request, scene) < request.ask.minutes:
            # Nobody can have shared a room for longer than the patient was in one, so the patient's own stays suffice.
            records = {f"Encounter/{visit.id}" for visit in scene.visits if _is_in_window(request, scene, visit)}
        elif outcome == NO_CONTACT:
            records_needed = stay_that_would_count(request, scene)
        looked = all("location" in self.log.seen.get(record, {}) for record in records)
        return agrees(request.ask, outcome, answer), looked and all(map(self.log.lookups_of, records_needed))


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
    def draw(self, outcome: str, *, depends: bool) -> ContactRequest | None:
        rng, names = self.rng, self._names[outcome]
        used = [request.ask.patient for request in self.chosen]
        measure = rng.choice(MEASURES)
        left = [name for name in names if name[0] not in used] or names
        for name, ids in rng.sample(left, len(left)):  # the patient first, so that all are equally likely
            for _ in range(_WINDOWS):
                ask = self._draw_ask(name, measure)
                value = self._outcome(ask, ids[0], outcome) if len(ids) == 1 else outcome
                if value:
                    return ContactRequest(ask=ask, outcome=value, patients=ids, **target_among(ids, self.scene.people))
        return None

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
