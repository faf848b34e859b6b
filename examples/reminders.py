"""Define a task that writes several records: send a reminder to every patient on a list who should get one.

Four rules decide who gets none. In every variation, each of them decides about a patient:

1. The appointment was cancelled.
2. The patient has died.
3. The patient opted out of reminders.
4. The patient has had a reminder in the past week.

In the folder of this file:

    fhir-gym tasks check reminders --variations 20
    fhir-gym tasks probe reminders
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import product
from typing import ClassVar

import fhir_gym
from fhir_gym import worlds
from fhir_gym.actions import Action, Finish, Get, Post
from fhir_gym.fhir import World
from fhir_gym.tasks import (
    Check,
    ExpectedChange,
    FinishedEpisode,
    Gold,
    Pack,
    Params,
    SceneParams,
    SceneTask,
    equal,
    register,
)
from fhir_gym.tasks.authoring import (
    IdAllocator,
    Person,
    at,
    codes_of,
    created_check,
    entries,
    instant,
    new_person,
    parse_instant,
    patient_resource,
)
from fhir_gym.tasks.grading import ADD_NOTHING, EmptyAnswer
from fhir_gym.types import Resource

ENV_ID = "Example/Reminders-v0"
TOPICS, TOKEN = "http://example.org/topics", "http://example.org/topics|reminder"
CATEGORY = {"coding": [{"system": TOPICS, "code": "reminder"}]}
ACT_CODES = "http://terminology.hl7.org/CodeSystem/v3-ActCode"
PRIVACY = {"coding": [{"system": "http://terminology.hl7.org/CodeSystem/consentscope", "code": "patient-privacy"}]}

EXCLUDED = ("cancelled", "deceased", "opted out", "reminded this week")
DUE = ("nothing", "rebooked", "withdrew the opt-out", "opted in", "reminded earlier", "could not be reached")
RECORDS = {
    "rebooked": ("Appointment", "cancelled", ""),
    "opted out": ("Consent", "active", "OPTOUT"),
    "withdrew the opt-out": ("Consent", "inactive", "OPTOUT"),
    "opted in": ("Consent", "active", "OPTIN"),
    "reminded this week": ("Communication", "completed", ""),
    "reminded earlier": ("Communication", "completed", ""),
    "could not be reached": ("Communication", "not-done", ""),
}
"""Type, status and policy of the record that tells the patient's history."""


class ClinicDay(Params):
    """A day at a clinic, with the id and name of its Location; the prompt asks about one of them."""

    id: str
    clinic: str
    day: str

    @property
    def target(self) -> str:
        """The reference of the Location."""
        return f"Location/{self.id}"


class Booking(Params):
    """A patient with an appointment.

    Attributes:
        person: The patient.
        id: Id of the Appointment.
        place: Clinic and day of the appointment.
        start: Start of the appointment.
        history: What decides whether the patient gets a reminder, from `EXCLUDED` or `DUE`.
        record: Id of the record that tells the history.
        minutes: Age of that record, without whole weeks.
    """

    person: Person
    id: str
    place: ClinicDay
    start: str
    history: str
    record: str
    minutes: int

    @property
    def reminder(self) -> Resource:
        """The reminder that the patient gets if nothing excludes them."""
        return reminder(f"Patient/{self.person.id}", f"Appointment/{self.id}")


class ReminderParams(SceneParams):
    """Values of one variation: the bookings of all clinics and days, and the day that the prompt asks about."""

    scene: tuple[Booking, ...]
    asked: ClinicDay
    week_ago: str

    @property
    def due(self) -> list[Booking]:
        """The bookings of the day whose patients get a reminder."""
        return [booking for booking in self.scene if booking.place == self.asked and booking.history in DUE]


