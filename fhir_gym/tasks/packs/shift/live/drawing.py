"""Draw the requests and events of a live shift, and what colleagues book."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from fhir_gym.errors import TaskError
from fhir_gym.fhir import World
from fhir_gym.tasks import IdAllocator
from fhir_gym.tasks.authoring import instant, parse_instant
from fhir_gym.tasks.packs.shift.calendar import Calendar
from fhir_gym.tasks.packs.shift.clinic import ClinicScene, ClinicSlot
from fhir_gym.tasks.packs.shift.kind import RequestKind, ShiftSize
from fhir_gym.tasks.packs.shift.live.desk_policies import desk_subjects, draw_desk_library
from fhir_gym.tasks.packs.shift.live.due_times import LONGEST_STRETCH, Due, Work, draw_due_times, rounded
from fhir_gym.tasks.packs.shift.live.plan import ColleagueBooking, DeskRequest, LiveSize, Priority, RecordUpdate
from fhir_gym.tasks.packs.shift.live.request_drawing import LONGEST_ANSWER, RequestDrawing, name_of
from fhir_gym.tasks.packs.shift.outcomes import BY_NAME, DONE
from fhir_gym.tasks.packs.shift.p1_booking_rules.rules import PolicyClinicScene, limits_for, values_for
from fhir_gym.tasks.packs.shift.q1_bookings import BookingContent
from fhir_gym.tasks.packs.shift.q2_changes import ChangeContent
from fhir_gym.types import Resource

_TRIES = 200
_PRIORITIES: tuple[Priority, ...] = ("routine", "routine", "routine", "urgent", "stat")
_SHORT = 3
"""Level of a short shift."""
_WITHDRAWN = 0.22
"""Probability that a request is withdrawn if nobody works on it yet."""
_HURRIED = 0.08
"""Probability that a request becomes more urgent if nobody works on it yet."""
_UPDATED = 0.9
"""Probability that a record that decides about a request changes while somebody works on it, if one can."""
_UPDATED_AFTER = (60, 200)
"""Minimum and maximum number of seconds from the beginning of the work until then."""
_CHANGED_AFTER = (2, 30)
"""Minimum and maximum number of minutes after the arrival until a Task changes."""
_SOON_AFTER_LOOK = 0.8
"""Probability that such a change follows soon after the agent has seen the Task."""
_LOOKS = (1, 1, 2)
"""How many times the agent has seen it by then."""
_AFTER_LOOK = (2, 18)
"""Minimum and maximum number of seconds from that look to the change: it comes before the agent's next action."""
_NOTED = 0.25
"""Probability that a colleague adds a note to a Task while somebody works on it."""
_NOTED_AFTER = (10, 110)
"""Minimum and maximum number of seconds from the beginning of the work until then."""
_NOTES = (
    "The requester has asked by telephone whether we have received this.",
    "Seen in the morning meeting.",
    "Printed for the folder of the week.",
    "The requester can be reached until the evening.",
)
"""Notes that do not change what is right."""
_MINUTES_TO_ASK = 3
"""Minutes of work that a question costs."""
_MINUTES_AGAIN = 2
"""Minutes of work that a new description or an updated record costs in the middle of the work."""
_FEWER = 2 / 3
"""Probability that another outcome replaces one that the search for the patient alone would settle."""
_POLICY_KINDS = 2
"""Minimum number of kinds with policies of their own, which may be amended."""
_AMENDED = (0.2, 0.8)
"""The part of a shift, as shares of its length, in which amendments of policies come into force."""
_STEP = 5
"""Amendments come into force at multiples of this number of minutes after the start."""


