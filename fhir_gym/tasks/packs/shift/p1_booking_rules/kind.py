"""Tasks P1-1 and P1-2: requests for appointments under the policies of the hospital."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from types import MappingProxyType
from typing import Any, ClassVar

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import IdAllocator
from fhir_gym.tasks.packs.shift.calendar import EARLIER_REQUESTS_IGNORED, MISTAKES, Calendar, FixedCalendar
from fhir_gym.tasks.packs.shift.clinic import OCCUPIED, SERVICES, ClinicScene, ClinicSlot, Visit, draw_clinic, overlap
from fhir_gym.tasks.packs.shift.kind import Knowledge, ShiftSize, Solution
from fhir_gym.tasks.packs.shift.lookups import Named, search_all
from fhir_gym.tasks.packs.shift.outcomes import (
    ALREADY_DONE,
    BY_NAME,
    DONE,
    NO_FREE_TIME,
    NO_SUCH_PATIENT,
    NOT_ALLOWED,
    SEVERAL_PATIENTS,
)
from fhir_gym.tasks.packs.shift.p1_booking_rules.rules import (
    BOOKING,
    FULFILLED,
    MISSED,
    PolicyBookingJudge,
    PolicyClinicScene,
    PolicyLimits,
    decide,
    limits_for,
    service_code,
    slots_within_limits,
    values_for,
)
from fhir_gym.tasks.packs.shift.patients import (
    PATIENT_RULE,
    PatientsFirstKind,
    PatientsFirstSampler,
    ids_of,
    names_for,
    target_among,
)
from fhir_gym.tasks.packs.shift.place_records import PlaceRecords, look_up_place, take_slot
from fhir_gym.tasks.packs.shift.policies import MISREADINGS, library_about, policy_time, validity_rules
from fhir_gym.tasks.packs.shift.policy_drawing import draw_library
from fhir_gym.tasks.packs.shift.preferences import WISHES
from fhir_gym.tasks.packs.shift.q1_bookings import (
    BOOKED_RULE,
    PLACE_RULE,
    TO_BOOK,
    BookingContent,
    BookingKind,
    BookingRequest,
    coming,
    draw_wishes,
)
from fhir_gym.tasks.packs.shift.static_task import StaticShift
from fhir_gym.types import Resource

_TRIES, _MORE_TRIES = 8, 12
"""Numbers of wishes that are drawn for each patient, and for a patient for whom a rare rule must matter."""
_BY_RULES = (DONE, ALREADY_DONE, NOT_ALLOWED, NO_FREE_TIME)
"""The outcomes that the patient's name alone does not decide."""
_LAST_DAY_IGNORED, _WEEKS_IGNORED = "last day ignored", "weeks ignored"
_WITHOUT: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {_LAST_DAY_IGNORED: {"last_day": date.max}, _WEEKS_IGNORED: {"full_weeks": frozenset[date]()}}
)
"""The limits for an agent that ignores one of them."""
_LAST_DAY_MATTERS = 0.95
"""Probability that a request without a free slot has none because of the last possible day, if one can be found."""
_EARLIER = (0, 1, 1, 2, 3)
"""Possible numbers of earlier appointments that are added for a patient."""


