"""Patients that requests name: one, none or several."""

from __future__ import annotations

import random
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import (
    IdAllocator,
    Person,
    absent_combinations,
    draw_lookalikes,
    patient_resource,
    similar_person,
)
from fhir_gym.tasks.core.ids import seeded_random
from fhir_gym.tasks.packs.shift.episode_log import EpisodeLog
from fhir_gym.tasks.packs.shift.kind import (
    Knowledge,
    Request,
    RequestKind,
    RequestSampler,
    S,
    Solution,
    WriteJudge,
    is_mixed,
)
from fhir_gym.tasks.packs.shift.lookups import Named, patients_called
from fhir_gym.tasks.packs.shift.outcomes import DONE, NO_SUCH_PATIENT, SEVERAL_PATIENTS
from fhir_gym.types import Resource

PATIENT_RULE = (
    "- A patient is the one whose given name, family name and date of birth all match exactly. If there is none, the "
    f'outcome is "{NO_SUCH_PATIENT}"; if there are several, "{SEVERAL_PATIENTS}".'
)
"""How requests identify patients, for prompts."""


class PatientRequest(Request):
    """A request about a patient.

    Attributes:
        patients: Ids of the patients with the name and the date of birth of the request.
    """

    patients: tuple[str, ...]


Q = TypeVar("Q", bound=PatientRequest)
_SEQUENCES = 8
"""Number of sequences of outcomes that are tried for the patients of a scene."""


class PatientKind(RequestKind[S, Q]):
    """A kind whose requests name a patient. Its scenes have the attribute `people`, its asks `patient`."""

    @override
    def solve(self, ask: Any, knowledge: Knowledge) -> Solution:
        patients = yield from patients_called(ask.patient)
        if len(patients) != 1:
            return SEVERAL_PATIENTS if patients else NO_SUCH_PATIENT
        return (yield from self.solve_for(patients[0], ask, knowledge))

    @abstractmethod
    def solve_for(self, patient: Resource, ask: Any, knowledge: Knowledge) -> Solution:
        """Solve a request about a patient like an agent that knows only the prompt."""

    @override
    def counterfactuals(self, request: Q, scene: Any) -> list[Resource]:
        if not request.patients:
            return [absent_patient(request.ask.patient, scene.people)]
        return [*self.missing_records(request, scene)] if len(request.patients) == 1 else []

    def missing_records(self, request: Q, scene: Any) -> Iterable[Resource]:
        """Return records that would exist if a declined request about a patient could be done."""
        return ()


class PatientsFirstSampler(RequestSampler[S, Q]):
    """Chooses requests about patients who are drawn first, so that every patient is equally likely in every request.

    Args:
        names: The names of the patients, in random order. For the other arguments, see `RequestSampler`.
    """

    def __init__(
        self, rng: random.Random, now: datetime, scene: S, outcomes: Sequence[str], names: Sequence[Named]
    ) -> None:
        super().__init__(rng, now, scene, outcomes)
        self.names = names

    @abstractmethod
    @override
    def draw(self, outcome: str, *, depends: bool) -> Q | None:
        """Draw a request about one of the patients; None if there is none.

        It may have another outcome if this one is impossible for its patient and must not depend on an earlier request.
        """


class PatientsFirstKind(PatientKind[S, Q]):
    """A kind of requests about patients who are drawn first."""

    sampler_type: ClassVar[type[PatientsFirstSampler[Any, Any]]]

    @override
    def choose(
        self, rng: random.Random, world: World, scene: Any, outcomes: Sequence[str], dependent: int | None = None
    ) -> tuple[Q, ...] | None:
        # No patient can have every outcome, so the patients stay while the outcomes are drawn again.
        names = names_for(rng, scene.people, DONE)
        for _ in range(_SEQUENCES):
            sampler = self.sampler_type(rng, world.now, scene, outcomes, names)
            is_complete = self.add_requests(sampler, outcomes, dependent)
            if is_complete and is_mixed([request.outcome for request in sampler.chosen]):
                return tuple(sampler.chosen)
            outcomes, dependent = self.draw_chain(rng, len(outcomes))
        return None