class SendReminders(SceneTask[ReminderParams, tuple[Booking, ...], ClinicDay]):
    """Send a reminder to each patient of a day at a clinic, except those whom a rule excludes."""

    key = "send-reminders"
    title = "Send reminders"
    category = "Appointments"
    difficulty = 3
    kind = "action"
    required_tools = (("search", "search", "search", "search", "create", "create", "create"),)
    required_resources = ("Appointment", "Patient", "Consent", "Communication", "CommunicationRequest")
    prohibited_tools = ("delete",)
    prompts = (
        "Please send the reminders of the {clinic} on {day}.",
        "The patients of the {clinic} on {day} have not had their reminders yet. Please send them.",
    )
    answer_instructions = (
        "Each patient who has a booked appointment at this clinic (a Location) on this day gets one reminder, except "
        f"patients who have died, patients who opted out (an active Consent of the category {TOKEN} with the "
        "policyRule OPTOUT), and patients who were reminded in the past 7 days (a completed Communication of the same "
        "category, by the time when it was sent). To send a reminder, create a CommunicationRequest with the status "
        f"active, the category {TOKEN}, the patient as subject and recipient, and the appointment in about. "
        f"{ADD_NOTHING} Change nothing else. Finish with FINISH([])."
    )
    answer = EmptyAnswer()
    requested_elements: ClassVar = {"CommunicationRequest": ("status", "category", "subject", "about", "recipient")}
    gold_steps = 10
    max_steps = 30

    def draw_scene(self, rng: random.Random, world: World) -> tuple[Booking, ...]:
        """Draw two days at each of four clinics. On each day, every rule excludes a patient."""
        ids = IdAllocator(rng, world)
        streets = rng.sample(("Alder", "Birch", "Cedar", "Hazel", "Rowan"), 2)
        clinics = {f"{street} Clinic{annex}": ids.new("Location") for street in streets for annex in ("", " Annex")}
        days = [world.now.date() + timedelta(days=ahead) for ahead in rng.sample(range(1, 8), 2)]
        return tuple(
            Booking(
                person=new_person(rng, world, ids.new("Patient")),
                id=ids.new("Appointment"),
                place=ClinicDay(id=id, clinic=name, day=day.isoformat()),
                start=instant(at(day, rng.randrange(8, 17), rng.choice((0, 15, 30, 45)))),
                history=history,
                record=ids.new(RECORDS[history][0]) if history in RECORDS else "",
                minutes=rng.randrange(60, 7 * 24 * 60 - 60),
            )
            for (name, id), day in product(clinics.items(), days)
            for history in (*EXCLUDED, *rng.sample(DUE, rng.randrange(3, 6)))
        )

    def scene_resources(self, scene: tuple[Booking, ...], world: World) -> list[Resource]:
        """The clinics, and the patients with their appointments, consents and earlier reminders."""
        names = {booking.place.id: booking.place.clinic for booking in scene}
        clinics = [{"resourceType": "Location", "id": id, "status": "active", "name": names[id]} for id in names]
        return clinics + [record for booking in scene for record in booking_records(booking, world)]

    def candidates(self, scene: tuple[Booking, ...]) -> Mapping[str, list[ClinicDay]]:
        """Every day at every clinic."""
        return {"": list(dict.fromkeys(booking.place for booking in scene))}

    def params_for(
        self, rng: random.Random, world: World, scene: tuple[Booking, ...], chosen: ClinicDay
    ) -> ReminderParams:
        """Ask for the randomly chosen day at a clinic."""
        return ReminderParams(scene=scene, asked=chosen, week_ago=instant(world.now - timedelta(days=7)))

    def prompt_values(self, p: ReminderParams, world: World) -> dict[str, str]:
        """The clinic and the day."""
        return {"clinic": p.asked.clinic, "day": p.asked.day}

    def gold(self, p: ReminderParams) -> Gold:
        """Find the day's appointments and what excludes their patients, and create the reminders."""
        locations = yield Get("/Location", {"name": p.asked.clinic})
        clinic = next(place["id"] for place in entries(locations) if place["name"] == p.asked.clinic)
        booked = {"location": clinic, "date": p.asked.day, "status": "booked", "_include": "Appointment:patient"}
        records = list(entries((yield Get("/Appointment", {**booked, "_count": 500}))))
        appointments = {
            participant(record, "Patient"): f"Appointment/{record['id']}"
            for record in records
            if record["resourceType"] == "Appointment"
            and (record["status"], record["start"][:10]) == ("booked", p.asked.day)
            and participant(record, "Location") == f"Location/{clinic}"
        }
        dead = {f"Patient/{record['id']}" for record in records if "deceasedDateTime" in record}
        on_reminders = {"patient": ",".join(appointments), "category": TOKEN, "_count": 500}
        opted_out = {
            consent["patient"]["reference"]
            for consent in entries((yield Get("/Consent", {**on_reminders, "status": "active"})))
            if consent["status"] == "active" and codes_of(consent["policyRule"], ACT_CODES) == ["OPTOUT"]
        }
        reminded = {
            sent["subject"]["reference"]
            for sent in entries((yield Get("/Communication", {**on_reminders, "status": "completed"})))
            if sent["status"] == "completed" and sent["sent"] >= p.week_ago
        }
        for patient, appointment in appointments.items():
            if patient not in dead | opted_out | reminded:
                yield Post("/CommunicationRequest", reminder(patient, appointment))
        yield Finish([])

    def expected_changes(self, p: ReminderParams) -> tuple[ExpectedChange, ...]:
        """One new CommunicationRequest for each patient who gets a reminder."""
        return (ExpectedChange("created", "CommunicationRequest"),) * len(p.due)

    def requires_evidence(self, p: ReminderParams) -> bool:
        """Each reminder rests on a look-up: nothing excludes the patient."""
        return True

    def counterfactual(self, p: ReminderParams, world: World) -> list[Resource]:
        """For each reminder, a Consent and a Communication that would exclude the patient."""
        return [
            history_record(booking, history, f"supposed-{booking.id}", world)
            for booking in p.due
            for history in ("opted out", "reminded this week")
        ]

    def checks(self, p: ReminderParams, end: FinishedEpisode) -> Iterator[Check]:
        """Each of the patients got one reminder."""

        def described(record: Resource) -> list[str]:
            subjects = [record.get("subject"), *record.get("recipient", []), *record.get("about", [])]
            codes = codes_of(record.get("category"), TOPICS)
            return [*(str(end.refers(subject)) for subject in subjects), str(record.get("status")), *codes]

        yield created_check(end, "CommunicationRequest")
        actual = sorted(map(described, end.created("CommunicationRequest")))
        yield equal("reminders", actual, sorted(described(booking.reminder) for booking in p.due))

    def near_misses(self, p: ReminderParams, gold: Sequence[Action]) -> Iterable[tuple[str, Sequence[Action]]]:
        """For each patient who gets no reminder, the solution with such a reminder."""
        *actions, finish = gold
        for booking in p.scene:
            if booking.place == p.asked and booking.history in EXCLUDED:
                yield booking.history, [*actions, Post("/CommunicationRequest", booking.reminder), finish]


