"""Who shared a room with a patient, and the judgement of questions about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from random import Random
from typing import Literal, NamedTuple, get_args

from typing_extensions import override

from fhir_gym.tasks.authoring import Person, instant, parse_instant
from fhir_gym.tasks.core.ids import seeded_random
from fhir_gym.tasks.grading.comparison import plain
from fhir_gym.tasks.packs.shift.i3_contacts.scene import HELD, MINUTES, OCCUPIED, Stay, Visit, WardScene, visit_resource
from fhir_gym.tasks.packs.shift.kind import RequestContent
from fhir_gym.tasks.packs.shift.lookups import Named
from fhir_gym.tasks.packs.shift.outcomes import NO_CONTACT
from fhir_gym.tasks.packs.shift.patients import PatientRequest
from fhir_gym.tasks.packs.shift.questions import QuestionJudge, items_in, number_in
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
    """Merge the times that overlap."""
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
