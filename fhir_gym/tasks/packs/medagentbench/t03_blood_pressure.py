"""Task 03: record a blood pressure."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import ClassVar

from typing_extensions import override

from fhir_gym.actions import Action, Finish, Post
from fhir_gym.fhir import World
from fhir_gym.tasks import Check, FinishedEpisode, Gold, Params
from fhir_gym.tasks.authoring import (
    IdAllocator,
    Person,
    PersonCandidate,
    created_check,
    instant,
    new_resource,
    reference,
)
from fhir_gym.tasks.grading import ADD_NOTHING
from fhir_gym.tasks.packs.medagentbench.internist_task import (
    NamedPatientParams,
    NamedPatientTask,
    draw_people,
    patient_with_mrn,
)
from fhir_gym.tasks.packs.medagentbench.orders import LOINC, blood_pressure_checks
from fhir_gym.types import Json, Resource

_SYSTEM = "http://terminology.hl7.org/CodeSystem/observation-category"


class EarlierPressure(Params):
    """An earlier blood pressure.

    Attributes:
        mrn: Record number of the patient.
        when: Time of the measurement (instant).
        value: Both pressures as text.
    """

    id: str
    mrn: str
    when: str
    value: str


class PressureScene(Params):
    """Patients who are easily confused.

    Attributes:
        people: The patients.
        pressures: Their earlier blood pressures.
    """

    people: tuple[Person, ...] = ()
    pressures: tuple[EarlierPressure, ...] = ()


class BloodPressureParams(NamedPatientParams):
    """Parameters of task 03.

    Attributes:
        scene: Patients and their earlier pressures; empty if the patient is already in the world.
        systolic: Systolic pressure in mmHg.
        diastolic: Diastolic pressure in mmHg.
    """

    scene: PressureScene = PressureScene()
    systolic: int
    diastolic: int


class BloodPressure(NamedPatientTask[BloodPressureParams, PressureScene]):
    """Record a blood pressure for a patient whom the prompt identifies by name and date of birth.

    Starting state: 8 to 11 people who share given names, family names and dates of birth. Each has up to two blood
        pressures from the last few days. The patient is one of at least five people who can be identified only by all
        three details together.
    Decoys: the other people. Some have a double family name that starts with the family name of somebody else, so a
        search by family name finds both.
    Checks: there is one new Observation for the patient. It has the right category, code, time and status, and both
        values as text or as components.
    Light: an Observation was created.
    Differs from MedAgentBench: the agent has to find the patient. Any valid form of the same content is accepted. The
        Observation is stored on the server.
    """

    key = "03"
    title = "Record a blood pressure"
    category = "Recording patient data"
    required_resources = ("Patient", "Observation")
    creates = "Observation"
    prompts = (
        "I have just measured the blood pressure of {name}, born {birth_date}: {value}. Please record it.",
        "Please document on the flowsheet a blood pressure of {value}, measured just now, for {name} (date of birth "
        "{birth_date}).",
        "{name} (date of birth {birth_date}) had a blood pressure of {value} a moment ago. Please enter it into the "
        "chart.",
    )
    brief = (
        "Please record a blood pressure (BP) of {value}, measured just now, for {name}, born {birth_date}. Finish with "
        "FINISH([])."
    )
    answer_instructions = (
        "Create one new Observation with status final, the patient as subject, category vital-signs (system "
        "http://terminology.hl7.org/CodeSystem/observation-category), the flowsheet ID BP as the text of its code, the "
        'present as effectiveDateTime, and the value as a valueString such as "124/81 mmHg" (two components with LOINC '
        f"codes are accepted as well). {ADD_NOTHING} Finish with FINISH([])."
    )
    requested_elements: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Observation": (
            *("status", "category", "code", "subject", "effectiveDateTime", "effectiveInstant", "valueString"),
            *("component", "component.code", "component.valueQuantity"),
        )
    }
    harmless_additions: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "Observation": {"language": "en", "bodySite": {"text": "x"}}
    }

    @override
    def draw_scene(self, rng: random.Random, world: World) -> PressureScene:
        people, owners = draw_people(rng, world)
        ids = IdAllocator(rng, world)
        pressures = []
        for owner in owners:
            systolic, diastolic = _pressure(rng)
            when = instant(world.now - timedelta(minutes=rng.randrange(30, 5 * 24 * 60)))
            value = f"{systolic}/{diastolic} mmHg"
            pressures.append(EarlierPressure(id=ids.new("Observation"), mrn=owner, when=when, value=value))
        return PressureScene(people=people, pressures=tuple(pressures))

    @override
    def params_for(
        self, rng: random.Random, world: World, scene: PressureScene, chosen: PersonCandidate
    ) -> BloodPressureParams:
        systolic, diastolic = _pressure(rng)
        return BloodPressureParams(
            scene=scene,
            now=instant(world.now),
            mrn=chosen.id,
            person=next(person for person in scene.people if person.id == chosen.id),
            systolic=systolic,
            diastolic=diastolic,
        )

    @override
    def scene_resources(self, scene: PressureScene, world: World) -> list[Resource]:
        pressures = [
            {**_body(pressure.mrn, "vital-signs", pressure.when, pressure.value), "id": pressure.id}
            for pressure in scene.pressures
        ]
        return [*map(patient_with_mrn, scene.people), *pressures]

    @override
    def prompt_values(self, p: BloodPressureParams, world: World) -> dict[str, str]:
        value = f"{p.systolic}/{p.diastolic} mmHg"
        return {"name": p.person.name, "birth_date": p.person.birth_date, "value": value} if p.person else {}

    @override
    def gold(self, p: BloodPressureParams) -> Gold:
        mrn = yield from self.find(p)
        yield Post("/Observation", _body(mrn, "vital-signs", p.now, f"{p.systolic}/{p.diastolic} mmHg"))
        yield Finish()

    @override
    def checks(self, p: BloodPressureParams, end: FinishedEpisode) -> Iterator[Check]:
        yield created_check(end, "Observation")
        observation = new_resource(end, "Observation")
        yield from blood_pressure_checks(end, observation, p.mrn, p.now, p.systolic, p.diastolic)

    @override
    def near_misses(self, p: BloodPressureParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        find, record, finish = gold
        body = json.loads(record.body or "")
        wrong = f"{p.diastolic}/{p.systolic} mmHg"
        yield "pressures swapped", [find, Post("/Observation", {**body, "valueString": wrong}), finish]
        bare = {name: value for name, value in body.items() if name != "valueString"}
        components = _components(p.diastolic, p.systolic)
        yield "components swapped", [find, Post("/Observation", {**bare, "component": components}), finish]
        both = {**body, "component": components}
        yield "text and components disagree", [find, Post("/Observation", both), finish]

    @override
    def equivalents(self, p: BloodPressureParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        find, record, finish = gold
        body = json.loads(record.body or "")
        bare = {name: value for name, value in body.items() if name != "valueString"}
        components = _components(p.systolic, p.diastolic)
        panel = {"coding": [{"system": LOINC, "code": "85354-9"}], "text": "BP"}
        others: dict[str, Resource] = {
            "as components": {**bare, "component": components},
            "a coded panel": {**bare, "component": components, "code": panel},
            "the benchmark's coding": {**body, "code": {"coding": [{"system": LOINC, "code": "BP"}], "text": "BP"}},
            "milliseconds": {**body, "effectiveDateTime": p.now.replace("Z", ".500Z")},
            "spaces in the value": {**body, "valueString": f"{p.systolic} / {p.diastolic} mmHg"},
        }
        for name, other in others.items():
            yield name, [find, Post("/Observation", other), finish]


def _pressure(rng: random.Random) -> tuple[int, int]:
    systolic = rng.randrange(92, 188)
    return systolic, rng.randrange(48, min(systolic - 20, 112))


def _body(mrn: str, category: str, when: str, value: str) -> Resource:
    return {
        "resourceType": "Observation",
        "status": "final",
        "category": [{"coding": [{"system": _SYSTEM, "code": category}]}],
        "code": {"text": "BP"},
        "subject": reference("Patient", mrn),
        "effectiveDateTime": when,
        "valueString": value,
    }


def _components(systolic: int, diastolic: int) -> list[Resource]:
    return [
        {
            "code": {"coding": [{"system": LOINC, "code": code}]},
            "valueQuantity": {"value": value, "unit": "mmHg", "system": "http://unitsofmeasure.org", "code": "mm[Hg]"},
        }
        for code, value in (("8480-6", systolic), ("8462-4", diastolic))
    ]


TASKS = (BloodPressure,)
