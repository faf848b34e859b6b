"""Draw what requesters say, forget and change their minds about, apart from all times."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fhir_gym.tasks import IdAllocator
from fhir_gym.tasks.authoring import Person, namesake, patient_resource
from fhir_gym.tasks.packs.shift.kind import RequestKind
from fhir_gym.tasks.packs.shift.live.plan import IS_AGREED, NOT_GIVEN, WHICH_PATIENT, DeskRequest, LiveSize, Priority
from fhir_gym.tasks.packs.shift.preferences import TimePreferences
from fhir_gym.types import Resource

_TRIES = 200
_ASKING = 0.16
"""Probability that a request needs a question."""
_MOST_ASKING = 0.2
"""Maximum share of the requests that need a question."""
LONGEST_ANSWER = 9
"""Maximum number of minutes until a question is answered."""
_AGREED = 0.6
_NAMESAKE = 0.7
_REWORDED = 0.7
"""Probability that the description of a request with wishes changes."""
_BEFORE_WORK = 0.5
"""Share of these changes that happen before somebody works on the request; the others come in a message."""
_MESSAGE_WITHDRAWS = 0.15
"""Probability that a message withdraws a request while somebody works on it."""
_MESSAGE_AFTER = (20, 240)
"""Minimum and maximum number of seconds from the beginning of the work to the message."""


class RequestDrawing:
    """Draws the requests of one live shift."""

    def __init__(
        self,
        rng: random.Random,
        ids: IdAllocator,
        size: LiveSize,
        kinds: Mapping[str, RequestKind[Any, Any]],
        scenes: Mapping[str, Any],
        practitioners: Sequence[str],
        organizations: Sequence[str],
        patients: Iterable[Resource],
    ) -> None:
        self._rng, self._ids, self._size, self._kinds, self._scenes = rng, ids, size, kinds, scenes
        self._practitioners, self._organizations = practitioners, organizations
        self._named = Counter(name_of(patient) for patient in patients)
        self._asking = 0
        self.namesakes: list[Resource] = []
        """Further patients, with the names of patients whom requests name."""

    def draw(self, key: str, request: Any, priority: Priority) -> DeskRequest:
        """Draw a request at the desk without its times."""
        rng, kind = self._rng, self._kinds[key]
        wording, first = rng.randrange(3), self._first_version(request)
        texts = [kind.text(version.ask, wording) for version in (request, first)]
        asks, requester = "", rng.choice(self._practitioners)
        may_ask = self._asking < self._size.asking * _MOST_ASKING * self._size.requests
        drawn, person, half = rng.random(), self._person(key, request), may_ask * self._size.asking * _ASKING / 2
        if not (kind.value or kind.is_sweep) and drawn < half:
            asks, requester = IS_AGREED, rng.choice(self._organizations)
        if person is not None and half <= drawn < 2 * half and texts[0].count(person.birth_date) == 1:
            texts = [text.replace(person.birth_date, NOT_GIVEN) for text in texts]
            if rng.random() < _NAMESAKE:
                self._add_namesake(key, person)
            asks = WHICH_PATIENT if self._named[person.given, person.family] > 1 else ""
        elif person is not None and rng.random() < half:
            self._add_namesake(key, person)
        self._asking += bool(asks)
        changes = texts[0] != texts[1] and self._happens(_REWORDED)
        message_changes = changes and rng.random() >= _BEFORE_WORK
        message_withdraws = not (changes or asks) and self._happens(_MESSAGE_WITHDRAWS)
        return DeskRequest(
            id=self._ids.new("Task"),
            kind=key,
            request=request,
            text=texts[0],
            priority=priority,
            requester=requester,
            asks=asks,
            agreed=asks != IS_AGREED or rng.random() < _AGREED,
            answer_after=rng.randint(3, LONGEST_ANSWER),
            message_after=rng.randint(*_MESSAGE_AFTER) if message_changes or message_withdraws else 0,
            message_withdraws=message_withdraws,
            first=first if changes else None,
            first_text=texts[1] if changes else "",
        )

    def _happens(self, probability: float) -> bool:
        return self._rng.random() < self._size.events * probability

    def _first_version(self, request: Any) -> Any:
        """Return a request without one of its wishes; the same request if it has none."""
        asks = [*request.ask.without_one_wish()] if isinstance(request.ask, TimePreferences) else []
        return request.model_copy(update={"ask": self._rng.choice(asks)}) if asks else request

    def _person(self, key: str, request: Any) -> Person | None:
        """Return the one patient whom a request names; None if it names nobody, nobody on file or several."""
        ids, people = getattr(request, "patients", ()), getattr(self._scenes[key], "people", ())
        matching_people = [person for person in people if isinstance(person, Person) and person.id in ids]
        return matching_people[0] if len(matching_people) == 1 and hasattr(request.ask, "patient") else None

    def _add_namesake(self, key: str, person: Person) -> None:
        """Add a patient with the same name and a date of birth that no patient of this name has."""
        taken = {other_person.birth_date for other_person in self._scenes[key].people}
        for _ in range(_TRIES):
            other = namesake(self._rng, person, person.id)
            if other.birth_date not in taken:
                new = other.model_copy(update={"id": self._ids.new("Patient")})
                self.namesakes.append(patient_resource(new))
                self._named[person.given, person.family] += 1
                return


def name_of(patient: Resource) -> tuple[str, str]:
    """Return the given names and the family name of a Patient."""
    name = (patient.get("name") or [{}])[0]
    return " ".join(name.get("given", ())), str(name.get("family"))
