"""Draw and build insurers, coverages, accounts and guarantors, and the ranges of days on which they are in force."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import date, timedelta
from itertools import pairwise

from fhir_gym.tasks import Params
from fhir_gym.tasks.authoring import reference
from fhir_gym.tasks.grading import has_coding
from fhir_gym.types import Json, Resource, as_object

DayRange = tuple[int, int]
"""First and last day as ordinals (`date.toordinal`)."""

_FIRST, _LAST = date.min.toordinal(), date.max.toordinal()
_LENGTHS, _GAPS = (90, 500), (15, 200)


def iso_day(ordinal: int) -> str:
    """Return the ISO date of an ordinal (``"2023-11-13"``)."""
    return date.fromordinal(ordinal).isoformat()


def day_range(start: str | None, end: str | None) -> DayRange:
    """Convert a period of ISO dates to a range of days; None means that the period has no start or no end."""
    return (
        _FIRST if start is None else date.fromisoformat(start).toordinal(),
        _LAST if end is None else date.fromisoformat(end).toordinal(),
    )


def intersection(first: Sequence[DayRange], *others: Sequence[DayRange]) -> list[DayRange]:
    """Return the ranges of days that all lists of ranges cover."""
    common = list(first)
    for other in others:
        common = [(a if a > c else c, b if b < d else d) for a, b in common for c, d in other if a <= d and c <= b]
    return common


def gaps_between(ranges: Sequence[DayRange]) -> list[DayRange]:
    """Return the gaps between consecutive ranges."""
    return [(end + 1, start - 1) for (_, end), (start, _) in pairwise(ranges) if end + 1 < start]


def draw_consecutive(rng: random.Random, today: date, count: int) -> list[DayRange]:
    """Draw consecutive ranges that have gaps between them; today may be in any of the ranges or gaps."""
    ranges, start = [], 0
    for _ in range(count):
        end = start + rng.randrange(*_LENGTHS)
        ranges.append((start, end))
        start = end + rng.randrange(*_GAPS)
    shift = today.toordinal() - rng.randrange(ranges[-1][1])
    return [(start + shift, end + shift) for start, end in ranges]


def draw_spanning(rng: random.Random, ranges: Sequence[DayRange]) -> DayRange:
    """Draw a range that starts within the first and ends within the last of several consecutive ranges."""
    (first, first_end), (last_start, last) = ranges[0], ranges[-1]
    return rng.randrange(first, first_end + 1), rng.randrange(last_start, last + 1)


def draw_day(rng: random.Random, ranges: Sequence[DayRange], edges: Sequence[int] = ()) -> str:
    """Draw a day in the ranges; if some `edges` are in the ranges, draw one of these with probability 1/2."""
    close = [edge for edge in edges if any(start <= edge <= end for start, end in ranges)]
    if close and rng.random() < 0.5:
        return iso_day(rng.choice(close))
    start, end = rng.choice(ranges)
    return iso_day(rng.randrange(start, end + 1))


COVERAGE_CLASS = "http://terminology.hl7.org/CodeSystem/coverage-class"
_CLASSES = ("group", "plan")
_ACT_CODE = "http://terminology.hl7.org/CodeSystem/v3-ActCode"
_ORGANIZATION_TYPE = "http://terminology.hl7.org/CodeSystem/organization-type"

_PLANS = ("BRONZE", "SILVER", "GOLD", "PLATINUM", "HMO", "PPO", "EPO")


class CoverageRecord(Params):
    """One insurance coverage.

    Attributes:
        patient: Id of the beneficiary.
        holder: Reference to the policy holder, who is also the subscriber.
        insurer: Id of the paying Organization.
        start: First day of the period.
        end: Last day of the period; None if the coverage has no end.
        group: Number of the employer group; empty if the coverage has none.
        plan: Number of the plan; empty if the coverage has none.
    """

    id: str
    patient: str
    holder: str
    insurer: str
    status: str
    start: str
    end: str | None
    group: str = ""
    plan: str = ""


class Insurer(Params):
    """An insurance company.

    Attributes:
        id: Id of the Organization.
        name: Name of the company.
        active: Whether the Organization is active.
    """

    id: str
    name: str
    active: bool = True


class Guarantor(Params):
    """A guarantor of an account.

    Attributes:
        party: Id of the RelatedPerson who is the guarantor.
        on_hold: Whether the guarantee is on hold.
        start: First day of the guarantee; None if it has no start.
        end: Last day of the guarantee; None if it has no end.
    """

    party: str
    on_hold: bool = False
    start: str | None = None
    end: str | None = None


class AccountRecord(Params):
    """One account.

    Attributes:
        patient: Id of the patient.
        opened: First day of the service period.
        closed: Last day of the service period; None if it has no end.
    """

    id: str
    patient: str
    status: str
    opened: str
    closed: str | None = None
    name: str = "Patient billing account"
    guarantors: tuple[Guarantor, ...] = ()


def group_number(rng: random.Random) -> str:
    """Draw the number of an employer group."""
    return f"Group-{rng.randrange(10_000, 99_999)}"


def plan_number(rng: random.Random) -> str:
    """Draw the number of a plan."""
    return f"{rng.choice(_PLANS)}{rng.randrange(100, 999)}"


def in_days(today: date, days: int) -> str:
    """Return the date `days` days after today."""
    return (today + timedelta(days=days)).isoformat()


def insurer_resource(insurer: Insurer) -> Resource:
    """Build the Organization of an insurer."""
    kind = {"system": _ORGANIZATION_TYPE, "code": "ins", "display": "Insurance Company"}
    return {
        "resourceType": "Organization",
        "id": insurer.id,
        "active": insurer.active,
        "type": [{"coding": [kind]}],
        "name": insurer.name,
    }


def coverage_class(code: str, value: str) -> Resource:
    """Build an element of ``Coverage.class``."""
    return {"type": {"coding": [{"system": COVERAGE_CLASS, "code": code}]}, "value": value}


def coverage_resource(coverage: CoverageRecord) -> Resource:
    """Build the Coverage of a coverage record."""
    classes = [coverage_class(kind, value) for kind in _CLASSES if (value := getattr(coverage, kind))]
    return {
        "resourceType": "Coverage",
        "id": coverage.id,
        "status": coverage.status,
        "policyHolder": {"reference": coverage.holder},
        "subscriber": {"reference": coverage.holder},
        "beneficiary": reference("Patient", coverage.patient),
        "period": _period(coverage.start, coverage.end),
        "payor": [reference("Organization", coverage.insurer)],
        **({"class": classes} if classes else {}),
    }


def class_values(coverage: Resource) -> list[list[Json]]:
    """Return the sorted classes of a Coverage, each as a list of its type codes (``group``, ``plan``) and its value."""
    classes = [item for item in coverage.get("class", []) if isinstance(item, dict)]
    values: list[list[Json]] = [
        [*(code for code in _CLASSES if has_coding(item.get("type"), COVERAGE_CLASS, code)), item.get("value")]
        for item in classes
    ]
    return sorted(values, key=str)


def account_resource(account: AccountRecord) -> Resource:
    """Build the Account of an account record."""
    kind = {"system": _ACT_CODE, "code": "PBILLACCT", "display": "patient billing account"}
    guarantors = [*map(_guarantor, account.guarantors)]
    return {
        "resourceType": "Account",
        "id": account.id,
        "status": account.status,
        "type": {"coding": [kind]},
        "name": account.name,
        "subject": [reference("Patient", account.patient)],
        "servicePeriod": _period(account.opened, account.closed),
        **({"guarantor": guarantors} if guarantors else {}),
    }


def period_includes(day: str, period: Json) -> bool:
    """Return whether a Period of dates includes a day.

    The first and the last day belong to the Period. A Period without start or end is open on that side.
    """
    bounds = as_object(period)
    start, end = bounds.get("start"), bounds.get("end")
    return (start is None or start <= day) and (end is None or day <= end)


def guarantees_on(guarantor: Resource, day: str) -> bool:
    """Return whether an ``Account.guarantor`` is in force on a day: not on hold, and the day is in the period."""
    return not guarantor.get("onHold", False) and period_includes(day, guarantor.get("period"))


def _guarantor(guarantor: Guarantor) -> Resource:
    period = _period(guarantor.start, guarantor.end)
    return {
        "party": reference("RelatedPerson", guarantor.party),
        "onHold": guarantor.on_hold,
        **({"period": period} if period else {}),
    }


def _period(start: str | None, end: str | None) -> Resource:
    return {name: day for name, day in (("start", start), ("end", end)) if day is not None}