def booking_records(booking: Booking, world: World) -> Iterator[Resource]:
    """Yield the patient, the appointment, and the record that tells the patient's history."""
    patient = patient_resource(booking.person)
    if booking.history == "deceased":
        address = patient.pop("address")  # comes after deceasedDateTime in the FHIR definition
        patient |= {"deceasedDateTime": instant(world.now - timedelta(minutes=booking.minutes)), "address": address}
    yield patient
    yield appointment(booking, booking.id, "cancelled" if booking.history == "cancelled" else "booked")
    if booking.history in RECORDS:
        yield history_record(booking, booking.history, booking.record, world)


def appointment(booking: Booking, id: str, status: str) -> Resource:
    """Return an Appointment of the patient."""
    actors = (f"Patient/{booking.person.id}", f"Location/{booking.place.id}")
    return {
        "resourceType": "Appointment",
        "id": id,
        "status": status,
        "start": booking.start,
        "end": instant(parse_instant(booking.start) + timedelta(minutes=15)),
        "participant": [{"actor": {"reference": actor}, "status": "accepted"} for actor in actors],
    }


def history_record(booking: Booking, history: str, id: str, world: World) -> Resource:
    """Return the record that tells a history of the patient, as listed in `RECORDS`."""
    resource_type, status, policy = RECORDS[history]
    if resource_type == "Appointment":
        return appointment(booking, id, status)
    record: Resource = {"resourceType": resource_type, "id": id, "status": status}
    patient = {"reference": f"Patient/{booking.person.id}"}
    moment = instant(world.now - timedelta(weeks=history == "reminded earlier", minutes=booking.minutes))
    if resource_type == "Communication":
        return record | {"category": [CATEGORY], "subject": patient, "sent": moment}
    record |= {"scope": PRIVACY, "category": [CATEGORY], "patient": patient, "dateTime": moment}
    return record | {"policyRule": {"coding": [{"system": ACT_CODES, "code": policy}]}}


def participant(appointment: Resource, resource_type: str) -> str:
    """Return the reference to the participant of a type."""
    actors = (str(one["actor"]["reference"]) for one in appointment["participant"])
    return next(actor for actor in actors if actor.startswith(resource_type))


def reminder(patient: str, appointment: str) -> Resource:
    """Return a reminder, from the references of the patient and the appointment."""
    return {
        "resourceType": "CommunicationRequest",
        "status": "active",
        "category": [CATEGORY],
        "subject": {"reference": patient},
        "about": [{"reference": appointment}],
        "recipient": [{"reference": patient}],
    }


PACK = Pack(ENV_ID, title="reminders of appointments", tasks=(SendReminders,))
register(PACK)


def remind_everybody(observation: str, step: int) -> str:
    """A lazy agent: look up the day's appointments, and remind all patients in one batch."""
    if step == 0:
        asked = re.search(r"the (\w+ Clinic.*) on ([-\d]+)", observation)
        assert asked
        return Get("/Appointment", {"location.name": asked[1], "date": asked[2], "_count": 500}).text()
    if step == 1:
        booked = entries(json.loads(observation.partition("\n")[2]))
        reminders = [reminder(participant(record, "Patient"), f"Appointment/{record['id']}") for record in booked]
        create = {"method": "POST", "url": "CommunicationRequest"}
        batch = [{"resource": record, "request": create} for record in reminders]
        return Post("/", {"resourceType": "Bundle", "type": "batch", "entry": batch}).text()
    return Finish().text()


def main() -> None:
    """Let the reference solution and the lazy agent play the task."""
    with worlds.load("hospital-small") as world:
        for agent in (fhir_gym.make_agent("gold"), fhir_gym.make_agent("scripted", script=remind_everybody)):
            rollouts = fhir_gym.run(ENV_ID, agent, variations="0-4", world=world)
            print(agent.name, [rollout.reward for rollout in rollouts])


if __name__ == "__main__":
    main()
