"""Explanations of wrong numbers, tested on hand-made series of results."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from fractions import Fraction

import pytest

from fhir_gym.tasks.core.dates import instant
from fhir_gym.tasks.packs.action_reasoning.answer_sources import Records, explain_answer, is_given, windows
from fhir_gym.tasks.packs.action_reasoning.cases import CaseSpec, Family
from fhir_gym.tasks.packs.action_reasoning.series import LabResult, Series
from tests.tasks.packs.action_reasoning.records import NOW, ago


def reading(id: str, taken: datetime, value: float, status: str = "final") -> LabResult:
    return LabResult(id, taken, taken + timedelta(minutes=30), value, "mmol/L", instant(taken), status)


DAY = {2.0: 4.13, 5.0: 4.9, 11.0: 3.4, 20.0: 5.6}
"""Value of each result by hours since it was taken; the mean is 4.5075."""
OLDER = {24.5: 7.1, 30.0: 7.7, 80.0: 8.9}


def series(void: tuple[LabResult, ...] = (), superseded: tuple[LabResult, ...] = ()) -> Series:
    found = [reading(f"R{hours:g}", ago(hours=hours), value) for hours, value in (DAY | OLDER).items()]
    return Series(
        "S1", "K", counted=tuple(sorted(found, key=lambda result: result.taken)), void=void, superseded=superseded
    )


def series_of(values: Mapping[float, float]) -> Series:
    """Results taken the given hours ago, latest first."""
    found = [reading(f"R{hours:g}", ago(hours=hours), value) for hours, value in values.items()]
    return Series("S1", "K", counted=tuple(reversed(found)))


def records(
    family: Family = "aggregation",
    *,
    hours: float | None = 24,
    as_of: datetime = NOW,
    unseen: tuple[str, ...] = (),
    of: Series | None = None,
    truncated: bool = False,
    strangers: Mapping[str, tuple[float, ...]] | None = None,
) -> Records:
    of = of or series()
    plan = CaseSpec(
        family=family,
        scenario="window",
        lab="K",
        unit="mmol/L",
        as_of=instant(as_of),
        window_hours=hours,
        digits=2 if family == "aggregation" else 1,
    )
    everything = {result.id for result in (*of.counted, *of.void, *of.superseded, *of.others)}
    return Records(plan, NOW, of, frozenset(everything - {*unseen}), strangers or {}, truncated)


BEYOND = ("R24.5", "R30", "R80")
"""Results that are outside the right window."""


def label(records: Records, answer: float) -> str | None:
    source = explain_answer(records, answer)
    return None if source is None else source.label


@pytest.mark.parametrize(
    ("answer", "exact", "digits", "given"),
    [
        (4.51, "4.5075", 2, True),
        (4.508, "4.5075", 2, True),
        (4.5075, "4.5075", 2, True),
        (4.5, "4.5075", 2, False),
        (4.50, "4.5075", 1, True),
        (4.507, "4.5075", 2, True),
        (4.506, "4.5075", 2, False),
        (93, "93.04", 1, True),
        (93.0, "92.6", 0, True),
        (0.1 + 0.2, "0.3", None, True),
        (0.31, "0.3", None, False),
        (10**30, "0.3", 1, False),
    ],
)
def test_a_number_may_have_more_digits_than_asked_for(
    answer: float, exact: str, digits: int | None, given: bool
) -> None:
    assert is_given(answer, Fraction(exact), digits) is given


def test_other_windows_give_other_values() -> None:
    found = dict(windows(records()))
    assert records().window not in found.values() and len(set(found.values())) == len(found)
    assert [result.id for result in found["a window of 12 hours"]] == ["R11", "R5", "R2"]
    assert [result.id for result in found["a window of 25 hours"]] == ["R24.5", "R20", "R11", "R5", "R2"]
    assert [result.id for result in found["the calendar day"]] == ["R5", "R2"], "now is 10:15"
    assert len(found["the whole record"]) == 7


def test_windows_of_a_past_moment_may_reach_beyond_it() -> None:
    past = dict(windows(records(as_of=ago(hours=4))))
    assert past["the window and what came after it"][-1].id == "R2"
    assert past["the last 24 hours before the present"][0].id == "R20"
    at_end = records(as_of=ago(hours=5))
    assert [result.id for result in dict(windows(at_end))["the window without its end"]] == ["R24.5", "R20", "R11"]


def test_means_of_other_windows() -> None:
    whole = sum((*DAY.values(), *OLDER.values())) / 7
    assert label(records(), round(whole, 2)) == "window boundary"
    assert label(records(), round((4.13 + 4.9 + 3.4) / 3, 2)) == "window boundary"
    source = explain_answer(records(unseen=("R20", *BEYOND)), 4.14)
    assert source is not None and source.words == "the mean of a window of 12 hours"
    assert label(records(unseen=BEYOND), round(whole, 2)) is None, "it never saw the whole record"
    assert label(records(unseen=BEYOND), 4.14) == "window boundary", "a part that is a window"


def test_only_results_outside_the_window() -> None:
    day = ("R2", "R5", "R11", "R20")
    assert label(records(unseen=day), 7.9) == "window boundary", "their mean"
    assert label(records(unseen=(*day, "R30")), 8.0) == "window boundary"
    assert label(records(unseen=(*day, "R30", "R24.5")), 8.9) == "incorrect value retrieved"


def test_a_part_and_another_window_of_the_same_mean() -> None:
    of = series_of({2: 4.1, 5: 4.9, 11: 3.4, 20: 3.4, 80: 9.9})
    assert label(records(of=of, unseen=("R80",)), 4.13) == "incomplete inclusion", "it searched for just the window"
    assert label(records(of=of), 4.13) == "window boundary"


def test_a_round_number_is_a_rounded_one_unless_there_are_few_results() -> None:
    many = series_of({2: 4.3, 5: 4.24, 11: 4.4, 20: 4.5})
    assert label(records(of=many), 4.4) == "arithmetic"
    few = series_of({2: 4.2, 5: 4.31, 11: 4.6})
    assert label(records(of=few), 4.4) == "incomplete inclusion"


def test_means_of_parts() -> None:
    shown = records(unseen=BEYOND)
    assert label(shown, round((4.13 + 4.9 + 5.6) / 3, 3)) == "incomplete inclusion"
    assert label(shown, round((4.13 + 4.9 + 3.4 + 3.4 + 5.6) / 5, 3)) == "incomplete inclusion"
    assert label(shown, 4.13) == "incomplete inclusion", "the latest alone"
    assert label(shown, 4.9) == "incomplete inclusion", "any one alone"
    first_page = records(unseen=("R5", "R11", *BEYOND), truncated=True)
    assert label(first_page, round((4.13 + 5.6) / 2, 3)) == "incomplete inclusion"


def test_a_page_that_is_a_window_too_is_a_part_where_more_was_to_be_read() -> None:
    newest = ("R11", "R20", *BEYOND)
    assert label(records(unseen=newest), 4.52) == "window boundary"
    assert label(records(unseen=newest, truncated=True), 4.52) == "incomplete inclusion"


def test_slips_with_the_right_results() -> None:
    shown = records(unseen=BEYOND)
    for answer in (18.03, 4.515, 6.01, 45.08, 4.5, 5):
        assert label(shown, answer) == "arithmetic", answer
    assert label(records(unseen=("R2", *BEYOND)), 18.03) is None, "not all of it was there"


def test_results_that_do_not_count() -> None:
    void = (reading("V", ago(hours=3), 9.9, "cancelled"),)
    replaced = (reading("P", ago(hours=5), 2.2),)
    more = series(void=void, superseded=replaced)
    assert label(records(of=more, unseen=BEYOND), round((18.03 + 9.9) / 5, 2)) == "incorrect value retrieved"
    assert label(records(of=more, unseen=BEYOND), round((18.03 + 2.2) / 5, 2)) == "incomplete inclusion"
    assert label(records("retrieval", of=more), 9.9) == "incorrect value retrieved"
    assert label(records("retrieval", of=more), 2.2) == "incorrect value retrieved"
    assert label(records("retrieval", of=more, unseen=("V",)), 9.9) is None


def test_the_latest_of_other_windows() -> None:
    assert label(records("retrieval", as_of=ago(hours=4)), 4.13) == "window boundary", "taken after the moment"
    assert label(records("retrieval", as_of=ago(hours=11)), 5.6) == "window boundary", "the end left out"
    unread = records("retrieval", as_of=ago(hours=11), unseen=("R11",))
    assert label(unread, 5.6) == "incorrect value retrieved", "the latest was not there to be left out"
    twins = series_of({2: 5.6, 11: 3.4, 20: 5.6})
    page = records("retrieval", as_of=ago(hours=6), of=twins, unseen=("R11",), truncated=True)
    assert label(page, 5.6) == "incorrect value retrieved", "the latest that was on the page"
    empty = records("retrieval", hours=1)
    assert empty.window == () and label(empty, 4.13) == "window boundary", "taken before the window"


def test_other_results() -> None:
    assert label(records("retrieval"), 3.4) == "incorrect value retrieved"
    assert label(records("retrieval", unseen=("R11",)), 3.4) is None
    others = {"the NA results of Patient/S1": (139.0, 141.0)}
    assert label(records("retrieval", strangers=others), 141) == "incorrect value retrieved"
    assert label(records("retrieval", strangers=others), 140) is None
    assert label(records(strangers=others), 140) == "incorrect value retrieved", "their mean"


def test_a_single_value_is_not_to_be_calculated_with() -> None:
    assert label(records("retrieval"), 4) == "arithmetic", "rounded"
    assert label(records("retrieval", unseen=BEYOND), 4.5075) == "arithmetic", "a mean"


def test_values_without_a_source() -> None:
    assert explain_answer(records(), 6.66) is None
    assert explain_answer(records("retrieval"), 1e30) is None
