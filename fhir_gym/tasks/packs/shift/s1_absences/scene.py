"""A place whose practitioners may be away, and another place where some of them work too."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cached_property

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import IdAllocator, is_new_name
from fhir_gym.tasks.packs.shift.clinic import (
    OCCUPIED,
    ClinicScene,
    ClinicSlot,
    Practitioner,
    Visit,
    appointment_resource,
    draw_place_name,
    draw_slots,
    location_resource,
    overlap,
    schedule_resource,
    slot_resource,
)
from fhir_gym.types import Resource

CLOSED = "busy-unavailable"
"""Status of the slots of a practitioner who is away."""
WAITING = "waitlist"
"""Status of an appointment for which there is no slot."""

_PRIORITIES = (0, 0, 0, 1, 2, 3, 5, 7, 9)
_NO_PRIORITY = 0.2
_ENDED = ("cancelled", "cancelled", "entered-in-error")
_BOOKED_SHARE = 0.65
_ENDED_SHARE = 0.25
_BLOCKED_DAYS = (2, 3, 4)
_ELSEWHERE_SHARE = 0.6
_ELSEWHERE_PER_DAY = 4


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
        return tuple(practitioner for practitioner in self.practitioners if practitioner.schedule not in self.elsewhere)

    @cached_property
    def offered(self) -> dict[str, tuple[ClinicSlot, ...]]:
        """The slots at the place by the code of their service, in the order of the rules."""
        by_schedule: dict[str, list[ClinicSlot]] = {}
        services = {practitioner.schedule: practitioner.service.code for practitioner in self.staff}
        for slot in self.slots_in_order:
            if slot.schedule in services:
                by_schedule.setdefault(services[slot.schedule], []).append(slot)
        return {code: tuple(slots) for code, slots in by_schedule.items()}

    def service_of(self, schedule: str) -> str:
        """Return the code of the service of a schedule."""
        return self.by_schedule()[schedule].service.code

    @override
    def resources(self) -> list[Resource]:
        doctors = self.by_schedule()
        here = {
            "practitioners": self.staff,
            "slots": tuple(slot for slot in self.slots if slot.schedule not in self.elsewhere),
            "visits": tuple(visit for visit in self.visits if visit.slot.schedule not in self.elsewhere),
        }
        resources = ClinicScene.resources(self.model_copy(update=here))
        resources.append(location_resource(self.other_place, self.other_name))
        resources += [schedule_resource(doctors[schedule], self.other_place, self.now) for schedule in self.elsewhere]
        resources += [slot_resource(slot) for slot in self.slots if slot.schedule in self.elsewhere]
        resources += [
            appointment_resource(visit, doctors[visit.slot.schedule].person.id, self.other_place)
            for visit in self.visits
            if visit.slot.schedule in self.elsewhere
        ]
        return [
            _with_priority(resource, self) if resource["resourceType"] == "Appointment" else resource
            for resource in resources
        ]


def draw_absences(
    rng: random.Random,
    world: World,
    ids: IdAllocator,
    clinic: ClinicScene,
    *,
    days: int,
    namesakes: int,
    writes: tuple[int, int],
) -> AbsenceScene:
    """Draw another place, and many appointments at a place."""
    staff = _with_namesakes(rng, world, clinic.practitioners, namesakes)
    others = [
        practitioner.model_copy(update={"schedule": ids.new("Schedule")})
        for practitioner in staff
        if rng.random() < _ELSEWHERE_SHARE
    ]
    slots, visits = _blocked(rng, clinic)
    for practitioner in others:
        own = next(post.schedule for post in staff if post.person.id == practitioner.person.id)
        mine = [slot for slot in slots if slot.schedule == own]
        drawn = draw_slots(rng, world, ids, practitioner.schedule, days, _ELSEWHERE_PER_DAY)
        slots += [slot for slot in drawn if not any(overlap(slot, other) for other in mine)]
    slots, visits = _filled(rng, ids, clinic, slots, visits)
    priorities = {visit.id: rng.choice(_PRIORITIES) for visit in visits if rng.random() > _NO_PRIORITY}
    other_name = draw_place_name(rng)
    while other_name == clinic.name:
        other_name = draw_place_name(rng)
    changed = {"practitioners": (*staff, *others), "slots": tuple(slots), "visits": tuple(visits)}
    return AbsenceScene(
        **dict(clinic) | changed,
        other_place=ids.new("Location"),
        other_name=other_name,
        elsewhere=tuple(practitioner.schedule for practitioner in others),
        priorities=priorities,
        limit=rng.choice((1, 2)),
        writes=writes,
    )


def _with_namesakes(
    rng: random.Random, world: World, staff: Sequence[Practitioner], count: int
) -> tuple[Practitioner, ...]:
    """Give some practitioners the family names of others."""
    all_staff = list(staff)
    places = rng.sample(range(len(staff)), 2 * count)
    for place, other in zip(places[:count], places[count:], strict=True):
        person, family = all_staff[place].person, all_staff[other].person.family
        if person.given != all_staff[other].person.given and is_new_name(world, "Practitioner", person.given, family):
            all_staff[place] = all_staff[place].model_copy(
                update={"person": person.model_copy(update={"family": family})}
            )
    return tuple(all_staff)


def _blocked(rng: random.Random, clinic: ClinicScene) -> tuple[list[ClinicSlot], list[Visit]]:
    """Clear a few coming days in a row of each practitioner, as if an absence had been handled already."""
    days = sorted({slot.start[:10] for slot in clinic.slots if slot.start[:10] > clinic.now[:10]})
    blocked: set[tuple[str, str]] = set()
    for practitioner in clinic.practitioners:
        first = rng.randrange(len(days))
        blocked |= {(practitioner.schedule, day) for day in days[first : first + rng.choice(_BLOCKED_DAYS)]}
    slots = [
        slot.model_copy(update={"status": CLOSED})
        if (slot.schedule, slot.start[:10]) in blocked and slot.status == "free"
        else slot
        for slot in clinic.slots
    ]
    visits = [
        visit.model_copy(update={"status": rng.choice((*_ENDED, WAITING))})
        if (visit.slot.schedule, visit.slot.start[:10]) in blocked and visit.status in OCCUPIED
        else visit
        for visit in clinic.visits
    ]
    return slots, visits


def _filled(
    rng: random.Random, ids: IdAllocator, clinic: ClinicScene, slots: Sequence[ClinicSlot], visits: Sequence[Visit]
) -> tuple[list[ClinicSlot], list[Visit]]:
    """Add appointments in coming slots, some of them cancelled."""
    all_visits, used = list(visits), {visit.slot.id for visit in visits}
    own: dict[str, list[ClinicSlot]] = {person.id: [] for person in clinic.people}
    for visit in visits:
        own[visit.patient].append(visit.slot)
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
        all_visits.append(Visit(id=ids.new("Appointment"), patient=patient, slot=slot, status=status))
        statuses[slot.id] = "busy" if booked else slot.status
    final = {slot.id: _with_status(slot, statuses.get(slot.id, slot.status)) for slot in slots}
    return list(final.values()), [visit.model_copy(update={"slot": final[visit.slot.id]}) for visit in all_visits]


def _with_status(slot: ClinicSlot, status: str) -> ClinicSlot:
    return slot if slot.status == status else slot.model_copy(update={"status": status})


def _with_priority(appointment: Resource, scene: AbsenceScene) -> Resource:
    if appointment["id"] not in scene.priorities:
        return appointment
    first = ("resourceType", "id", "status")
    rest = {name: value for name, value in appointment.items() if name not in first}
    return {**{name: appointment[name] for name in first}, "priority": scene.priorities[appointment["id"]], **rest}
