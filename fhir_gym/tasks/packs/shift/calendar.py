"""The slots and appointments of a place at one moment, and the judgement of requests that change them."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import cache, cached_property
from typing import Generic, NamedTuple, Protocol, TypeVar

from typing_extensions import override

from fhir_gym.tasks.core.ids import seeded_random
from fhir_gym.tasks.grading import differences
from fhir_gym.tasks.packs.shift.clinic import OCCUPIED, ClinicScene, ClinicSlot, Practitioner, overlap, supposed_slot
from fhir_gym.tasks.packs.shift.episode_log import EpisodeLog, Write
from fhir_gym.tasks.packs.shift.kind import R, RequestJudge
from fhir_gym.tasks.packs.shift.outcomes import DONE, NO_FREE_TIME
from fhir_gym.types import Resource

C = TypeVar("C", bound=ClinicScene)
USUAL_MINUTES = 30
"""The usual length of an appointment."""

OWN_APPOINTMENTS_IGNORED = "own appointments ignored"
EARLIER_REQUESTS_IGNORED = "earlier requests ignored"
STATUSES_IGNORED = "statuses ignored"
MISTAKES = (OWN_APPOINTMENTS_IGNORED, EARLIER_REQUESTS_IGNORED, STATUSES_IGNORED)
"""Mistakes that should often change the result of a request, so that an agent must avoid them."""


def draw_mistake(rng: random.Random, outcome: str) -> str:
    """Draw one of `MISTAKES` that should change the result of a request with an outcome, or an empty text."""
    if outcome == NO_FREE_TIME:
        return STATUSES_IGNORED
    return rng.choice(("", *MISTAKES)) if outcome == DONE else ""


class TimeLimits(Protocol):
    """Conditions for the time of an appointment."""

    def suits(self, start: str, minutes: int) -> bool:
        """Whether a time meets the conditions."""


class Booked(NamedTuple):
    """An appointment in a calendar."""

    patient: str
    slots: tuple[ClinicSlot, ...]
    status: str


@dataclass(slots=True)
class Calendar:
    """The slots and appointments of a place at one moment.

    Attributes:
        status: Status of each slot by its id.
        visits: The appointments by their ids.
    """

    scene: ClinicScene
    status: dict[str, str] = field(default_factory=dict)
    visits: dict[str, Booked] = field(default_factory=dict)

    @classmethod
    def at_start(cls, scene: ClinicScene) -> Calendar:
        """Return the calendar at the start of the episode."""
        visits = {visit.id: Booked(visit.patient, (visit.slot,), visit.status) for visit in scene.visits}
        return cls(scene, {slot.id: slot.status for slot in scene.slots}, visits)

    def book(self, patient: str, slot: ClinicSlot | None) -> None:
        """Add a new appointment of a patient in a slot."""
        assert slot is not None
        self.visits[f"new in {slot.id}"] = Booked(patient, (slot,), "booked")

    def occupied(self) -> frozenset[str]:
        """Return the ids of the slots of appointments that take place."""
        return frozenset(slot.id for visit in self.visits.values() if visit.status in OCCUPIED for slot in visit.slots)

    def as_seen_by(self, mistake: str, patient: str) -> Calendar:
        """Return the calendar as an agent with one of `MISTAKES` sees it."""
        if mistake == OWN_APPOINTMENTS_IGNORED:
            others = {id: visit for id, visit in self.visits.items() if visit.patient != patient}
            return Calendar(self.scene, self.status, others)
        if mistake == STATUSES_IGNORED:
            own = {id: visit for id, visit in self.visits.items() if visit.patient == patient}
            return Calendar(self.scene, dict.fromkeys(self.status, "free"), own)
        return Calendar.at_start(self.scene)

    def first_free(
        self, patient: str, limits: TimeLimits, suits: Callable[[Practitioner], bool], moving: str = ""
    ) -> ClinicSlot | None:
        """Return the first free slot that suits a patient; None if there is none.

        Among slots that start at the same time, the family name of the practitioner decides, then the id.

        Args:
            patient: Id of the patient.
            limits: What the patient wishes, and other conditions.
            suits: Whether a practitioner may be chosen.
            moving: Id of an appointment of the patient that gives up its time.
        """
        free = self.free_times(patient, moving)
        schedules = [practitioner.schedule for practitioner in self.scene.practitioners if suits(practitioner)]
        first = (
            next((slot for slot in free.of(schedule) if limits.suits(slot.start, slot.minutes)), None)
            for schedule in schedules
        )
        return min((slot for slot in first if slot is not None), key=self.scene.order, default=None)

    def free_times(self, patient: str, moving: str) -> FreeTimes:
        """Return the coming slots that a patient can take; see `first_free`."""
        return FreeTimes(self, patient, moving)

    def copy(self) -> Calendar:
        """Return a copy, which may be changed."""
        return Calendar(self.scene, self.status.copy(), self.visits.copy())

    def fixed(self) -> FixedCalendar:
        """Return the calendar as it is now, to ask it often."""
        return FixedCalendar(self.scene, self.status.copy(), self.visits.copy())


class FreeTimes:
    """The coming slots that are free at times at which a patient has no appointment.

    Args:
        patient: Id of the patient.
        moving: Id of an appointment of the patient that gives up its time.
    """

    def __init__(self, calendar: Calendar, patient: str, moving: str) -> None:
        kept = [visit for id, visit in calendar.visits.items() if visit.status in OCCUPIED and id != moving]
        self._calendar = calendar
        self._taken = {slot.id for booked in kept for slot in booked.slots}
        self._own = [slot for booked in kept if booked.patient == patient for slot in booked.slots]
        self._slots: dict[str, list[ClinicSlot]] = {}

    def of(self, schedule: str) -> Sequence[ClinicSlot]:
        """Return the slots of a schedule in the order of the rules."""
        if schedule not in self._slots:
            status = self._calendar.status
            self._slots[schedule] = [
                slot
                for slot in self._calendar.scene.coming_slots[schedule]
                if status[slot.id] == "free"
                and slot.id not in self._taken
                and not any(overlap(slot, other) for other in self._own)
            ]
        return self._slots[schedule]


@dataclass(slots=True)
class FixedCalendar(Calendar):
    """A calendar that does not change, so it remembers the free times."""

    _free: dict[tuple[str, str], FreeTimes] = field(default_factory=dict)

    @override
    def free_times(self, patient: str, moving: str) -> FreeTimes:
        if (patient, moving) not in self._free:
            self._free[patient, moving] = FreeTimes(self, patient, moving)
        return self._free[patient, moving]


def slots_that_would_fit(
    scene: ClinicScene,
    patient: str,
    limits: TimeLimits,
    minutes: int,
    suits: Callable[[Practitioner], bool],
    *,
    moving: str = "",
    until: date = date.min,
) -> Iterator[Resource]:
    """Yield, for each practitioner who may be chosen, a free slot that does not exist and would suit the patient.

    It has the time and the length of a free slot of the scene. If none of them suits, it is on any day, at a time of
    day of a slot of the scene.

    Args:
        scene: The place.
        patient: Id of the patient.
        limits: What the patient wishes, and other conditions.
        minutes: The length of a slot that is not like a free slot of the scene.
        suits: Whether a practitioner may be chosen.
        moving: Id of an appointment of the patient that gives up its time.
        until: The last day, if it is later than a week after the last slot of the scene.
    """
    kept = [
        visit.slot
        for visit in scene.visits
        if visit.patient == patient and visit.status in OCCUPIED and visit.id != moving
    ]
    free = [slot for slot in scene.slots if slot.status == "free" and slot.start > scene.now]
    for times in (
        ((slot.start, slot.minutes) for slot in free),
        ((start, minutes) for start in _any_starts(scene, until)),
    ):
        suiting = [time for time in times if limits.suits(*time)]
        slots = [
            ClinicSlot(id="", schedule="", start=start, minutes=length, status="free") for start, length in suiting
        ]
        fitting = [slot for slot in slots if not any(overlap(slot, clinic_slot) for clinic_slot in kept)]
        if fitting:
            for practitioner in filter(suits, scene.practitioners):
                slot = seeded_random("slot", scene.place, practitioner.schedule).choice(fitting)
                yield supposed_slot(slot.model_copy(update={"schedule": practitioner.schedule}))
            return


def _any_starts(scene: ClinicScene, until: date) -> Iterator[str]:
    """Yield starts of slots on all coming days, at the times of day of a scene's slots. `until` is explained above."""
    today = date.fromisoformat(scene.now[:10])
    last = max(until, date.fromisoformat(max(slot.start[:10] for slot in scene.slots)) + timedelta(days=7))
    times = sorted({slot.start[10:] for slot in scene.slots})
    for ahead in range(1, (last - today).days + 1):
        day = (today + timedelta(days=ahead)).isoformat()
        yield from (day + time for time in times)


