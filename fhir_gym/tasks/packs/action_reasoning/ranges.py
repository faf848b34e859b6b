"""Reference ranges of the eleven laboratory tests: one table with units and sources.

The limits of magnesium and potassium come from the paper. Like the paper, the tasks apply general ranges for adults to
everybody; only hemoglobin, hematocrit and creatinine have ranges by sex and age. If no critical limit is published for
a side (such as low creatinine), fhir_gym defines the limit and the row's source says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal
from types import MappingProxyType
from typing import Literal

from fhir_gym.arguments import require_name
from fhir_gym.errors import TaskError
from fhir_gym.tasks.packs.action_reasoning.cases import Category

CATEGORIES: tuple[Category, ...] = (
    "critically_low",
    "low",
    "borderline_low",
    "normal",
    "borderline_high",
    "high",
    "critically_high",
)
"""All categories from lowest to highest."""


Side = Literal["low", "inside", "high"]
"""Position of a value relative to its range, for deciding whether an order is due."""


@dataclass(frozen=True, slots=True)
class LabDefinition:
    """A laboratory test: its search code, its name in words, and the unit and decimal places of its values."""

    name: str
    title: str
    unit: str
    digits: int


LABS: Mapping[str, LabDefinition] = MappingProxyType(
    {
        lab.name: lab
        for lab in (
            LabDefinition("CA", "calcium", "mg/dL", 1),
            LabDefinition("CL", "chloride", "mmol/L", 0),
            LabDefinition("CR", "creatinine", "mg/dL", 2),
            LabDefinition("PT", "prothrombin time", "s", 1),
            LabDefinition("TP", "total protein", "g/dL", 1),
            LabDefinition("GLU", "glucose", "mg/dL", 0),
            LabDefinition("K", "potassium", "mmol/L", 1),
            LabDefinition("MG", "magnesium", "mg/dL", 1),
            LabDefinition("NA", "sodium", "mmol/L", 0),
            LabDefinition("HGB", "hemoglobin", "g/dL", 1),
            LabDefinition("HCT", "hematocrit", "%", 1),
        )
    }
)
"""The paper's laboratory tests, in its order (section 3.1)."""

DEMOGRAPHIC = ("HGB", "HCT", "CR")
"""Tests with ranges by sex and age."""


def as_written(value: float) -> Decimal:
    """Return the Decimal with a number's shortest decimal notation, for exact comparisons."""
    return Decimal(str(value))


def rounded(value: Decimal, digits: int) -> Decimal:
    """Round half up to `digits` decimal places."""
    return value.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)


@dataclass(frozen=True, slots=True)
class ReferenceRange:
    """One row of the table.

    Attributes:
        lab: Name of the test.
        unit: Unit of all numbers.
        sex: ``female`` or ``male``; None if the row applies to both.
        first_age: Lowest age in full years.
        last_age: Highest age in full years; None if the row has no upper age limit.
        low: Lower limit, inclusive.
        high: Upper limit, inclusive.
        critically_low: Values up to this limit are critically low.
        critically_high: Values from this limit on are critically high.
        borderline: Width of the two borderline bands, which are inside the range next to the limits.
        source: Sources of the limits and of the critical limits.
    """

    lab: str
    unit: str
    sex: str | None
    first_age: int
    last_age: int | None
    low: float
    high: float
    critically_low: float
    critically_high: float
    borderline: float
    source: str

    def category(self, value: float) -> Category:
        """Return the category of a value, such as ``critically_low`` or ``borderline_high``."""
        at, band, side = as_written(value), as_written(self.borderline), self.side(value)
        if side == "low":
            return "critically_low" if at <= as_written(self.critically_low) else "low"
        if side == "high":
            return "critically_high" if at >= as_written(self.critically_high) else "high"
        if at <= as_written(self.low) + band:
            return "borderline_low"
        return "borderline_high" if at >= as_written(self.high) - band else "normal"

    def side(self, value: float) -> Side:
        """Return whether a value is below (``low``), inside or above (``high``) the range."""
        at = as_written(value)
        return "low" if at < as_written(self.low) else "high" if at > as_written(self.high) else "inside"

    def shifted(self, share: float) -> ReferenceRange:
        """Return the row with all limits increased by `share` (0.1 is ten percent) and rounded."""
        digits = LABS[self.lab].digits

        def moved(limit: float) -> float:
            return float(rounded(as_written(limit) * (1 + as_written(share)), digits))

        return replace(
            self,
            low=moved(self.low),
            high=moved(self.high),
            critically_low=moved(self.critically_low),
            critically_high=moved(self.critically_high),
        )

    def holds_for(self, sex: str | None, age: int | None) -> bool:
        """Return whether the row applies to a person."""
        if self.sex is not None and self.sex != sex:
            return False
        if (self.first_age, self.last_age) == (0, None):
            return True
        return age is not None and self.first_age <= age and (self.last_age is None or age <= self.last_age)

    @property
    def people(self) -> str:
        """The people to whom the row applies, such as ``men aged 18 to 59``."""
        if (self.sex, self.first_age, self.last_age) == (None, 0, None):
            return "everybody"
        young = self.last_age is not None and self.last_age < 18
        names = {"female": ("women", "girls"), "male": ("men", "boys"), None: ("people", "children")}
        end = "or older" if self.last_age is None else f"to {self.last_age}"
        return f"{names[self.sex][young]} aged {self.first_age} {end}"

    @property
    def limits(self) -> str:
        """The limits as text, such as ``3.5 to 5.5 mmol/L``."""
        digits = LABS[self.lab].digits
        return f"{self.low:.{digits}f} to {self.high:.{digits}f} {self.unit}"


