"""Base class of the tasks that create one record for a patient whom the prompt identifies by name and birth date."""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import ClassVar, Generic, Protocol, TypeVar

from typing_extensions import override

from fhir_gym.actions import Action
from fhir_gym.fhir import World
from fhir_gym.tasks import ExpectedChange, SceneParams, SceneTask
from fhir_gym.tasks.authoring import Person, PersonCandidate, draw_lookalikes, find_patient, person_candidates
from fhir_gym.tasks.grading import EmptyAnswer
from fhir_gym.tasks.packs.medagentbench.internist_task import MrnAllocator
from fhir_gym.types import Json

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
