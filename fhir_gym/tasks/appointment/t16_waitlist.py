"""Tasks 16a and 16c: onto the waitlist and off it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import ClassVar

from fhir_gym.actions import Action, Finish, Get, Post, Put
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.answers import Ids as IdsAnswer
from fhir_gym.tasks.appointment.bookings import (
    NEW_REMARKS,
    PARTICIPANTS,
    Booking,
    answered,
    booked,
    find_practitioner,
    new_booking,
    new_opening,
    participants_check,
    reason,
)
from fhir_gym.tasks.appointment.clinic import Opening, slot
from fhir_gym.tasks.appointment.openings import DOCTOR, Diary
from fhir_gym.tasks.appointment.waitlist import (
    WAITING,
    Waiting,
    WaitlistParams,
    waiting_participants,
    waitlist_cast,
    waitlist_setup,
    waitlist_words,
    waitlisted,
    window_checks,
)
from fhir_gym.tasks.bundles import entries
from fhir_gym.tasks.checks import Check, equal
from fhir_gym.tasks.clock import at, instant, parse_instant
from fhir_gym.tasks.endstate import EndState
from fhir_gym.tasks.ids import Ids
from fhir_gym.tasks.meaning import ADD_NOTHING
from fhir_gym.tasks.outcomes import is_new, new_resource, updated
from fhir_gym.tasks.people import Person
from fhir_gym.tasks.task import Fhir, Gold, Task, Touch
from fhir_gym.types import Json, Resource

__all__ = [
    "TASKS",
    "AddToWaitlist",
    "AddToWaitlistParams",
    "RemoveFromWaitlist",
    "RemoveFromWaitlistParams",
]

_MINUTES = 30
_NO_TIME_YET = ("slot", "start", "end")


class AddToWaitlistParams(WaitlistParams):
    """Values of task 16a.

    Attributes:
        first: First day of the window.
        until: The day on which it ends, no longer part of it.
        ahead: In how many days it begins.
        days: How many days it lasts.
        taken: A busy slot of the doctor in the window.
    """

    first: str
    until: str
    ahead: int
    days: int
    taken: Opening


class RemoveFromWaitlistParams(WaitlistParams):
    """Values of task 16c.

    Attributes:
        entry: The patient's entry.
    """

    entry: Waiting


class AddToWaitlist(Task[AddToWaitlistParams]):
    """Put a patient on a doctor's waitlist for a window of days.

    Starting state: the patient and the doctor, with whom the patient has an appointment after the window.
    Decoys: a practitioner of swapped name, for whom the patient waits already, and one of the same family name; an
        earlier entry of the patient for the doctor, cancelled; an entry of another patient, all with other windows; a
        busy slot of the doctor in the window.
    Checks: one new appointment on the waitlist with both as participants, without slot and times, one requested period
        from the first day to the last or the end of the window; the answer is its id.
    Light: an appointment was created.
    Differs from FHIR-AgentEval: the start of the window counts (any early enough end passed there); dates and moments
        of any spelling, participants in any order, created by POST or PUT; the answer is tied to the new appointment.
    """

    key = "16a"
    title = "Add to the waitlist"
    category = "Scheduling & Appointments"
    difficulty = 2
    kind = "action"
    required_tools = (("create",), ("update",), ("search", "create"))
    required_resources = ("Appointment",)
    prohibited_tools = ("delete",)
    prompts = (
        "{patient} (Patient/{id}) has an appointment with Dr. {doctor} but wants an earlier time. Put the patient on "
        "the waitlist for a window that begins in {ahead} from today and lasts {days}.",
        "Patient/{id}, {patient}, would like to see Dr. {doctor} sooner than booked. Add the patient to the waitlist: "
        "the window begins {ahead} after today and is {days} long.",
        "Please enter {patient} (Patient/{id}) on Dr. {doctor}'s waitlist for an earlier visit. The window is {days} "
        "long and starts {ahead} from today.",
    )
    ending = (
        f"{DOCTOR}{WAITING}Create one, with the patient (status accepted) and the practitioner (status needs-action), "
        "and nobody else, as participants, and without slot, start and end, for it has no time yet. It has one "
        "requestedPeriod; its start is the first day of the window (0 days from today is today), its end the last day "
        "of it or the day after that, on which it is over. Dates and times are both fine, and a time counts by its day "
        f"in UTC. Leave everything else as it is, the booked appointment too. {ADD_NOTHING} "
        'Finish with FINISH(["<id>"]), where <id> is the id of the new appointment.'
    )
    answer = IdsAnswer(("Appointment",))
    gold_steps = 3
    asked: ClassVar[Mapping[str, tuple[str, ...]]] = {"Appointment": ("status", "requestedPeriod", *PARTICIPANTS)}
    harmless: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "Appointment": {"description": "An earlier time", "minutesDuration": _MINUTES, "comment": "Any time of day"}
    }

    def sample(self, rng: random.Random, world: World) -> AddToWaitlistParams:
        """Draw people and the window; other windows begin and end on other days."""
        ids = Ids(rng, world, 30)
        person, other, diaries = waitlist_cast(rng, world, ids)
        ahead, days = rng.randrange(31), rng.randrange(1, 31)
        first = world.now.date() + timedelta(days=ahead)

        def waiting(who: Person, diary: Diary, shift: int, status: str = "waitlist") -> Waiting:
            begin = first + timedelta(days=shift)
            return Waiting(
                id=ids.new(),
                patient=who.id,
                practitioner=diary.provider.id,
                start=begin.isoformat(),
                end=(begin + timedelta(days=days)).isoformat(),
                description=reason(rng),
                status=status,
            )

        shifts = rng.sample(range(2, 12), 3)
        visit = at(first + timedelta(days=days + rng.randrange(2, 20)), rng.randrange(8, 17))
        busy = at(first + timedelta(days=rng.randrange(days)), rng.randrange(8, 17))
        return AddToWaitlistParams(
            patient=person,
            other=other,
            diaries=diaries,
            waiting=(
                waiting(person, diaries[1], shifts[0]),
                waiting(person, diaries[0], -shifts[1], "cancelled"),
                waiting(other, diaries[0], shifts[2]),
            ),
            bookings=(new_booking(rng, ids, person, diaries[0], visit, _MINUTES),),
            first=first.isoformat(),
            until=(first + timedelta(days=days)).isoformat(),
            ahead=ahead,
            days=days,
            taken=new_opening(ids, diaries[0], busy, _MINUTES, "busy"),
        )

    def setup(self, p: AddToWaitlistParams, world: World) -> list[Resource]:
        """People, schedules, the booked appointment, other entries of the waitlist, a busy slot."""
        return [*waitlist_setup(p, world), slot(p.taken)]

    def words(self, p: AddToWaitlistParams, world: World) -> dict[str, str]:
        """Names, the patient's id, and the window."""
        return {**waitlist_words(p), "ahead": _in_days(p.ahead), "days": _in_days(p.days)}

    def gold(self, p: AddToWaitlistParams, fhir: Fhir) -> Gold:
        """Find the doctor; create."""
        doctor_id = yield from find_practitioner(p.doctor)
        made = yield Post(
            "/Appointment",
            {
                "resourceType": "Appointment",
                "status": "waitlist",
                "participant": waiting_participants(p.patient.id, doctor_id),
                "requestedPeriod": [{"start": p.first, "end": p.until}],
            },
        )
        yield Finish([made["id"]])

    def near_misses(self, p: AddToWaitlistParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        """A time given already; the booked appointment taken for the entry."""
        (visit,) = p.bookings
        entry = {**waitlisted(self._wanted(p, "mine"))}
        booking = booked(visit)
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

    def equivalents(self, p: AddToWaitlistParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        """Other ways to say the window."""
        last = _days_after(p.until, -1)
        for start, end in (
            (p.first, last),
            (f"{p.first}T00:00:00Z", f"{p.until}T00:00:00Z"),
            (f"{p.first}T10:15:00.5+00:00", f"{p.until}T10:15:00.5+00:00"),
            (f"{p.first}T00:00:00Z", f"{last}T23:59:59Z"),
            (f"{p.first}T02:00:00+02:00", f"{last}T18:59:59-05:00"),
        ):
            body = {**waitlisted(self._wanted(p, "mine")), "requestedPeriod": [{"start": start, "end": end}]}
            yield f"from {start} to {end}", [Put("/Appointment/mine", body), Finish(["mine"])]

    def touches(self, p: AddToWaitlistParams) -> tuple[Touch, ...]:
        """One new Appointment."""
        return (Touch("created", "Appointment"),)

    def rests_on(self, p: AddToWaitlistParams) -> tuple[str, ...]:
        """The doctor."""
        return (f"Practitioner/{p.doctor.id}",)

    def checks(self, p: AddToWaitlistParams, end: EndState) -> Iterator[Check]:
        """The new appointment, the answer."""
        (answer,) = end.answer_ids("Appointment")
        found = new_resource(end, "Appointment", answer)
        yield is_new(end, "Appointment")
        yield equal("appointment status", found.get("status"), "waitlist")
        yield participants_check(end, found, waiting_participants(p.patient.id, p.doctor.id))
        yield from window_checks(found.get("requestedPeriod"), p.first, (_days_after(p.until, -1), p.until))
        yield answered(end, Appointment=found.get("id", "the id of the new appointment"))

    def _wanted(self, p: AddToWaitlistParams, id: str) -> Waiting:
        return Waiting(
            id=id,
            patient=p.patient.id,
            practitioner=p.doctor.id,
            start=p.first,
            end=p.until,
            description="An earlier time",
        )


class RemoveFromWaitlist(Task[RemoveFromWaitlistParams]):
    """Cancel a patient's entry on the waitlist.

    Starting state: the patient's one entry on the waitlist.
    Decoys: a booked and a proposed appointment of the patient with the same doctor; an entry of the patient that was
        cancelled before; entries of another patient for both doctors.
    Checks: that entry cancelled and else unchanged; the answer is its id.
    Light: the appointment was updated.
    Differs from FHIR-AgentEval: the patient's other appointments must stay booked, and the entry keeps everything else.
    """

    key = "16c"
    title = "Remove from the waitlist"
    category = "Scheduling & Appointments"
    difficulty = 2
    kind = "action"
    required_tools = (("search", "update"), ("read", "update"))
    required_resources = ("Appointment",)
    prohibited_tools = ("create", "delete")
    prompts = (
        "{patient} (Patient/{id}) no longer wants to wait for an earlier time. Take the patient off the waitlist by "
        "cancelling the entry.",
        "Patient/{id}, {patient}, is on the waitlist and wants to leave it. Cancel that waitlist entry.",
        "Please remove {patient} (Patient/{id}) from the waitlist: the waiting appointment is to be cancelled.",
    )
    ending = (
        f"{WAITING}Set the status of the patient's entry to cancelled and leave everything else as it is, the "
        "patient's other appointments too; create and delete nothing. "
        'Finish with FINISH(["<id>"]), where <id> is the id of the cancelled appointment.'
    )
    answer = IdsAnswer(("Appointment",))
    gold_steps = 3
    harmless: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "Appointment": {"cancelationReason": {"text": "Patient called off"}}
    }

    def sample(self, rng: random.Random, world: World) -> RemoveFromWaitlistParams:
        """Draw people, entries and appointments."""
        ids = Ids(rng, world, 30)
        person, other, diaries = waitlist_cast(rng, world, ids)
        mine = rng.choice(diaries)
        first = world.now.date() + timedelta(days=rng.randrange(1, 15))

        def waiting(who: Person, diary: Diary, status: str = "waitlist") -> Waiting:
            begin = first + timedelta(days=rng.randrange(15))
            return Waiting(
                id=ids.new(),
                patient=who.id,
                practitioner=diary.provider.id,
                start=instant(at(begin, 9)),
                end=instant(at(begin + timedelta(days=rng.randrange(1, 15)), 17)),
                description=reason(rng),
                status=status,
            )

        def booking(who: Person, diary: Diary, status: str) -> Booking:
            start = at(first + timedelta(days=rng.randrange(30)), rng.randrange(8, 17))
            return new_booking(rng, ids, who, diary, start, _MINUTES, status)

        return RemoveFromWaitlistParams(
            patient=person,
            other=other,
            diaries=diaries,
            waiting=(waiting(person, mine, "cancelled"), *(waiting(other, diary) for diary in diaries)),
            bookings=(
                booking(person, mine, "booked"),
                booking(person, mine, "proposed"),
                booking(other, mine, "booked"),
            ),
            entry=waiting(person, mine),
        )

    def setup(self, p: RemoveFromWaitlistParams, world: World) -> list[Resource]:
        """People, schedules, the waitlist, appointments."""
        return [*waitlist_setup(p, world), waitlisted(p.entry)]

    def words(self, p: RemoveFromWaitlistParams, world: World) -> dict[str, str]:
        """The patient's name and id."""
        return {"patient": p.patient.name, "id": p.patient.id}

    def gold(self, p: RemoveFromWaitlistParams, fhir: Fhir) -> Gold:
        """Find the entry; cancel it."""
        query = {"patient": p.patient.id, "status": "waitlist"}
        entry = next(entries((yield Get("/Appointment", query))))
        yield Put(f"/Appointment/{entry['id']}", {**entry, "status": "cancelled"})
        yield Finish([entry["id"]])

    def near_misses(self, p: RemoveFromWaitlistParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        """Another appointment cancelled."""
        for body in (*map(booked, p.bookings), *map(waitlisted, p.waiting)):
            cancel = Put(f"/Appointment/{body['id']}", {**body, "status": "cancelled"})
            yield f"cancels the {body['status']} one {body['id']}", [cancel, Finish([body["id"]])]

    def touches(self, p: RemoveFromWaitlistParams) -> tuple[Touch, ...]:
        """The entry."""
        return (Touch("updated", "Appointment", p.entry.id),)

    def rests_on(self, p: RemoveFromWaitlistParams) -> tuple[str, ...]:
        """The entry."""
        return (f"Appointment/{p.entry.id}",)

    def checks(self, p: RemoveFromWaitlistParams, end: EndState) -> Iterator[Check]:
        """The appointment, the answer."""
        may_add = ("cancelationReason", *NEW_REMARKS)
        yield from updated(end, "Appointment", p.entry.id, changing=("status",), may_add=may_add, called="appointment")
        yield equal("appointment status", end.after_update("Appointment", p.entry.id).get("status"), "cancelled")
        yield answered(end, Appointment=p.entry.id)


def _in_days(number: int) -> str:
    return "1 day" if number == 1 else f"{number} days"


def _days_after(day: str, days: int) -> str:
    return (parse_instant(day) + timedelta(days=days)).date().isoformat()


TASKS = (AddToWaitlist, RemoveFromWaitlist)