_ABIM = "ABIM laboratory reference ranges, 2024"
_KOST = "critical: Kost, JAMA 1990;263:704 (survey of US medical centers)"
_METHODIST = "critical: Houston Methodist Pathology, critical values"
_PAGANA = "critical: Pagana, Mosby's Manual of Diagnostic and Laboratory Tests"
_ST_LUKE = "critical: St. Luke's Cedar Rapids, test catalog HGBHT"
_DALLMAN = "Dallman, in Rudolph, Pediatrics, 16th ed. 1977 (mean and 2 SD)"
_NHANES = "low: Beutler and Waalen, Blood 2006;107:1747 (NHANES III); high: Dallman 1977"
_QUEST = "Quest Diagnostics Nichols Institute, test 375"
_OURS = "set here, no call limit is published"

_ANYBODY = (None, 0, None)


def _general() -> Iterator[ReferenceRange]:
    """Yield the ranges that apply to everybody."""
    for lab, low, high, lowest, highest, band, source in (
        ("CA", 8.6, 10.2, 6.5, 13.0, 0.2, f"{_ABIM}; {_METHODIST}"),
        ("CL", 98, 106, 80, 115, 1, f"{_ABIM}; {_PAGANA}"),
        ("PT", 11.0, 13.0, 9.5, 27.0, 0.3, f"{_ABIM}; {_KOST}, low: {_OURS}"),
        ("TP", 6.0, 8.0, 4.0, 10.0, 0.3, f"Wallach's Interpretation of Diagnostic Tests, 10th ed.; critical: {_OURS}"),
        ("GLU", 70, 99, 50, 400, 5, f"{_ABIM} (fasting); {_METHODIST}"),
        ("K", 3.5, 5.5, 2.8, 6.2, 0.2, f"ART, table 1; {_KOST}"),
        ("MG", 1.7, 2.2, 1.0, 4.5, 0.1, f"ART, figures 2 and 3; {_METHODIST}"),
        ("NA", 136, 145, 120, 158, 1, f"{_ABIM}; {_KOST}"),
    ):
        yield ReferenceRange(lab, LABS[lab].unit, *_ANYBODY, low, high, lowest, highest, band, source)


def _blood() -> Iterator[ReferenceRange]:
    """Yield the ranges of hemoglobin and hematocrit."""
    for sex, first, last, low, high, source in (
        (None, 2, 5, 11.5, 13.5, _DALLMAN),
        (None, 6, 11, 11.5, 15.5, _DALLMAN),
        ("female", 12, 17, 12.0, 16.0, _DALLMAN),
        ("male", 12, 17, 13.0, 16.0, _DALLMAN),
        ("female", 18, None, 12.2, 16.0, _NHANES),
        ("male", 18, 59, 13.7, 17.5, _NHANES),
        ("male", 60, None, 13.2, 17.5, _NHANES),
    ):
        yield ReferenceRange("HGB", "g/dL", sex, first, last, low, high, 7.0, 20.0, 0.5, f"{source}; {_ST_LUKE}")
    for sex, first, last, low, high, source in (
        (None, 2, 5, 34, 40, _DALLMAN),
        (None, 6, 11, 35, 45, _DALLMAN),
        ("female", 12, 17, 36, 46, _DALLMAN),
        ("male", 12, 17, 37, 49, _DALLMAN),
        ("female", 18, None, 37, 47, _ABIM),
        ("male", 18, None, 42, 50, _ABIM),
    ):
        yield ReferenceRange("HCT", "%", sex, first, last, low, high, 21, 60, 1, f"{source}; {_ST_LUKE}")


