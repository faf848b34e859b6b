from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import pytest

from fhir_gym.tasks.core.dates import WEEKDAYS, at, full_years, instant, moment_in_words, next_weekday, parse_instant

MONDAY = datetime(2023, 11, 13, 10, 15, tzinfo=UTC)


@pytest.mark.parametrize("weekday", range(7))
def test_next_weekday_is_strictly_after_today_and_within_a_week(weekday: int) -> None:
    day = next_weekday(MONDAY, weekday)
    assert day.weekday() == weekday
    assert timedelta(1) <= day - MONDAY.date() <= timedelta(7)


def test_next_weekday_of_today_is_in_a_week() -> None:
    assert next_weekday(MONDAY, 0) == date(2023, 11, 20)


def test_today_is_counted_in_utc() -> None:
    sunday_in_new_york = datetime(2023, 11, 12, 22, 0, tzinfo=timezone(-timedelta(hours=5)))  # Monday 03:00 UTC
    assert next_weekday(sunday_in_new_york, 0) == date(2023, 11, 20)
    assert WEEKDAYS[0] in moment_in_words(sunday_in_new_york)


def test_instants() -> None:
    moment = at(date(2023, 11, 14), 9)
    assert instant(moment) == "2023-11-14T09:00:00Z"
    assert parse_instant(instant(moment)) == moment
    assert parse_instant("2023-11-14T11:00:00+02:00") == moment
    assert moment_in_words(MONDAY).startswith("2023-11-13T10:15:00Z, a Monday")


def test_full_years() -> None:
    assert full_years(date(1956, 11, 13), date(2023, 11, 13)) == 67
    assert full_years(date(1956, 11, 14), date(2023, 11, 13)) == 66
    assert full_years(date(2004, 2, 29), date(2023, 2, 28)) == 18