class PolicyBookingSampler(PatientsFirstSampler[PolicyClinicScene, BookingRequest]):
    """Chooses requests about the first patients, or about the others if these have none."""

    def __init__(
        self,
        rng: random.Random,
        now: datetime,
        scene: PolicyClinicScene,
        outcomes: Sequence[str],
        names: Sequence[Named],
    ) -> None:
        super().__init__(rng, now, scene, outcomes, names)
        self._calendar = Calendar.at_start(scene)
        count = sum(outcome not in BY_NAME for outcome in outcomes)
        self._names, self._spare = [*names[:count]], [*names[count:]]
        self._libraries = scene.library.misreadings(now)
        self._values: dict[tuple[str, str], dict[str, str]] = {}
        self._seen: dict[tuple[str, str], FixedCalendar] = {}
        self._limits: dict[tuple[str, str, str], tuple[PolicyLimits | None, bool]] = {}
        self._services = sorted({practitioner.service.display for practitioner in scene.practitioners})

    @override
    def draw(self, outcome: str, *, depends: bool) -> BookingRequest | None:
        if outcome in BY_NAME:
            used = [request.ask.patient for request in self.chosen]
            names = [name for name in names_for(self.rng, self.scene.people, outcome) if name not in used]
            choices = [(outcome, "")]
        elif depends:
            names = self._names
            choices = [(outcome, EARLIER_REQUESTS_IGNORED) for outcome in dict.fromkeys((outcome, DONE, NO_FREE_TIME))]
        else:
            names, others = [*self._names, *self._spare], [other for other in _BY_RULES if other != outcome]
            outcomes = [outcome, *self.rng.sample(others, len(others))]
            choices = [(outcome, mistake) for outcome in outcomes for mistake in (self._draw_mistake(outcome), "", "")]
        return next(filter(None, (self._draw(name, *choice) for name in names for choice in choices)), None)

    @override
    def apply(self, request: BookingRequest) -> None:
        for names in (self._names, self._spare):
            if request.ask.patient in names:
                names.remove(request.ask.patient)
        if request.outcome == DONE:
            self._calendar.book(request.patients[0], self._decide(request.ask, request.patients[0])[1])
            self._seen.clear()
            self._limits.clear()

    def _draw_mistake(self, outcome: str) -> str:
        mistake = self.rng.choice((*MISTAKES, *MISREADINGS, _WEEKS_IGNORED, _WEEKS_IGNORED))
        return _LAST_DAY_IGNORED if outcome == NO_FREE_TIME and self.rng.random() < _LAST_DAY_MATTERS else mistake

    def _draw(self, name: Named, outcome: str, mistake: str) -> BookingRequest | None:
        """Draw wishes of a patient until they have an outcome, which the mistake would change; None if they do not."""
        ids = ids_of(name, self.scene.people)
        for ask in self._asks(name, mistake):
            if len(ids) != 1 or self._qualifies(ask, ids[0], outcome, mistake):
                aimed = target_among(ids, self.scene.people)
                return BookingRequest(ask=ask, outcome=outcome, patients=ids, **aimed)
        return None

    def _ask(self, name: Named) -> BookingContent:
        rng = self.rng
        wishes = draw_wishes(rng, self.now.date())
        del wishes["minutes"]  # policies limit the length
        chosen = rng.sample(sorted(wishes), rng.choice((0, 1, 1, 2)))
        return BookingContent(
            patient=name, service=rng.choice(self._services), **{wish: wishes[wish] for wish in chosen}
        )

    def _asks(self, name: Named, mistake: str) -> Iterator[BookingContent]:
        if mistake == EARLIER_REQUESTS_IGNORED:  # who asks for the same as an earlier patient may compete for a slot
            earlier = [request.ask for request in self.chosen if request.outcome == DONE]
            similar = [other for ask in earlier for other in (ask, *ask.without_one_wish())]
            for ask in self.rng.sample(similar, len(similar)):
                yield ask.model_copy(update={"patient": name})
        for _ in range(_MORE_TRIES if mistake in _WITHOUT else _TRIES):
            yield self._ask(name)

    def _qualifies(self, ask: BookingContent, patient: str, outcome: str, mistake: str) -> bool:
        """Whether an ask has an outcome that a mistake would change, and every wish makes a difference."""
        result = self._decide(ask, patient)
        if result[0] != outcome or (mistake and self._decide(ask, patient, mistake) == result):
            return False
        if outcome == NO_FREE_TIME:  # there must be a slot that the agent could have looked for
            return any(True for _ in slots_within_limits(ask, patient, self.scene))
        return outcome != DONE or all(self._decide(booking, patient) != result for booking in ask.without_one_wish())

    def _decide(self, ask: BookingContent, patient: str, mistake: str = "") -> tuple[str, ClinicSlot | None]:
        """Return the outcome of an ask, and the slot, for an agent that makes a mistake."""
        calendar = self._seen_by(mistake if mistake in MISTAKES else "", patient)
        key = (ask.service, patient, mistake)
        if key not in self._limits:
            values = self._values_for(ask, mistake if mistake in MISREADINGS else "")
            limits = limits_for(values, ask, patient, calendar)
            if limits:
                limits = replace(limits, **_WITHOUT.get(mistake, {}))
            self._limits[key] = limits, bool(coming(calendar, ask, patient))
        limits, is_booked = self._limits[key]
        return decide(ask, patient, calendar, limits, is_booked=is_booked)

    def _values_for(self, ask: BookingContent, misread: str) -> dict[str, str]:
        """Return what the policies say about the service, as one reads them who makes a mistake."""
        key = (ask.service, misread)
        if key not in self._values:
            self._values[key] = values_for(ask, self.scene, self._libraries[misread])
        return self._values[key]

    def _seen_by(self, mistake: str, patient: str) -> FixedCalendar:
        """Return the calendar, as an agent that makes a mistake sees it."""
        key = (mistake, patient)
        if key not in self._seen:
            seen = self._calendar.as_seen_by(mistake, patient) if mistake else self._calendar
            self._seen[key] = seen.fixed()
        return self._seen[key]


