"""Laboratory results: how tasks draw them, what is seeded beside them, and how a careful reader picks the right one."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from fhir_gym.actions import Get
from fhir_gym.actions.model import Action
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.bundles import entries, reference
from fhir_gym.tasks.clock import instant, parse_instant
from fhir_gym.tasks.ids import Ids
from fhir_gym.tasks.medagentbench.pack import chart_patient, draw_namesakes
from fhir_gym.tasks.params import Params
from fhir_gym.tasks.people import Person
from fhir_gym.types import Json, Resource

__all__ = [
    "A1C",
    "DAY",
    "GLU",
    "MG",
    "RULES",
    "Charting",
    "K",
    "LabParams",
    "LabTest",
    "Result",
    "Seen",
    "day_before",
    "look",
    "seen",
]

DAY = timedelta(hours=24)
_MINUTE = timedelta(minutes=1)
_COUNTED = ("final", "corrected", "amended")
_VOID = ("cancelled", "entered-in-error")
_UCUM = "http://unitsofmeasure.org"
_MOST = 60

RULES = (
    "The time of a result is when the specimen was taken (effectiveDateTime). Results whose status is cancelled or "
    "entered-in-error do not count; of two taken at the same time the one issued later counts."
)
"""What prompts say about which results count."""


@dataclass(frozen=True)
class LabTest:
    """One measurement of the laboratory.

    Attributes:
        code: The hospital's name of it, by which results are searched.
        unit: Unit in which answers are wanted.
        low: Lowest value of the seeded results.
        high: Highest.
        digits: Digits after the decimal point.
        other_unit: Another unit some results come in; empty for none.
        factor: What a value in that unit is multiplied by.
        other_digits: Digits of such a value.
        neighbour: Another measurement that lies beside it in the chart.
    """

    code: str
    unit: str
    low: float
    high: float
    digits: int
    neighbour: str
    other_unit: str = ""
    factor: float = 1.0
    other_digits: int = 0

    @property
    def tolerance(self) -> float:
        """What rounding a converted value may change."""
        return 0.5 * math.pow(10, -self.digits) + 1e-9

    @property
    def conversion(self) -> str:
        """What a prompt says about the other unit."""
        text = f"Results in {self.other_unit} have to be converted: 1 {self.other_unit} is {self.factor:g} {self.unit}."
        place = "a whole number" if self.digits == 0 else "one decimal"
        return f"{text} Round to {place}, or not at all."


MG = LabTest("MG", "mg/dL", 0.6, 3.2, 1, "CA", "mmol/L", 2.43, 2)
GLU = LabTest("GLU", "mg/dL", 54, 388, 0, "LAC", "mmol/L", 18.02, 1)
K = LabTest("K", "mmol/L", 2.4, 6.1, 1, "NA", "mEq/L", 1, 1)
A1C = LabTest("A1C", "%", 4.6, 13.9, 1, "GLU")


class Result(Params):
    """One stored result.

    Attributes:
        id: Its id.
        owner: Record number of its patient.
        code: What was measured.
        taken: When the specimen was taken, an instant.
        issued: When the result came.
        value: The number.
        unit: Its unit.
        status: Status of the Observation.
    """

    id: str
    owner: str
    code: str
    taken: str
    issued: str
    value: float
    unit: str
    status: str = "final"

    @property
    def resource(self) -> Resource:
        """The Observation."""
        laboratory = {
            "system": "http://terminology.hl7.org/CodeSystem/observation-category",
            "code": "laboratory",
            "display": "Laboratory",
        }
        code = {"system": "http://loinc.org", "code": self.code, "display": self.code}
        value = int(self.value) if self.value == int(self.value) else self.value
        return {
            "resourceType": "Observation",
            "id": self.id,
            "status": self.status,
            "category": [{"coding": [laboratory]}],
            "code": {"coding": [code], "text": self.code},
            "subject": reference("Patient", self.owner),
            "effectiveDateTime": self.taken,
            "issued": self.issued,
            "valueQuantity": {"value": value, "unit": self.unit, "system": _UCUM, "code": self.unit},
        }


class LabParams(Params):
    """Values of a task on laboratory results.

    Attributes:
        now: The present, an instant.
        mrn: Record number of the patient.
        people: The patient and a namesake; empty where the world holds the patient.
        results: What the chart is seeded with.
        deciding: Ids of the results the answer rests on.
        level: The value in the wanted unit; None if there is none.
        tolerance: By how much the answer may differ, where the value had to be converted.
        taken: When the deciding result was taken; None if there is none.
        phantom: The result that would have been there; None where one is.
        silent: Whether the value need not be answered.
    """

    now: str
    mrn: str
    people: tuple[Person, ...] = ()
    results: tuple[Result, ...] = ()
    deciding: tuple[str, ...] = ()
    level: float | None
    tolerance: float = 0.0
    taken: str | None = None
    phantom: Result | None = None
    silent: bool = False

    def resources(self) -> list[Resource]:
        """What the episode starts with."""
        return [*map(chart_patient, self.people), *(result.resource for result in self.results)]

    def records(self) -> tuple[str, ...]:
        """References of the deciding results."""
        return tuple(f"Observation/{id}" for id in self.deciding)

    def phantoms(self) -> list[Resource]:
        """The result that would have been there."""
        return [self.phantom.resource] if self.phantom else []

    def words(self) -> dict[str, str]:
        """The patient, as a prompt says it."""
        return {"mrn": self.mrn, "name": self.people[0].name}


class Charting:
    """Fills the chart of a patient new to the world, and that of a namesake.

    Args:
        rng: Source of chance.
        world: The world.
        test: What the task is about.
    """

    def __init__(self, rng: random.Random, world: World, test: LabTest) -> None:
        self.rng, self.test, self.now = rng, test, world.now
        self.people = draw_namesakes(rng, world)
        self.mrn = self.people[0].id
        self.results: list[Result] = []
        self._ids = Ids(rng, world, _MOST)
        self._values: set[float] = set()
        self._minutes: set[int] = set()

    def value(self, low: float | None = None, high: float | None = None) -> float:
        """A value of the test that no other result has."""
        test = self.test
        low, high = test.low if low is None else low, test.high if high is None else high
        for _ in range(100):
            value = round(self.rng.uniform(low, high), test.digits)
            if value not in self._values and low <= value <= high:
                break
        self._values.add(value)
        return value

    def add(
        self,
        ago: timedelta,
        value: float,
        *,
        owner: str = "",
        code: str = "",
        status: str = "final",
        unit: str = "",
        delay: timedelta | None = None,
    ) -> Result:
        """A result taken so long ago; by default it was issued within two hours, but not after now."""
        taken = self.now - ago
        issued = taken + (delay if delay is not None else self.rng.randrange(10, 110) * _MINUTE)
        result = Result(
            id=self._ids.new(),
            owner=owner or self.mrn,
            code=code or self.test.code,
            taken=instant(taken),
            issued=instant(max(taken, min(issued, self.now))),
            value=value,
            unit=unit or self.test.unit,
            status=status,
        )
        self.results.append(result)
        return result

    def measured(self, ago: timedelta, value: float, *, convert: bool = False) -> tuple[Result, float]:
        """A result that counts, now and then in the other unit; with its value in the wanted one."""
        test = self.test
        if convert and test.other_unit:
            stored = round(value / test.factor, test.other_digits)
            return self.add(ago, stored, unit=test.other_unit), stored * test.factor
        return self.add(ago, value, status=self.rng.choice((*_COUNTED[:1] * 4, *_COUNTED[1:]))), value

    def minutes(self, first: int, last: int) -> timedelta:
        """A time ago that no other result has, in minutes."""
        while True:
            minutes = self.rng.randrange(first, last)
            if minutes not in self._minutes:
                self._minutes.add(minutes)
                return minutes * _MINUTE

    def stale(self, youngest: timedelta, *, low: float | None = None, high: float | None = None) -> None:
        """Results older than `youngest`, now and then more than a page of them; the last one only just."""
        self.add(youngest + _MINUTE, self.value(low, high), delay=timedelta(minutes=90))
        first = int(youngest / _MINUTE) + 30
        for _ in range(self.rng.choice((3, 4, 5, 5, 22))):
            self.add(self.minutes(first, first + 400 * 24 * 60), self.value(low, high))

    def distract(self, ago: timedelta) -> None:
        """What is newer than the deciding result and does not count: withdrawn, of another test, of a namesake."""
        newest = max(2, int(ago / _MINUTE))
        for status in _VOID:
            self.add(self.minutes(1, newest), self.value(), status=status)
        self.add(self.rng.randrange(1, newest) * _MINUTE, self.value(), code=self.test.neighbour)
        for _ in range(2):
            self.add(self.rng.randrange(1, newest) * _MINUTE, self.value(), owner=self.people[1].id)

    def tie(self, result: Result, value: float) -> None:
        """Another result of the same specimen, issued before `result` and so replaced by it."""
        taken = parse_instant(result.taken)
        self.results[self.results.index(result)] = result.model_copy(
            update={"issued": instant(min(self.now, taken + timedelta(minutes=50)))}
        )
        self.add(self.now - taken, value, delay=timedelta(minutes=0))

    def phantom(self, ago: timedelta) -> Result:
        """A result that would have been there; it is not."""
        result = self.add(ago, self.value())
        self.results.remove(result)
        return result


@dataclass(frozen=True, slots=True)
class Seen:
    """A result as the server told it.

    Attributes:
        taken: When the specimen was taken.
        issued: When it was issued; the same if that is not said.
        text: `taken` as it was told.
        value: In the wanted unit.
    """

    taken: datetime
    issued: datetime
    text: str
    value: float


def look(mrn: str, test: LabTest, since: str = "") -> Action:
    """The search for a patient's results, newest first, from a moment on."""
    window = {"date": f"ge{since}"} if since else {}
    return Get("/Observation", {"patient": mrn, "code": test.code, **window, "_sort": "-date", "_count": 200})


def day_before(now: str) -> str:
    """The moment 24 hours before an instant."""
    return instant(parse_instant(now) - DAY)


def seen(bundle: Json, test: LabTest) -> list[Seen]:
    """The results that count, the latest first."""
    return sorted(_read(bundle, test), key=lambda one: (one.taken, one.issued), reverse=True)


def _read(bundle: Json, test: LabTest) -> Iterator[Seen]:
    for one in entries(bundle):
        quantity, taken = one.get("valueQuantity"), str(one.get("effectiveDateTime"))
        if not quantity or "T" not in taken or one.get("status") in _VOID:
            continue
        factor = test.factor if quantity.get("unit") == test.other_unit else 1
        value = quantity["value"] * factor
        yield Seen(parse_instant(taken), parse_instant(one.get("issued", taken)), taken, value)
