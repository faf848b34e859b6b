"""Where the appointments of a practitioner who is away move, and the judgement of absences, record by record."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date, timedelta
from functools import cached_property

from typing_extensions import override

from fhir_gym.tasks.core.ids import seeded_random
from fhir_gym.tasks.grading import differences, same_moment
from fhir_gym.tasks.packs.shift.calendar import Booked, Calendar, CalendarJudge
from fhir_gym.tasks.packs.shift.clinic import OCCUPIED, ClinicSlot, Visit, appointment_resource, overlap, slot_resource
from fhir_gym.tasks.packs.shift.kind import Judgement, Request, RequestContent
from fhir_gym.tasks.packs.shift.s1_absences.scene import CLOSED, WAITING, AbsenceScene
from fhir_gym.tasks.packs.shift.sweeps import RecordVerdict, SweepJudge
from fhir_gym.types import Json, Resource

MOVABLE = ("booked", "pending")
"""Statuses of appointments that have to move."""

PRIORITY_IGNORED = "priority ignored"
ZERO_IS_FIRST = "priority 0 handled first"
OWN_APPOINTMENTS_IGNORED = "own appointments ignored"
LENGTH_IGNORED = "length ignored"
LIMIT_IGNORED = "limit of days ignored"
EARLIER_REQUESTS_IGNORED = "earlier requests ignored"
MISTAKES = (PRIORITY_IGNORED, ZERO_IS_FIRST, OWN_APPOINTMENTS_IGNORED, LENGTH_IGNORED, LIMIT_IGNORED)
"""Mistakes that change the result of many sweeps, so that an agent must avoid them."""

_LAST_PRIORITY = 10


class AbsenceContent(RequestContent):
    """Who is away, and when.

    Attributes:
        first: The first day of the absence.
        last: The last day of the absence.
    """

    given: str
    family: str
    first: str
    last: str

    @property
    def name(self) -> tuple[str, str]:
        """Given name and family name of the practitioner."""
        return self.given, self.family

    def covers(self, start: str) -> bool:
        """Whether a time is on a day of the absence."""
        return self.first <= start[:10] <= self.last


class AbsenceRequest(Request):
    """The request to clear the calendar of a practitioner.

    Attributes:
        schedule: Id of the practitioner's schedule at the place.
    """

    ask: AbsenceContent
    schedule: str

    def is_away(self, slot: ClinicSlot) -> bool:
        """Whether a slot is one of the absent practitioner at the place, on a day of the absence."""
        return slot.schedule == self.schedule and self.ask.covers(slot.start)


class AbsenceCalendar:
    """The calendar of a place, in which a practitioner is away.

    Args:
        calendar: The calendar; it changes.
        scene: The places.
    """

    def __init__(self, calendar: Calendar, scene: AbsenceScene, request: AbsenceRequest) -> None:
        self.calendar, self.scene, self._request = calendar, scene, request

    def appointments(self, mistake: str = "") -> list[str]:
        """Return the ids of the appointments that have to move, in the order of the rules."""
        start = {
            id: self._old_slot(visit).start
            for id, visit in self.calendar.visits.items()
            if visit.status in MOVABLE and any(self._request.is_away(slot) for slot in visit.slots)
        }
        return sorted(start, key=lambda id: (self._rank(id, mistake), start[id]))

    def _old_slot(self, booked: Booked) -> ClinicSlot:
        return next(slot for slot in booked.slots if self._request.is_away(slot))

    def _rank(self, id: str, mistake: str) -> int:
        priority = self.scene.priorities.get(id, 0)
        if mistake == PRIORITY_IGNORED:
            return 0
        return priority or (0 if mistake == ZERO_IS_FIRST and id in self.scene.priorities else _LAST_PRIORITY)

    def free_slots(self) -> list[str]:
        """Return the ids of the free slots of the practitioner on the days of the absence."""
        slots = self.scene.offered[self.scene.service_of(self._request.schedule)]
        return [slot.id for slot in slots if self._request.is_away(slot) and self.calendar.status[slot.id] == "free"]

    def new_slot(self, id: str, mistake: str = "") -> ClinicSlot | None:
        """Return the slot to which an appointment moves; None if there is none."""
        moving = self.calendar.visits[id]
        old = self._old_slot(moving)
        days = 365 if mistake == LIMIT_IGNORED else self.scene.limit
        last = (date.fromisoformat(old.start[:10]) + timedelta(days=days)).isoformat()
        minutes = 0 if mistake == LENGTH_IGNORED else old.minutes
        own = [
            slot
            for other, visit in self.calendar.visits.items()
            if other != id
            and visit.patient == moving.patient
            and visit.status in OCCUPIED
            and mistake != OWN_APPOINTMENTS_IGNORED
            for slot in visit.slots
        ]
        fitting = (
            slot
            for slot in self.scene.offered[self.scene.service_of(self._request.schedule)]
            if old.start[:10] <= slot.start[:10] <= last
            and slot.schedule != self._request.schedule
            and self.calendar.status[slot.id] == "free"
            and slot.minutes >= minutes
            and not any(overlap(slot, other) for other in own)
        )
        return next(fitting, None)

    def move(self, id: str, slot: ClinicSlot | None) -> None:
        """Move an appointment to a slot, or to the waiting list if there is none."""
        booked = self.calendar.visits[id]
        for old in booked.slots:
            self.calendar.status[old.id] = CLOSED
        if slot is None:
            self.calendar.visits[id] = booked._replace(status=WAITING)
        else:
            self.calendar.visits[id] = booked._replace(slots=(slot,))
            self.calendar.status[slot.id] = "busy"

    def clear(self, mistake: str = "") -> dict[str, ClinicSlot | None]:
        """Handle the absence, and return the new slots of the appointments."""
        right_slots: dict[str, ClinicSlot | None] = {}
        for id in self.appointments(mistake):
            right_slots[id] = self.new_slot(id, mistake)
            self.move(id, right_slots[id])
        for slot in self.free_slots():
            self.calendar.status[slot] = CLOSED
        return right_slots


def supposed_records(request: AbsenceRequest, scene: AbsenceScene) -> Iterator[Resource]:
    """Yield records that an absence without anything to do would have to change, on its first and its last day."""
    practitioner = scene.by_schedule()[request.schedule].person.id
    for day in sorted({request.ask.first, request.ask.last}):
        rng, name = seeded_random("absence", request.schedule, day), f"supposed-{request.schedule}-{day}"
        for status in ("busy", "free"):
            model = rng.choice(scene.slots)
            values = {"id": f"{name}-{status}", "schedule": request.schedule, "status": status}
            slot = model.model_copy(update={**values, "start": f"{day}{model.start[10:]}"})
            yield slot_resource(slot)
            if status == "busy":
                visit = Visit(id=name, patient=rng.choice(scene.people).id, slot=slot, status="booked")
                yield appointment_resource(visit, practitioner, scene.place)


class AbsenceJudge(CalendarJudge[AbsenceScene, AbsenceRequest], SweepJudge[AbsenceScene, AbsenceRequest]):
    """Judges absences against the calendars that the agent met.

    Within an absence, each appointment is judged as if the agent had handled the appointments in the order of the
    rules, even if it moved an earlier appointment wrongly. The slot that the rules choose without any mistake is right,
    too.
    """

    @override
    def claim(self, request: AbsenceRequest) -> frozenset[str]:
        person = self.scene.by_schedule()[request.schedule].person.id
        schedules = {
            practitioner.schedule for practitioner in self.scene.practitioners if practitioner.person.id == person
        }
        visits = [visit for visit in self.scene.visits if visit.slot.schedule in schedules]
        written = {write.record for write in self.log.writes_of_agent}
        slots = {slot.id for slot in self.scene.slots if slot.schedule in schedules and request.ask.covers(slot.start)}
        slots |= {visit.slot.id for visit in visits if f"Appointment/{visit.id}" in written}
        slots |= {id for visit in visits for id in self._slots_given(f"Appointment/{visit.id}")}
        slots |= {slot.id for slot in self._without_mistakes[self.requests.index(request)].values() if slot}
        return frozenset({*(f"Appointment/{visit.id}" for visit in visits), *(f"Slot/{id}" for id in slots)})

    def _slots_given(self, appointment: str) -> set[str]:
        """Return the ids of the slots that the agent gave to an appointment at any time."""
        written = (write.after for write in self.log.writes_of_agent if write.record == appointment)
        return {id for resource in written for id in self.slot_ids(resource)} & self.slots.keys()

    @override
    def judge_request(self, number: int) -> Judgement:
        appointments, closing = self._due[number]
        is_due = bool(appointments or closing)
        verdicts = [*self._appointments(number, appointments), *map(self._closing, closing)]
        verdicts += [
            RecordVerdict(record, "changed", harmed=record in self.log.changed or not is_due, due=False)
            for record in sorted(self._surplus(number))
        ]
        supposed = supposed_records(self.requests[number], self.scene)
        return self.sweep(number, verdicts, self.claimed[number], lambda: all(map(self.log.lookups_of, supposed)))

    @cached_property
    def _firsts(self) -> list[int]:
        """For each request, the number of the agent's first write for it."""
        numbers: list[int] = []
        for request in self.requests:
            slots = {slot.id for slot in self.scene.slots if request.is_away(slot)}
            visits = {f"Appointment/{visit.id}" for visit in self.scene.visits if visit.slot.id in slots}
            slots |= {id for visit in visits for id in self._slots_given(visit)}
            numbers.append(self._first_of(visits | {f"Slot/{id}" for id in slots}))
        return numbers

    def _first_of(self, records: Collection[str]) -> int:
        """Return the number of the agent's first write on some records; the number of all writes if there is none."""
        first = self.first_write(records)
        return len(self.log.writes) if first is None else first

    @cached_property
    def _met(self) -> list[Calendar]:
        """For each request, the calendar before the agent's first write for it."""
        return [self.before(first) for first in self._firsts]

    @cached_property
    def _due(self) -> list[tuple[list[str], list[str]]]:
        """For each request, the appointments to move, in the order of the rules, and the slots to close."""
        calendars = (
            AbsenceCalendar(met, self.scene, request) for met, request in zip(self._met, self.requests, strict=True)
        )
        return [(calendar.appointments(), calendar.free_slots()) for calendar in calendars]

    @cached_property
    def _without_mistakes(self) -> list[Mapping[str, ClinicSlot | None]]:
        """For each request, the new slots if all requests are handled in order."""
        calendar = Calendar.at_start(self.scene)
        return [AbsenceCalendar(calendar, self.scene, request).clear() for request in self.requests]

    def _unit(self, number: int, id: str) -> frozenset[str]:
        """Return the records that change together with an appointment: itself, and its old and new slots."""
        old = {slot.id for slot in self._met[number].visits[id].slots}
        new = self._slots_given(f"Appointment/{id}")
        if not new and (expected := self._without_mistakes[number].get(id)):
            new = {expected.id}
        return frozenset({f"Appointment/{id}", *(f"Slot/{slot}" for slot in old | new)})

    @cached_property
    def _units(self) -> list[dict[str, frozenset[str]]]:
        """For each request, the records that change together with each appointment."""
        return [{id: self._unit(number, id) for id in due} for number, (due, _) in enumerate(self._due)]

    def _surplus(self, number: int) -> frozenset[str]:
        """Return the records of the practitioner that the agent changed although no request asks for it."""
        asked = {record for units in self._units for unit in units.values() for record in unit}
        asked |= {f"Slot/{id}" for _, closing in self._due for id in closing}
        return (self.claimed[number] & self.log.touched) - asked

    def _closing(self, id: str) -> RecordVerdict:
        record = f"Slot/{id}"
        if self.slot_became(id, CLOSED):
            return RecordVerdict(record)
        return RecordVerdict(record, f"not {CLOSED}", harmed=record in self.log.changed)

    def _appointments(self, number: int, due: Sequence[str]) -> Iterator[RecordVerdict]:
        for place, id in enumerate(due):
            record, unit = f"Appointment/{id}", self._units[number][id]
            if record not in self.log.changed:
                yield RecordVerdict(record, "not handled", harmed=bool(unit & self.log.changed))
                continue
            problems = [*self._problems(number, id, self._possible(number, place, id))]
            yield RecordVerdict(record, problems or None, harmed=bool(problems))

    def _possible(self, number: int, place: int, id: str) -> list[ClinicSlot | None]:
        """Return the slots that are right for an appointment; None stands for the waiting list."""
        met = self.before(self._first_of(self._units[number][id]))
        calendars = [
            self._in_order(number, place, calendar) for calendar in (met, self._after_earlier_requests(number))
        ]
        new_slots = [
            AbsenceCalendar(calendar, self.scene, self.requests[number]).new_slot(id) for calendar in calendars
        ]
        slots = self._without_mistakes[number]
        if id in slots and ((slot := slots[id]) is None or calendars[0].status[slot.id] == "free"):
            new_slots.append(slot)
        return new_slots

    def _after_earlier_requests(self, number: int) -> Calendar:
        """Return the calendar after the requests with earlier letters, as the agent has left them.

        It contains what other people wrote before the agent's first write for the request.
        """
        others = (write for write in self.log.writes[: self._firsts[number]] if not write.by_agent)
        calendar = self._with({write.record: write.after for write in others})
        for units, (_, closing) in zip(self._units[:number], self._due[:number], strict=True):
            slots = {
                record.removeprefix("Slot/") for unit in units.values() for record in unit if record.startswith("Slot/")
            }
            calendar.visits |= {id: self._end.visits[id] for id in units if id in self._end.visits}
            calendar.status |= {slot: self._end.status[slot] for slot in (*slots, *closing)}
        return calendar

    def _in_order(self, number: int, place: int, calendar: Calendar) -> Calendar:
        """Return a calendar with the earlier appointments as the agent left them, and the later ones untouched."""
        met, units = self._met[number], self._units[number]
        due = self._due[number][0]
        slots = {id: {unit.removeprefix("Slot/") for unit in units[id] if unit.startswith("Slot/")} for id in due}
        for id in due:
            calendar.visits[id] = met.visits[id]
            calendar.status |= {slot: met.status[slot] for slot in slots[id]}
        end = self._end
        for id in due[:place]:
            if id in end.visits:
                calendar.visits[id] = end.visits[id]
            calendar.status |= {slot: end.status[slot] for slot in slots[id]}
        return calendar

    @cached_property
    def _end(self) -> Calendar:
        return self.before(len(self.log.writes))

    def _problems(self, number: int, id: str, possible: Sequence[ClinicSlot | None]) -> Iterator[Json]:
        record = f"Appointment/{id}"
        before, after = self.log.at_start(record) or {}, self.log.at_end(record) or {}
        old = [slot.id for slot in self._met[number].visits[id].slots]
        moved_to = [slot for slot in possible if slot is not None and self.slot_ids(after) == [slot.id]]
        if moved_to:
            yield from self._wrong_move(number, before, after, moved_to[0])
        elif after.get("status") != WAITING:
            yield f"in {', '.join(f'Slot/{slot_id}' for slot_id in self.slot_ids(after)) or 'no slot'}"
        elif None not in possible:
            yield "on the waiting list"
        elif rest := differences(before, after, changing=("status",), may_go=("slot",), base_url=self.log.end.base_url):
            yield {"also changed": [*rest]}
        for slot in old:
            if not self.slot_became(slot, CLOSED):
                yield f"Slot/{slot} is not {CLOSED} and otherwise unchanged"

    def _wrong_move(self, number: int, before: Resource, after: Resource, slot: ClinicSlot) -> Iterator[Json]:
        for name, moment in (("start", slot.start), ("end", slot.end)):
            if not same_moment(after.get(name), moment):
                yield f"{name} {after.get(name)}"
        doctors = self.scene.by_schedule()
        away, new = (doctors[schedule].person.id for schedule in (self.requests[number].schedule, slot.schedule))
        participants = [
            {**participant, "actor": {"reference": f"Practitioner/{new}"}}
            if self.log.refers_to(participant.get("actor"), f"Practitioner/{away}")
            else participant
            for participant in before.get("participant", [])
        ]
        wanted_record = {**before, "participant": participants}
        if rest := differences(wanted_record, after, changing=("start", "end", "slot"), base_url=self.log.end.base_url):
            yield {"also changed": [*rest]}
        if not self.slot_became(slot.id, "busy"):
            yield f"Slot/{slot.id} is not busy and otherwise unchanged"