class BookingRules(BookingKind[PolicyClinicScene], PatientsFirstKind[PolicyClinicScene, BookingRequest]):
    """Book appointments within the limits of policies."""

    key = "P1"
    sampler_type = PolicyBookingSampler
    judge_type = PolicyBookingJudge
    # Fewer at level 2 than of other kinds, so that one request after the other fits into 80 actions.
    counts: ClassVar[Mapping[int, tuple[int, int]]] = MappingProxyType({1: (5, 5), 2: (9, 11)})
    title = "Appointments under policies"
    has_policies = True
    codes = (NO_SUCH_PATIENT, SEVERAL_PATIENTS, ALREADY_DONE, NOT_ALLOWED, NO_FREE_TIME)
    resource_types = ("Patient", "Slot", "Schedule", "Appointment", "DocumentReference")
    rules = (
        f"{PLACE_RULE} The department for a service has the same code.\n"
        f"{PATIENT_RULE}\n"
        f"{BOOKED_RULE}\n"
        f'- Otherwise, if a policy says that the desk does not book for the patient, the outcome is "{NOT_ALLOWED}".\n'
        "- Otherwise use a free slot (status free) that starts after the present, is for the service, is within the "
        "limits of the policies for its department, meets every wish, and does not overlap an appointment of the "
        "patient with status booked, pending or arrived. Among several, take the one that starts first; if several "
        "start at that time, the one of the practitioner whose family name comes first in the alphabet; then the one "
        f'with the lower id. {WISHES} If there is no such slot, the outcome is "{NO_FREE_TIME}".\n'
        f"{validity_rules((BOOKING,))}\n"
        "- In the policies, the day on which an appointment is booked is today. A new patient is one who is new in the "
        f"department: without an earlier appointment with status {FULFILLED} at {{place}} for the same service. A week "
        "begins on Monday; the appointments of a week are all appointments of the patient at {place}, for whatever "
        f"service, with status booked, pending, arrived or {FULFILLED}, and the new one. A missed appointment is one "
        f"at {{place}}, for whatever service, with status {MISSED}.\n"
        f"{TO_BOOK}"
    )

    @override
    def draw_scene(self, rng: random.Random, world: World, ids: IdAllocator, size: ShiftSize) -> PolicyClinicScene:
        people, twins, practitioners, services, days, documents = (
            ((12,), 3, 5, 2, 10, 9) if size.level == 1 else (size.groups((13, 14), 12), 4, 9, 3, 9, 15)
        )
        drawn = draw_clinic(
            *(rng, world, ids),
            people=people,
            twins=twins,
            practitioners=practitioners,
            services=services,
            days=days,
            per_day=5,
        )
        clinic = _with_history(rng, ids, drawn)
        offered = [*dict.fromkeys(practitioner.service for practitioner in clinic.practitioners)]
        other = rng.choice([service for service in SERVICES if service not in offered])
        library = draw_library(rng, ids, world.now, (BOOKING,), [*offered, other], documents, soon=size.amended_at)
        return PolicyClinicScene(**dict(clinic), library=library)

    @override
    def solve_for(self, patient: Resource, ask: BookingContent, knowledge: Knowledge) -> Solution:
        looked_up, id, now = knowledge.looked_up, str(patient["id"]), knowledge.now
        if not looked_up:
            looked_up["place"] = yield from look_up_place(knowledge.rule_values["place"])
        place: PlaceRecords = looked_up["place"]
        library = yield from library_about(BOOKING, knowledge)
        query: dict[str, Any] = {"patient": f"Patient/{id}", "actor": place.place, "_count": "200"}
        mine = yield from search_all("/Appointment", query)
        calendar = place.calendar(now, (), mine)
        values = library.values(BOOKING.code, service_code(calendar.scene, ask.service), policy_time(knowledge))
        limits, is_booked = limits_for(values, ask, id, calendar), bool(coming(calendar, ask, id))
        if limits is None or is_booked:
            return decide(ask, id, calendar, limits, is_booked=is_booked)[0]
        days = [f"ge{limits.first_day}", f"lt{limits.last_day + timedelta(days=1)}"]
        query = {"schedule.actor": place.place, "start": days, "status": "free", "_count": "200"}
        slot = yield from take_slot(
            query, lambda slots: decide(ask, id, place.calendar(now, slots, mine), limits, is_booked=False)[1]
        )
        if slot is None:
            return NO_FREE_TIME
        yield place.booking(slot, id)
        return DONE

    @override
    def missing_records(self, request: BookingRequest, scene: PolicyClinicScene) -> Iterator[Resource]:
        if request.outcome in (DONE, NO_FREE_TIME):
            yield from slots_within_limits(request.ask, request.patients[0], scene)


