"""Parse the prompts of ActionReasoning with regular expressions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from fhir_gym.types import Resource

_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_MRN = re.compile(r"\b[Pp]atient (\w*\d\w*)")
_LAB = re.compile(r"Lab code: (\w+) \(([^,)]+), in ([^)]+)\)")
_HOURS = re.compile(r"within the (?:last )?([\d.]+) hours")
_ROW = re.compile(
    r"(?:(?P<who>women|girls|men|boys|people|children) aged (?P<first>\d+) (?:or older|to (?P<last>\d+)): )?"
    r"(?P<low>[\d.]+) to (?P<high>[\d.]+) "
)
_ORDER = re.compile(r"To order .*?, create one new (?P<type>\w+) with")
_CODE = re.compile(r"code (?P<code>[\w-]+) \(system (?P<system>[^)]+)\)")
_DRUG = re.compile(r"route (?P<route>\w+) and one doseAndRate with a doseQuantity of (?P<value>[\d.]+) (?P<unit>\w+)")
_PRIORITY = re.compile(r"priority (\w+)")
_DIGITS = {"a whole number": 0, "one decimal": 1, "two decimals": 2, "three decimals": 3}
_SEXES = {"women": "female", "girls": "female", "men": "male", "boys": "male"}


class RangeRow(NamedTuple):
    """A reference range in the prompt; `sex` is None if the range applies to both sexes."""

    sex: str | None
    first_age: int
    last_age: int | None
    low: float
    high: float

    def applies_to(self, sex: str, age: int) -> bool:
        """Whether the range applies to patients of this sex and age."""
        return self.sex in (None, sex) and self.first_age <= age and (self.last_age is None or age <= self.last_age)


@dataclass(frozen=True)
class ParsedPrompt:
    """The parsed text of a prompt.

    Attributes:
        mrn: Id of the patient.
        lab: Code of the laboratory test.
        title: Name of the test.
        now: Present time of the episode.
        as_of: End of the time window.
        hours: Length of the time window in hours; None if the whole patient record counts.
        family: ``retrieval``, ``aggregation`` or ``conditional``.
        digits: Number of decimal places to which a mean is rounded.
        ranges: Reference ranges in the prompt of a conditional task.
        direction: Values that require an order: ``high`` or ``low`` values, or all values ``outside`` the range.
        order: The order to place if it is due.
    """

    mrn: str
    lab: str
    title: str
    now: datetime
    as_of: datetime
    hours: float | None
    family: str
    digits: int
    ranges: tuple[RangeRow, ...]
    direction: str
    order: Resource | None

    @classmethod
    def parse(cls, prompt: str) -> ParsedPrompt:
        """Parse the text of a prompt."""
        head, context, instruction, ending = prompt.split("\n\n")[:4]
        now, moments = _INSTANT.findall(head)[0], _INSTANT.findall(instruction)
        lab, title, _ = _LAB.findall(context)[0]
        hours = _HOURS.search(instruction)
        average, conditional = "FINISH([<mean>])" in ending, "FINISH([<value>, true])" in ending
        digits = [number for words, number in _DIGITS.items() if f"half up to {words}" in context]
        mrn = _MRN.findall(instruction)[0]
        return cls(
            mrn=mrn,
            lab=lab,
            title=title,
            now=datetime.fromisoformat(now),
            as_of=datetime.fromisoformat(moments[-1] if moments else now),
            hours=float(hours[1]) if hours else None,
            family="aggregation" if average else "conditional" if conditional else "retrieval",
            digits=digits[0] if digits else 0,
            ranges=tuple(_ranges(context, title)) if conditional else (),
            direction=_direction(instruction),
            order=_order(context, mrn, now) if conditional else None,
        )

    @property
    def start(self) -> datetime | None:
        """Start of the time window; None if the whole patient record counts."""
        return None if self.hours is None else self.as_of - timedelta(hours=self.hours)

    @property
    def needs_patient(self) -> bool:
        """Whether the reference range depends on the patient's sex and age."""
        return len(self.ranges) > 1


def _ranges(context: str, title: str) -> Iterator[RangeRow]:
    text = re.findall(rf"Reference ranges? of {title}: (.*?)\.(?= |$)", context)[0]
    for row in _ROW.finditer(text):
        last_age = int(row["last"]) if row["last"] else None
        sex = _SEXES.get(row["who"] or "")
        yield RangeRow(sex, int(row["first"] or 0), last_age, float(row["low"]), float(row["high"]))


def _direction(instruction: str) -> str:
    if re.search(r"(outside|inside|within) the reference range", instruction):
        return "outside"
    return "high" if re.search(r"\b(high|upper)\b", instruction) else "low"


def _order(context: str, mrn: str, now: str) -> Resource | None:
    kind = _ORDER.search(context)
    if kind is None:
        return None
    text = context[kind.start() :]
    code, drug, priority = _CODE.search(text), _DRUG.search(text), _PRIORITY.search(text)
    if code is None:
        return None
    concept = {"coding": [{"system": code["system"], "code": code["code"]}]}
    order: Resource = {
        "resourceType": kind["type"],
        "status": "active",
        "intent": "order",
        "subject": {"reference": f"Patient/{mrn}"},
        "authoredOn": now,
    }
    if kind["type"] == "MedicationRequest" and drug is not None:
        dose = {"doseQuantity": {"value": float(drug["value"]), "unit": drug["unit"]}}
        return order | {
            "medicationCodeableConcept": concept,
            "dosageInstruction": [{"route": {"text": drug["route"]}, "doseAndRate": [dose]}],
        }
    return order | {"code": concept} | ({"priority": priority[1]} if priority else {})