class LiveDrawing:
    """Draws one live shift."""

    def __init__(
        self, rng: random.Random, world: World, size: LiveSize, kinds: Mapping[str, RequestKind[Any, Any]]
    ) -> None:
        self._rng, self._world, self._size, self._kinds = rng, world, size, kinds
        self._ids = IdAllocator(rng, world)
        self.now = world.now
        self.until = world.now + timedelta(minutes=size.minutes)
        self.desk, self.desk_name = self._ids.new("Organization"), f"Front desk {rng.choice('ABCDEF')}"
        self.scenes, chosen = self._draw_scenes()
        requesters = [_organization(self._ids.new("Organization"), name) for name in _REQUESTERS]
        self.organizations = [_organization(self.desk, self.desk_name), *requesters]
        offices = [f"Organization/{requester['id']}" for requester in requesters]
        patients = [resource for resource in self._resources() if resource["resourceType"] == "Patient"]
        drawing = RequestDrawing(rng, self._ids, size, kinds, self.scenes, self._staff(), offices, patients)
        self.requests = self._schedule(chosen, drawing)
        self.namesakes = drawing.namesakes
        self.bookings = tuple(self._draw_bookings())
        subjects = desk_subjects(kinds, self.scenes)
        self.library = draw_desk_library(rng, self._ids, self.now, subjects, size.documents)
        self.requests = tuple(map(self._with_note, self.requests))

    def _draw_scenes(self) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
        """Draw the scene and the requests of each kind; no two scenes share a record or a name."""
        scenes: dict[str, Any] = {}
        chosen: list[tuple[str, Any]] = []
        taken = _Taken()
        shares = sorted(self._share().items())
        amended_at = self._draw_amendments([key for key, _ in shares])
        for key, count in shares:
            kind = self._kinds[key]
            for _ in range(_TRIES):
                scene, requests = self._draw_kind(kind, count, tuple(amended_at[key]))
                if taken.add(scene.resources(), requests):
                    break
            else:
                raise TaskError(f"kind {key} found no scene without records of others in {_TRIES} tries")
            scenes[key] = scene
            chosen += [(key, request) for request in requests]
        return scenes, chosen

    def _share(self) -> Counter[str]:
        """Draw the kinds, and share the requests among them: one for each kind of sweep, and the rest evenly."""
        size = self._size
        sweeps = sorted(key for key, kind in self._kinds.items() if kind.is_sweep)
        others = sorted(self._kinds.keys() - set(sweeps))
        chosen = self._rng.sample(sweeps, min(size.sweeps, len(sweeps), size.requests - 1))
        left = size.requests - len(chosen)
        kinds = self._draw_kinds(others, min(size.kinds, len(others), left))
        return Counter(chosen) + Counter(kinds[number % len(kinds)] for number in range(left))

    def _draw_kinds(self, keys: Sequence[str], count: int) -> list[str]:
        """Draw kinds, some of them with policies of their own."""
        with_policies = sum(self._kinds[key].has_policies for key in keys)
        fewest = min(_POLICY_KINDS, with_policies, count - 1)
        while True:
            kinds = self._rng.sample(keys, count)
            if sum(self._kinds[key].has_policies for key in kinds) >= fewest:
                return kinds

    def _draw_amendments(self, chosen: Sequence[str]) -> dict[str, list[datetime]]:
        """Draw for each kind the moments at which its policies are amended, all of them far from start and end."""
        moments: dict[str, list[datetime]] = {key: [] for key in chosen}
        amended = [key for key in chosen if self._kinds[key].has_policies]
        first, last = (round(self._size.minutes * share) for share in _AMENDED)
        possible = [*range(first + -first % _STEP, last + 1, _STEP)]
        for minutes in self._rng.sample(possible, min(self._size.amendments, len(possible))):
            if amended:
                moments[self._rng.choice(amended)].append(self.now + timedelta(minutes=minutes))
        return moments

    def _draw_kind(
        self, kind: RequestKind[Any, Any], count: int, amended_at: tuple[datetime, ...]
    ) -> tuple[Any, Sequence[Any]]:
        size = ShiftSize(1 if self._is_small(kind) else self._size.level, count, amended_at)
        for _ in range(_TRIES):
            outcomes = self._draw_outcomes(kind, count)
            scene = kind.draw_scene(self._rng, self._world, self._ids, size)
            chosen = kind.choose(self._rng, self._world, scene, outcomes)
            if chosen is not None:
                return scene, chosen
        raise TaskError(f"kind {kind.key} found no scene for its requests in {_TRIES} tries")

    def _draw_outcomes(self, kind: RequestKind[Any, Any], count: int) -> list[str]:
        """Draw the outcomes of requests; the search for the patient alone settles few of them."""
        others = [code for code in (DONE, *kind.codes) if code not in BY_NAME]
        return [
            self._rng.choice(others) if outcome in BY_NAME and self._rng.random() < _FEWER else outcome
            for outcome in kind.draw_outcomes(self._rng, count)
        ]

    def _is_small(self, kind: RequestKind[Any, Any]) -> bool:
        """Whether requests of a kind are smaller than they can be: a long sweep would take half of a short shift."""
        return kind.is_sweep and self._size.level == _SHORT

    def _minutes(self, kind: RequestKind[Any, Any]) -> int:
        """Return the minutes of work that a request of a kind usually needs."""
        return kind.minutes // 2 if self._is_small(kind) else kind.minutes

    def _staff(self) -> list[str]:
        ids = sorted(self._world.ids("Practitioner"))
        return [f"Practitioner/{id}" for id in self._rng.sample(ids, min(5, len(ids)))]

    def _resources(self) -> Iterator[Resource]:
        for scene in self.scenes.values():
            yield from scene.resources()

    def _schedule(self, chosen: Sequence[tuple[str, Any]], drawing: RequestDrawing) -> tuple[DeskRequest, ...]:
        """Draw the requests with their times, and the order in which they arrive."""
        rng, size = self._rng, self._size
        order = _shuffled_groups(rng, chosen)
        later = sorted(rng.randint(1, size.minutes) for _ in range(len(order) - size.waiting))
        arrivals = [*[-rng.randint(1, 60) for _ in range(size.waiting)], *later]
        arrivals[: size.waiting] = sorted(arrivals[: size.waiting])
        drawn = [drawing.draw(*shuffled_group, rng.choice(_PRIORITIES)) for shuffled_group in order]
        drawn = [*self._with_record_updates(drawn)]
        works = [self._work(request, arrival) for request, arrival in zip(drawn, arrivals, strict=True)]
        dues = draw_due_times(rng, works)
        return tuple(self._timed(*work) for work in zip(drawn, works, dues, strict=True))

    def _with_record_updates(self, drawn: Sequence[DeskRequest]) -> Iterator[DeskRequest]:
        """Yield the requests, some with an update of a record of the patient. Each patient has at most one update."""
        updated: set[tuple[str, ...]] = set()
        for request in drawn:
            patients = _patients_of(request)
            update = None if patients in updated else self._draw_record_update(request, drawn)
            if update is not None:
                updated.add(patients)
            yield request if update is None else request.model_copy(update={"record_update": update})

    def _draw_record_update(self, request: DeskRequest, others: Sequence[DeskRequest]) -> RecordUpdate | None:
        """Draw an update of a record that changes the right result of this request only."""
        rng, kind, scene = self._rng, self._kinds[request.kind], self.scenes[request.kind]
        if request.message_after or rng.random() >= self._size.events * _UPDATED:
            return None
        alike = [each for each in others if each.kind == request.kind and each.id != request.id]
        same = [each.request for each in alike if _patients_of(each) == _patients_of(request)]
        drawn = kind.draw_status_update(rng, request.request, same, scene)
        if drawn is None:
            return None
        update, outcome, record = drawn
        return RecordUpdate(after=rng.randint(*_UPDATED_AFTER), update=update, record=record, outcome=outcome)

    def _work(self, request: DeskRequest, arrival: int) -> Work:
        """Return the work that a request usually takes, and draw whether it becomes urgent."""
        again = request.record_update or (request.message_after and not request.message_withdraws)
        minutes = (
            self._minutes(self._kinds[request.kind])
            + bool(request.asks) * _MINUTES_TO_ASK
            + bool(again) * _MINUTES_AGAIN
        )
        hurries = request.priority != "stat" and self._rng.random() < self._size.events * _HURRIED
        return Work(arrival, request.priority, minutes, self._draw_change(arrival) if hurries else None)

    def _draw_change(self, arrival: int) -> int:
        """Draw the minute at which a request changes if nobody works on it yet."""
        return max(arrival, 0) + self._rng.randint(*_CHANGED_AFTER)

    def _timed(self, request: DeskRequest, work: Work, due: Due) -> DeskRequest:
        """Return a request with the times of what happens to it."""
        withdraws = work.hurried is None and self._rng.random() < self._size.events * _WITHDRAWN
        changed = self._draw_change(work.arrival)
        # When the answer arrives, other work may just have been begun.
        wait = LONGEST_STRETCH + LONGEST_ANSWER if request.asks else 0
        hurried = self._time(work.hurried) if work.hurried is not None and due.hurried < due.usual else ""
        return request.model_copy(
            update={
                "arrives": self._time(work.arrival),
                "due": self._time(rounded(due.usual + wait)),
                "withdrawn": self._time(changed) if withdraws else "",
                "hurried": hurried,
                "hurried_due": self._time(rounded(due.hurried + wait)) if hurried else "",
                "reworded": self._time(changed) if request.first and not request.message_after else "",
                "changes_at_look": self._rng.choice(_LOOKS) if self._rng.random() < _SOON_AFTER_LOOK else 0,
                "changes_after": self._rng.randint(*_AFTER_LOOK),
            }
        )

    def _with_note(self, request: DeskRequest) -> DeskRequest:
        """Draw whether a colleague adds a note to a Task."""
        if self._rng.random() >= self._size.events * _NOTED:
            return request
        note, after = self._rng.choice(_NOTES), self._rng.randint(*_NOTED_AFTER)
        return request.model_copy(update={"note": note, "note_after": after})

    def _draw_bookings(self) -> Iterator[ColleagueBooking]:
        for key, scene in self.scenes.items():
            if isinstance(scene, ClinicScene) and not self._kinds[key].is_sweep:
                requests = [request for request in self.requests if request.kind == key]
                yield from draw_bookings(self._rng, scene, requests, self._size.bookings, self._size.minutes)

    def _time(self, minutes: int) -> str:
        return instant(self.now + timedelta(minutes=minutes))