def _with_history(rng: random.Random, ids: IdAllocator, clinic: ClinicScene) -> ClinicScene:
    """Add earlier appointments in slots that have no appointment; those that took place are fulfilled."""
    visits = list(clinic.visits)
    used = {visit.slot.id for visit in visits}
    past = [slot for slot in clinic.slots if slot.start < clinic.now and slot.id not in used]
    rng.shuffle(past)
    for person in clinic.people:
        mine = [visit.slot for visit in visits if visit.patient == person.id]
        for _ in range(rng.choice(_EARLIER)):
            slot = next((slot for slot in past if not any(overlap(slot, other) for other in mine)), None)
            if slot is None:
                break
            past.remove(slot)
            mine.append(slot)
            status = rng.choice((FULFILLED, FULFILLED, FULFILLED, MISSED, MISSED, "cancelled"))
            visits.append(Visit(id=ids.new("Appointment"), patient=person.id, slot=slot, status=status))
    visits = [_as_ended(visit) if visit.slot.start < clinic.now else visit for visit in visits]
    final = {slot.id: slot for slot in clinic.slots} | {visit.slot.id: visit.slot for visit in visits}
    return clinic.model_copy(update={"slots": tuple(final.values()), "visits": tuple(visits)})


def _as_ended(visit: Visit) -> Visit:
    """Return an appointment of the past; it took place unless it was cancelled, missed or an error."""
    status = FULFILLED if visit.status in OCCUPIED else visit.status
    slot = visit.slot.model_copy(update={"status": "busy"}) if status in (FULFILLED, MISSED) else visit.slot
    return visit.model_copy(update={"slot": slot, "status": status})


class BookingRulesLevel1(StaticShift, requests=BookingRules(), level=1):
    """Handle five requests for appointments within the limits of policies.

    Starting state: a place with five practitioners of two services, about two weeks of slots, and fifteen patients with
        similar names who have earlier and coming appointments. Nine policies about bookings: of the whole hospital and
        of departments, with earlier versions, drafts and amendments. The requests are chosen at random; most of them
        would end differently if a policy were misread or the patient's appointments were ignored.
    Decoys: policies that are not valid or are for other departments; earlier slots outside the limits, that miss a wish
        or overlap an appointment of the patient.
    Checks: each request is judged against the calendar that the agent met when it wrote. A declined request needs its
        outcome, and lookups that would have shown the opposite; if policies decide, the valid ones must have been read.
        Nothing else changed.
    Light: none of the checks.
    """


class BookingRulesLevel2(StaticShift, requests=BookingRules(), level=2):
    """Handle ten to fourteen requests for appointments within the limits of policies, which compete for slots.

    Starting state: as at level 1, with nine practitioners of three services, about 450 slots, 31 patients and 15
        policies.
    Decoys: as at level 1, and slots that earlier requests take.
    Checks: as at level 1.
    Light: none of the checks.
    """


TASKS = (BookingRulesLevel1, BookingRulesLevel2)
