"""Tasks Q2-1 and Q2-2: requests to cancel or move appointments or to record missed ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from typing_extensions import override

from fhir_gym.actions import Action, Put
from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import IdAllocator, Person, instant, reference
from fhir_gym.tasks.core.ids import seeded_random
from fhir_gym.tasks.grading import differences, same_moment
from fhir_gym.tasks.packs.shift.calendar import (
    EARLIER_REQUESTS_IGNORED,
    USUAL_MINUTES,
    Booked,
    Calendar,
    CalendarJudge,
    draw_mistake,
    slots_that_would_fit,
)
from fhir_gym.tasks.packs.shift.clinic import (
    OCCUPIED,
    ClinicScene,
    ClinicSlot,
    Practitioner,
    Visit,
    appointment_resource,
    draw_clinic,
)
from fhir_gym.tasks.packs.shift.kind import Judgement, Knowledge, RequestSampler, ShiftSize, Solution
from fhir_gym.tasks.packs.shift.lookups import Named, search_all
from fhir_gym.tasks.packs.shift.outcomes import (
    ALREADY_DONE,
    DONE,
    NO_FREE_TIME,
    NO_SUCH_PATIENT,
    NOT_ALLOWED,
    NOTHING_TO_DO,
    SEVERAL_PATIENTS,
)
from fhir_gym.tasks.packs.shift.patient_records import other_values
from fhir_gym.tasks.packs.shift.patients import (
    PATIENT_RULE,
    PatientJudge,
    PatientKind,
    PatientRequest,
    ids_of,
    names_for,
    target_among,
)
from fhir_gym.tasks.packs.shift.place_records import PlaceRecords, practitioners_in, take_slot
from fhir_gym.tasks.packs.shift.preferences import WISHES, TimePreferences, draw_time_wishes
from fhir_gym.tasks.packs.shift.static_task import StaticShift
from fhir_gym.types import Json, Resource

ACTIVE = ("booked", "pending")
"""Statuses of appointments that a request can change."""
ENDED_AS = {"cancel": "cancelled", "missed": "noshow"}
"""The status that a request gives the appointment."""


class ChangeContent(TimePreferences):
    """The requested change. The wishes are for the new time of a moved appointment.

    Attributes:
        day: Day of the appointment.
        change: What to do with the appointment.
    """

    patient: Named
    given: str
    family: str
    day: str
    change: Literal["cancel", "move", "missed"]

    def is_with(self, practitioner: Person) -> bool:
        """Whether the request is about a practitioner."""
        return (self.given, self.family) == (practitioner.given, practitioner.family)


class ChangeRequest(PatientRequest):
    """A request to change an appointment.

    Attributes:
        visit: Id of the patient's only appointment with the practitioner on the day; empty if there is none.
    """

    ask: ChangeContent
    visit: str = ""


def outcome_of(ask: ChangeContent, visit: Visit | None, calendar: Calendar) -> str:
    """Return the outcome of a request in a calendar."""
    if visit is None:
        return NOTHING_TO_DO
    booked = calendar.visits.get(visit.id)
    status = booked.status if booked else ""
    if status not in ACTIVE:
        return ALREADY_DONE if status == ENDED_AS.get(ask.change) else NOTHING_TO_DO
    started = visit.slot.start <= calendar.scene.now
    if started != (ask.change == "missed"):
        return NOT_ALLOWED
    if ask.change == "move" and new_slot(ask, visit, calendar) is None:
        return NO_FREE_TIME
    return DONE


def new_slot(ask: ChangeContent, visit: Visit, calendar: Calendar) -> ClinicSlot | None:
    """Return the slot to which an appointment moves; None if no slot fits."""
    return calendar.first_free(visit.patient, _AsLong(ask, visit.slot.minutes), _same(visit), moving=visit.id)


@dataclass(frozen=True, slots=True)
class _AsLong:
    """Wishes, and the length of the present slot as the minimum."""

    ask: ChangeContent
    least: int

    def suits(self, start: str, minutes: int) -> bool:
        """Whether a time suits the patient."""
        return minutes >= self.least and self.ask.suits(start, minutes)


def _same(visit: Visit) -> Callable[[Practitioner], bool]:
    return lambda practitioner: practitioner.schedule == visit.slot.schedule


def missing_visit(request: ChangeRequest, scene: ClinicScene) -> Iterator[Resource]:
    """Yield the appointment that the request supposes, as it would be if it could be changed."""
    ask = request.ask
    practitioner = next(practitioner for practitioner in scene.practitioners if ask.is_with(practitioner.person))
    patient = request.patients[0]
    slots = [slot for slot in scene.slots if slot.schedule == practitioner.schedule]
    slot = seeded_random("visit", patient, ask).choice([slot for slot in slots if slot.start[:10] == ask.day] or slots)
    moved = slot.model_copy(update={"start": f"{ask.day}{slot.start[10:]}"})
    visit = Visit(id=f"supposed-{patient}-{ask.day}", patient=patient, slot=moved, status="booked")
    yield appointment_resource(visit, practitioner.person.id, scene.place)


def slots_for_move(request: ChangeRequest, scene: ClinicScene) -> Iterator[Resource]:
    """Yield a free slot that does not exist and would fit."""
    visit = next(visit for visit in scene.visits if visit.id == request.visit)
    limits = _AsLong(request.ask, visit.slot.minutes)
    minutes = max(request.ask.minutes, visit.slot.minutes, USUAL_MINUTES)
    yield from slots_that_would_fit(scene, visit.patient, limits, minutes, _same(visit), moving=visit.id)


class ChangeJudge(CalendarJudge[ClinicScene, ChangeRequest], PatientJudge[ClinicScene, ChangeRequest]):
    """Judges changes of appointments against the calendars that the agent met."""

    def _visit(self, request: ChangeRequest) -> Visit | None:
        return next((visit for visit in self.scene.visits if visit.id == request.visit), None)

    @override
    def claim(self, request: ChangeRequest) -> frozenset[str]:
        visit = self._visit(request)
        if visit is None or len(request.patients) != 1:
            return frozenset()
        written = [write.after for write in self.log.writes if write.record == f"Appointment/{visit.id}"]
        slots = {visit.slot.id, *(id for resource in written for id in self.slot_ids(resource))} & self.slots.keys()
        return frozenset({f"Appointment/{visit.id}"} | {f"Slot/{id}" for id in slots})

    @override
    def judge_request(self, number: int) -> Judgement:
        visit = self._visit(self.requests[number])
        if visit is not None and f"Appointment/{visit.id}" in self.log.changed:
            return super().judge_request(number)
        right, harmed = self.is_rightly_declined(number), self._slot_is_wrong(visit)
        return self.declined(number, right, self.claimed[number] & self.log.changed, harmed=harmed)

    @override
    def problems(self, number: int, left: Sequence[str]) -> tuple[Sequence[Json], Json]:
        ask, visit = self.requests[number].ask, self._visit(self.requests[number])
        assert visit is not None
        return [*self._problems(ask, visit, [self.met(number), self.planned(number)])], None

    def _problems(self, ask: ChangeContent, visit: Visit, calendars: list[Calendar]) -> Iterator[Json]:
        record = f"Appointment/{visit.id}"
        before, after = self.log.at_start(record) or {}, self.log.at_end(record) or {}
        possible = [calendar for calendar in calendars if outcome_of(ask, visit, calendar) == DONE]
        if not possible:
            yield f"changed Appointment/{visit.id}"
            return
        if ask.change == "move":
            right_slots = [slot for calendar in possible if (slot := new_slot(ask, visit, calendar)) is not None]
            slot = next((slot for slot in right_slots if self.slot_ids(after) == [slot.id]), None)
            if slot is None:
                yield f"moved to {', '.join(f'Slot/{id}' for id in self.slot_ids(after)) or 'no slot'}"
                return
            yield from self._wrong_move(before, after, visit, slot)
        else:
            yield from other_values(after, status=ENDED_AS[ask.change])
            over = ask.change == "cancel"
            may_add, may_go = (("cancelationReason",), ("slot",)) if over else ((), ())
            if rest := differences(before, after, changing=("status",), may_add=may_add, may_go=may_go):
                yield {"also changed": [*rest]}
        if self._slot_is_wrong(visit, freed=ask.change != "missed"):
            yield f"Slot/{visit.slot.id} is not as it should be"

    def _wrong_move(self, before: Resource, after: Resource, visit: Visit, slot: ClinicSlot) -> Iterator[Json]:
        for name, moment in (("start", slot.start), ("end", slot.end)):
            if not same_moment(after.get(name), moment):
                yield f"{name} {after.get(name)}"
        if rest := differences(before, after, changing=("start", "end", "slot", "minutesDuration")):
            yield {"also changed": [*rest]}
        if not self.slot_became(slot.id, "busy"):
            yield f"Slot/{slot.id} is not busy and otherwise unchanged"

    def _slot_is_wrong(self, visit: Visit | None, freed: bool = False) -> bool:
        """Whether the slot of an appointment is neither as at the start nor, if it was given up, free or given away."""
        if visit is None:
            return False
        if not freed:
            others = self._occupied_by_others(visit)
            return f"Slot/{visit.slot.id}" in self.log.changed and not others
        return not (self.slot_became(visit.slot.id, "free") or self._given_away(visit))

    def _given_away(self, visit: Visit) -> bool:
        return self.slot_became(visit.slot.id, "busy") and self._occupied_by_others(visit)

    def _occupied_by_others(self, visit: Visit) -> bool:
        """Whether another appointment occupies the slot at the end."""
        booked = self.before(len(self.log.writes)).visits
        others = (other for id, other in booked.items() if id != visit.id and other.status in OCCUPIED)
        return any(slot.id == visit.slot.id for other in others for slot in other.slots)

    @override
    def is_rightly_declined_for_patient(self, number: int) -> bool:
        request, answer = self.requests[number], self.answers[number]
        visit = self._visit(request)
        if visit is None:
            (supposed,) = missing_visit(request, self.scene)
            return answer == NOTHING_TO_DO and bool(self.log.lookups_of(supposed))
        right = {outcome_of(request.ask, visit, calendar) for calendar in (self.start, self.planned(number))}
        if answer == NO_FREE_TIME and request.ask.change == "move" and right <= {DONE, NO_FREE_TIME}:
            slots = slots_for_move(request, self.scene)
            return self.looked_for_slots(number, slots, lambda slot: new_slot(request.ask, visit, slot))
        return answer in right - {DONE} and self.log.has_seen([f"Appointment/{visit.id}"])


_TRIES = 40
_MOST_MOVES = 0.5
"""Share of the requests that may be moves, which need the most actions."""


def _same_day(visit: Visit, visits: Sequence[Visit]) -> list[Visit]:
    """Return the appointments that are with the same practitioner and on the same day as another one."""
    key = (visit.slot.schedule, visit.slot.start[:10])
    return [other for other in visits if (other.slot.schedule, other.slot.start[:10]) == key]


def _outcome(ask: ChangeContent, visit: Visit | None, calendar: Calendar, mine: Sequence[Visit]) -> str:
    """Return the outcome of an ask; an empty text if it is ambiguous or one of its wishes makes no difference."""
    if visit is None:
        return NOTHING_TO_DO
    is_clear, outcome = len(_same_day(visit, mine)) == 1, outcome_of(ask, visit, calendar)
    if is_clear and outcome == DONE and ask.change == "move":
        best = new_slot(ask, visit, calendar)
        is_clear = all(new_slot(change, visit, calendar) != best for change in ask.without_one_wish())
    return outcome if is_clear else ""


class ChangeSampler(RequestSampler[ClinicScene, ChangeRequest]):
    """Draws changes of a patient's appointments until one has an outcome, which a mistake would often change."""

    def __init__(self, rng: random.Random, now: datetime, scene: ClinicScene, outcomes: Sequence[str]) -> None:
        super().__init__(rng, now, scene, outcomes)
        self._calendar = Calendar.at_start(scene)
        self._most_moves = _MOST_MOVES * len(outcomes)

    @override
    def draw(self, outcome: str, *, depends: bool) -> ChangeRequest | None:
        used = [request.ask.patient for request in self.chosen]
        kinds = self._kinds(outcome, depends=depends)
        names = [name for name in names_for(self.rng, self.scene.people, outcome) if name not in used]
        mistake = draw_mistake(self.rng, outcome) if "move" in kinds else ""
        mistake = EARLIER_REQUESTS_IGNORED if depends else mistake
        request = self._first(names, outcome, ["move"], mistake) if mistake else None
        if request is None and not depends:
            request = self._first(names, outcome, kinds)
        return request

    def _kinds(self, outcome: str, *, depends: bool) -> list[str]:
        if outcome == NO_FREE_TIME or depends:
            return ["move"]
        moves = sum(request.ask.change == "move" for request in self.chosen)
        kinds = ["cancel", "missed"] if moves + 1 > self._most_moves else ["cancel", "move", "missed"]
        # A missed appointment frees no slot.
        return [kind for kind in kinds if outcome != DONE or self.is_chained or kind != "missed"]

    def _first(
        self, names: Sequence[Named], outcome: str, kinds: Sequence[str], mistake: str = ""
    ) -> ChangeRequest | None:
        return next(filter(None, (self._draw(name, outcome, kinds, mistake) for name in names)), None)

    def _draw(self, name: Named, outcome: str, kinds: Sequence[str], mistake: str) -> ChangeRequest | None:
        """Draw changes until one has an outcome, which the mistake would change; None if none has."""
        ids = ids_of(name, self.scene.people)
        calendar = self._calendar.fixed()
        seen = calendar.as_seen_by(mistake, ids[0]).fixed() if mistake else None
        mine = [visit for visit in self.scene.visits if visit.patient in ids]
        for _ in range(_TRIES):
            visit, ask = self._draw_change(name, mine, self.rng.choice(kinds))
            if seen and (visit is None or new_slot(ask, visit, seen) == new_slot(ask, visit, calendar)):
                continue
            if len(ids) != 1 or _outcome(ask, visit, calendar, mine) == outcome:
                values = {"visit": visit.id if visit else "", **self._aimed_at(ids, visit)}
                return ChangeRequest(ask=ask, outcome=outcome, patients=ids, **values)
        return None

    def _aimed_at(self, ids: Sequence[str], visit: Visit | None) -> dict[str, Any]:
        """Return the fields `target` and `qualifying`: only patients with such an appointment qualify."""
        aimed = target_among(ids, self.scene.people)
        if aimed and visit is not None:
            able = {f"Patient/{other.patient}" for other in self.scene.visits if self._kind(other) == self._kind(visit)}
            aimed["qualifying"] = tuple(qualifying for qualifying in aimed["qualifying"] if qualifying in able)
        return aimed

    def _kind(self, visit: Visit) -> tuple[bool, bool]:
        return visit.status in ACTIVE, visit.slot.start > self.scene.now

    def _draw_change(self, name: Named, mine: Sequence[Visit], change: str) -> tuple[Visit | None, ChangeContent]:
        """Draw an appointment of the patient, or the practitioner and day of another patient's; and what to change."""
        rng, scene = self.rng, self.scene
        chosen = rng.choice(mine) if mine and rng.random() < 0.75 else rng.choice(scene.visits)
        person, day = scene.by_schedule()[chosen.slot.schedule].person, chosen.slot.start[:10]
        wishes: dict[str, Any] = {}
        if change == "move":
            drawn = draw_time_wishes(rng, self.now.date())
            wishes = {
                wish: drawn[wish] for wish in rng.sample(("weekdays", "part", "first_day"), rng.choice((1, 1, 2)))
            }
        ask = ChangeContent(patient=name, given=person.given, family=person.family, day=day, change=change, **wishes)
        return next(iter(_same_day(chosen, mine)), None), ask

    @override
    def apply(self, request: ChangeRequest) -> None:
        if request.outcome != DONE:
            return
        calendar = self._calendar
        visit = next(visit for visit in self.scene.visits if visit.id == request.visit)
        slots, status = (visit.slot,), ENDED_AS.get(request.ask.change, visit.status)
        if request.ask.change == "move":
            slot = new_slot(request.ask, visit, calendar)
            assert slot is not None
            slots, calendar.status[slot.id] = (slot,), "busy"
        if request.ask.change != "missed":
            calendar.status[visit.slot.id] = "free"
        calendar.visits[visit.id] = Booked(visit.patient, slots, status)