def _creatinine() -> Iterator[ReferenceRange]:
    """Yield the ranges of creatinine; the critical low limit is half the lower limit."""
    adults = f"{_QUEST}; critical: Main Line Health Laboratories, low: {_OURS}"
    children = f"{_QUEST}; critical: {_OURS}"
    for sex, first, last, low, high, highest, source in (
        (None, 1, 9, 0.20, 0.73, 2.5, children),
        (None, 10, 12, 0.30, 0.78, 2.5, children),
        ("female", 13, 15, 0.40, 1.00, 3.0, children),
        ("male", 13, 15, 0.40, 1.05, 3.0, children),
        ("female", 16, 17, 0.50, 1.00, 3.0, children),
        ("male", 16, 17, 0.60, 1.20, 3.0, children),
        ("female", 18, 29, 0.50, 0.96, 5.0, adults),
        ("male", 18, 29, 0.60, 1.24, 5.0, adults),
        ("female", 30, 39, 0.50, 0.97, 5.0, adults),
        ("male", 30, 39, 0.60, 1.26, 5.0, adults),
        ("female", 40, 49, 0.50, 0.99, 5.0, adults),
        ("male", 40, 49, 0.60, 1.29, 5.0, adults),
        ("female", 50, 59, 0.50, 1.03, 5.0, adults),
        ("male", 50, 59, 0.70, 1.30, 5.0, adults),
        ("female", 60, 69, 0.50, 1.05, 5.0, adults),
        ("male", 60, 69, 0.70, 1.35, 5.0, adults),
        ("female", 70, 79, 0.60, 1.00, 5.0, adults),
        ("male", 70, 79, 0.70, 1.28, 5.0, adults),
        ("female", 80, None, 0.60, 0.95, 5.0, adults),
        ("male", 80, None, 0.70, 1.22, 5.0, adults),
    ):
        yield ReferenceRange("CR", "mg/dL", sex, first, last, low, high, low / 2, highest, 0.05, source)


def _table() -> dict[str, tuple[ReferenceRange, ...]]:
    rows = [*_general(), *_blood(), *_creatinine()]
    return {name: tuple(row for row in rows if row.lab == name) for name in LABS}


RANGES: Mapping[str, tuple[ReferenceRange, ...]] = MappingProxyType(_table())
"""All rows of the table by laboratory test."""


def _rows(lab: str) -> tuple[ReferenceRange, ...]:
    require_name("lab", lab, RANGES)
    return RANGES[lab]


def find_range(lab: str, sex: str | None, age: int | None) -> ReferenceRange | None:
    """Return the range that applies to a person; None if no range applies to the sex and age."""
    return next((row for row in _rows(lab) if row.holds_for(sex, age)), None)


def range_of(lab: str, sex: str | None, age: int | None) -> ReferenceRange:
    """Return the range that applies to a person.

    Args:
        lab: Name of the test.
        sex: ``female``, ``male``, or another value of Patient.gender.
        age: Age in full years.

    Raises:
        UnknownNameError: The test does not exist.
        TaskError: No range applies.
    """
    row = find_range(lab, sex, age)
    if row is None:
        raise TaskError(f"no reference range of {lab} is known for a person of sex {sex} and age {age}")
    return row


def others(row: ReferenceRange) -> tuple[ReferenceRange, ...]:
    """Return the test's ranges for the other sex and other ages."""
    return tuple(reference_range for reference_range in _rows(row.lab) if reference_range.people != row.people)


def table_text(lab: str, shift: float = 0.0) -> str:
    """Return the text with which a prompt states all ranges of a test.

    Args:
        lab: Name of the test.
        shift: Relative shift of the limits; 0.1 raises them by ten percent.
    """
    rows = [row.shifted(shift) if shift else row for row in _rows(lab)]
    title = LABS[lab].title
    if len(rows) == 1:
        return f"Reference range of {title}: {rows[0].limits}."
    return f"Reference ranges of {title}: " + "; ".join(f"{row.people}: {row.limits}" for row in rows) + "."


def markdown() -> str:
    """Return the whole table as Markdown for the documentation."""
    heads = ("lab", "test", "holds for", "unit", "range", "borderline up to", "critical", "source")
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for lab in LABS.values():
        for row in RANGES[lab.name]:
            inner = [
                as_written(row.low) + as_written(row.borderline),
                as_written(row.high) - as_written(row.borderline),
            ]
            low, high = (f"{rounded(number, lab.digits)}" for number in inner)
            span = row.limits.removesuffix(f" {row.unit}")
            critical = f"≤ {_plain(row.critically_low)}, ≥ {_plain(row.critically_high)}"
            cells = (lab.name, lab.title, row.people, row.unit, span, f"{low}, from {high}", critical, row.source)
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _plain(value: float) -> str:
    return f"{value:g}"
