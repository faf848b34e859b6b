"""A place whose practitioners may be away, and where their appointments move."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from functools import cached_property

from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import IdAllocator, is_new_name
from fhir_gym.tasks.core.ids import seeded_random
from fhir_gym.tasks.packs.shift.calendar import Booked, Calendar
from fhir_gym.tasks.packs.shift.clinic import (
    OCCUPIED,
    ClinicScene,
    ClinicSlot,
    Practitioner,
    Visit,
    appointment_resource,
    clinic_resources,
    draw_clinic,
    draw_place_name,
    draw_slots,
    location_resource,
    overlap,
    schedule_resource,
    slot_resource,
)
from fhir_gym.tasks.packs.shift.kind import Request, RequestContent
from fhir_gym.types import Resource

MOVABLE = ("booked", "pending")
"""Statuses of appointments that have to move."""
CLOSED = "busy-unavailable"
"""Status of the slots of a practitioner who is away."""
WAITING = "waitlist"
"""Status of an appointment for which there is no slot."""

PRIORITY_IGNORED = "priority ignored"
ZERO_IS_FIRST = "priority 0 handled first"
OWN_APPOINTMENTS_IGNORED = "own appointments ignored"
LENGTH_IGNORED = "length ignored"
LIMIT_IGNORED = "limit of days ignored"
EARLIER_REQUESTS_IGNORED = "earlier requests ignored"
MISTAKES = (PRIORITY_IGNORED, ZERO_IS_FIRST, OWN_APPOINTMENTS_IGNORED, LENGTH_IGNORED, LIMIT_IGNORED)
"""Mistakes that change the result of many sweeps, so that an agent must avoid them."""

_LAST_PRIORITY = 10
_PRIORITIES = (0, 0, 0, 1, 2, 3, 5, 7, 9)
_NO_PRIORITY = 0.2
_ENDED = ("cancelled", "cancelled", "entered-in-error")
_BOOKED_SHARE = 0.65
_ENDED_SHARE = 0.25
_BLOCKED_DAYS = (2, 3, 4)
_ELSEWHERE_SHARE = 0.6
_ELSEWHERE_PER_DAY = 4


class AbsenceContent(RequestContent):
    """Who is away, and when.

    Attributes:
        given: Given name of the practitioner.
        family: Family name of the practitioner.
        first: The first day of the absence.
        last: The last day of the absence.
    """

    given: str
    family: str
    first: str
    last: str

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


class AbsenceScene(ClinicScene):
    """The records of a place, and of another place where some of the practitioners work too.

    Each schedule has its own `Practitioner` in `practitioners`, so that a person may occur twice.

    Attributes:
        other_place: Id of the other Location.
        other_name: Name of the other place.
        elsewhere: Ids of the schedules at the other place.
        priorities: Priorities of appointments by their ids; the others have none.
        limit: Number of days after the old appointment on which the new one may be.
        writes: Minimum and maximum number of records that all sweeps together change.
    """

    other_place: str
    other_name: str
    elsewhere: tuple[str, ...]
    priorities: Mapping[str, int]
    limit: int
    writes: tuple[int, int]

    @cached_property
    def staff(self) -> tuple[Practitioner, ...]:
        """The practitioners with their schedules at the place."""
        return tuple(one for one in self.practitioners if one.schedule not in self.elsewhere)

    @cached_property
    def offered(self) -> dict[str, tuple[ClinicSlot, ...]]:
        """The slots at the place by the code of their service, in the order of the rules."""
        found: dict[str, list[ClinicSlot]] = {}
        services = {one.schedule: one.service.code for one in self.staff}
        for slot in self.slots_in_order:
            if slot.schedule in services:
                found.setdefault(services[slot.schedule], []).append(slot)
        return {code: tuple(slots) for code, slots in found.items()}

    def service_of(self, schedule: str) -> str:
        """Return the code of the service of a schedule."""
        return self.by_schedule()[schedule].service.code


def draw_absences(
    rng: random.Random,
    world: World,
    ids: IdAllocator,
    *,
    people: Sequence[int],
    practitioners: int,
    services: int,
    days: int,
    per_day: int,
    namesakes: int,
    writes: tuple[int, int],
) -> AbsenceScene:
    """Draw two places with practitioners, and many appointments.

    Args:
        rng: Random generator.
        world: The world.
        ids: Allocates ids.
        people: See `draw_clinic`.
        practitioners: See `draw_clinic`.
        services: See `draw_clinic`.
        days: See `draw_clinic`.
        per_day: See `draw_clinic`.
        namesakes: Number of practitioners who share the family name of another one.
        writes: See `AbsenceScene`.
    """
    clinic = draw_clinic(
        rng,
        world,
        people=people,
        twins=1,
        practitioners=practitioners,
        services=services,
        days=days,
        per_day=per_day,
        ids=ids,
    )
    staff = _with_namesakes(rng, world, clinic.practitioners, namesakes)
    others = [
        one.model_copy(update={"schedule": ids.new("Schedule")}) for one in staff if rng.random() < _ELSEWHERE_SHARE
    ]
    slots, visits = _blocked(rng, clinic)
    for one in others:
        own = next(post.schedule for post in staff if post.person.id == one.person.id)
        mine = [slot for slot in slots if slot.schedule == own]
        drawn = draw_slots(rng, world, ids, one.schedule, days, _ELSEWHERE_PER_DAY)
        slots += [slot for slot in drawn if not any(overlap(slot, other) for other in mine)]
    slots, visits = _filled(rng, ids, clinic, slots, visits)
    drawn_priorities = {one.id: rng.choice(_PRIORITIES) for one in visits if rng.random() > _NO_PRIORITY}
    other_name = draw_place_name(rng)
    while other_name == clinic.name:
        other_name = draw_place_name(rng)
    return AbsenceScene(
        now=clinic.now,
        place=clinic.place,
        name=clinic.name,
        practitioners=(*staff, *others),
        people=clinic.people,
        slots=tuple(slots),
        visits=tuple(visits),
        other_place=ids.new("Location"),
        other_name=other_name,
        elsewhere=tuple(one.schedule for one in others),
        priorities=drawn_priorities,
        limit=rng.choice((1, 2)),
        writes=writes,
    )


def _with_namesakes(
    rng: random.Random, world: World, staff: Sequence[Practitioner], count: int
) -> tuple[Practitioner, ...]:
    """Give some practitioners the family names of others."""
    found = list(staff)
    places = rng.sample(range(len(staff)), 2 * count)
    for one, other in zip(places[:count], places[count:], strict=True):
        person, family = found[one].person, found[other].person.family
        if person.given != found[other].person.given and is_new_name(world, "Practitioner", person.given, family):
            found[one] = found[one].model_copy(update={"person": person.model_copy(update={"family": family})})
    return tuple(found)


def _blocked(rng: random.Random, clinic: ClinicScene) -> tuple[list[ClinicSlot], list[Visit]]:
    """Clear a few coming days in a row of each practitioner, as if an absence had been handled already."""
    days = sorted({slot.start[:10] for slot in clinic.slots if slot.start[:10] > clinic.now[:10]})
    blocked: set[tuple[str, str]] = set()
    for one in clinic.practitioners:
        first = rng.randrange(len(days))
        blocked |= {(one.schedule, day) for day in days[first : first + rng.choice(_BLOCKED_DAYS)]}
    slots = [
        slot.model_copy(update={"status": CLOSED})
        if (slot.schedule, slot.start[:10]) in blocked and slot.status == "free"
        else slot
        for slot in clinic.slots
    ]
    visits = [
        one.model_copy(update={"status": rng.choice((*_ENDED, WAITING))})
        if (one.slot.schedule, one.slot.start[:10]) in blocked and one.status in OCCUPIED
        else one
        for one in clinic.visits
    ]
    return slots, visits


def _filled(
    rng: random.Random, ids: IdAllocator, clinic: ClinicScene, slots: Sequence[ClinicSlot], visits: Sequence[Visit]
) -> tuple[list[ClinicSlot], list[Visit]]:
    """Add appointments in coming slots, some of them cancelled."""
    found, used = list(visits), {one.slot.id for one in visits}
    own: dict[str, list[ClinicSlot]] = {one.id: [] for one in clinic.people}
    for one in visits:
        own[one.patient].append(one.slot)
    statuses: dict[str, str] = {}
    for slot in slots:
        booked = slot.status == "free" and rng.random() < _BOOKED_SHARE
        ended = not booked and rng.random() < _ENDED_SHARE
        if slot.id in used or slot.start[:10] <= clinic.now[:10] or not (booked or ended):
            continue
        patient = rng.choice(clinic.people).id
        if any(overlap(slot, other) for other in own[patient]):
            continue
        own[patient].append(slot)
        status = rng.choice(("booked", "booked", "pending")) if booked else rng.choice(_ENDED)
        found.append(Visit(id=ids.new("Appointment"), patient=patient, slot=slot, status=status))
        statuses[slot.id] = "busy" if booked else slot.status
    final = {slot.id: _with_status(slot, statuses.get(slot.id, slot.status)) for slot in slots}
    return list(final.values()), [one.model_copy(update={"slot": final[one.slot.id]}) for one in found]


def _with_status(slot: ClinicSlot, status: str) -> ClinicSlot:
    return slot if slot.status == status else slot.model_copy(update={"status": status})


def absence_resources(scene: AbsenceScene, world: World) -> list[Resource]:
    """Build the resources of both places."""
    doctors = scene.by_schedule()
    here = {
        "practitioners": scene.staff,
        "slots": tuple(one for one in scene.slots if one.schedule not in scene.elsewhere),
        "visits": tuple(one for one in scene.visits if one.slot.schedule not in scene.elsewhere),
    }
    found = clinic_resources(scene.model_copy(update=here), world)
    found.append(location_resource(scene.other_place, scene.other_name))
    found += [schedule_resource(doctors[one], scene.other_place, world) for one in scene.elsewhere]
    found += [slot_resource(one) for one in scene.slots if one.schedule in scene.elsewhere]
    found += [
        appointment_resource(one, doctors[one.slot.schedule].person.id, scene.other_place)
        for one in scene.visits
        if one.slot.schedule in scene.elsewhere
    ]
    return [_with_priority(one, scene) if one["resourceType"] == "Appointment" else one for one in found]


def _with_priority(appointment: Resource, scene: AbsenceScene) -> Resource:
    if appointment["id"] not in scene.priorities:
        return appointment
    first = ("resourceType", "id", "status")
    rest = {name: value for name, value in appointment.items() if name not in first}
    return {**{name: appointment[name] for name in first}, "priority": scene.priorities[appointment["id"]], **rest}


class AbsenceCalendar:
    """The calendar of a place, in which a practitioner is away.

    Args:
        calendar: The calendar; it changes.
        scene: The places.
        request: The request.
    """

    def __init__(self, calendar: Calendar, scene: AbsenceScene, request: AbsenceRequest) -> None:
        self.calendar, self.scene, self._request = calendar, scene, request
        self._ask, self._schedule = request.ask, request.schedule

    @classmethod
    def copy_of(cls, calendar: Calendar, scene: AbsenceScene, request: AbsenceRequest) -> AbsenceCalendar:
        """Return a copy of a calendar."""
        copy = replace(calendar, status=dict(calendar.status), visits=dict(calendar.visits))
        return cls(copy, scene, request)

    def appointments(self, mistake: str = "") -> list[str]:
        """Return the ids of the appointments that have to move, in the order of the rules."""
        start = {id: self._old_slot(one).start for id, one in self.calendar.visits.items() if self._has_to_move(one)}
        return sorted(start, key=lambda id: (self._rank(id, mistake), start[id]))

    def _has_to_move(self, booked: Booked) -> bool:
        return booked.status in MOVABLE and any(self._is_away(one) for one in booked.slots)

    def _old_slot(self, booked: Booked) -> ClinicSlot:
        return next(one for one in booked.slots if self._is_away(one))

    def _is_away(self, slot: ClinicSlot) -> bool:
        return slot.schedule == self._schedule and self._ask.covers(slot.start)

    def _rank(self, id: str, mistake: str) -> int:
        priority = self.scene.priorities.get(id, 0)
        if mistake == PRIORITY_IGNORED:
            return 0
        return priority or (0 if mistake == ZERO_IS_FIRST and id in self.scene.priorities else _LAST_PRIORITY)

    def free_slots(self) -> list[str]:
        """Return the ids of the free slots of the practitioner on the days of the absence."""
        slots = self.scene.offered[self.scene.service_of(self._schedule)]
        return [one.id for one in slots if self._is_away(one) and self.calendar.status[one.id] == "free"]

    def new_slot(self, id: str, mistake: str = "") -> ClinicSlot | None:
        """Return the slot to which an appointment moves; None if there is none."""
        moving = self.calendar.visits[id]
        old = self._old_slot(moving)
        days = 365 if mistake == LIMIT_IGNORED else self.scene.limit
        last = (date.fromisoformat(old.start[:10]) + timedelta(days=days)).isoformat()
        minutes = 0 if mistake == LENGTH_IGNORED else old.minutes
        own = [
            slot
            for other, one in self.calendar.visits.items()
            if other != id
            and one.patient == moving.patient
            and one.status in OCCUPIED
            and mistake != OWN_APPOINTMENTS_IGNORED
            for slot in one.slots
        ]
        fitting = (
            slot
            for slot in self.scene.offered[self.scene.service_of(self._schedule)]
            if old.start[:10] <= slot.start[:10] <= last
            and slot.schedule != self._schedule
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
        found: dict[str, ClinicSlot | None] = {}
        for id in self.appointments(mistake):
            found[id] = self.new_slot(id, mistake)
            self.move(id, found[id])
        for slot in self.free_slots():
            self.calendar.status[slot] = CLOSED
        return found


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
