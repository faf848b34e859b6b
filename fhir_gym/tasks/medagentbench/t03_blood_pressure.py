"""Task 03: record a blood pressure."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import ClassVar

from fhir_gym.actions import Action, Finish, Get, Post
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.answers import Nothing
from fhir_gym.tasks.bundles import find_person, reference
from fhir_gym.tasks.checks import Check
from fhir_gym.tasks.clock import instant
from fhir_gym.tasks.endstate import EndState
from fhir_gym.tasks.ids import Ids
from fhir_gym.tasks.meaning import ADD_NOTHING
from fhir_gym.tasks.medagentbench.orders import LOINC, blood_pressure_checks
from fhir_gym.tasks.medagentbench.pack import chart_patient, draw_namesakes
from fhir_gym.tasks.outcomes import is_new, new_resource
from fhir_gym.tasks.params import Params
from fhir_gym.tasks.people import Person
from fhir_gym.tasks.task import Fhir, Gold, Task, Touch
from fhir_gym.types import Json, Resource

__all__ = ["TASKS", "BloodPressure", "BloodPressureParams"]

_SYSTEM = "http://terminology.hl7.org/CodeSystem/observation-category"


class BloodPressureParams(Params):
    """Values of task 03.

    Attributes:
        now: The present, an instant.
        mrn: Record number of the patient.
        people: The patient and a namesake; empty where the world holds the patient.
        systolic: In mmHg.
        diastolic: In mmHg.
        earlier: Ids of blood pressures on file, the patient's and the namesake's.
    """

    now: str
    mrn: str
    people: tuple[Person, ...] = ()
    systolic: int
    diastolic: int
    earlier: tuple[str, ...] = ()


class BloodPressure(Task[BloodPressureParams]):
    """Record a blood pressure on the flowsheet of a patient named by name and date of birth.

    Starting state: the patient, with a blood pressure of yesterday.
    Decoys: a namesake born on another day, with a blood pressure too.
    Checks: one new Observation for the patient: vital sign, code, time, status, both values, as text or components.
    Light: an Observation was created.
    Differs from MedAgentBench: the patient has to be found; any valid form of the same content counts; it is stored.
    """

    key = "03"
    title = "Record a blood pressure"
    category = "Recording patient data"
    difficulty = 2
    kind = "action"
    required_tools = (("search", "create"),)
    required_resources = ("Patient", "Observation")
    prohibited_tools = ("delete",)
    prompts = (
        "I have just measured the blood pressure of {name}, born {birth_date}: {value}. Please record it.",
        'Please document on the flowsheet: patient {name} (date of birth {birth_date}), blood pressure "{value}", '
        "measured now.",
        "Blood pressure {value}, taken a moment ago from {name}, date of birth {birth_date}. Enter it into the chart.",
    )
    ending = (
        "Create one new Observation with status final, category vital-signs (system http://terminology.hl7.org/"
        "CodeSystem/observation-category), the flowsheet ID BP as text of its code, the present as effectiveDateTime, "
        'and the value as a valueString such as "124/81 mmHg" (two components with LOINC codes will do as well). '
        f"{ADD_NOTHING} Finish with FINISH([])."
    )
    answer = Nothing()
    gold_steps = 3
    asked: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Observation": (
            *("status", "category", "code", "subject", "effectiveDateTime", "effectiveInstant", "valueString"),
            *("component", "component.code", "component.valueQuantity"),
        )
    }
    harmless: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "Observation": {"language": "en", "bodySite": {"text": "x"}}
    }

    def sample(self, rng: random.Random, world: World) -> BloodPressureParams:
        """Draw two patients of a name, and a pressure."""
        ids = Ids(rng, world, 2)
        people = draw_namesakes(rng, world)
        systolic = rng.randrange(92, 188)
        diastolic = rng.randrange(48, min(systolic - 20, 112))
        return BloodPressureParams(
            now=instant(world.now),
            mrn=people[0].id,
            people=people,
            systolic=systolic,
            diastolic=diastolic,
            earlier=(ids.new(), ids.new()),
        )

    def setup(self, p: BloodPressureParams, world: World) -> list[Resource]:
        """Patients and their earlier pressures."""
        yesterday = instant(world.now - timedelta(days=1, minutes=7))
        old = {"category": "vital-signs", "when": yesterday, "value": f"{p.systolic + 4}/{p.diastolic + 3} mmHg"}
        pressures = [{"id": id, **_body(person.id, **old)} for id, person in zip(p.earlier, p.people, strict=True)]
        return [*map(chart_patient, p.people), *pressures]

    def words(self, p: BloodPressureParams, world: World) -> dict[str, str]:
        """Who, and how much."""
        person = p.people[0]
        return {"name": person.name, "birth_date": person.birth_date, "value": f"{p.systolic}/{p.diastolic} mmHg"}

    def gold(self, p: BloodPressureParams, fhir: Fhir) -> Gold:
        """Find the patient, record."""
        person = p.people[0]
        query = {"family": person.family, "given": person.given, "birthdate": person.birth_date}
        found = yield Get("/Patient", query)
        value = f"{p.systolic}/{p.diastolic} mmHg"
        yield Post("/Observation", _body(find_person(found, person), "vital-signs", p.now, value))
        yield Finish()

    def touches(self, p: BloodPressureParams) -> tuple[Touch, ...]:
        """One new Observation."""
        return (Touch("created", "Observation"),)

    def checks(self, p: BloodPressureParams, end: EndState) -> Iterator[Check]:
        """All of its content."""
        yield is_new(end, "Observation")
        found = new_resource(end, "Observation")
        yield from blood_pressure_checks(end, found, p.mrn, p.now, p.systolic, p.diastolic)

    def rests_on(self, p: BloodPressureParams) -> tuple[str, ...]:
        """The patient's record, where the number was not given."""
        return (f"Patient/{p.mrn}",) if p.people else ()

    def near_misses(self, p: BloodPressureParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        """Values the wrong way round, in two forms."""
        find, record, finish = gold
        body = json.loads(record.body or "")
        wrong = f"{p.diastolic}/{p.systolic} mmHg"
        yield "pressures swapped", [find, Post("/Observation", {**body, "valueString": wrong}), finish]
        bare = {name: value for name, value in body.items() if name != "valueString"}
        components = _components(p.diastolic, p.systolic)
        yield "components swapped", [find, Post("/Observation", {**bare, "component": components}), finish]
        both = {**body, "component": components}
        yield "text and components disagree", [find, Post("/Observation", both), finish]

    def equivalents(self, p: BloodPressureParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        """Components, codings, a finer time."""
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