_REQUESTERS = ("Brightwater Employers' Health Service", "Larkspur Relocation Partners", "Old Mill Boarding School")


def _organization(id: str, name: str) -> Resource:
    return {"resourceType": "Organization", "id": id, "active": True, "name": name}


def _patients_of(request: DeskRequest) -> tuple[str, ...]:
    """Return the ids of the patients whom a request may mean."""
    patients: tuple[str, ...] = getattr(request.request, "patients", ())
    return patients


def _shuffled_groups(rng: random.Random, chosen: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Mix requests of several kinds; those of one kind keep their order."""
    queues = {key: [request for kind, request in chosen if kind == key] for key, _ in chosen}
    order = [key for key, _ in chosen]
    rng.shuffle(order)
    return [(key, queues[key].pop(0)) for key in order]


class _Taken:
    """What the scenes of a shift contain."""

    def __init__(self) -> None:
        self._keys: set[tuple[str, ...]] = set()
        self._names: list[tuple[str, str]] = []

    def add(self, resources: Sequence[Resource], requests: Sequence[Any]) -> bool:
        """Add a scene, unless it shares an id, a patient's name and date of birth, or another name with others.

        Other names (of places, organizations, …) must not begin alike, because searches for them find both.

        Args:
            resources: The resources of the scene.
            requests: The requests. If nobody is on file whom a request names, no other scene may have the patient.

        Returns:
            Whether the scene was added.
        """
        patients = {
            (*name_of(resource), str(resource.get("birthDate")))
            for resource in resources
            if resource["resourceType"] == "Patient"
        }
        keys = patients | _absent(requests) | {(resource["resourceType"], resource["id"]) for resource in resources}
        keys |= {
            ("Practitioner", *name_of(resource)) for resource in resources if resource["resourceType"] == "Practitioner"
        }
        names = [
            (resource["resourceType"], resource["name"])
            for resource in resources
            if isinstance(resource.get("name"), str)
        ]
        alike = any(
            kind == other and (name.startswith(other_name) or other_name.startswith(name))
            for kind, name in names
            for other, other_name in self._names
        )
        if alike or keys & self._keys:
            return False
        self._keys |= keys
        self._names += names
        return True


def _absent(requests: Sequence[Any]) -> set[tuple[str, ...]]:
    """Return the names and dates of birth of the patients who must not be on file."""
    asks = (
        request.ask
        for request in requests
        if not getattr(request, "patients", ("",)) and hasattr(request.ask, "patient")
    )
    return {(ask.patient.given, ask.patient.family, ask.patient.birth_date) for ask in asks}


_CONTESTED = 0.7
"""Probability that a colleague books one of the first slots that a request may ask for while the agent works on it."""
_AFTER = (20, 240)
"""Minimum and maximum number of seconds from the beginning of this work to the booking."""
_FIRST = 3
"""Number of slots among which the colleague's first choice is drawn."""
_CHOICES = 4


def draw_bookings(
    rng: random.Random, scene: ClinicScene, requests: Sequence[DeskRequest], count: int, minutes: int
) -> Iterator[ColleagueBooking]:
    """Draw bookings at a place, for people about whom no request is.

    Args:
        rng: Random generator.
        scene: The place.
        requests: The requests about the place.
        count: Number of bookings.
        minutes: Minutes from the start of the shift until the last booking.
    """
    named = {id for request in requests for id in getattr(request.request, "patients", ())}
    others = [person.id for person in scene.people if person.id not in named]
    doctors, now = scene.by_schedule(), parse_instant(scene.now)
    free = [slot for slot in scene.slots_in_order if slot.status == "free" and slot.start > scene.now]
    rivals = [(request, slots) for request in requests if (slots := _slots_for(request, scene, free))]
    for _ in range(count if others else 0):
        if rivals and rng.random() < _CONTESTED:
            rival, slots = rng.choice(rivals)
            place = rng.randrange(min(_FIRST, len(slots)))
            when: dict[str, Any] = {"task": rival.id, "after": rng.randint(*_AFTER)}
        else:
            service = rng.choice(scene.practitioners).service
            slots = [slot for slot in free if doctors[slot.schedule].service == service]
            place = rng.randrange(max(len(slots) // 3, 1))
            when = {"at": instant(now + timedelta(minutes=rng.randint(1, minutes)))}
        choices = tuple((slot, doctors[slot.schedule].person.id) for slot in slots[place : place + _CHOICES])
        yield ColleagueBooking(patient=rng.choice(others), choices=choices, **when)


def _slots_for(request: DeskRequest, scene: ClinicScene, free: Sequence[ClinicSlot]) -> list[ClinicSlot]:
    """Return the free slots that a request may ask for; none if it asks for no slot."""
    ask, doctors = request.request.ask, scene.by_schedule()
    if isinstance(ask, BookingContent):
        suitable = [slot for slot in free if ask.wants(doctors[slot.schedule]) and ask.suits(slot.start, slot.minutes)]
        if isinstance(scene, PolicyClinicScene) and len(request.request.patients) == 1:
            values = values_for(ask, scene, scene.library)
            limits = limits_for(values, ask, request.request.patients[0], Calendar.at_start(scene))
            suitable = [slot for slot in suitable if limits and limits.suits(slot.start, slot.minutes)]
        return suitable
    if isinstance(ask, ChangeContent) and ask.change == "move":
        own = [slot for slot in free if ask.is_with(doctors[slot.schedule].person)]
        return [slot for slot in own if ask.suits(slot.start, slot.minutes)]
    return []