def _is_free(state: Resource | None) -> bool:
    return state is not None and state.get("resourceType") == "Slot" and state.get("status") == "free"


class CalendarJudge(RequestJudge[C, R], Generic[C, R]):
    """Judges requests against the calendars that the agent met."""

    def __init__(self, requests: Sequence[R], scene: C, log: EpisodeLog, answers: Sequence[str]) -> None:
        super().__init__(requests, scene, log, answers)
        self.slots = {slot.id: slot for slot in scene.slots}
        self._before: dict[int, Calendar] = {}
        self._bookings: dict[int, tuple[Resource, Booked]] = {}

    @abstractmethod
    def claim(self, request: R) -> frozenset[str]:
        """Return the records that belong to a request."""

    @cached_property
    def _writes(self) -> list[Write]:
        return [write for write in self.log.writes if write.resource_type in ("Appointment", "Slot")]

    @cached_property
    def claimed(self) -> list[frozenset[str]]:
        """For each request, the records that belong to it."""
        return [self.claim(request) for request in self.requests]

    @cached_property
    def start(self) -> Calendar:
        """The calendar at the start of the episode."""
        return Calendar.at_start(self.scene)

    def met(self, number: int) -> Calendar:
        """Return the calendar before the first write for a request."""
        return self._ordered_by_letter(number, self._first_write_for(number))

    def _ordered_by_letter(self, number: int, write: int) -> Calendar:
        """Return the calendar before a write, as it would be if requests were handled in the order of their letters.

        It lacks what the agent wrote too early, for requests with later letters, and contains what the agent wrote too
        late, for requests with earlier letters. Live requests have no letters.
        """
        if self.log.is_live:
            return self.before(write)
        earlier, later = (frozenset().union(*some) for some in (self.claimed[:number], self.claimed[number + 1 :]))
        early = later - earlier - self.claimed[number]
        writes = [
            other for other in self._writes if other.number < write and not (other.by_agent and other.record in early)
        ]
        states = {other.record: other.after for other in writes}
        for records in self.claimed[:number]:
            own = records - self.claimed[number]
            if any(other.record in own for other in self.log.writes_of_agent) and not states.keys() & own:
                states |= {record: self.log.at_end(record) for record in sorted(own & self.log.touched)}
        return self._with(states)

    def _first_write_for(self, number: int) -> int:
        """Return the number of the agent's first write for a request; if there is none, that of the report."""
        # A write that frees a slot may belong to another request, which gives the slot up.
        claimed = self.claimed[number]
        mine = [write for write in self.log.writes_of_agent if write.record in claimed and not _is_free(write.after)]
        own = min(
            (write.number for write in mine if write.resource_type == "Appointment"), default=len(self.log.writes)
        )
        # Another request may have had the slot before, so not every write on it is for this request.
        first = (write.number for write in mine if write.number > self._given(write.record, own, claimed))
        return min(first, default=self._reported(number))

    def _reported(self, number: int) -> int:
        """Return the number of writes before the agent reported the outcome of a request."""
        return self.log.writes_before_report(self.requests[number])

    def _given(self, slot: str, before: int, claimed: frozenset[str]) -> int:
        """Return the number of the last write before another that gave a slot to an appointment of somebody else."""
        others = (write for write in self._writes if write.number < before and write.record not in claimed)
        return max(
            (write.number for write in others if slot.removeprefix("Slot/") in self.slot_ids(write.after)), default=-1
        )

    def before(self, write: int) -> Calendar:
        """Return the calendar before a write."""
        if write not in self._before:
            earlier = (other for other in self._writes if other.number < write)
            self._before[write] = self._with({other.record: other.after for other in earlier})
        return self._before[write]

    def planned(self, number: int) -> Calendar:
        """Return the calendar after the requests with earlier letters, as the agent has left them.

        It contains what other people wrote before the agent's first write for the request, or before its report. Live
        requests have no letters: those are earlier that the agent began before, and the calendar also contains what
        else the agent wrote until then.
        """
        first = self._first_write_for(number)
        begun: Iterable[int] = range(number)
        if self.log.is_live:
            begun = (n for n in range(len(self.requests)) if n != number and self._first_write_for(n) < first)
        earlier = frozenset().union(*(self.claimed[n] for n in begun))
        records = earlier & self.log.touched
        states = {record: self.log.at_end(record) for record in sorted(records)}
        # A slot that was freed may have been given away since, by a request with a later letter.
        states |= {
            write.record: write.after for write in self._writes if write.record in records and _is_free(write.after)
        }
        before = [write for write in self._writes if write.number < first]
        states |= {write.record: write.after for write in before if not write.by_agent}
        if self.log.is_live:
            states |= {write.record: write.after for write in before if write.record not in earlier}
        calendar = self._with(states)
        # A transaction gives a slot to another appointment without freeing it in between.
        calendar.status |= {id: "free" for id in self._passed_on(calendar) if f"Slot/{id}" in earlier}
        return calendar

    def _passed_on(self, calendar: Calendar) -> frozenset[str]:
        """Return the slots of appointments at the start and at the end that no appointment has in a calendar."""
        end = self.before(len(self.log.writes))
        return (self.start.occupied() & end.occupied()) - calendar.occupied()

    def _with(self, states: Mapping[str, Resource | None]) -> Calendar:
        calendar = self.start.copy()
        for record, state in states.items():
            resource_type, id = record.split("/")
            if resource_type == "Slot" and id in calendar.status:
                calendar.status[id] = str((state or {}).get("status"))
            elif resource_type == "Appointment":
                calendar.visits.pop(id, None)
                if state is not None:
                    calendar.visits[id] = self._booked(state)
        return calendar

    def _booked(self, appointment: Resource) -> Booked:
        if id(appointment) not in self._bookings:
            self._bookings[id(appointment)] = appointment, self._read_booking(appointment)
        return self._bookings[id(appointment)][1]

    def _read_booking(self, appointment: Resource) -> Booked:
        actors = self.log.participants(appointment)
        patients = (person.id for person in self.scene.people if f"Patient/{person.id}" in actors)
        slots = (self.slots[id] for id in self.slot_ids(appointment) if id in self.slots)
        return Booked(next(patients, ""), tuple(slots), str(appointment.get("status")))

    def slot_ids(self, appointment: Resource | None) -> list[str]:
        """Return the ids of the slots of an appointment."""
        refers = [self.log.end.refers(slot) for slot in (appointment or {}).get("slot", [])]
        return [reference.removeprefix("Slot/") for reference in refers if reference]

    def slot_became(self, id: str, status: str) -> bool:
        """Whether the agent left a slot with a status, and otherwise as it was at the start."""
        before, after = self.log.at_start(f"Slot/{id}") or {}, self.log.left(f"Slot/{id}") or {}
        return after.get("status") == status and not differences(before, after, changing=("status",))

    def looked_for_slots(
        self, number: int, slots: Iterable[Resource], best: Callable[[Calendar], ClinicSlot | None]
    ) -> bool:
        """Whether the agent looked at the slots of all practitioners, and no slot suited the patient.

        Args:
            number: Number of the request.
            slots: See `slots_that_would_fit`.
            best: The slot that the rules choose in a calendar.
        """
        looks = [{self.log.writes_before(lookup) for lookup in self.log.lookups_of(slot)} for slot in slots]
        planned, report = self.planned(number), self._reported(number)
        is_none = best(planned) is None

        @cache  # the looks for several slots are often the same
        def saw_none(seen: int) -> bool:
            if is_none or seen > report:
                return seen <= report
            return (
                best(self._ordered_by_letter(number, seen)) is None
                and best(self._at_report(seen, report, planned)) is None
            )

        return bool(looks) and all(any(map(saw_none, sorted(shown))) for shown in looks)

    def _at_report(self, seen: int, report: int, planned: Calendar) -> Calendar:
        """Return the calendar that the agent saw after some writes, with the slots that it freed until its report.

        Slots that others freed do not count, nor slots that a request with a later letter gave up.
        """
        calendar = self.before(seen).copy()
        for write in self._writes:
            if write.by_agent and seen <= write.number < report:
                if _is_free(write.after):
                    calendar.status[write.id] = "free"
                elif given_up := self._occupied_by(write.before) - self._occupied_by(write.after):
                    calendar.visits.pop(write.id, None)
                    calendar.status |= dict.fromkeys(given_up, "free")
        occupied = planned.occupied()
        for slot, status in planned.status.items():
            if slot in occupied or status != "free":
                calendar.status[slot] = "busy"
        return calendar

    def _occupied_by(self, state: Resource | None) -> frozenset[str]:
        """Return the ids of the slots of a record if it is an appointment that takes place."""
        is_visit = state is not None and state.get("resourceType") == "Appointment" and state.get("status") in OCCUPIED
        return frozenset(self.slot_ids(state)) & self.slots.keys() if is_visit else frozenset()
