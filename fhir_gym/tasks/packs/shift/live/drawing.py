"""Draw the requests and events of a live shift."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import Any

from fhir_gym.errors import TaskError
from fhir_gym.fhir import World
from fhir_gym.tasks import IdAllocator
from fhir_gym.tasks.authoring import Person, instant, namesake, patient_resource
from fhir_gym.tasks.packs.shift.clinic import ClinicScene
from fhir_gym.tasks.packs.shift.kind import RequestKind, Size
from fhir_gym.tasks.packs.shift.live.bookings import draw_bookings
from fhir_gym.tasks.packs.shift.live.desk_policies import desk_subjects, draw_desk_library
from fhir_gym.tasks.packs.shift.live.plan import (
    IS_AGREED,
    NOT_GIVEN,
    WHICH_PATIENT,
    ColleagueBooking,
    DeskRequest,
    Priority,
)
from fhir_gym.tasks.packs.shift.wishes import TimeWishes
from fhir_gym.types import Resource

_TRIES = 200
_PRIORITIES: tuple[Priority, ...] = ("routine", "routine", "routine", "urgent", "stat")
_SLACK: Mapping[str, tuple[int, int]] = {"routine": (10, 40), "urgent": (5, 20), "stat": (0, 10)}
"""Minutes between the time at which a steady worker is done with a request and its due time, by priority."""
_RANK: Mapping[str, int] = {"stat": 0, "urgent": 1, "routine": 2}
_SPEEDS = (1.0, 0.85, 0.7, 0.55, 0.4)
"""Shares of the minutes that requests need at most, for which due times are tried."""
_MARGIN = 15
_SHORT = 3
"""Level of a short shift."""
_ASKING = 0.2
_LONGEST_ANSWER = 9
"""Maximum number of minutes until a question is answered."""
_NAMESAKE = 0.7
_WITHDRAWN = 0.08
_HURRIED = 0.08
_REWORDED = 0.5
"""Probability that the description of a request with wishes is amended."""
_AMENDED = (0.2, 0.8)
"""The part of a shift, as shares of its length, in which amendments of policies come into force."""
_STEP = 5
"""Amendments come into force at multiples of so many minutes after the start."""


@dataclass(frozen=True, slots=True)
class LiveSize:
    """How large a live shift is.

    Attributes:
        level: The level, 3 or 4.
        requests: Number of requests.
        kinds: Maximum number of kinds of requests that are no sweeps.
        sweeps: Maximum number of sweeps, each of another kind.
        minutes: Minutes in which requests arrive.
        waiting: Number of requests that wait at the start.
        bookings: Number of bookings by colleagues at each place with slots.
        documents: Number of policy documents.
        amendments: Number of amendments of policies that come into force during the shift.
        events: Factor of the probability that a request is withdrawn, becomes more urgent or gets another description.
        asking: Factor of the probability that a request needs a question.
    """

    level: int
    requests: int
    kinds: int
    sweeps: int
    minutes: int
    waiting: int
    bookings: int
    documents: int
    amendments: int = 0
    events: float = 1.0
    asking: float = 1.0


class LiveDrawing:
    """Draws one live shift.

    Args:
        rng: Random generator.
        world: The world.
        size: How large the shift is.
        kinds: All kinds by their keys.
    """

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
        self.practitioners = self._staff()
        self.namesakes: list[Resource] = []
        self._named = Counter(_name(one) for one in self._patients())
        self.requests = self._schedule(chosen)
        self.bookings = tuple(self._draw_bookings())
        subjects = desk_subjects(kinds, self.scenes)
        self.library = draw_desk_library(rng, self._ids, self.now, subjects, size.documents)

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
                if taken.add(kind.resources(scene, self._world), requests):
                    break
            else:
                raise TaskError(f"kind {key} found no scene without records of others in {_TRIES} tries")
            scenes[key] = scene
            chosen += [(key, one) for one in requests]
        return scenes, chosen

    def _share(self) -> Counter[str]:
        """Draw the kinds, and share the requests among them: one for each kind of sweep, and the rest evenly."""
        size = self._size
        sweeps = sorted(key for key, kind in self._kinds.items() if kind.is_sweep)
        others = sorted(self._kinds.keys() - set(sweeps))
        chosen = self._rng.sample(sweeps, min(size.sweeps, len(sweeps), size.requests - 1))
        left = size.requests - len(chosen)
        kinds = self._rng.sample(others, min(size.kinds, len(others), left))
        return Counter(chosen) + Counter(kinds[number % len(kinds)] for number in range(left))

    def _draw_amendments(self, chosen: Sequence[str]) -> dict[str, list[datetime]]:
        """Draw for each kind the moments at which its policies are amended, all of them far from start and end."""
        found: dict[str, list[datetime]] = {key: [] for key in chosen}
        amended = [key for key in chosen if self._kinds[key].has_policies]
        first, last = (round(self._size.minutes * share) for share in _AMENDED)
        possible = [*range(first + -first % _STEP, last + 1, _STEP)]
        for minutes in self._rng.sample(possible, min(self._size.amendments, len(possible))):
            if amended:
                found[self._rng.choice(amended)].append(self.now + timedelta(minutes=minutes))
        return found

    def _draw_kind(
        self, kind: RequestKind[Any, Any], count: int, amended_at: tuple[datetime, ...]
    ) -> tuple[Any, Sequence[Any]]:
        size = Size(1 if self._is_small(kind) else self._size.level, count, amended_at)
        for _ in range(_TRIES):
            wanted = kind.draw_outcomes(self._rng, count)
            scene = kind.draw_scene(self._rng, self._world, size)
            chosen = kind.choose(self._rng, self._world, scene, wanted)
            if chosen is not None:
                return scene, chosen
        raise TaskError(f"kind {kind.key} found no scene for its requests in {_TRIES} tries")

    def _is_small(self, kind: RequestKind[Any, Any]) -> bool:
        """Whether requests of a kind are smaller than they can be: a long sweep would take half of a short shift."""
        return kind.is_sweep and self._size.level == _SHORT

    def _minutes(self, kind: RequestKind[Any, Any]) -> int:
        """Return the minutes of work that a request of a kind needs at most."""
        return kind.minutes // 2 if self._is_small(kind) else kind.minutes

    def _staff(self) -> list[str]:
        """Return the practitioners who hand in requests."""
        ids = sorted(self._world.ids("Practitioner"))
        return [f"Practitioner/{id}" for id in self._rng.sample(ids, min(5, len(ids)))]

    def _schedule(self, chosen: Sequence[tuple[str, Any]]) -> tuple[DeskRequest, ...]:
        """Draw the times of the requests, and the order in which they arrive."""
        rng, size = self._rng, self._size
        order = _shuffled_groups(rng, chosen)
        later = sorted(rng.randint(1, size.minutes) for _ in range(len(order) - size.waiting))
        arrivals = [*[-rng.randint(1, 60) for _ in range(size.waiting)], *later]
        arrivals[: size.waiting] = sorted(arrivals[: size.waiting])
        priorities = [rng.choice(_PRIORITIES) for _ in order]
        minutes = [self._minutes(self._kinds[kind]) for kind, _ in order]
        ends = completion_times(arrivals, [_RANK[one] for one in priorities], minutes)
        dues = [_rounded(end + rng.randint(*_SLACK[one])) for end, one in zip(ends, priorities, strict=True)]
        # Who always handles the request that is due first must be in time, too, at any speed. Faster work is not always
        # earlier: an urgent request may arrive just after a long one was begun.
        for speed in _SPEEDS:
            ends = completion_times(arrivals, dues, [one * speed for one in minutes])
            dues = [max(due, _rounded(end + _MARGIN)) for end, due in zip(ends, dues, strict=True)]
        longest = max(minutes)
        own = zip(dues, arrivals, minutes, strict=True)
        dues = [max(due, _rounded(arrival + longest + one + 5)) for due, arrival, one in own]
        timed = zip(order, arrivals, dues, priorities, strict=True)
        return tuple(self._request(*one, arrival, due, priority) for one, arrival, due, priority in timed)

    def _request(self, key: str, request: Any, arrival: int, due: int, priority: Priority) -> DeskRequest:
        rng, kind = self._rng, self._kinds[key]
        wording, first = rng.randrange(3), self._first_version(request)
        texts = [kind.text(one.ask, wording) for one in (request, first)]
        asks, requester = "", rng.choice(self.practitioners)
        drawn, person, half = rng.random(), self._person(key, request), self._size.asking * _ASKING / 2
        is_agreed_asked = not kind.value and drawn < half
        unclear = person is not None and half <= drawn < 2 * half and texts[0].count(person.birth_date) == 1
        if is_agreed_asked:
            asks, requester = IS_AGREED, f"Organization/{rng.choice(self.organizations[1:])['id']}"
        if unclear and person is not None:
            texts = [one.replace(person.birth_date, NOT_GIVEN) for one in texts]
            if rng.random() < _NAMESAKE:
                self._add_namesake(key, person)
            asks = WHICH_PATIENT if self._named[person.given, person.family] > 1 else ""
        elif person is not None and rng.random() < half:
            self._add_namesake(key, person)
        fate, withdrawn = rng.random(), self._size.events * _WITHDRAWN
        rewords = fate >= withdrawn and texts[0] != texts[1] and rng.random() < self._size.events * _REWORDED
        changed = max(arrival, 0) + rng.randint(2, 20)
        longest = max(self._minutes(self._kinds[one]) for one in self.scenes)
        # When the answer arrives, the longest other request may just have been begun.
        wait = longest + _LONGEST_ANSWER if asks else 0
        due, hurried_due = _rounded(due + wait), _rounded(changed + longest + 3 * self._minutes(kind) + wait)
        hurries = withdrawn <= fate < withdrawn + self._size.events * _HURRIED
        hurries = hurries and priority != "stat" and hurried_due < due
        return DeskRequest(
            id=self._ids.new("Task"),
            kind=key,
            request=request,
            text=texts[0],
            arrives=self._time(arrival),
            due=self._time(due),
            priority=priority,
            requester=requester,
            asks=asks,
            agreed=asks != IS_AGREED or rng.random() < 0.6,
            answer_after=rng.randint(3, _LONGEST_ANSWER),
            withdrawn=self._time(changed) if fate < withdrawn else "",
            hurried=self._time(changed) if hurries else "",
            hurried_due=self._time(hurried_due) if hurries else "",
            reworded=self._time(changed) if rewords else "",
            first=first if rewords else None,
            first_text=texts[1] if rewords else "",
        )

    def _first_version(self, request: Any) -> Any:
        """Return a request without one of its wishes; the same request if it has none."""
        asks = [*request.ask.without_one_wish()] if isinstance(request.ask, TimeWishes) else []
        return request.model_copy(update={"ask": self._rng.choice(asks)}) if asks else request

    def _person(self, key: str, request: Any) -> Person | None:
        """Return the one patient whom a request names; None if it names nobody, nobody on file or several."""
        ids, people = getattr(request, "patients", ()), getattr(self.scenes[key], "people", ())
        found = [one for one in people if isinstance(one, Person) and one.id in ids]
        return found[0] if len(found) == 1 and hasattr(request.ask, "patient") else None

    def _patients(self) -> Iterator[Resource]:
        for key, scene in self.scenes.items():
            yield from (
                one for one in self._kinds[key].resources(scene, self._world) if one["resourceType"] == "Patient"
            )

    def _add_namesake(self, key: str, person: Person) -> None:
        """Add a patient with the same name and a date of birth that no patient of this name has."""
        taken = {one.birth_date for one in self.scenes[key].people}
        for _ in range(_TRIES):
            other = namesake(self._rng, person, person.id)
            if other.birth_date not in taken:
                new = other.model_copy(update={"id": self._ids.new("Patient")})
                self.namesakes.append(patient_resource(new))
                self._named[person.given, person.family] += 1
                return

    def _draw_bookings(self) -> Iterator[ColleagueBooking]:
        """Draw what colleagues book at each place."""
        for key, scene in self.scenes.items():
            if isinstance(scene, ClinicScene) and not self._kinds[key].is_sweep:
                requests = [one for one in self.requests if one.kind == key]
                yield from draw_bookings(self._rng, scene, requests, self._size.bookings, self._size.minutes)

    def _time(self, minutes: int) -> str:
        return instant(self.now + timedelta(minutes=minutes))


_REQUESTERS = ("Brightwater Employers' Health Service", "Larkspur Relocation Partners", "Old Mill Boarding School")


def _name(patient: Resource) -> tuple[str, str]:
    name = (patient.get("name") or [{}])[0]
    return " ".join(name.get("given", ())), str(name.get("family"))


def _organization(id: str, name: str) -> Resource:
    return {"resourceType": "Organization", "id": id, "active": True, "name": name}


def _shuffled_groups(rng: random.Random, chosen: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Mix requests of several kinds; those of one kind keep their order."""
    queues = {key: [one for kind, one in chosen if kind == key] for key, _ in chosen}
    order = [key for key, _ in chosen]
    rng.shuffle(order)
    return [(key, queues[key].pop(0)) for key in order]


