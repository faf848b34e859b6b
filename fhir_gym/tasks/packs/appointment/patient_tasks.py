"""Base classes of tasks about one patient: look up a record that may be absent, and create a record."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Generic, TypeVar

from typing_extensions import override

from fhir_gym.actions import Action, Finish, Post, Put
from fhir_gym.fhir import World
from fhir_gym.tasks import (
    Candidate,
    Check,
    ExpectedChange,
    FinishedEpisode,
    Gold,
    Params,
    SceneParams,
    SceneTask,
    equal,
)
from fhir_gym.tasks.authoring import Person, created_check, new_resource
from fhir_gym.tasks.packs.appointment.patient_scenes import PatientScene
from fhir_gym.types import Resource

PRESENT, ABSENT = "present", "absent"
"""The outcomes of a look-up: the record is on file, or it is not."""


class PatientParams(SceneParams):
    """Parameters of a task about one patient.

    Attributes:
        patient: The patient whom the prompt names.
    """

    patient: Person


class PatientCandidate(Params):
    """A patient whom the prompt could name.

    Attributes:
        patient: Id of the patient.
        record: Reference to the record that the prompt asks about, such as ``Coverage/S12``; empty if there is none.
    """

    patient: str
    record: str = ""

    @property
    def target(self) -> str:
        """Reference to the record, or to the patient if there is none."""
        return self.record or f"Patient/{self.patient}"

    @property
    def record_id(self) -> str:
        """Id of the record; empty if there is none."""
        return self.record.partition("/")[2]


P = TypeVar("P", bound=PatientParams)
S = TypeVar("S", bound=PatientScene)
C = TypeVar("C", bound=Candidate)


class PatientTask(SceneTask[P, S, C], Generic[P, S, C]):
    """A task about one of several patients with similar details."""

    @override
    def scene_resources(self, scene: S, world: World) -> list[Resource]:
        return scene.resources()

    @override
    def prompt_values(self, p: P, world: World) -> dict[str, str]:
        return {"patient": p.patient.name, "id": p.patient.id}

    @staticmethod
    def both_outcomes(present: list[C], absent: list[C], fewest: int = 4) -> dict[str, list[C]]:
        """Return the candidates by outcome, or nothing if one of the outcomes has fewer than `fewest` candidates.

        Therefore the tasks of both outcomes accept the same scenes, and a scene does not reveal the outcome.
        """
        return {PRESENT: present, ABSENT: absent} if min(len(present), len(absent)) >= fewest else {}


class LookupTask(PatientTask[P, S, C], Generic[P, S, C]):
    """Look up one record; the answer is its id, or an empty list if there is no such record.

    There is one task for each outcome. The two tasks differ only in `strata`, which is `PRESENT` or `ABSENT`.
    """

    difficulty = 1
    kind = "query"
    required_tools: ClassVar[tuple[tuple[str, ...], ...]] = (("search",),)
    prohibited_tools = ("create", "update", "patch", "delete")
    gold_steps = 2

    @abstractmethod
    def record(self, p: P) -> Resource:
        """Build the record that answers the prompt or, if no such record is on file, a record that would answer it."""

    @property
    def present(self) -> bool:
        """Whether the record is on file."""
        return self.strata == (PRESENT,)

    @override
    def required_records(self, p: P) -> tuple[str, ...]:
        record = self.record(p)
        return (f"{record['resourceType']}/{record['id']}",) if self.present else ()

    @override
    def requires_evidence(self, p: P) -> bool:
        return not self.present

    @override
    def counterfactual(self, p: P, world: World) -> list[Resource]:
        return [] if self.present else [self.record(p)]

    @override
    def checks(self, p: P, end: FinishedEpisode) -> Iterator[Check]:
        record = self.record(p)
        (answer,) = end.answer_ids(record["resourceType"])
        yield equal("answer", answer, record["id"] if self.present else None)


class CreateTask(PatientTask[P, S, C], Generic[P, S, C]):
    """Create one record; the answer is its id.

    Attributes:
        creates: Resource type of the record.
        called: Name of the record, for the name of the check that compares the answer.
    """

    kind = "action"
    prohibited_tools: ClassVar[tuple[str, ...]] = ("delete",)
    gold_steps = 2
    creates: ClassVar[str]
    called: ClassVar[str]

    @abstractmethod
    def new_record(self, p: P) -> Resource:
        """Build the record that the reference solution creates."""

    @abstractmethod
    def record_checks(self, p: P, record: Resource, end: FinishedEpisode) -> Iterator[Check]:
        """Yield checks of the new record's content; `record` is empty if the agent created no record."""

    @override
    def gold(self, p: P) -> Gold:
        created = yield Post(f"/{self.creates}", self.new_record(p))
        yield Finish([created["id"]])

    @override
    def expected_changes(self, p: P) -> tuple[ExpectedChange, ...]:
        return (ExpectedChange("created", self.creates),)

    @override
    def checks(self, p: P, end: FinishedEpisode) -> Iterator[Check]:
        (answer,) = end.answer_ids(self.creates)
        record = new_resource(end, self.creates, answer)
        yield created_check(end, self.creates)
        yield from self.record_checks(p, record, end)
        yield equal("answer", answer, record.get("id", f"the id of the new {self.called}"))

    def decoy_misses(
        self, p: P, gold: Sequence[Action], decoys: Iterable[str]
    ) -> Iterator[tuple[str, Sequence[Action]]]:
        """Yield wrong solutions that overwrite an existing similar record, or answer its id."""
        for id in decoys:
            overwrite = Put(f"/{self.creates}/{id}", {**self.new_record(p), "id": id})
            yield f"overwrites {self.creates}/{id}", [overwrite, Finish([id])]
            yield f"creates a record, but answers {id}", [*gold[:-1], Finish([id])]

    def put_bodies(self, bodies: Mapping[str, Resource]) -> Iterator[tuple[str, Sequence[Action]]]:
        """Yield, for each body, the solution that creates the record by PUT under an id that the agent chooses."""
        id = "chosen-by-hand"
        for name, body in bodies.items():
            yield name, [Put(f"/{self.creates}/{id}", {**body, "id": id}), Finish([id])]


def element_checks(record: Resource, elements: Iterable[str], start: str) -> Iterator[Check]:
    """Yield a check for each element that a new record must have; the names of the checks begin with `start`."""
    for element in elements:
        there = not record or element in record
        yield Check(name=f"{start} {element}", passed=there, actual=record.get(element), level="exists")
