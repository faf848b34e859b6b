"""Task 17b: move an appointment to another provider."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import ClassVar

from typing_extensions import override

from fhir_gym.actions import Action, Finish, Get, Put
from fhir_gym.fhir import World
from fhir_gym.tasks import Check, ExpectedChange, FinishedEpisode, Gold, equal
from fhir_gym.tasks.authoring import (
    NAME,
    WEEKDAYS,
    IdAllocator,
    Person,
    at,
    draw_lookalikes,
    entries,
    instant,
    new_person,
    parse_instant,
)
from fhir_gym.tasks.grading import differences
from fhir_gym.tasks.packs.appointment.appointment_scene import Agenda, AppointmentScene
from fhir_gym.tasks.packs.appointment.appointment_task import MoveParams, RescheduleTask, SlotMatch, in_slot, put_status
from fhir_gym.tasks.packs.appointment.bookings import (
    NEW_REMARKS,
    Booking,
    accepted,
    answered,
    booking_resource,
    new_booking,
    new_slot,
    participants_check,
    place_checks,
    unique_match,
)
from fhir_gym.tasks.packs.appointment.clinic import SlotRecord, slot_resource
from fhir_gym.tasks.packs.appointment.slot_scenes import AT_PLACE, NEXT_WEEKDAY, Place, ProviderSchedule, new_places
from fhir_gym.types import Json, Resource

_MINUTES = 60
_HOURS = range(8, 17)
_PATIENTS = 4
_PROVIDERS = 3
_MOMENTS = 2
_OTHER_SLOTS = 18
_OFTEN = 0.8


class AnotherProviderParams(MoveParams):
    """Parameters of task 17b."""

    @property
    def place(self) -> Place:
        """The place of the appointment."""
        here = self.scene.schedule_of(self.booking.practitioner).place
        return next(place for place in self.scene.places if place.reference == here)

    @property
    def new_provider(self) -> Person:
        """The provider of the new slot."""
        return next(schedule.provider for schedule in self.scene.schedules if schedule.id == self.slot.schedule)


class AnotherProvider(RescheduleTask[AnotherProviderParams, SlotMatch[Booking]]):
    """Move an appointment that one provider declined to another provider, at the same time.

    Starting state: four patients whose proposed appointments were declined by practitioners at two places. At each of
        two times, two practitioners at each place have declined an appointment, whose slot is still busy, and a third
        practitioner has a free slot.
    Decoys: the appointments and slots of the other patients; another proposed appointment of each patient; often a
        cancelled appointment at the same time; free slots at other hours, on the days before and after, and a week
        later and earlier.
    Checks: one appointment is booked, refers to the new slot and has the slot's start and end; the patient and the new
        provider have accepted. The booked appointment is either the old appointment, otherwise unchanged, or a new
        appointment. If it is new, the old appointment is cancelled and otherwise unchanged. The old slot is free and
        the new slot is busy, both otherwise unchanged. The answer names the booked appointment and its slot.
    Light: an appointment was changed or created, and both slots were updated.
    Differs from FHIR-AgentEval: the prompt says that the old slot becomes free, that the appointment becomes booked,
        and where to look for another provider. The agent may also create a new appointment and cancel the old one, so
        the create tool is not prohibited. The old appointment must not stay proposed. "Next" is defined.
    """

    key = "17b"
    title = "Reschedule with another provider"
    required_tools = (
        ("search", "search", "update", "update", "update"),
        ("search", "search", "search", "update", "update", "update"),
        ("search", "search", "search", "read", "update", "update", "update"),
        ("search", "search", "read", "update", "search", "update", "update"),
        ("search", "read", "search", "read", "update", "update", "update"),
        ("search", "search", "search", "read", "update", "read", "update", "update"),
        ("search", "search", "create", "update", "update", "update"),
    )
    required_resources = ("Slot", "Appointment")
    prohibited_tools = ("delete",)
    prompts = (
        "{patient} (Patient/{id}) has a proposed appointment next {weekday} at {hour}:00, but the practitioner has "
        "declined it. Please move the appointment to another provider at {clinic} (Location/{place}) who is free at "
        "that time.",
        "{patient} (Patient/{id}) was to be seen next {weekday} at {hour}:00, but the practitioner has declined the "
        "proposed appointment. Please reschedule it for the same time with another provider who has a free slot at "
        "{clinic} (Location/{place}).",
        "Please find another provider at {clinic} (Location/{place}) for the proposed appointment of {patient} "
        "(Patient/{id}) next {weekday} at {hour}:00, which the practitioner has declined. Move the appointment to that "
        "provider without changing the time.",
    )
    brief = (
        "Please book the proposed appointment of {patient} (Patient/{id}) at {hour}:00 next {weekday} (the first after "
        "today), which the practitioner has declined, with another free provider at {clinic} (Location/{place}), with "
        "both accepted and both slots updated. "
        'Finish with FINISH(["<booked appointment id>", "<new slot id>"]).'
    )
    answer_instructions = (
        f"{NEXT_WEEKDAY}The proposed appointment is the patient's Appointment with status proposed that starts at that "
        f"time. {AT_PLACE}Use the free slot of this place that starts at that time and whose schedule has "
        "another practitioner as actor. In the end, one appointment has status booked, refers to this slot only, and "
        "has the slot's start and end; its participants are the patient and the new practitioner, both with status "
        "accepted, and nobody else. You may change the proposed appointment itself, or set its status to cancelled and "
        "create a new one. Set the status of the new slot to busy and the status of the previous slot to free. Leave "
        "everything else as it is, and delete nothing. Finish with "
        'FINISH(["<appointment id>", "<slot id>"]): the appointment that is now booked and its slot.'
    )
    gold_steps = 7
    harmless_additions: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "Appointment": {"comment": "Another provider steps in"}
    }

    @override
    def draw_scene(self, rng: random.Random, world: World) -> AppointmentScene:
        ids = IdAllocator(rng, world)
        people = draw_lookalikes(rng, world, partial(ids.new, "Patient"), _PATIENTS, by=NAME)
        providers = [
            new_person(rng, world, ids.new("Practitioner"), resource_type="Practitioner") for _ in range(2 * _PROVIDERS)
        ]
        places = new_places(rng, ids, providers[0].city, providers[0].state)
        schedules = tuple(
            ProviderSchedule(id=ids.new("Schedule"), provider=provider, place=places[n % 2].reference)
            for n, provider in enumerate(providers)
        )
        days = rng.sample(range(1, 8), _MOMENTS + 1)
        moments = [at(world.now.date() + timedelta(days=day), rng.choice(_HOURS)) for day in days]
        draw = _RecordFactory(rng, ids, schedules, moments[:_MOMENTS])
        bookings: list[Booking] = []
        slots: list[SlotRecord] = []
        for moment in moments[:_MOMENTS]:
            patients = rng.sample(people, len(people))
            for here in (schedules[::2], schedules[1::2]):
                first, second, third = rng.sample(here, _PROVIDERS)
                for schedule in (first, second):
                    bookings += draw.declined(patients.pop(), schedule, moment)
                slots.append(draw.slot(third, moment))
        others = zip(people, rng.sample(schedules, len(people)), strict=True)
        bookings += (draw.booking(person, schedule, moments[-1]) for person, schedule in others)
        slots += (draw.another_slot() for _ in range(_OTHER_SLOTS))
        return AppointmentScene(
            now=instant(world.now),
            people=people,
            schedules=schedules,
            bookings=tuple(bookings),
            slots=tuple(slots),
            places=places,
        )

    @override
    def candidates(self, scene: AppointmentScene) -> dict[str, list[SlotMatch[Booking]]]:
        matches = (_declined(scene, booking) for booking in scene.bookings)
        return {"": [match for match in matches if match is not None]}

    @override
    def params_for(
        self, rng: random.Random, world: World, scene: AppointmentScene, chosen: SlotMatch[Booking]
    ) -> AnotherProviderParams:
        return AnotherProviderParams(scene=scene, booking=chosen.record, slot=chosen.slot)

    @override
    def prompt_values(self, p: AnotherProviderParams, world: World) -> dict[str, str]:
        return {
            "patient": p.patient.name,
            "id": p.patient.id,
            "clinic": p.place.name,
            "place": p.place.id,
            "weekday": WEEKDAYS[parse_instant(p.booking.start).weekday()],
            "hour": p.booking.start[11:13],
        }

    @override
    def gold(self, p: AnotherProviderParams) -> Gold:
        when = p.booking.slot.start
        query = {"patient": p.patient.id, "date": when, "status": "proposed"}
        appointment = next(entries((yield Get("/Appointment", query))))
        query = {"schedule.actor": f"Location/{p.place.id}", "start": when, "status": "free"}
        near = list(entries((yield Get("/Slot", {**query, "_include": "Slot:schedule"}))))
        providers = {
            f"Schedule/{schedule['id']}": _provider(schedule)
            for schedule in near
            if schedule["resourceType"] == "Schedule"
        }
        slots = ((slot, providers[slot["schedule"]["reference"]]) for slot in near if slot["resourceType"] == "Slot")
        here = {participant["actor"]["reference"] for participant in appointment["participant"]}
        free, provider = next((slot, provider) for slot, provider in slots if provider not in here)
        left = yield Get(f"/{appointment['slot'][0]['reference']}")
        yield Put(f"/Appointment/{appointment['id']}", _moved(appointment, f"Patient/{p.patient.id}", free, provider))
        yield put_status(free, "busy")
        yield put_status(left, "free")
        yield Finish([appointment["id"], free["id"]])

    @override
    def near_misses(self, p: AnotherProviderParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        slots = (*p.scene.slots, *_slots_of(p.scene.bookings))
        for slot in (slot for slot in slots if slot.id not in (p.slot.id, p.booking.slot.id)):
            if slot.schedule == p.slot.schedule or slot.start == p.slot.start:
                yield f"moves it to Slot/{slot.id}", self._moving(p, p.booking, slot)
        for booking in p.scene.bookings:
            if booking.id != p.booking.id and (booking.patient == p.patient.id or booking.start == p.booking.start):
                yield f"moves the {booking.status} one {booking.id}", self._moving(p, booking, p.slot)
        move, *both, _ = self._moving(p, p.booking, p.slot)
        make, off, *_, finish = self._anew(p)
        old = booking_resource(p.booking)
        yield "makes a new one, the old one stays proposed", [make, *both, finish]
        yield "makes a new one, the old one is a no-show", [make, put_status(old, "noshow"), *both, finish]
        changed = Put(off.url, {**old, "status": "cancelled", "description": "Something else"})
        yield "makes a new one, the old one is cancelled and changed", [make, changed, *both, finish]
        yield "moves it and makes a new one too", [make, move, *both, finish]
        yield "makes a new one, and answers the old one", [make, off, *both, Finish([p.booking.id, p.slot.id])]
        yield "cancels only", [off, *both, Finish([p.booking.id, p.slot.id])]

    @override
    def equivalents(self, p: AnotherProviderParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        yield "cancels it and makes a new one", self._anew(p)
        make, off, *rest = self._anew(p)
        yield "makes a new one, then cancels it", [off, make, *rest]
        released = {name: value for name, value in booking_resource(p.booking).items() if name != "slot"}
        yield "makes a new one, and the old one loses its slot", [make, put_status(released, "cancelled"), *rest]

    @override
    def expected_changes(self, p: AnotherProviderParams) -> tuple[ExpectedChange, ...]:
        return (*super().expected_changes(p), ExpectedChange("created", "Appointment"))

    @override
    def checks(self, p: AnotherProviderParams, end: FinishedEpisode) -> Iterator[Check]:
        new_appointments = end.created("Appointment")
        before, after = end.updated("Appointment", p.booking.id) or ({}, {})
        stands = new_appointments[0] if new_appointments else after
        names = [f"Appointment/{appointment['id']}" for appointment in (*new_appointments, after) if appointment]
        yield Check(
            name="appointment moved or made",
            passed=bool(stands),
            expected=f"Appointment/{p.booking.id} or a new one",
            actual=names,
            level="exists",
        )
        yield equal("appointment status", stands.get("status"), "booked")
        both = accepted(f"Patient/{p.patient.id}", f"Practitioner/{p.new_provider.id}")
        yield participants_check(end, stands, both)
        yield from place_checks(end, stands, p.slot)
        stayed = ("status",) if new_appointments else ("status", "participant", "slot", "start", "end")
        may_add = ("cancelationReason", *NEW_REMARKS) if new_appointments else NEW_REMARKS
        may_go = ("slot",) if new_appointments else ()
        rest = differences(before, after, changing=stayed, may_add=may_add, may_go=may_go, base_url=end.base_url)
        right = bool(after) and not rest
        yield Check(name="rest of the old appointment unchanged", passed=right, expected={}, actual=rest)
        status = after.get("status")
        over = bool(after) and (not new_appointments or status == "cancelled")
        expected_state = "cancelled" if new_appointments else "as it is"
        yield Check(name="old appointment does not stand too", passed=over, expected=expected_state, actual=status)
        yield from self.both_slot_checks(p, end)
        yield answered(end, Appointment=stands.get("id", "the id of the booked appointment"), Slot=p.slot.id)

    def _moving(self, p: AnotherProviderParams, booking: Booking, to: SlotRecord) -> list[Action]:
        """Return the actions that move an appointment, and the answer."""
        provider = next(schedule.provider.id for schedule in p.scene.schedules if schedule.id == to.schedule)
        who = f"Patient/{booking.patient}"
        left = booking.slot
        move = Put(
            f"/Appointment/{booking.id}",
            _moved(booking_resource(booking), who, slot_resource(to), f"Practitioner/{provider}"),
        )
        leave = [put_status(slot_resource(left), "free")] if left.id else []
        return [move, put_status(slot_resource(to), "busy"), *leave, Finish([booking.id, to.id])]

    def _anew(self, p: AnotherProviderParams) -> list[Action]:
        """Return the actions that replace an appointment with a new one, and the answer."""
        old, to, left = booking_resource(p.booking), slot_resource(p.slot), slot_resource(p.booking.slot)
        moved = _moved(old, f"Patient/{p.patient.id}", to, f"Practitioner/{p.new_provider.id}")
        off = {**old, "status": "cancelled", "cancelationReason": {"text": "Provider declined"}}
        return [
            Put("/Appointment/mine", {**moved, "id": "mine"}),
            Put(f"/Appointment/{p.booking.id}", off),
            put_status(to, "busy"),
            put_status(left, "free"),
            Finish(["mine", to["id"]]),
        ]


class _RecordFactory:
    """Draws appointments and slots.

    Args:
        rng: Random generator.
        ids: Allocates the ids.
        schedules: The schedules of all providers.
        moments: Times at which all providers have a slot.
    """

    def __init__(
        self, rng: random.Random, ids: IdAllocator, schedules: Sequence[ProviderSchedule], moments: Sequence[datetime]
    ) -> None:
        self._rng, self._ids, self._schedules, self._moments = rng, ids, schedules, moments
        self._agenda = Agenda(rng)
        for schedule in schedules:
            for moment in moments:
                self._agenda.draw([schedule], [moment])

    def slot(self, schedule: ProviderSchedule, start: datetime, status: str = "free") -> SlotRecord:
        """Return a slot."""
        return new_slot(self._ids, schedule, start, _MINUTES, status)

    def another_slot(self) -> SlotRecord:
        """Draw a free slot of any provider at another hour of the day, or at the same hour of another day."""
        while True:
            days, hours = self._rng.choice([(n, 0) for n in (-7, -1, 1, 7)] + [(0, n) for n in (-2, -1, 1, 2)])
            start = self._rng.choice(self._moments) + timedelta(days=days, hours=hours)
            time = self._agenda.draw(self._schedules, [start])
            if time is not None:
                return self.slot(*time)

    def booking(
        self,
        person: Person,
        schedule: ProviderSchedule,
        start: datetime,
        status: str = "proposed",
        *,
        in_slot: bool = False,
    ) -> Booking:
        """Draw an appointment; if its status is proposed, the practitioner has declined it."""
        booking = new_booking(self._rng, self._ids, person, schedule, start, _MINUTES, status, in_slot=in_slot)
        return booking.model_copy(update={"practitioner_status": "declined"}) if status == "proposed" else booking

    def declined(self, person: Person, schedule: ProviderSchedule, start: datetime) -> Iterator[Booking]:
        """Draw a declined appointment, and often a cancelled appointment with another provider at the same time."""
        yield self.booking(person, schedule, start, in_slot=True)
        if self._rng.random() < _OFTEN:
            yield self.booking(person, self._rng.choice(self._schedules), start, "cancelled")


def _declined(scene: AppointmentScene, booking: Booking) -> SlotMatch[Booking] | None:
    """Return the appointment and its slot if each is the only record that meets all conditions; otherwise None."""
    declined = scene.schedule_of(booking.practitioner)
    here = {schedule.id for schedule in scene.schedules if schedule.place == declined.place}
    only = unique_match(
        scene.bookings,
        lambda candidate: candidate.patient == booking.patient,
        lambda candidate: candidate.start == booking.start,
        lambda candidate: candidate.status == "proposed",
    )
    if only != booking:
        return None
    slot = unique_match(
        [*scene.slots, *_slots_of(scene.bookings)],
        lambda candidate: candidate.start == booking.start,
        lambda candidate: candidate.schedule in here,
        lambda candidate: candidate.status == "free",
    )
    return SlotMatch(booking, slot) if slot else None


def _slots_of(bookings: Iterable[Booking]) -> list[SlotRecord]:
    return [booking.slot for booking in bookings if booking.slot.id]


def _provider(schedule: Resource) -> str:
    """Return the reference to the practitioner of a schedule."""
    actors = [str(actor["reference"]) for actor in schedule["actor"]]
    return next(actor for actor in actors if actor.startswith("Practitioner/"))


def _moved(appointment: Resource, patient: str, free: Resource, provider: str) -> Resource:
    """Return an appointment after it is booked into the slot of another provider."""
    return {**in_slot({**appointment, "status": "booked"}, free), "participant": accepted(patient, provider)}


TASKS = (AnotherProvider,)
