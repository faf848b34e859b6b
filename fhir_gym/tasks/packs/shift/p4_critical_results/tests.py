"""Laboratory tests with critical values, and the policies that say which values are critical."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from types import MappingProxyType

from fhir_gym.tasks.packs.shift.laboratory import TESTS, Analyte, LabTest
from fhir_gym.tasks.packs.shift.policy_texts import Rule, Subject

ADULTS, CHILDREN = "adults", "children"
CHILD_AGE, MINUTES, PRIORITY = "child-age", "minutes", "priority"
_ALL = "all"
_CLOSE = Decimal("0.006")
"""No result is closer than this share to a limit that can be drawn, so that rounding never decides."""


@dataclass(frozen=True)
class CriticalTest:
    """A test and the limits of critical values that policies may have.

    Attributes:
        test: The test.
        above: Possible limits, in the main unit, above which a value is critical; by the patients for whom they hold.
        below: Possible limits below which a value is critical.
    """

    test: LabTest
    above: Mapping[str, tuple[str, ...]]
    below: Mapping[str, tuple[str, ...]]

    @cached_property
    def analytes(self) -> dict[str, Analyte]:
        """The analytes of the test, and the similar one, by their codes."""
        return {one.code: one for one in (self.test.main, self.test.other, self.test.similar)}

    def limits(self, side: Mapping[str, tuple[str, ...]]) -> list[float]:
        """Return all limits of one side that can be drawn."""
        return [float(limit) for limits in side.values() for limit in limits]

    def is_clear(self, code: str, value: Decimal) -> bool:
        """Whether a value is clearly above or below each limit that can be drawn."""
        converted = self.test.converted(code, value)
        return not any(low <= converted <= high for low, high in self._close)

    @cached_property
    def _close(self) -> list[tuple[Decimal, Decimal]]:
        """The lowest and the highest value that is close to each limit that can be drawn."""
        limits = (Decimal(limit) for side in (self.above, self.below) for one in side.values() for limit in one)
        return [(limit - _CLOSE * limit, limit + _CLOSE * limit) for limit in limits]


def _test(main: Analyte, other: Analyte, similar: Analyte, factor: str, low: float, high: float) -> LabTest:
    return LabTest(main, other, similar, Decimal(factor), main.digits, low, high, ())


CRITICAL_TESTS = MappingProxyType(
    {
        "potassium": CriticalTest(
            _test(
                Analyte("2823-3", "Potassium [Moles/volume] in Serum or Plasma", "mmol/L", 1),
                Analyte("6298-4", "Potassium [Moles/volume] in Blood", "mmol/L", 1),
                Analyte("2828-2", "Potassium [Moles/volume] in Urine", "mmol/L", 0, 8),
                *("1", 3.4, 5.2),
            ),
            above={ADULTS: ("5.8", "6", "6.3", "6.6"), CHILDREN: ("6.1", "6.5", "6.9", "7.2")},
            below={_ALL: ("2.5", "2.7", "2.9", "3.1")},
        ),
        "sodium": CriticalTest(
            _test(
                Analyte("2951-2", "Sodium [Moles/volume] in Serum or Plasma", "mmol/L", 0),
                Analyte("2947-0", "Sodium [Moles/volume] in Blood", "mmol/L", 0),
                Analyte("2955-3", "Sodium [Moles/volume] in Urine", "mmol/L", 0, 0.6),
                *("1", 132, 146),
            ),
            above={_ALL: ("153", "156", "160", "164")},
            below={_ALL: ("114", "117", "121", "125")},
        ),
        "glucose": CriticalTest(
            _test(TESTS["glucose"].main, TESTS["glucose"].other, TESTS["glucose"].similar, "18.02", 70, 190),
            above={ADULTS: ("350", "400", "450", "500"), CHILDREN: ("240", "280", "320", "360")},
            below={ADULTS: ("42", "47", "53", "58"), CHILDREN: ("38", "43", "49", "55")},
        ),
        "hemoglobin": CriticalTest(
            _test(
                Analyte("718-7", "Hemoglobin [Mass/volume] in Blood", "g/dL", 1),
                Analyte("59260-0", "Hemoglobin [Moles/volume] in Blood", "mmol/L", 1),
                TESTS["HbA1c"].main,
                *("1.611", 9.8, 15.5),
            ),
            above={},
            below={ADULTS: ("6.4", "6.9", "7.4", "7.9"), CHILDREN: ("7.1", "7.7", "8.3", "9")},
        ),
        "creatinine": CriticalTest(
            _test(TESTS["creatinine"].main, TESTS["creatinine"].other, TESTS["creatinine"].similar, "0.0113", 0.5, 1.7),
            above={ADULTS: ("3.5", "4", "5", "6"), CHILDREN: ("1.8", "2.2", "2.6", "3")},
            below={},
        ),
    }
)
"""The tests by the names that policies use."""
TEST_OF = MappingProxyType({code: name for name, one in CRITICAL_TESTS.items() for code in one.analytes})
"""The names of the tests by the codes of their analytes."""


def point(test: str, side: str, group: str) -> str:
    """Return the name of the point of policies that settles a limit.

    Args:
        test: Name of the test.
        side: ``above`` or ``below``.
        group: The patients for whom the limit holds.
    """
    return f"{test}-{side}-{group}"


def _limits() -> Iterator[Rule]:
    who = {ADULTS: "In adults, a", CHILDREN: "In children, a", _ALL: "At any age, a"}
    for name, one in CRITICAL_TESTS.items():
        for side, limits in (("above", one.above), ("below", one.below)):
            for group, values in limits.items():
                sentence = f"{who[group]} {name} {side} {{value}} {one.test.main.unit} is critical."
                yield Rule(point(name, side, group), sentence, values)


CRITICAL = Subject(
    "critical-results",
    "Critical results",
    (
        Rule(
            CHILD_AGE,
            "For critical results, patients under {value} years are children, all others adults.",
            ("12", "14", "16", "18"),
        ),
        *_limits(),
        Rule(PRIORITY, "The Task for a critical result has the priority {value}.", ("urgent", "asap", "stat")),
        Rule(MINUTES, "The Task is due {value} minutes after the result was issued.", ("15", "20", "30", "45", "60")),
    ),
)
"""The subject of policies about critical results."""


def is_critical(values: Mapping[str, str], code: str, value: Decimal, child: bool) -> bool:
    """Whether a result is critical.

    Args:
        values: The valid values of the policies.
        code: LOINC code.
        value: The value in the unit of the code.
        child: Whether the patient is a child.
    """
    name = TEST_OF[code]
    one = CRITICAL_TESTS[name]
    if code == one.test.similar.code:
        return False
    converted, group = one.test.converted(code, value), CHILDREN if child else ADULTS
    above, below = (
        [values[point(name, side, who)] for who in (group, _ALL) if who in limits]
        for side, limits in (("above", one.above), ("below", one.below))
    )
    return any(converted > Decimal(limit) for limit in above) or any(converted < Decimal(limit) for limit in below)


def conversions() -> str:
    """Return the codes and units of the tests, for prompts."""
    lines = []
    for name, one in CRITICAL_TESTS.items():
        main, other, factor = one.test.main, one.test.other, one.test.factor
        same = f"{other.code} in {other.unit}" + (
            "" if factor == 1 else f"; the value in {main.unit} is {factor} times the value in {other.unit}"
        )
        lines.append(f"  - {name}: {main.code} in {main.unit}, and {same}")
    return "\n".join(lines)
