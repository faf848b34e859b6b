"""Patients with encounters, results, procedures and diagnoses, some of which cannot be right."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from types import MappingProxyType

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks import Params
from fhir_gym.tasks.authoring import (
    SNOMED,
    IdAllocator,
    Person,
    at,
    instant,
    parse_instant,
    patient_resource,
    reference,
)
from fhir_gym.tasks.packs.shift.formulary import LOINC
from fhir_gym.tasks.packs.shift.kind import ShiftScene
from fhir_gym.tasks.packs.shift.laboratory import UCUM
from fhir_gym.tasks.packs.shift.patients import draw_patients
from fhir_gym.types import Resource

KINDS = ("Encounter", "Observation", "Procedure", "Condition")
TIMES = MappingProxyType(
    {"Observation": "effectiveDateTime", "Procedure": "performedDateTime", "Condition": "onsetDateTime"}
)
"""The element with the time of a record; for an Encounter it is the start of the period."""
VOID: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Encounter": ("cancelled", "entered-in-error"),
        "Observation": ("cancelled", "entered-in-error"),
        "Procedure": ("not-done", "entered-in-error"),
        "Condition": ("refuted", "entered-in-error"),
    }
)
"""The statuses (for a Condition, the verification statuses) of void records."""
_VALID = {
    "Encounter": ("finished",),
    "Observation": ("final", "amended", "preliminary"),
    "Procedure": ("completed", "stopped"),
    "Condition": ("confirmed", "provisional"),
}
_CLINICAL = "http://terminology.hl7.org/CodeSystem/condition-clinical"
_VERIFICATION = "http://terminology.hl7.org/CodeSystem/condition-ver-status"
_CLASSES = (("AMB", "ambulatory"), ("IMP", "inpatient encounter"))
_DAY = 24 * 60


@dataclass(frozen=True, slots=True)
class Fact:
    """What a record may be about.

    Attributes:
        code: LOINC code of an Observation, SNOMED CT code of others.
        name: Name of the code.
        gender: The only gender for which the fact is possible; empty for any.
        organ: The organ that the fact is about; empty for none.
        removes: Whether the procedure removes the organ.
        unit: Unit of a result.
        values: Lowest and highest value of a result.
    """

    kind: str
    code: str
    name: str
    gender: str = ""
    organ: str = ""
    removes: bool = False
    unit: str = ""
    values: tuple[int, int] = (0, 0)

    @property
    def matters(self) -> bool:
        """Whether a rule refers to the code."""
        return bool(self.gender or self.organ)


FACTS = (
    Fact("Procedure", "80146002", "Appendectomy", organ="appendix", removes=True),
    Fact("Procedure", "38102005", "Cholecystectomy", organ="gallbladder", removes=True),
    Fact("Procedure", "234319005", "Splenectomy", organ="spleen", removes=True),
    Fact("Procedure", "236886002", "Hysterectomy", "female", "uterus", removes=True),
    Fact("Procedure", "90470006", "Prostatectomy", "male", "prostate", removes=True),
    Fact("Procedure", "11466000", "Cesarean section", "female", "uterus"),
    Fact("Procedure", "65575008", "Biopsy of prostate", "male", "prostate"),
    Fact("Procedure", "73761001", "Colonoscopy"),
    Fact("Condition", "74400008", "Appendicitis", organ="appendix"),
    Fact("Condition", "65275009", "Acute cholecystitis", organ="gallbladder"),
    Fact("Condition", "16294009", "Splenomegaly", organ="spleen"),
    Fact("Condition", "77386006", "Pregnancy", "female", "uterus"),
    Fact("Condition", "266569009", "Benign prostatic hyperplasia", "male", "prostate"),
    Fact("Condition", "38341003", "Hypertension"),
    Fact("Condition", "195967001", "Asthma"),
    Fact(
        "Observation",
        "2857-1",
        "Prostate specific Ag [Mass/volume] in Serum or Plasma",
        "male",
        unit="ng/mL",
        values=(1, 9),
    ),
    Fact("Observation", "8867-4", "Heart rate", unit="/min", values=(52, 110)),
    Fact("Observation", "2345-7", "Glucose [Mass/volume] in Serum or Plasma", unit="mg/dL", values=(70, 220)),
    Fact("Observation", "718-7", "Hemoglobin [Mass/volume] in Blood", unit="g/dL", values=(8, 17)),
)
"""The subjects of results, procedures and diagnoses."""
_BY_CODE = MappingProxyType({fact.code: fact for fact in FACTS})


class HistoryRecord(Params):
    """A record of a patient.

    Attributes:
        kind: Resource type; see `KINDS`.
        patient: Id of the patient.
        status: The status, or the verification status of a Condition.
        time: When the event happened (instant).
        other_time: When the record was issued or made, or when an encounter ended (instant); empty for a procedure.
        code: What the record is about; see `FACTS`. Empty for an encounter.
        encounter: Id of the encounter to which the record refers; empty for none.
        value: The value of a result, the class of an encounter, otherwise 0.
    """

    kind: str
    id: str
    patient: str
    status: str
    time: str
    other_time: str = ""
    code: str = ""
    encounter: str = ""
    value: int = 0

    @property
    def reference(self) -> str:
        """The reference to the record."""
        return f"{self.kind}/{self.id}"

    @property
    def fact(self) -> Fact | None:
        """What the record is about."""
        return _BY_CODE.get(self.code)

    @property
    def void(self) -> bool:
        """Whether the record is void."""
        return self.status in VOID[self.kind]


class Patient(Params):
    """A patient.

    Attributes:
        died: When the patient died (instant); empty for a living patient.
    """

    person: Person
    died: str

    @property
    def id(self) -> str:
        """Id of the Patient."""
        return self.person.id


class HistoryScene(ShiftScene):
    """Patients with records.

    Attributes:
        patients: The patients. Some of them share name and date of birth with another patient.
    """

    patients: tuple[Patient, ...]
    records: tuple[HistoryRecord, ...]

    @property
    def people(self) -> list[Person]:
        """The people."""
        return [patient.person for patient in self.patients]

    @override
    def resources(self) -> list[Resource]:
        return [*map(_patient_resource, self.patients), *map(history_resource, self.records)]


def draw_histories(
    rng: random.Random, world: World, ids: IdAllocator, *, people: Sequence[int], twins: int, most: Mapping[str, int]
) -> HistoryScene:
    """Draw patients whose records all come from the same random process.

    Args:
        rng: Random generator.
        world: The world.
        ids: Allocates ids.
        people: Sizes of the groups of patients with similar names, without the twins.
        twins: Number of further patients who share name and date of birth with another patient.
        most: Largest number of records of each type for each patient; the fewest are half of it.
    """
    patients = [_patient(rng, world.now, patient) for patient in draw_patients(rng, world, ids, people, twins)]
    drawer = _Drawer(rng, world.now, ids)
    encounters = {
        patient.id: [drawer.encounter(patient) for _ in range(rng.randint(most["Encounter"] // 2, most["Encounter"]))]
        for patient in patients
    }
    everywhere = [record.id for records_of_patient in encounters.values() for record in records_of_patient]
    records = [record for records_of_patient in encounters.values() for record in records_of_patient]
    for patient in patients:
        own = [record.id for record in encounters[patient.id]]
        for kind in KINDS[1:]:
            count = rng.randint(most[kind] // 2, most[kind])
            records += [drawer.record(patient, kind, own, everywhere) for _ in range(count)]
    return HistoryScene(patients=tuple(patients), records=tuple(records))


def _patient(rng: random.Random, now: datetime, person: Person) -> Patient:
    died = instant(now - timedelta(minutes=rng.randrange(70 * _DAY, 500 * _DAY))) if rng.random() < 0.5 else ""
    return Patient(person=person, died=died)


class _Drawer:
    def __init__(self, rng: random.Random, now: datetime, ids: IdAllocator) -> None:
        self._rng, self._now, self._ids = rng, now, ids
        self._times: set[str] = set()

    def encounter(self, patient: Patient) -> HistoryRecord:
        """Draw an encounter, which may end before it starts."""
        rng = self._rng
        start = self._time(patient)
        length = timedelta(minutes=rng.randrange(20, 4 * _DAY))
        end = parse_instant(start) + (length if rng.random() < 0.88 else -length)
        return HistoryRecord(
            kind="Encounter",
            id=self._ids.new("Encounter"),
            patient=patient.id,
            status=self._status("Encounter"),
            time=start,
            other_time=instant(end),
            value=rng.randrange(len(_CLASSES)),
        )

    def record(self, patient: Patient, kind: str, own: Sequence[str], everywhere: Sequence[str]) -> HistoryRecord:
        """Draw a result, a procedure or a diagnosis.

        Args:
            patient: The patient.
            kind: Resource type.
            own: Ids of the patient's encounters.
            everywhere: Ids of the encounters of all patients.
        """
        rng = self._rng
        facts = [fact for fact in FACTS if fact.kind == kind]
        if rng.random() < 0.75:
            facts = [fact for fact in facts if fact.gender in ("", patient.person.gender)]
        fact, time, place = rng.choice(facts), self._time(patient), rng.random()
        later = parse_instant(time) + timedelta(minutes=rng.randrange(60, 12 * _DAY))
        return HistoryRecord(
            kind=kind,
            id=self._ids.new(kind),
            patient=patient.id,
            status=self._status(kind),
            time=time,
            other_time="" if kind == "Procedure" else instant(later),
            code=fact.code,
            encounter=rng.choice(own) if place < 0.7 else rng.choice(everywhere) if place < 0.77 else "",
            value=rng.randint(*fact.values),
        )

    def _status(self, kind: str) -> str:
        rng = self._rng
        return rng.choice(_VALID[kind] if rng.random() < 0.78 else VOID[kind])

    def _time(self, patient: Patient) -> str:
        """Draw a time that no other record has: mostly in the last years of life, sometimes near birth or death."""
        while True:
            drawn_time = instant(self._moment(patient))
            if drawn_time not in self._times:
                self._times.add(drawn_time)
                return drawn_time

    def _moment(self, patient: Patient) -> datetime:
        rng = self._rng
        share = rng.random()
        if share < 0.08:
            born = at(date.fromisoformat(patient.person.birth_date), 12)
            return born + timedelta(minutes=rng.randrange(-300 * _DAY, 300 * _DAY))
        last = parse_instant(patient.died) if patient.died else self._now - timedelta(days=14)
        if share < 0.18 and patient.died:
            return last + timedelta(minutes=rng.randrange(60, 50 * _DAY))
        if share < 0.3:  # so that some results are issued, and some encounters end, after death
            return last - timedelta(minutes=rng.randrange(60, 6 * _DAY))
        return last - timedelta(minutes=rng.randrange(60, 700 * _DAY))


def _patient_resource(patient: Patient) -> Resource:
    patient_elements: Resource = {}
    for name, value in patient_resource(patient.person).items():
        patient_elements[name] = value
        if name == "birthDate" and patient.died:
            patient_elements["deceasedDateTime"] = patient.died
    return patient_elements


def history_resource(record: HistoryRecord) -> Resource:
    """Build the resource of a record."""
    resource: Resource = {"resourceType": record.kind, "id": record.id}
    subject = {"subject": reference("Patient", record.patient)}
    if record.encounter:
        subject["encounter"] = reference("Encounter", record.encounter)
    if record.kind == "Encounter":
        code, display = _CLASSES[record.value]
        kind = {"system": "http://terminology.hl7.org/CodeSystem/v3-ActCode", "code": code, "display": display}
        return resource | {
            "status": record.status,
            "class": kind,
            **subject,
            "period": {"start": record.time, "end": record.other_time},
        }
    fact = _BY_CODE[record.code]
    system = LOINC if record.kind == "Observation" else SNOMED
    concept = {"coding": [{"system": system, "code": fact.code, "display": fact.name}], "text": fact.name}
    about = {"code": concept, **subject, TIMES[record.kind]: record.time}
    if record.kind == "Procedure":
        return resource | {"status": record.status, **about}
    if record.kind == "Condition":
        clinical = {"clinicalStatus": {"coding": [{"system": _CLINICAL, "code": "active"}]}}
        verification = {"coding": [{"system": _VERIFICATION, "code": record.status}]}
        # An erroneous Condition has no clinical status (con-5).
        states = {**({} if record.status == "entered-in-error" else clinical), "verificationStatus": verification}
        return resource | {**states, **about, "recordedDate": record.other_time}
    quantity = {"value": record.value, "unit": fact.unit, "system": UCUM, "code": fact.unit}
    return resource | {"status": record.status, **about, "issued": record.other_time, "valueQuantity": quantity}


def parse_history(resource: Resource) -> HistoryRecord:
    """Read a record."""
    kind, period = resource["resourceType"], resource.get("period", {})
    coding = resource["code"]["coding"][0]["code"] if "code" in resource else ""
    status = resource["verificationStatus"]["coding"][0]["code"] if kind == "Condition" else resource["status"]
    other = resource.get("issued") or resource.get("recordedDate") or period.get("end") or ""
    return HistoryRecord(
        kind=kind,
        id=resource["id"],
        patient=resource["subject"]["reference"].removeprefix("Patient/"),
        status=status,
        time=instant(parse_instant(resource[TIMES[kind]] if kind in TIMES else period["start"])),
        other_time=instant(parse_instant(other)) if other else "",
        code=coding,
        encounter=resource.get("encounter", {}).get("reference", "").removeprefix("Encounter/"),
    )


def lines_of_facts() -> Iterator[str]:
    """Yield a line for prompts for each code to which a rule refers."""
    for fact in FACTS:
        if fact.matters:
            system = "LOINC" if fact.kind == "Observation" else "SNOMED CT"
            only = {"female": "only possible for women", "male": "only possible for men"}.get(fact.gender, "")
            organ = f"{'removes' if fact.removes else 'is about'} the {fact.organ}" if fact.organ else ""
            yield f"  - {fact.name} ({fact.kind}, {system} {fact.code}): {'; '.join(filter(None, (only, organ)))}"
