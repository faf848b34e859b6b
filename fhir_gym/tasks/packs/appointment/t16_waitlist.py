"""Tasks 16a and 16c: add a patient to the waitlist, and remove a patient from it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import ClassVar

from typing_extensions import override

from fhir_gym.actions import Action, Finish, Get, Post, Put
from fhir_gym.fhir import World
from fhir_gym.tasks import Check, ExpectedChange, FinishedEpisode, Gold, Params, SceneParams, equal
from fhir_gym.tasks.authoring import (
    NAME,
    IdAllocator,
    Person,
    at,
    created_check,
    draw_lookalikes,
    entries,
    find_practitioner,
    instant,
    new_resource,
    parse_instant,
)
from fhir_gym.tasks.grading import ADD_NOTHING, IdAnswer
from fhir_gym.tasks.packs.appointment.appointment_scene import (
    HALF_HOURS,
    WAITLIST,
    AppointmentScene,
    WaitlistEntry,
    half_hour,
    new_doctors,
    new_schedules,
    new_waitlist_entry,
    waiting_participants,
    waitlist_resource,
    window_checks,
)
from fhir_gym.tasks.packs.appointment.appointment_task import (
    CANCELLATION_REASON,
    AppointmentTask,
    BookingParams,
    cancellation_checks,
    put_status,
)
from fhir_gym.tasks.packs.appointment.bookings import (
    PARTICIPANTS,
    Booking,
    answered,
    booking_resource,
    new_booking,
    participants_check,
    unique_match,
)
from fhir_gym.tasks.packs.appointment.slot_scenes import DOCTOR
from fhir_gym.types import Json

_MINUTES = 30
_DAYS = 30
_BUSY, _DOCTORS = 3, 2
_OFTEN = 0.7
_OTHERS = 4
_NO_TIME_YET = ("slot", "start", "end")


class AddToWaitlistParams(BookingParams):
    """Parameters of task 16a; `booking` is the appointment that the patient has with the doctor.

    Attributes:
        first: First day of the window.
        until: The day after the last day of the window.
        ahead: Number of days from today to the first day of the window.
        days: Length of the window in days.
    """

    first: str
    until: str
    ahead: int
    days: int


class RemoveFromWaitlistParams(SceneParams):
    """Parameters of task 16c.

    Attributes:
        scene: Patients, doctors, appointments and the waitlist.
        entry: The patient's entry.
    """

    scene: AppointmentScene
    entry: WaitlistEntry

    @property
    def patient(self) -> Person:
        """The patient."""
        return self.scene.patient(self.entry.patient)


class WaitlistCandidate(Params):
    """A patient whom the prompt could ask to put on the waitlist.

    Attributes:
        booking: The patient's only booked appointment in the future.
    """

    booking: Booking

    @property
    def target(self) -> str:
        """Reference to the patient."""
        return f"Patient/{self.booking.patient}"


class AddToWaitlist(AppointmentTask[AddToWaitlistParams, WaitlistCandidate]):
    """Put a patient on a doctor's waitlist for a window of days.

    Starting state: five to seven patients, each with a booked appointment with one of several doctors who share given
        names and family names. The window ends before the day of the appointment.
    Decoys: waitlist entries of the patients for other doctors, and cancelled entries for this doctor.
    Checks: there is one new waitlist appointment with the patient and the doctor as participants. It has no slot, start
        or end, but one requested period, which starts on the first day of the window and ends on the window's last day
        or the day after. The answer is the appointment's id.
    Light: an appointment was created.
    Differs from FHIR-AgentEval: the start of the window is checked; the original accepted any end that was early
        enough. Dates and times may have any valid form, participants may come in any order, and the appointment may be
        created by POST or PUT. The answer must name the new appointment.
    """

    key = "16a"
    title = "Add to the waitlist"
    difficulty = 2
    required_tools = (("create",), ("update",), ("search", "create"))
    required_resources = ("Appointment",)
    prohibited_tools = ("delete",)
    prompts = (
        "{patient} (Patient/{id}) has an appointment with Dr. {doctor} but would like an earlier one. Please put the "
        "patient on the doctor's waitlist for a window of {days} whose first day is {ahead}.",
        "{patient} (Patient/{id}) would like to see Dr. {doctor} sooner than booked. Please add the patient to the "
        "waitlist. The first day of the window is {ahead}, and the window lasts {days}.",
        "Please add {patient} (Patient/{id}) to Dr. {doctor}'s waitlist for an earlier visit. The first day of the "
        "window is {ahead}, and the window is {days} long.",
    )
    brief = (
        "Please add {patient} (Patient/{id}, accepted) to the waitlist of Dr. {doctor} (needs-action) with a new "
        "appointment whose requested period is {days} long and has {ahead} as its first day. "
        'Finish with FINISH(["<appointment id>"]).'
    )
    answer_instructions = (
        f"{DOCTOR}{WAITLIST}Create one entry. Its participants are the patient (status accepted) and the practitioner "
        "(status needs-action), and nobody else. It has no slot, start or end, because it has no time yet. It has one "
        "requestedPeriod: the start is the first day of the window, and the end is the last day of the window or the "
        "day after it. The first day counts as one of the days of the window. Dates and times are both accepted; of a "
        "time, only the day (UTC) matters. Leave everything else as it is, including the booked appointment. "
        f'{ADD_NOTHING} Finish with FINISH(["<id>"]), where <id> is the id of the new appointment.'
    )
    answer = IdAnswer(("Appointment",))
    gold_steps = 3
    requested_elements: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Appointment": ("status", "requestedPeriod", *PARTICIPANTS)
    }
    harmless_additions: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "Appointment": {"description": "An earlier time", "minutesDuration": _MINUTES, "comment": "Any time of day"}
    }

    @override
    def draw_scene(self, rng: random.Random, world: World) -> AppointmentScene:
        ids = IdAllocator(rng, world)
        people = draw_lookalikes(rng, world, partial(ids.new, "Patient"), rng.randrange(5, 8), by=NAME)
        schedules, others = new_doctors(rng, world, ids, _BUSY)
        ahead = rng.sample(range(2 * HALF_HOURS, _DAYS * HALF_HOURS), len(people))
        ago = rng.sample(range(1, _DAYS * HALF_HOURS), len(people))
        bookings, waiting = [], []
        for person, number in zip(people, ahead, strict=True):
            own, *rest = rng.sample(schedules, _BUSY)
            bookings.append(new_booking(rng, ids, person, own, half_hour(world.now, number), _MINUTES))
            if rng.random() < _OFTEN:
                past = half_hour(world.now, -ago.pop())
                bookings.append(new_booking(rng, ids, person, own, past, _MINUTES, in_slot=False))
            waits = [(schedule, "waitlist") for schedule in rest] + [(own, "cancelled")]
            for schedule, status in rng.sample(waits, rng.randrange(len(waits) + 1)):
                begin = world.now.date() + timedelta(days=rng.randrange(1, _DAYS))
                end = begin + timedelta(days=rng.randrange(1, 31))
                waiting.append(
                    new_waitlist_entry(rng, ids, person, schedule.provider, begin.isoformat(), end.isoformat(), status)
                )
        return AppointmentScene(
            now=instant(world.now),
            people=people,
            schedules=schedules,
            bookings=tuple(bookings),
            waiting=tuple(waiting),
            others=others,
        )

    @override
    def candidates(self, scene: AppointmentScene) -> dict[str, list[WaitlistCandidate]]:
        return {"": [WaitlistCandidate(booking=booking) for booking in scene.bookings if booking.start > scene.now]}

    @override
    def params_for(
        self, rng: random.Random, world: World, scene: AppointmentScene, chosen: WaitlistCandidate
    ) -> AddToWaitlistParams:
        # The window ends before the day of the appointment.
        today, visit = world.now.date(), parse_instant(chosen.booking.start).date()
        ahead = rng.randrange((visit - today).days)
        first = today + timedelta(days=ahead)
        # The window must not end on the same day as an entry on file.
        taken = {entry.end for entry in scene.waiting}
        lengths = range(1, (visit - today).days - ahead + 1)
        free = [days for days in lengths if (first + timedelta(days=days - 1)).isoformat() not in taken]
        days = rng.choice(free or lengths)
        return AddToWaitlistParams(
            scene=scene,
            booking=chosen.booking,
            first=first.isoformat(),
            until=(first + timedelta(days=days)).isoformat(),
            ahead=ahead,
            days=days,
        )

    @override
    def prompt_values(self, p: AddToWaitlistParams, world: World) -> dict[str, str]:
        names = {"patient": p.patient.name, "id": p.patient.id, "doctor": p.doctor.name}
        return {**names, "ahead": _days_ahead(p.ahead), "days": "1 day" if p.days == 1 else f"{p.days} days"}

    @override
    def gold(self, p: AddToWaitlistParams) -> Gold:
        doctor_id = yield from find_practitioner(p.doctor)
        appointment = yield Post(
            "/Appointment",
            {
                "resourceType": "Appointment",
                "status": "waitlist",
                "participant": waiting_participants(p.patient.id, doctor_id),
                "requestedPeriod": [{"start": p.first, "end": p.until}],
            },
        )
        yield Finish([appointment["id"]])

    @override
    def near_misses(self, p: AddToWaitlistParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        visit = p.booking
        entry = {**waitlist_resource(self._wanted(p, "mine"))}
        booking = booking_resource(visit)
        for name in _NO_TIME_YET:
            put = Put("/Appointment/mine", {**entry, name: booking[name]})
            yield f"with the {name} of the booked one", [put, Finish(["mine"])]
        moved = {**booking, "status": "waitlist", "requestedPeriod": entry["requestedPeriod"]}
        yield "changes the booked one", [Put(f"/Appointment/{visit.id}", moved), Finish([visit.id])]
        for name, window in (
            ("backwards", {"start": p.until, "end": p.first}),
            ("a day early", {"start": _days_after(p.first, -1), "end": p.until}),
            ("two days short", {"start": p.first, "end": _days_after(p.until, -2)}),
        ):
            put = Put("/Appointment/mine", {**entry, "requestedPeriod": [window]})
            yield f"a window {name}", [put, Finish(["mine"])]

    @override
    def equivalents(self, p: AddToWaitlistParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        last = _days_after(p.until, -1)
        for start, end in (
            (p.first, last),
            (f"{p.first}T00:00:00Z", f"{p.until}T00:00:00Z"),
            (f"{p.first}T10:15:00.5+00:00", f"{p.until}T10:15:00.5+00:00"),
            (f"{p.first}T00:00:00Z", f"{last}T23:59:59Z"),
            (f"{p.first}T02:00:00+02:00", f"{last}T18:59:59-05:00"),
        ):
            body = {**waitlist_resource(self._wanted(p, "mine")), "requestedPeriod": [{"start": start, "end": end}]}
            yield f"from {start} to {end}", [Put("/Appointment/mine", body), Finish(["mine"])]

    @override
    def expected_changes(self, p: AddToWaitlistParams) -> tuple[ExpectedChange, ...]:
        return (ExpectedChange("created", "Appointment"),)

    @override
    def required_records(self, p: AddToWaitlistParams) -> tuple[str, ...]:
        return (f"Practitioner/{p.doctor.id}",)

    @override
    def checks(self, p: AddToWaitlistParams, end: FinishedEpisode) -> Iterator[Check]:
        (answer,) = end.answer_ids("Appointment")
        appointment = new_resource(end, "Appointment", answer)
        yield created_check(end, "Appointment")
        yield equal("appointment status", appointment.get("status"), "waitlist")
        yield participants_check(end, appointment, waiting_participants(p.patient.id, p.doctor.id))
        yield from window_checks(appointment.get("requestedPeriod"), p.first, (_days_after(p.until, -1), p.until))
        yield answered(end, Appointment=appointment.get("id", "the id of the new appointment"))

    def _wanted(self, p: AddToWaitlistParams, id: str) -> WaitlistEntry:
        return WaitlistEntry(
            id=id,
            patient=p.patient.id,
            practitioner=p.doctor.id,
            start=p.first,
            end=p.until,
            description="An earlier time",
        )


class RemoveFromWaitlist(AppointmentTask[RemoveFromWaitlistParams, WaitlistEntry]):
    """Cancel a patient's entry on the waitlist.

    Starting state: six to eight patients. Most of them have one active waitlist entry, including the patient in the
        prompt.
    Decoys: each patient also has a booked appointment with the same doctor, often a past appointment, and waitlist
        entries that were cancelled or became a proposal.
    Checks: the entry is cancelled and otherwise unchanged. The answer is the entry's id.
    Light: the appointment was updated.
    Differs from FHIR-AgentEval: the patient's other appointments must stay booked, and the rest of the entry must stay
        unchanged.
    """

    key = "16c"
    title = "Remove from the waitlist"
    difficulty = 2
    required_tools = (("search", "update"), ("read", "update"))
    required_resources = ("Appointment",)
    prompts = (
        "{patient} (Patient/{id}) no longer wants to wait for an earlier appointment. Please take the patient off the "
        "waitlist by cancelling the entry.",
        "{patient} (Patient/{id}) is on the waitlist and wants to leave it. Please cancel the waitlist entry.",
        "Please remove {patient} (Patient/{id}) from the waitlist by cancelling the waitlist appointment.",
    )
    brief = 'Please cancel the waitlist entry of {patient} (Patient/{id}). Finish with FINISH(["<appointment id>"]).'
    answer_instructions = (
        f"{WAITLIST}Set the status of the patient's entry to cancelled. Leave everything else as it is, including the "
        "patient's other appointments; create and delete nothing. "
        'Finish with FINISH(["<id>"]), where <id> is the id of the cancelled appointment.'
    )
    answer = IdAnswer(("Appointment",))
    gold_steps = 3
    harmless_additions = CANCELLATION_REASON

    @override
    def draw_scene(self, rng: random.Random, world: World) -> AppointmentScene:
        ids = IdAllocator(rng, world)
        people = draw_lookalikes(rng, world, partial(ids.new, "Patient"), rng.randrange(6, 9), by=NAME)
        schedules = new_schedules(rng, world, ids, _DOCTORS)
        ahead = rng.sample(range(HALF_HOURS, _DAYS * HALF_HOURS), len(people))
        ago = rng.sample(range(1, _DAYS * HALF_HOURS), len(people))
        bookings, waiting = [], []
        for person in people:
            mine = rng.choice(schedules)
            for status in ("waitlist", "cancelled", *rng.choices(("waitlist", "cancelled", "proposed"), (1, 2, 3))):
                begin = world.now.date() + timedelta(days=rng.randrange(1, _DAYS))
                end = begin + timedelta(days=rng.randrange(1, 15))
                window = instant(at(begin, 9)), instant(at(end, 17))
                waiting.append(new_waitlist_entry(rng, ids, person, mine.provider, *window, status))
            bookings.append(new_booking(rng, ids, person, mine, half_hour(world.now, ahead.pop()), _MINUTES))
            if rng.random() < _OFTEN:
                past = half_hour(world.now, -ago.pop())
                status = rng.choice(("booked", "fulfilled", "noshow"))
                bookings.append(new_booking(rng, ids, person, mine, past, _MINUTES, status, in_slot=False))
        return AppointmentScene(
            now=instant(world.now), people=people, schedules=schedules, bookings=tuple(bookings), waiting=tuple(waiting)
        )

    @override
    def candidates(self, scene: AppointmentScene) -> dict[str, list[WaitlistEntry]]:
        waitlist_entries = (_only_entry(scene, person.id) for person in scene.people)
        return {"": [entry for entry in waitlist_entries if entry is not None]}

    @override
    def params_for(
        self, rng: random.Random, world: World, scene: AppointmentScene, chosen: WaitlistEntry
    ) -> RemoveFromWaitlistParams:
        return RemoveFromWaitlistParams(scene=scene, entry=chosen)

    @override
    def prompt_values(self, p: RemoveFromWaitlistParams, world: World) -> dict[str, str]:
        return {"patient": p.patient.name, "id": p.patient.id}

    @override
    def gold(self, p: RemoveFromWaitlistParams) -> Gold:
        query = {"patient": p.patient.id, "status": "waitlist"}
        entry = next(entries((yield Get("/Appointment", query))))
        yield put_status(entry, "cancelled")
        yield Finish([entry["id"]])

    @override
    def near_misses(self, p: RemoveFromWaitlistParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        waiting = [entry for entry in p.scene.waiting if entry.id != p.entry.id]
        mine = [entry for entry in waiting if entry.patient == p.patient.id]
        bookings = [booking for booking in p.scene.bookings if booking.patient == p.patient.id]
        strangers = [entry for entry in waiting if entry not in mine][:_OTHERS]
        for body in (*map(booking_resource, bookings), *map(waitlist_resource, (*mine, *strangers))):
            cancel = put_status(body, "cancelled")
            yield f"cancels the {body['status']} one {body['id']}", [cancel, Finish([body["id"]])]

    @override
    def expected_changes(self, p: RemoveFromWaitlistParams) -> tuple[ExpectedChange, ...]:
        return (ExpectedChange("updated", "Appointment", p.entry.id),)

    @override
    def required_records(self, p: RemoveFromWaitlistParams) -> tuple[str, ...]:
        return (f"Appointment/{p.entry.id}",)

    @override
    def checks(self, p: RemoveFromWaitlistParams, end: FinishedEpisode) -> Iterator[Check]:
        yield from cancellation_checks(end, p.entry.id)
        yield answered(end, Appointment=p.entry.id)


def _only_entry(scene: AppointmentScene, patient: str) -> WaitlistEntry | None:
    """Return a patient's active waitlist entry; None if the patient has no active entry or several."""
    return unique_match(scene.waiting, lambda entry: entry.patient == patient, lambda entry: entry.status == "waitlist")


def _days_ahead(number: int) -> str:
    return ("today", "tomorrow")[number] if number < 2 else f"{number} days from today"


def _days_after(day: str, days: int) -> str:
    return (parse_instant(day) + timedelta(days=days)).date().isoformat()


TASKS = (AddToWaitlist, RemoveFromWaitlist)