class Changes(PatientKind[ClinicScene, ChangeRequest]):
    """Cancel or move appointments, or record that a patient missed one."""

    key = "Q2"
    title = "Changes of appointments"
    sampler_type = ChangeSampler
    judge_type = ChangeJudge
    codes = (NO_SUCH_PATIENT, SEVERAL_PATIENTS, NOTHING_TO_DO, ALREADY_DONE, NOT_ALLOWED, NO_FREE_TIME)
    depending = (DONE, NO_FREE_TIME)
    counts: ClassVar[Mapping[int, tuple[int, int]]] = MappingProxyType({1: (4, 4), 2: (10, 12)})
    resource_types = ("Patient", "Practitioner", "Appointment", "Slot")
    rules = (
        f"{PATIENT_RULE}\n"
        "- A request means the patient's appointment with the named practitioner that starts on the named day (UTC). "
        f'If there is no such appointment, the outcome is "{NOTHING_TO_DO}". If the appointment already has the status '
        f'that is asked for (cancelled, or noshow if the patient missed it), the outcome is "{ALREADY_DONE}". If it '
        f'has any status other than booked or pending, the outcome is "{NOTHING_TO_DO}".\n'
        "- A booked or pending appointment that has started cannot be cancelled or moved, and one that has not started "
        f'cannot be missed: the outcome is "{NOT_ALLOWED}".\n'
        "- To cancel: set the appointment's status to cancelled (a reason may be added), and the status of its slot to "
        "free. If the patient missed the appointment: set its status to noshow, and leave the slot as it is.\n"
        "- To move: use a free slot (status free) of the same practitioner that starts after the present, is at least "
        "as long as the present slot, meets every wish, and does not overlap another appointment of the patient with "
        "status booked, pending or arrived. Among several, take the one that starts first, even if that is earlier "
        f"than the present time of the appointment; then the one with the lower id. {WISHES} If there is no such slot, "
        f'the outcome is "{NO_FREE_TIME}", and the appointment stays as it is. Otherwise give the same Appointment the '
        "new slot and its start and end, set the new slot to busy and the old slot to free. Slots that an earlier "
        "request has freed count as free."
    )

    @override
    def draw_scene(self, rng: random.Random, world: World, ids: IdAllocator, size: ShiftSize) -> ClinicScene:
        if size.level == 1:
            return draw_clinic(rng, world, ids, people=(16,), twins=3, practitioners=3, services=2, days=4, per_day=6)
        people = size.groups((13, 14), 12)
        return draw_clinic(rng, world, ids, people=people, twins=4, practitioners=6, services=3, days=7, per_day=7)

    @override
    def text(self, ask: ChangeContent, wording: int) -> str:
        who = f"{ask.patient.given} {ask.patient.family}"
        born, doctor = ask.patient.birth_date, f"Dr. {ask.given} {ask.family}"
        words = {
            "cancel": (
                f"{who}, born {born}, cannot see {doctor} on {ask.day}. Please cancel the appointment.",
                f"Please cancel the appointment of {who} (date of birth {born}) with {doctor} on {ask.day}.",
                f"Cancellation: {who}, {born}, {doctor}, {ask.day}.",
            ),
            "move": (
                f"{who}, born {born}, cannot see {doctor} on {ask.day} at the agreed time. Please find another one.",
                f"Please move the appointment of {who} (date of birth {born}) with {doctor} on {ask.day}.",
                f"New time needed: {who}, {born}, {doctor}, now on {ask.day}.",
            ),
            "missed": (
                f"{who}, born {born}, did not come to {doctor} on {ask.day}. Please record that.",
                f"Please record that {who} (date of birth {born}) missed the appointment with {doctor} on {ask.day}.",
                f"Missed: {who}, {born}, {doctor}, {ask.day}.",
            ),
        }
        return " ".join([words[ask.change][wording], *ask.in_words()])

    @override
    def solve_for(self, patient: Resource, ask: ChangeContent, knowledge: Knowledge) -> Solution:
        doctor, looked_up = f"{ask.given} {ask.family}", knowledge.looked_up
        if doctor not in looked_up:
            looked_up[doctor] = yield from _practitioner(ask)
        records: PlaceRecords = looked_up[doctor]
        now = knowledge.now
        query = {"patient": f"Patient/{patient['id']}", "_include": "Appointment:slot", "_count": "200"}
        resources = yield from search_all("/Appointment", query)
        mine = [appointment for appointment in resources if appointment["resourceType"] == "Appointment"]
        calendar = records.calendar(now, (), mine)
        visits = (visit for visit in calendar.scene.visits if visit.slot.schedule and visit.slot.start[:10] == ask.day)
        visit = next(visits, None)
        outcome = outcome_of(ask, visit, calendar)
        if visit is None or outcome not in (DONE, NO_FREE_TIME):
            return outcome
        appointment = next(each for each in mine if each["id"] == visit.id)
        old = next(each for each in resources if (each["resourceType"], each["id"]) == ("Slot", visit.slot.id))
        if ask.change != "move":
            yield Put(f"/Appointment/{visit.id}", {**appointment, "status": ENDED_AS[ask.change]})
            if ask.change == "cancel":
                yield Put(f"/Slot/{old['id']}", {**old, "status": "free"})
            return DONE
        free = {"schedule": f"Schedule/{visit.slot.schedule}", "status": "free", "start": f"gt{instant(now)}"}
        new = yield from take_slot(
            {**free, "_count": "200"}, lambda slots: new_slot(ask, visit, records.calendar(now, slots, mine))
        )
        if new is None:
            return NO_FREE_TIME
        moved = {"start": new["start"], "end": new["end"], "slot": [reference("Slot", new["id"])]}
        yield Put(f"/Appointment/{visit.id}", {**appointment, **moved})
        yield Put(f"/Slot/{old['id']}", {**old, "status": "free"})
        return DONE

    @override
    def missing_records(self, request: ChangeRequest, scene: ClinicScene) -> list[Resource]:
        if not request.visit:
            return [*missing_visit(request, scene)]
        return [*slots_for_move(request, scene)] if request.ask.change == "move" else []