def completion_times(arrivals: Sequence[int], ranks: Sequence[int], minutes: Sequence[float]) -> list[float]:
    """Return when somebody who takes the waiting request with the lowest rank next is done with each request.

    Args:
        arrivals: Minutes at which the requests arrive, in order.
        ranks: Their ranks.
        minutes: Minutes of work that they need.
    """
    ends = [0.0] * len(arrivals)
    left, now = list(range(len(arrivals))), 0.0
    while left:
        waiting = [one for one in left if arrivals[one] <= now]
        if not waiting:
            now = float(arrivals[left[0]])
            continue
        taken = min(waiting, key=lambda one: (ranks[one], arrivals[one], one))
        now += minutes[taken]
        ends[taken] = now
        left.remove(taken)
    return ends


def _rounded(minutes: float) -> int:
    """Round up to a multiple of five minutes."""
    return 5 * ceil(minutes / 5)


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
        patients = {(*_name(one), str(one.get("birthDate"))) for one in resources if one["resourceType"] == "Patient"}
        keys = patients | _absent(requests) | {(one["resourceType"], one["id"]) for one in resources}
        keys |= {("Practitioner", *_name(one)) for one in resources if one["resourceType"] == "Practitioner"}
        names = [(one["resourceType"], one["name"]) for one in resources if isinstance(one.get("name"), str)]
        alike = any(
            kind == other and (name.startswith(known) or known.startswith(name))
            for kind, name in names
            for other, known in self._names
        )
        if alike or keys & self._keys:
            return False
        self._keys |= keys
        self._names += names
        return True


def _absent(requests: Sequence[Any]) -> set[tuple[str, ...]]:
    """Return the names and dates of birth of the patients who must not be on file."""
    asks = (one.ask for one in requests if not getattr(one, "patients", ("",)) and hasattr(one.ask, "patient"))
    return {(ask.patient.given, ask.patient.family, ask.patient.birth_date) for ask in asks}
