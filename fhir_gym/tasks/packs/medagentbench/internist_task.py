"""Shared parts of the tasks: patients with record numbers or names; answers of numbers, texts and booleans."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar, Generic, Protocol, TypeVar

from typing_extensions import override

from fhir_gym.actions import Action, Get
from fhir_gym.errors import TaskError
from fhir_gym.fhir import World
from fhir_gym.tasks import Check, ExpectedChange, SceneParams, SceneTask
from fhir_gym.tasks.authoring import (
    Person,
    PersonCandidate,
    confusable_dates,
    draw_lookalikes,
    find_patient,
    new_person,
    parse_instant,
    patient_resource,
    person_called,
    person_candidates,
)
from fhir_gym.tasks.grading import EmptyAnswer, answer_flag, answer_number
from fhir_gym.types import Json, Resource

ENV_ID = "FHIRAgent/MedAgentBench-v0"
READ_ONLY = ("create", "update", "patch", "delete")
NO_RESULT = -1
"""The correct answer if no result counts."""

_TRIES = 1_000
_EXACT = 1e-6


class MrnAllocator:
    """Allocates medical record numbers (``S`` and seven digits), which are also the Patients' ids.

    Args:
        rng: Random generator.
        world: The world, whose record numbers are not allocated again.
    """

    def __init__(self, rng: random.Random, world: World) -> None:
        self._rng, self._world, self._given = rng, world, set[str]()

    def new(self) -> str:
        """Return a number that no patient has.

        Raises:
            TaskError: All numbers that were tried are in use.
        """
        for _ in range(_TRIES):
            mrn = f"S{self._rng.randrange(1_000_000, 10_000_000)}"
            if mrn not in self._given and not self._world.holds("Patient", mrn):
                self._given.add(mrn)
                return mrn
        raise TaskError(f"the world {self._world.manifest.name} uses all record numbers that were tried ({_TRIES})")


def draw_namesakes(rng: random.Random, world: World, size: int) -> list[Person]:
    """Draw patients who each share their name with one or two others of the group.

    Args:
        rng: Random generator.
        world: The world; the names and record numbers of its patients are not used again.
        size: Number of patients; at least 2.
    """
    ids = MrnAllocator(rng, world)
    people: list[Person] = []
    while len(people) < size:
        left = size - len(people)
        person = new_person(rng, world, ids.new())
        others = left - 1 if left < 4 else rng.choice((1, 2) if left > 4 else (1,))
        births = rng.sample(confusable_dates(person.birth_date), others)
        name = person.given, person.family, person.gender
        people += [person, *(person_called(rng, ids.new(), *name, birth) for birth in births)]
    return people


def patient_with_mrn(person: Person) -> Resource:
    """Build the Patient of a person whose id is the medical record number."""
    kind = {"system": "http://terminology.hl7.org/CodeSystem/v2-0203", "code": "MR", "display": "Medical Record Number"}
    resource = patient_resource(person)
    head = {"resourceType": resource.pop("resourceType"), "id": resource.pop("id")}
    return {**head, "identifier": [{"use": "usual", "type": {"coding": [kind]}, "value": person.id}], **resource}


def number_check(name: str, actual: Json, expected: float | None, tolerance: float = 0.0) -> Check:
    """Check that an item of the answer is the expected number, or -1 if `expected` is None."""
    expected_number = NO_RESULT if expected is None else expected
    said = answer_number(actual)
    close = said is not None and abs(said - expected_number) <= max(tolerance, _EXACT)
    return Check(name=name, passed=close, expected=expected_number, actual=actual)


def ids_only(gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
    """Yield wrong solutions: the reference solution in which one search returns only ids."""
    for n, action in enumerate(gold):
        if action.kind == "GET":
            url = f"{action.url}{'&' if '?' in action.url else '?'}_elements=id"
            yield f"sees only ids of {action.url}", [*gold[:n], Get(url), *gold[n + 1 :]]


def same_minute(actual: Json, moment: str) -> bool:
    """Return whether a dateTime, in any time zone, differs from an instant by less than a minute."""
    if not isinstance(actual, str) or "T" not in actual:
        return False
    try:
        written: datetime = parse_instant(actual)
        return abs(written - parse_instant(moment)) < timedelta(minutes=1)
    except (ValueError, OverflowError):
        return False


def _is_number(item: Json) -> bool:
    return answer_number(item) is not None


def _is_text(item: Json) -> bool:
    return isinstance(item, str) and bool(item.strip())


def _is_flag(item: Json) -> bool:
    return answer_flag(item) is not None


_KINDS: Mapping[str, Callable[[Json], bool]] = {"number": _is_number, "text": _is_text, "flag": _is_flag}


@dataclass(frozen=True, slots=True)
class ItemsAnswer:
    """An answer of numbers, texts and flags (true or false).

    Attributes:
        description: The form of the answer in words.
        shapes: Accepted forms, each a sequence of ``number``, ``text`` and ``flag``.
    """

    description: str
    shapes: tuple[tuple[str, ...], ...]

    def problem(self, answer: list[Json] | None, base_url: str) -> str | None:
        """Describe the error in the form of an answer; return None if the form is right."""
        if answer is None:
            return "the episode ended without FINISH"
        for shape in self.shapes:
            if len(shape) == len(answer) and all(_KINDS[kind](item) for kind, item in zip(shape, answer, strict=True)):
                return None
        return f"not of this form: {answer!r}"[:200]


_FEWEST = 5
_EARLIER = (0, 0, 1, 1, 2)
"""Numbers of earlier records of a patient to choose from."""


class _PeopleScene(Protocol):
    @property
    def people(self) -> tuple[Person, ...]: ...


class NamedPatientParams(SceneParams):
    """Parameters of a task about a patient named in the prompt.

    Attributes:
        now: Current time (instant).
        mrn: Record number of the patient.
        person: The patient; None if the prompt gives the record number.
    """

    now: str
    mrn: str
    person: Person | None = None


P = TypeVar("P", bound=NamedPatientParams)
S = TypeVar("S", bound=_PeopleScene)


class NamedPatientTask(SceneTask[P, S, PersonCandidate], Generic[P, S]):
    """A task that creates one record for a patient named in the prompt.

    Attributes:
        creates: Resource type of the new record.
    """

    difficulty = 2
    kind = "action"
    required_tools = (("search", "create"),)
    prohibited_tools = ("delete",)
    answer = EmptyAnswer()
    gold_steps = 3
    fewest = _FEWEST
    creates: ClassVar[str]

    @override
    def candidates(self, scene: S) -> dict[str, list[PersonCandidate]]:
        return {"": person_candidates(scene.people)}

    def find(self, p: P) -> Generator[Action, Json, str]:
        """Return the patient's record number; search for the patient if the prompt does not state the number."""
        return (yield from find_patient(p.person)) if p.person else p.mrn

    @override
    def expected_changes(self, p: P) -> tuple[ExpectedChange, ...]:
        return (ExpectedChange("created", self.creates),)

    @override
    def required_records(self, p: P) -> tuple[str, ...]:
        return (f"Patient/{p.mrn}",) if p.person else ()


def draw_people(rng: random.Random, world: World) -> tuple[tuple[Person, ...], list[str]]:
    """Draw people who are easily confused, and for each earlier record to draw, the record number of its patient."""
    people = draw_lookalikes(rng, world, MrnAllocator(rng, world).new, rng.randrange(8, 12), fewest=_FEWEST)
    return people, [person.id for person in people for _ in range(rng.choice(_EARLIER))]
