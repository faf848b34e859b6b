"""The resources of orders, statements, dispenses and letters, and how they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fhir_gym.tasks.authoring import Person, instant, parse_instant, patient_resource, reference
from fhir_gym.tasks.packs.shift.formulary import RXNORM
from fhir_gym.tasks.packs.shift.i1_medications.scene import (
    DRUGS,
    NAMES,
    SCHEDULES,
    Dispense,
    Dose,
    DrugRecord,
    Letter,
    MedicationScene,
    Mention,
)
from fhir_gym.types import Json, Resource

_UCUM = "http://unitsofmeasure.org"
_CODES = {drug.code: name for name, drug in DRUGS.items()}
_DISCHARGE = "Medication at discharge:"


def medication_resources(scene: MedicationScene) -> list[Resource]:
    """Build the resources of a scene."""
    return [
        *map(patient_resource, scene.people),
        *map(_record_resource, scene.records),
        *map(_dispense_resource, scene.dispenses),
        *(
            _letter_resource(letter, person)
            for person in scene.people
            for letter in scene.letters
            if letter.patient == person.id
        ),
    ]


def _concept(drug: str, word: str) -> Resource:
    return {"coding": [{"system": RXNORM, "code": DRUGS[drug].code, "display": drug}], "text": word}


def _dosage(doses: Sequence[Dose]) -> list[Json]:
    dosage: list[Json] = []
    for number, dose in enumerate(doses, 1):
        schedule = SCHEDULES[dose.schedule]
        repeat: Resource = {"frequency": schedule.frequency, "period": schedule.period, "periodUnit": schedule.unit}
        value = float(dose.amount) if dose.unit == "g" else int(dose.amount)
        dosage.append(
            {
                "sequence": number,
                "timing": {"repeat": repeat},
                **({"asNeededBoolean": True} if dose.as_needed else {}),
                "doseAndRate": [
                    {"doseQuantity": {"value": value, "unit": dose.unit, "system": _UCUM, "code": dose.unit}}
                ],
            }
        )
    return dosage


def _record_resource(record: DrugRecord) -> Resource:
    drug = {"medicationCodeableConcept": _concept(record.mention.drug, record.mention.word)}
    subject, dosage = reference("Patient", record.patient), _dosage(record.mention.doses)
    resource: Resource = {"resourceType": record.resource_type, "id": record.id, "status": record.status}
    if record.resource_type == "MedicationRequest":
        resource |= {
            "intent": record.intent,
            **drug,
            "subject": subject,
            "authoredOn": record.when,
            "dosageInstruction": dosage,
        }
    else:
        resource |= {
            **drug,
            "subject": subject,
            "dateAsserted": record.when,
            "informationSource": subject,
            "dosage": dosage,
        }
    return resource


def _dispense_resource(dispense: Dispense) -> Resource:
    return {
        "resourceType": "MedicationDispense",
        "id": dispense.id,
        "status": dispense.status,
        "medicationCodeableConcept": _concept(dispense.drug, dispense.word),
        "subject": reference("Patient", dispense.patient),
        "daysSupply": {"value": dispense.days, "unit": "days", "system": _UCUM, "code": "d"},
        "whenHandedOver": dispense.handed,
    }


def _letter_resource(letter: Letter, person: Person) -> Resource:
    text = "\n".join(
        [
            f"Dear colleagues, {person.name}, born {person.birth_date}, was our patient until {letter.when[:10]}.",
            "Medication on admission:",
            *map(_line, letter.admission),
            _DISCHARGE,
            *map(_line, letter.discharge),
            "Kind regards",
        ]
    )
    return {
        "resourceType": "Communication",
        "id": letter.id,
        "status": letter.status,
        "category": [{"text": "discharge letter"}],
        "subject": reference("Patient", letter.patient),
        "sent": letter.when,
        "payload": [{"contentString": text}],
    }


def _line(mention: Mention) -> str:
    """Write a line of a letter."""
    return f"- {mention.word}: {' and '.join(dose.words for dose in mention.doses) or 'stopped'}"


def parse_record(resource: Resource) -> DrugRecord:
    """Read an order or a statement."""
    order = resource["resourceType"] == "MedicationRequest"
    drug = _drug_of(resource)
    doses = tuple(map(_parse_dose, resource["dosageInstruction" if order else "dosage"]))
    return DrugRecord(
        resource_type=resource["resourceType"],
        id=resource["id"],
        patient=_patient_of(resource),
        status=resource["status"],
        intent=resource.get("intent", ""),
        when=instant(parse_instant(resource["authoredOn" if order else "dateAsserted"])),
        mention=Mention(drug=drug, word=drug, doses=doses),
    )


def parse_dispense(resource: Resource) -> Dispense:
    """Read a dispense."""
    drug = _drug_of(resource)
    return Dispense(
        id=resource["id"],
        patient=_patient_of(resource),
        drug=drug,
        word=drug,
        status=resource["status"],
        handed=instant(parse_instant(resource["whenHandedOver"])),
        days=int(resource["daysSupply"]["value"]),
    )


def parse_letter(resource: Resource) -> Letter:
    """Read a letter."""
    first, _, second = resource["payload"][0]["contentString"].partition(_DISCHARGE)
    return Letter(
        id=resource["id"],
        patient=_patient_of(resource),
        status=resource["status"],
        when=instant(parse_instant(resource["sent"])),
        admission=tuple(_parse_lines(first)),
        discharge=tuple(_parse_lines(second)),
    )


def _patient_of(resource: Resource) -> str:
    return str(resource["subject"]["reference"]).removeprefix("Patient/")


def _drug_of(resource: Resource) -> str:
    return _CODES[resource["medicationCodeableConcept"]["coding"][0]["code"]]


def _parse_dose(dosage: Resource) -> Dose:
    repeat, quantity = dosage["timing"]["repeat"], dosage["doseAndRate"][0]["doseQuantity"]
    told = repeat["frequency"], int(repeat["period"]), repeat["periodUnit"]
    return Dose(
        amount=str(quantity["value"]),
        unit=quantity["unit"],
        schedule=next(
            name for name, schedule in SCHEDULES.items() if (schedule.frequency, schedule.period, schedule.unit) == told
        ),
        as_needed=dosage.get("asNeededBoolean", False),
    )


def _parse_lines(text: str) -> Iterator[Mention]:
    for line in text.splitlines():
        word, _, told = line.removeprefix("- ").partition(": ")
        if not line.startswith("- ") or word not in NAMES:
            continue
        doses = []
        for part in told.split(" and ") if told != "stopped" else ():
            amount, unit, schedule = part.removesuffix(" as needed").split(" ", 2)
            as_needed = part.endswith(" as needed")
            doses.append(Dose(amount=amount, unit=unit, schedule=schedule, as_needed=as_needed))
        yield Mention(drug=NAMES[word], word=word, doses=tuple(doses))