def _practitioner(ask: ChangeContent) -> Generator[Action, Json, PlaceRecords]:
    query = {"actor:Practitioner.family": ask.family, "_include": "Schedule:actor", "_count": "200"}
    practitioners = practitioners_in((yield from search_all("/Schedule", query)))
    return PlaceRecords("", tuple(filter(lambda practitioner: ask.is_with(practitioner.person), practitioners)))


class ChangesLevel1(StaticShift, requests=Changes(), level=1):
    """Handle four requests to cancel or move appointments or to record missed ones.

    Starting state: a place with three practitioners, about two weeks of slots, and nineteen patients with similar names
        who have up to three appointments each, past and coming, with all statuses.
    Decoys: other appointments of the patient; appointments that are over, cancelled or missed already; slots that are
        too short, not free or miss a wish.
    Checks: each request is judged against the calendar that the agent met when it wrote. A declined request needs its
        outcome, and lookups that would have shown the opposite. Nothing else changed.
    Light: none of the checks.
    """


class ChangesLevel2(StaticShift, requests=Changes(), level=2):
    """Handle ten to twelve requests to cancel or move appointments, which free slots for each other.

    Starting state: as at level 1, with six practitioners, about 350 slots and 31 patients.
    Decoys: as at level 1, and slots that earlier requests free or take.
    Checks: as at level 1.
    Light: none of the checks.
    """


TASKS = (ChangesLevel1, ChangesLevel2)
