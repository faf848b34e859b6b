"""Dates as intervals."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fhir_gym.fhir.index.values import DAY_MS, FAR_FUTURE, FAR_PAST, interval, period, start_of_day


@given(st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30)), st.integers(-14 * 60, 14 * 60))
def test_a_moment_is_its_instant_and_its_written_day(moment: datetime, minutes: int) -> None:
    zone = timezone(timedelta(minutes=minutes))
    text = moment.replace(tzinfo=zone).isoformat(timespec="milliseconds")
    found = interval(text)
    assert found is not None
    exact = (moment.replace(tzinfo=UTC) - timedelta(minutes=minutes) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
        milliseconds=1
    )
    assert found.low == found.high == exact
    assert found.low_day == found.high_day == moment.year * 10000 + moment.month * 100 + moment.day


@given(st.dates())
def test_a_day_spans_24_hours(day: date) -> None:
    found = interval(day.isoformat())
    assert found is not None
    assert found.high - found.low == DAY_MS - 1
    assert found.low == start_of_day(day.year, day.month, day.day)


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [("2023", 20230101, 20231231), ("2024-02", 20240201, 20240229), ("2023-04", 20230401, 20230430)],
)
def test_years_and_months(text: str, first: int, last: int) -> None:
    found = interval(text)
    assert found is not None
    assert (found.low_day, found.high_day) == (first, last)


@given(st.text(alphabet="0123456789-T:.Z+ abc", max_size=30))
def test_other_texts_are_not_dates(text: str) -> None:
    found = interval(text)
    assert found is None or FAR_PAST - 2 * DAY_MS <= found.low <= found.high <= FAR_FUTURE + 5 * DAY_MS


@pytest.mark.parametrize("text", ["", "2023-13", "2023-02-30", "202", "2023-1-1", "2023-01-01T10", "0000"])
def test_refused(text: str) -> None:
    assert interval(text) is None


def test_open_periods() -> None:
    found = period("2023-01-01", None)
    assert found is not None
    assert (found.low_day, found.high, found.high_day) == (20230101, FAR_FUTURE, 99991231)
    found = period(None, "2023-01-01T10:00:00Z")
    assert found is not None
    assert (found.low, found.low_day, found.high_day) == (FAR_PAST, 10101, 20230101)
    assert period("", "") is None


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("2023-11-14T09:07:05Z", "2023-11-14T09:07:05.000+00:00"),
        ("2023-11-14T24:00:00Z", "2023-11-14T24:00:00.000+00:00"),
        ("2023-11-14T23:60:61Z", "2023-11-14T23:60:61.000+00:00"),
        ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59.000+00:00"),
        ("2023-02-30T09:00:00Z", "no date"),
        ("2023-11-1 T09:00:00Z", "no date"),
        ("+023-11-14T09:07:05Z", "no date"),
        ("2023-11-14 09:07:05Z", "no date"),
    ],
)
def test_the_usual_form_of_an_instant_is_read_like_the_others(text: str, same: str) -> None:
    assert interval(text) == interval(same)
