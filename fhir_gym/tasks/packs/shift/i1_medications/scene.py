"""Patients with orders, statements and dispenses of drugs, and letters about their drugs."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from types import MappingProxyType

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks import Params
from fhir_gym.tasks.authoring import IdAllocator, Person, instant, parse_instant, patient_resource, reference
from fhir_gym.tasks.packs.shift.formulary import RXNORM
from fhir_gym.tasks.packs.shift.kind import ShiftScene
from fhir_gym.tasks.packs.shift.laboratory import UCUM
from fhir_gym.tasks.packs.shift.patients import draw_patients
from fhir_gym.types import Json, Resource

COUNTING: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "MedicationRequest": ("active", "on-hold", "completed", "stopped"),
        "MedicationStatement": ("active", "on-hold", "completed", "stopped", "not-taken"),
        "Communication": ("completed",),
    }
)
"""The statuses with which records say something about a drug."""
_VOID: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "MedicationRequest": ("draft", "cancelled", "entered-in-error"),
        "MedicationStatement": ("intended", "unknown", "entered-in-error"),
        "Communication": ("preparation", "not-done", "entered-in-error"),
        "MedicationDispense": ("in-progress", "declined", "entered-in-error"),
    }
)
_SUPPLIES = (14, 28, 30, 60, 90)
_OLDEST_DAYS = 150
_GRAM = 1000


@dataclass(frozen=True, slots=True)
class Drug:
    """A drug.

    Attributes:
        code: RxNorm code of the ingredient.
        trade: A trade name.
        amounts: Usual single doses in milligrams.
    """

    code: str
    trade: str
    amounts: tuple[int, ...]


DRUGS = MappingProxyType(
    {
        "allopurinol": Drug("519", "Zyloprim", (100, 200, 300)),
        "amlodipine": Drug("17767", "Norvasc", (5, 10)),
        "atorvastatin": Drug("83367", "Lipitor", (10, 20, 40)),
        "citalopram": Drug("2556", "Celexa", (10, 20, 40)),
        "furosemide": Drug("4603", "Lasix", (20, 40, 80)),
        "gabapentin": Drug("25480", "Neurontin", (100, 300, 600)),
        "lisinopril": Drug("29046", "Zestril", (5, 10, 20)),
        "losartan": Drug("52175", "Cozaar", (25, 50, 100)),
        "metformin": Drug("6809", "Glucophage", (500, 850, 1000)),
        "metoprolol": Drug("6918", "Lopressor", (25, 50, 100)),
        "naproxen": Drug("7258", "Naprosyn", (250, 500)),
        "omeprazole": Drug("7646", "Prilosec", (10, 20, 40)),
        "prednisone": Drug("8640", "Deltasone", (5, 10, 20)),
        "sertraline": Drug("36437", "Zoloft", (25, 50, 100)),
        "spironolactone": Drug("9997", "Aldactone", (25, 50, 100)),
    }
)
"""The drugs by the names that requests use."""
NAMES = MappingProxyType({word: name for name, drug in DRUGS.items() for word in (name, drug.trade)})
"""The name of each drug by its name and its trade name."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """How often a dose is taken.

    Attributes:
        frequency: Number of times in a period.
        period: Length of the period.
        unit: Unit of the period: ``d`` or ``h``.
        per_day: Number of times a day.
    """

    frequency: int
    period: int
    unit: str
    per_day: Decimal


SCHEDULES = MappingProxyType(
    {
        "once a day": Schedule(1, 1, "d", Decimal(1)),
        "twice a day": Schedule(2, 1, "d", Decimal(2)),
        "three times a day": Schedule(3, 1, "d", Decimal(3)),
        "every 12 hours": Schedule(1, 12, "h", Decimal(2)),
        "every 8 hours": Schedule(1, 8, "h", Decimal(3)),
        "every other day": Schedule(1, 2, "d", Decimal("0.5")),
    }
)
"""Schedules by the words of letters."""


class Dose(Params):
    """One instruction of a dosage.

    Attributes:
        amount: The single dose, a decimal number.
        unit: ``mg`` or ``g``.
        schedule: How often the drug is taken; see `SCHEDULES`.
        as_needed: Whether the drug is taken as needed only.
    """

    amount: str
    unit: str
    schedule: str
    as_needed: bool = False

    @property
    def per_day(self) -> Decimal:
        """Milligrams a day."""
        return Decimal(self.amount) * (_GRAM if self.unit == "g" else 1) * SCHEDULES[self.schedule].per_day

    @property
    def words(self) -> str:
        """The instruction in the words of letters."""
        return f"{self.amount} {self.unit} {self.schedule}{' as needed' if self.as_needed else ''}"


class Mention(Params):
    """What an order, a statement or a letter says about a drug.

    Attributes:
        drug: Name of the drug.
        word: The name or the trade name, as it is written.
        doses: The dosage; empty if a letter says that the drug was stopped.
    """

    drug: str
    word: str
    doses: tuple[Dose, ...]


class DrugRecord(Params):
    """An order or a statement.

    Attributes:
        resource_type: ``MedicationRequest`` or ``MedicationStatement``.
        patient: Id of the patient.
        intent: The intent of an order; empty for a statement.
        when: When the record was written or asserted (instant).
        mention: The drug and the dosage.
    """

    resource_type: str
    id: str
    patient: str
    status: str
    intent: str
    when: str
    mention: Mention


class Dispense(Params):
    """A dispense of a drug.

    Attributes:
        patient: Id of the patient.
        drug: Name of the drug.
        word: The name or the trade name, as it is written.
        handed: When the drug was handed over (instant).
        days: Number of days that the supply lasts.
    """

    id: str
    patient: str
    drug: str
    word: str
    status: str
    handed: str
    days: int

    @property
    def last_day(self) -> str:
        """The last day of the supply."""
        first = date.fromisoformat(self.handed[:10])
        return (first + timedelta(days=self.days - 1)).isoformat()


class Letter(Params):
    """A letter about a stay in hospital.

    Attributes:
        patient: Id of the patient.
        when: When the letter was sent (instant).
        admission: The drugs at admission.
        discharge: The drugs at discharge.
    """

    id: str
    patient: str
    status: str
    when: str
    admission: tuple[Mention, ...]
    discharge: tuple[Mention, ...]


class MedicationScene(ShiftScene):
    """Patients with records about their drugs.

    Attributes:
        drugs: Names of the drugs in alphabetical order; see `DRUGS`.
        people: The patients. Some of them share name and date of birth with another patient.
        records: The orders and statements of all patients.
        letters: The letters about all patients.
    """

    today: str
    drugs: tuple[str, ...]
    people: tuple[Person, ...]
    records: tuple[DrugRecord, ...]
    dispenses: tuple[Dispense, ...]
    letters: tuple[Letter, ...]

    @override
    def resources(self) -> list[Resource]:
        return [
            *map(patient_resource, self.people),
            *map(_record_resource, self.records),
            *map(_dispense_resource, self.dispenses),
            *(
                _letter_resource(letter, person)
                for person in self.people
                for letter in self.letters
                if letter.patient == person.id
            ),
        ]


def draw_medications(
    rng: random.Random,
    world: World,
    ids: IdAllocator,
    *,
    people: Sequence[int],
    twins: int,
    drugs: int,
    letters: Sequence[int],
) -> MedicationScene:
    """Draw patients whose records all come from the same random process."""
    everyone = draw_patients(rng, world, ids, people, twins)
    names = tuple(sorted(rng.sample(sorted(DRUGS), drugs)))
    drawer = _Drawer(rng, world.now, ids)
    return MedicationScene(
        today=instant(world.now)[:10],
        drugs=names,
        people=tuple(everyone),
        records=tuple(record for person in everyone for name in names for record in drawer.records(person.id, name)),
        dispenses=tuple(
            dispense for person in everyone for name in names for dispense in drawer.dispenses(person.id, name)
        ),
        letters=tuple(drawer.letter(person.id, names) for person in everyone for _ in range(rng.choice(letters))),
    )


class _Drawer:
    def __init__(self, rng: random.Random, now: datetime, ids: IdAllocator) -> None:
        self._rng, self._now, self._ids = rng, now, ids
        self._times: set[str] = set()

    def records(self, patient: str, drug: str) -> Iterator[DrugRecord]:
        """Yield the orders and statements of a patient about a drug."""
        rng = self._rng
        usual = self._doses(drug)
        for kind, counts in (("MedicationRequest", (0, 1, 1, 2, 2)), ("MedicationStatement", (0, 0, 1, 1, 2))):
            for _ in range(rng.choice(counts)):
                doses = usual if rng.random() < 0.3 else self._doses(drug)
                valid = ("active",) * 4 + COUNTING[kind][1:]
                yield DrugRecord(
                    resource_type=kind,
                    id=self._ids.new(kind),
                    patient=patient,
                    status=rng.choice(valid if rng.random() < 0.8 else _VOID[kind]),
                    intent=rng.choice(("order",) * 5 + ("plan", "proposal")) if kind == "MedicationRequest" else "",
                    when=self._ago(),
                    mention=Mention(drug=drug, word=self._word(drug), doses=doses),
                )

    def dispenses(self, patient: str, drug: str) -> Iterator[Dispense]:
        """Yield the dispenses of a drug to a patient; none of them ends within a day of the present."""
        rng = self._rng
        for _ in range(rng.choice((0, 0, 1, 1, 2))):
            days = rng.choice(_SUPPLIES)
            ago = rng.choice([other for other in range(1, 110) if abs(other - days) > 2])
            handed = self._now - timedelta(days=ago, minutes=rng.randrange(0, 300))
            yield Dispense(
                id=self._ids.new("MedicationDispense"),
                patient=patient,
                drug=drug,
                word=self._word(drug),
                status="completed" if rng.random() < 0.75 else rng.choice(_VOID["MedicationDispense"]),
                handed=instant(handed),
                days=days,
            )

    def letter(self, patient: str, drugs: Sequence[str]) -> Letter:
        """Draw a letter about a patient."""
        rng = self._rng
        named = rng.sample(drugs, rng.randint(2, len(drugs) - 1))
        at_first = rng.sample(drugs, rng.randint(2, len(drugs) - 1))
        return Letter(
            id=self._ids.new("Communication"),
            patient=patient,
            status="completed" if rng.random() < 0.75 else rng.choice(_VOID["Communication"]),
            when=self._ago(),
            admission=tuple(Mention(drug=drug, word=self._word(drug), doses=self._doses(drug)) for drug in at_first),
            discharge=tuple(
                Mention(drug=drug, word=self._word(drug), doses=self._doses(drug) if rng.random() < 0.65 else ())
                for drug in named
            ),
        )

    def _ago(self) -> str:
        """Draw a time in the past that no other record has."""
        while True:
            moment = instant(self._now - timedelta(seconds=self._rng.randrange(86_400, _OLDEST_DAYS * 86_400)))
            if moment not in self._times:
                self._times.add(moment)
                return moment

    def _word(self, drug: str) -> str:
        return DRUGS[drug].trade if self._rng.random() < 0.4 else drug

    def _doses(self, drug: str) -> tuple[Dose, ...]:
        """Draw a dosage: one or two instructions with different amounts, at most one of which is as needed."""
        rng = self._rng
        words = [rng.choice([*SCHEDULES])]
        if rng.random() < 0.55:
            words.append("once a day")
        as_needed = len(words) > 1 and rng.random() < 0.5
        amounts = rng.sample(DRUGS[drug].amounts, len(words))
        drawn = [
            Dose(**_written(rng, amount), schedule=word, as_needed=as_needed and number == 1)
            for number, (amount, word) in enumerate(zip(amounts, words, strict=True))
        ]
        return tuple(rng.sample(drawn, len(drawn)))


def _written(rng: random.Random, amount: int) -> dict[str, str]:
    """Write an amount in milligrams, or in grams if it is large enough."""
    if amount >= _GRAM // 10 and rng.random() < 0.5:
        return {"amount": f"{Decimal(amount) / _GRAM:f}", "unit": "g"}
    return {"amount": str(amount), "unit": "mg"}


_CODES = {drug.code: name for name, drug in DRUGS.items()}
_DISCHARGE = "Medication at discharge:"


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
                    {"doseQuantity": {"value": value, "unit": dose.unit, "system": UCUM, "code": dose.unit}}
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
        "daysSupply": {"value": dispense.days, "unit": "days", "system": UCUM, "code": "d"},
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