def draw_patients(
    rng: random.Random, world: World, ids: IdAllocator, groups: Sequence[int], twins: int
) -> list[Person]:
    """Draw patients with similar names, in random order.

    Args:
        rng: Random generator.
        world: The world.
        ids: Allocates ids.
        groups: Sizes of the groups of patients with similar names, without the twins.
        twins: Number of further patients who share name and date of birth with another patient.
    """
    drawn = (draw_lookalikes(rng, world, partial(ids.new, "Patient"), size) for size in groups)
    patients = [person for group in drawn for person in group]
    doubled = [similar_person(rng, patient, ids.new("Patient")) for patient in rng.sample(patients, twins)]
    return rng.sample([*patients, *doubled], len(patients) + twins)


def names_for(rng: random.Random, people: Sequence[Person], outcome: str) -> list[Named]:
    """Return the names and dates of birth for which an outcome is possible, in random order."""
    if outcome == NO_SUCH_PATIENT:
        names = [
            Named(given=combination[0], family=combination[1], birth_date=combination[2])
            for combination in absent_combinations(people)
        ]
    else:
        sharing = Counter(Named.of(person) for person in people)
        names = [name for name, number in sharing.items() if (number > 1) == (outcome == SEVERAL_PATIENTS)]
    return rng.sample(names, len(names))


def ids_of(name: Named, people: Sequence[Person]) -> tuple[str, ...]:
    """Return the ids of the people with a name and a date of birth."""
    details = (name.given, name.family, name.birth_date)
    return tuple(person.id for person in people if (person.given, person.family, person.birth_date) == details)


def target_among(ids: Sequence[str], people: Sequence[Person]) -> dict[str, Any]:
    """Return the fields `target` and `qualifying` of a request about the patients with a name and a date of birth.

    A single patient was chosen among those who share name and date of birth with nobody.
    """
    if len(ids) != 1:
        return {}
    qualifying = tuple(f"Patient/{patient.id}" for _, patient in single_patients(people))
    return {"target": f"Patient/{ids[0]}", "qualifying": qualifying}


def drawn_again(request: Q, earlier: Sequence[Q]) -> Q:
    """Return a request with the target and qualifying patients of the earlier request about its patient."""
    first = next(other for other in earlier if other.patients == request.patients)
    return request.model_copy(update={"target": first.target, "qualifying": first.qualifying})


def drawn_by_patient(rng: random.Random, requests: Sequence[Q]) -> Q:
    """Draw a request: first its patient, all equally likely, then one of the requests about the patient."""
    by_patient: dict[tuple[str, ...], list[Q]] = {}
    for request in requests:
        by_patient.setdefault(request.patients, []).append(request)
    drawn = rng.choice(by_patient[rng.choice([*by_patient])])
    if len(drawn.patients) != 1:
        return drawn
    qualifying = tuple(f"Patient/{id}" for (id,) in by_patient)
    return drawn.model_copy(update={"target": f"Patient/{drawn.patients[0]}", "qualifying": qualifying})


def single_patients(people: Sequence[Person]) -> Iterator[tuple[Named, Person]]:
    """Yield the patients who share name and date of birth with nobody."""
    names = [Named.of(person) for person in people]
    count = Counter(names)
    return ((name, person) for name, person in zip(names, people, strict=True) if count[name] == 1)


def absent_patient(name: Named, people: Sequence[Person]) -> Resource:
    """Return the record that a patient without a record would have."""
    other = seeded_random(name).choice([person for person in people if person.family == name.family])
    id = re.sub("[^A-Za-z0-9-]", "-", "-".join((name.given, name.family, name.birth_date)))
    return patient_resource(other.model_copy(update={**name.model_dump(), "id": id}))


def patient_not_found(request: PatientRequest, people: Sequence[Person], log: EpisodeLog, answer: str) -> bool | None:
    """Whether the agent rightly reported that there is no such patient, or more than one; None for one patient."""
    if not request.patients:
        absent = absent_patient(request.ask.patient, people)
        return answer == NO_SUCH_PATIENT and bool(log.lookups_of(absent))
    if len(request.patients) > 1:
        return answer == SEVERAL_PATIENTS and log.has_seen([f"Patient/{id}" for id in request.patients])
    return None


class PatientJudge(WriteJudge[S, Q], Generic[S, Q]):
    """Judges requests that each ask for one change for a patient. The scenes have the attribute `people`."""

    @override
    def is_rightly_declined(self, number: int) -> bool:
        scene: Any = self.scene
        not_found = patient_not_found(self.requests[number], scene.people, self.log, self.answers[number])
        return self.is_rightly_declined_for_patient(number) if not_found is None else not_found

    @abstractmethod
    def is_rightly_declined_for_patient(self, number: int) -> bool:
        """Whether a request about a single patient was rightly declined, after the agent had looked."""
