from __future__ import annotations

from datetime import date

import pytest

from fhir_gym.tasks.packs.shift.p1_booking_rules.rules import BOOKING, Attendance, PolicyLimits

MONDAY = date(2023, 11, 13)


VALUES = {
    "first-day": "2 days",
    "last-day": "8",
    "weekdays": "Tuesdays and Fridays",
    "new-patients": "45",
    "known-patients": "30",
    "week": "2 appointments",
    "missed": "2 or more appointments",
}


@pytest.mark.parametrize(
    ("start", "minutes", "appointments", "suits"),
    [
        ("2023-11-15T09:00:00Z", 30, [("2023-11-01T09:00:00Z", "fulfilled", True)], True),
        ("2023-11-14T09:00:00Z", 30, [("2023-11-01T09:00:00Z", "fulfilled", True)], False),
        ("2023-11-21T16:00:00Z", 20, [("2023-11-01T09:00:00Z", "fulfilled", True)], True),
        ("2023-11-22T09:00:00Z", 20, [("2023-11-01T09:00:00Z", "fulfilled", True)], False),
        ("2023-11-15T09:00:00Z", 45, [("2023-11-01T09:00:00Z", "fulfilled", True)], False),
        ("2023-11-17T09:00:00Z", 45, [], True),
        ("2023-11-17T09:00:00Z", 30, [], False),
        ("2023-11-16T09:00:00Z", 45, [], False),
        ("2023-11-17T09:00:00Z", 45, [("2023-11-01T09:00:00Z", "fulfilled", False)], True),
        ("2023-11-17T09:00:00Z", 45, [("2023-11-01T09:00:00Z", "booked", True)], True),
        ("2023-11-17T09:00:00Z", 45, [("2023-11-13T08:00:00Z", "fulfilled", False)], True),
        (
            "2023-11-17T09:00:00Z",
            45,
            [("2023-11-13T08:00:00Z", "fulfilled", False), ("2023-11-19T23:00:00Z", "booked", False)],
            False,
        ),
        (
            "2023-11-17T09:00:00Z",
            45,
            [("2023-11-13T08:00:00Z", "cancelled", False), ("2023-11-20T00:00:00Z", "booked", False)],
            True,
        ),
    ],
)
def test_policies_limit_the_time(
    start: str, minutes: int, appointments: list[tuple[str, str, bool]], suits: bool
) -> None:
    limits = PolicyLimits.of(VALUES, MONDAY, [Attendance(*appointment) for appointment in appointments])
    assert limits is not None and limits.suits(start, minutes) is suits


def test_patients_who_missed_appointments_are_not_booked() -> None:
    missed = Attendance("2023-11-01T09:00:00Z", "noshow", False)
    assert PolicyLimits.of(VALUES, MONDAY, [missed]) is not None
    assert PolicyLimits.of(VALUES, MONDAY, [missed, missed]) is None
    never = VALUES | {"missed": "1 appointment or more"}
    assert PolicyLimits.of(never, MONDAY, [missed]) is None


def test_the_points_of_the_policies_are_the_values_that_limit() -> None:
    assert {rule.name for rule in BOOKING.rules} == {*VALUES}
    assert all(VALUES[rule.name] in rule.values for rule in BOOKING.rules)
