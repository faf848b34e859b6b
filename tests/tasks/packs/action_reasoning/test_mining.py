"""Mining of hand-made records, at the boundaries of each scenario."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from fractions import Fraction
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fhir_gym.errors import UnknownNameError
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.action_reasoning.cases import Scenario
from fhir_gym.tasks.packs.action_reasoning.mining import (
    FAMILY,
    OFFERED,
    MinedCandidate,
    candidates,
    mine,
    mining_report,
)
from fhir_gym.tasks.packs.action_reasoning.pitfalls import PAGE, PITFALLS, mean_digits
from fhir_gym.tasks.packs.action_reasoning.ranges import CATEGORIES, LABS, RANGES
from fhir_gym.tasks.packs.action_reasoning.series import lab_chart
from fhir_gym.types import Resource
from tests.tasks.packs.action_reasoning.records import MAN, NOW, ago, result, results, world_of

_MINUTE = timedelta(minutes=1)
_LATER = timedelta(hours=3)


def _present(world: World, scenario: Scenario, lab: str = "K") -> list[MinedCandidate]:
    return [
        candidate
        for candidate in candidates(world, scenario, lab)
        if candidate.as_of == NOW and candidate.patient == "S1"
    ]


def _past(world: World, scenario: Scenario, lab: str = "K") -> list[MinedCandidate]:
    return [candidate for candidate in candidates(world, scenario, lab) if candidate.as_of != NOW]


# Scenarios


@pytest.mark.parametrize(("count", "found"), [(1, True), (3, True), (4, False)])
def test_sparse_records_have_up_to_three_results(count: int, found: bool) -> None:
    with world_of(results({ago(days=n): 4 + n / 10 for n in range(1, count + 1)})) as world:
        present = _present(world, "sparse")
        assert [(candidate.ids, candidate.value) for candidate in present] == ([(("R1",), 4.1)] if found else [])
        assert bool(_past(world, "sparse")) is not found  # if the record is longer now, it was sparse in the past
        for candidate in _past(world, "sparse"):
            assert len(lab_chart(world).one("S1", "K").upto(candidate.as_of)) <= 3
            assert "later results" in candidate.pitfalls


def test_a_record_of_withdrawn_results_or_of_none_is_sparse_and_has_no_answer() -> None:
    with world_of(result("A", ago(hours=1), 4.0, status="entered-in-error")) as world:
        withdrawn, none = candidates(world, "sparse", "K")
        assert (withdrawn.patient, withdrawn.ids, withdrawn.value) == ("S1", (), None)
        assert withdrawn.pitfalls == {"void result"}
        assert (none.patient, none.ids, none.pitfalls) == ("S2", (), frozenset())
        assert candidates(world, "sparse", "NA") == ()  # a test that has no results gives no candidates
    with world_of(result("A", ago(hours=1), None, status="cancelled")) as world:
        assert [(candidate.patient, candidate.ids) for candidate in candidates(world, "sparse", "K")] == [
            ("S1", ()),
            ("S2", ()),
        ]


@pytest.mark.parametrize(
    ("apart", "found"), [(timedelta(minutes=1), True), (2 * 60 * _MINUTE, True), (121 * _MINUTE, False)]
)
def test_clusters_end_in_two_results_within_two_hours(apart: timedelta, found: bool) -> None:
    with world_of(results({ago(hours=5): 4.0, ago(hours=5) - apart: 4.4, ago(days=2): 4.2})) as world:
        assert [(candidate.ids, candidate.value) for candidate in _present(world, "cluster")] == (
            [(("R1",), 4.0)] if found else []
        )


def test_clusters_of_the_past_are_asked_about_before_the_next_result() -> None:
    moments = {ago(days=9): 4.0, ago(days=9) + 30 * _MINUTE: 4.1, ago(days=9) + 99 * _MINUTE: 4.2, ago(hours=1): 4.9}
    with world_of(results(moments)) as world:
        assert not _present(world, "cluster")
        past = _past(world, "cluster")
        assert {candidate.value for candidate in past} == {4.1, 4.2}
        for candidate in past:
            assert [each.id for each in lab_chart(world).one("S1", "K").upto(candidate.as_of)][-1:] == list(
                candidate.ids
            )
            assert candidate.as_of < NOW
            assert all(each.issued <= candidate.as_of for each in lab_chart(world).one("S1", "K").upto(candidate.as_of))


@pytest.mark.parametrize(
    ("before", "ids"),
    [
        (timedelta(hours=22, minutes=59, seconds=59), None),
        (timedelta(hours=23), ("R1",)),
        (timedelta(hours=24), ("R1",)),  # both ends belong to the window
        (timedelta(hours=24, seconds=1), ()),
        (timedelta(hours=25), ()),
        (timedelta(hours=25, seconds=1), None),
    ],
)
def test_edges_are_results_of_23_to_25_hours_ago(before: timedelta, ids: tuple[str, ...] | None) -> None:
    with world_of(results({NOW - before: 4.0, ago(days=8): 5.1})) as world:
        present = _present(world, "edge")
        assert [candidate.ids for candidate in present] == ([] if ids is None else [ids])
        for candidate in present:
            assert candidate.window_hours == 24
            assert candidate.value == (4.0 if ids else None)
            assert ("latest regardless of window" in candidate.pitfalls) is (ids == ())


def test_edges_of_the_past_lie_on_both_sides_and_nothing_followed() -> None:
    with world_of(results({ago(days=n): 4 + n / 10 for n in range(3, 40, 3)})) as world:
        past = _past(world, "edge")
        assert {bool(candidate.ids) for candidate in past} == {True, False}
        series = lab_chart(world).one("S1", "K")
        for candidate in past:
            latest = series.latest(candidate.as_of)
            assert latest is not None
            assert timedelta(hours=23) <= candidate.as_of - latest.taken <= timedelta(hours=25)
            assert (candidate.as_of - latest.taken <= timedelta(hours=24)) is bool(candidate.ids)
        assert 2 <= len(past) <= 4


@pytest.mark.parametrize(("oldest", "count"), [(timedelta(hours=23), 3), (timedelta(hours=25), 2)])
def test_windows_that_are_averaged_have_three_results_in_24_hours(oldest: timedelta, count: int) -> None:
    with world_of(results({ago(hours=1): 4.0, ago(hours=2): 4.4, NOW - oldest: 4.1, ago(days=8): 5.1})) as world:
        present = _present(world, "window")
        if count < 3:
            assert not present
        else:
            assert [(candidate.ids, candidate.value) for candidate in present] == [(("R3", "R2", "R1"), 4.17)]
            assert present[0].pitfalls == {"latest regardless of window", "whole record"}
        assert candidates(world, "window", "CA") == ()


@pytest.mark.parametrize("on", [timedelta(hours=24), timedelta()])
def test_windows_with_a_result_on_their_end_are_dropped(on: timedelta) -> None:
    with world_of(results({ago(hours=1): 4.0, ago(hours=2): 4.4, ago(hours=3): 4.6, NOW - on: 4.1})) as world:
        assert not _present(world, "window")
        assert mine(world, "window", "K").dropped["a result on an end of the window"] == 1


@pytest.mark.parametrize(
    ("values", "value"),
    [
        ((4.0, 4.1, 4.1, 4.1), None),  # the mean 4.075 is halfway between two numbers with two digits
        ((4.0, 4.1, 4.0, 4.1), None),  # the mean 4.05 is halfway between two numbers with the laboratory's digits
        ((4.0, 4.1, 4.3), 4.13),
        ((4.0, 4.0, 4.0), 4.0),
    ],
)
def test_means_on_a_rounding_half_are_dropped(values: Sequence[float], value: float | None) -> None:
    with world_of(results({ago(hours=n): result for n, result in enumerate(values, 1)})) as world:
        assert [candidate.value for candidate in _present(world, "window")] == ([] if value is None else [value])
        assert ("a mean on a rounding half" in mine(world, "window", "K").dropped) is (value is None)


@pytest.mark.parametrize("scenario", ["general", "demographic"])
def test_conditional_finds_are_of_the_tests_with_such_ranges(scenario: Scenario) -> None:
    every = [result(f"R{n}", ago(hours=n + 1), 10.0, lab=lab) for n, lab in enumerate(LABS)]
    with world_of(every) as world:
        offered = {lab for lab in LABS if candidates(world, scenario, lab)}
    rows = {"general": 1, "demographic": 6}[scenario]
    assert offered == {lab for lab in LABS if len(RANGES[lab]) >= rows and (len(RANGES[lab]) == 1) == (rows == 1)}


def test_all_categories_are_found_the_rare_ones_in_the_past() -> None:
    values = (2.0, 3.0, 3.6, 4.5, 5.4, 6.0, 7.0)
    with world_of(
        results({ago(days=n + 1): value for n, value in enumerate(values)}),
        [result(f"X{n}", ago(days=n + 20), 4.5) for n in range(5)],
    ) as world:
        mined_candidates = candidates(world, "general", "K")
        assert [(candidate.value, candidate.category) for candidate in mined_candidates[:1]] == [
            (2.0, "critically_low")
        ]
        assert len(mined_candidates) == 4  # three are in the past, and all have different categories
        assert len({candidate.category for candidate in mined_candidates}) == 4
        assert "normal" not in {
            candidate.category for candidate in mined_candidates
        }  # the most frequent category comes last and is cut off
        for candidate in mined_candidates:
            assert candidate.category == CATEGORIES[values.index(cast("float", candidate.value))]


# Unusable results


def test_a_result_in_another_unit_drops_the_finds_that_rest_on_it() -> None:
    clean = results({ago(hours=1): 4.0, ago(hours=2): 4.4, ago(hours=3): 4.6})
    for moment, dropped in (
        (ago(minutes=1), {"sparse", "cluster", "window", "general"}),
        (ago(minutes=90), {"sparse", "window"}),
        (ago(hours=23), {"sparse", "window"}),
        (ago(hours=25), {"sparse"}),
    ):
        with world_of(clean, result("F", moment, 4.0, unit="mg/dL")) as world:
            kinds: tuple[Scenario, ...] = ("sparse", "cluster", "window", "general")
            assert {kind for kind in kinds if not _present(world, kind)} == dropped
            for kind in dropped:
                assert mine(world, cast("Scenario", kind), "K").dropped["a result in another unit"] >= 1


def test_two_values_of_one_instant_and_issue_drop_the_finds_that_rest_on_them() -> None:
    tie = result("T", ago(hours=2), 9.9)
    with world_of(results({ago(hours=1): 4.0, ago(hours=2): 4.4, ago(hours=3): 4.6}), tie) as world:
        assert not _present(world, "window")
        assert not _present(world, "sparse")
        assert _present(world, "cluster")
        assert set(mine(world, "window", "K").dropped) == {"two values with the same instant and issue time"}
    with world_of(results({ago(hours=2): 4.4, ago(hours=3): 4.6}), tie) as world:
        assert not _present(world, "cluster")
        assert not _present(world, "general")


def test_every_patient_is_judged_by_their_own_range() -> None:
    unknown: Resource = {"resourceType": "Patient", "id": "S3", "gender": "unknown", "birthDate": "1970-01-01"}
    hgb = [result(f"H{owner}", ago(hours=1), 12.5, lab="HGB", owner=owner) for owner in ("S1", "S2", "S3")]
    with world_of(unknown, hgb) as world:
        mining_result = mine(world, "demographic", "HGB")
        assert [(candidate.patient, candidate.category) for candidate in mining_result.candidates] == [
            ("S1", "borderline_low"),
            ("S2", "low"),
        ]
        assert mining_result.dropped == {"no range for the patient's sex and age": 1}


# Pitfalls


def test_ranges_of_the_other_sex_and_of_other_ages() -> None:
    boy: Resource = {"resourceType": "Patient", "id": "S3", "gender": "male", "birthDate": "2015-01-01"}

    def traps(value: float, owner: str) -> frozenset[str]:
        with world_of(boy, result("A", ago(hours=1), value, lab="HGB", owner=owner)) as world:
            return candidates(world, "demographic", "HGB")[0].pitfalls

    assert traps(13.0, "S1") == {"other sex"}  # inside the ranges for girls and children
    assert traps(12.1, "S1") == {"other age"}  # low in the range for men too
    assert traps(13.0, "S2") == {"other sex", "other age"}
    assert traps(13.4, "S2") == {"other age"}  # low only for younger men
    assert traps(6.0, "S2") == frozenset()
    assert traps(13.4, "S3") == {"other age"}  # girls and boys share one range


def test_first_pages_are_of_twenty_results_in_order_of_creation() -> None:
    old = [result(f"O{n}", ago(days=n + 2), 4.0 + n / 10) for n in range(PAGE - 1)]
    newest, last = result("N", ago(hours=1), 5.9), result("L", ago(days=90), 5.8)
    with world_of(old, newest, last) as world:
        assert "first page" not in _present(world, "general")[0].pitfalls
    with world_of(old, last, newest) as world:
        assert "first page" in _present(world, "general")[0].pitfalls
    with world_of(old, newest) as world:
        assert len(lab_chart(world).one("S1", "K").listed) == PAGE
        assert "first page" not in _present(world, "general")[0].pitfalls


def test_replaced_and_withdrawn_results() -> None:
    replaced = (result("A", ago(hours=2), 4.4), result("B", ago(hours=2), 3.1, issued=_LATER - timedelta(hours=1)))
    with world_of(*replaced) as world:
        assert [candidate.ids for candidate in _present(world, "general")] == [("B",)]
        assert _present(world, "general")[0].pitfalls == {"tie"}
    with world_of(replaced[1], result("A", ago(hours=2), 3.1)) as world:
        assert _present(world, "general")[0].pitfalls == frozenset()  # the shortcut gives the same value
    with world_of(result("A", ago(hours=2), 4.4), result("V", ago(hours=1), 3.1, status="cancelled")) as world:
        assert _present(world, "general")[0].pitfalls == {"void result"}
    with world_of(result("A", ago(hours=2), 4.4), result("V", ago(hours=3), 3.1, status="cancelled")) as world:
        assert _present(world, "general")[0].pitfalls == frozenset()


def test_a_way_that_can_be_carried_out_to_the_right_mean_is_not_caught() -> None:
    moments = {ago(days=9): 4.0, ago(days=9) + 60 * _MINUTE: 4.0, ago(days=9) + 90 * _MINUTE: 4.3}
    with world_of(results(moments), result("N", ago(hours=1), 5.9)) as world:
        (past,) = _past(world, "window")
        assert past.pitfalls == {"latest regardless of window", "later results"}  # at that time the record ended there
    recent = {ago(hours=n): value for n, value in ((1, 4.3), (2, 4.0), (3, 4.0))}
    for value, caught in ((4.1, False), (4.2, True)):  # 4.1 does not change the mean
        with world_of(results(recent), result("V", ago(hours=1), value, status="cancelled", issued=_LATER)) as world:
            assert [candidate.value for candidate in _present(world, "window")] == [4.1]
            assert ("void result" in _present(world, "window")[0].pitfalls) is caught
        with world_of(results(recent), result("E", ago(hours=1), value, issued=timedelta())) as world:
            assert [candidate.value for candidate in _present(world, "window")] == [4.1]
            assert ("tie" in _present(world, "window")[0].pitfalls) is caught


def test_disputed_results_of_the_past_are_asked_about() -> None:
    plain = results({ago(days=n): 4.0 for n in range(1, 30)})
    disputed = result("A", ago(days=40), 4.4), result("V", ago(days=40), 3.1, status="cancelled", issued=_LATER)
    with world_of(plain, disputed) as world:
        assert [
            candidate.ids for candidate in candidates(world, "general", "K") if "void result" in candidate.pitfalls
        ] == [("A",)]
    with world_of(plain, result("A", ago(days=40), 4.4), result("B", ago(days=40), 4.5)) as world:
        assert not mine(world, "general", "K").dropped  # if no result is eligible, nothing is dropped


# Comparison with a plain implementation

_HOURS = (0, 0.5, 1, 2, 2.01, 3, 5, 23, 23.5, 24, 24.01, 25, 26, 47, 49, 72, 96, 200, 201, 400)
_RESULT = st.tuples(
    st.sampled_from(_HOURS),
    st.sampled_from((2.5, 3.4, 3.5, 4.0, 4.1, 5.5, 5.6, 6.4)),
    st.sampled_from(("final", "final", "final", "final", "corrected", "cancelled")),
    st.sampled_from(("mmol/L",) * 9 + ("mg/dL",)),
    st.sampled_from((0, 0, 0, 10)),
    st.sampled_from(("S1", "S1", "S2")),
)


def _counted(resources: Sequence[Resource], owner: str) -> list[tuple[datetime, Resource, bool]]:
    """The results of a patient that count, each as a tuple: its time, the result, and whether it is unusable."""
    groups: dict[datetime, list[Resource]] = {}
    for resource in resources:
        if resource["subject"]["reference"] == f"Patient/{owner}" and resource["status"] != "cancelled":
            groups.setdefault(datetime.fromisoformat(resource["effectiveDateTime"]), []).append(resource)
    found = []
    for taken in sorted(groups):
        issued = max(group["issued"] for group in groups[taken])
        rivals = [group for group in groups[taken] if group["issued"] == issued]
        values = {(rival["valueQuantity"]["value"], rival["valueQuantity"]["unit"]) for rival in rivals}
        found.append((taken, rivals[0], len(values) > 1 or rivals[0]["valueQuantity"]["unit"] != "mmol/L"))
    return found


def _expected(resources: Sequence[Resource], owner: str, scenario: Scenario, as_of: datetime) -> list[Resource] | None:
    """The results that determine the answer to a question; None if the question is invalid."""
    results = [resource for resource in _counted(resources, owner) if resource[0] <= as_of]
    of_unit = [resource for resource in results if resource[1]["valueQuantity"]["unit"] == "mmol/L"]
    inside = [resource for resource in results if as_of - timedelta(hours=24) <= resource[0]]
    inside_of_unit = [resource for resource in inside if resource in of_unit]
    latest = of_unit[-1] if of_unit else None
    if scenario == "window":
        if len(inside_of_unit) < 3 or any(bad for _, _, bad in inside):
            return None
        if inside[0][0] == as_of - timedelta(hours=24) or inside[-1][0] == as_of:
            return None
        mean = sum(Fraction(str(resource["valueQuantity"]["value"])) for _, resource, _ in inside) / len(inside)
        if any((mean * 10**digits) % 1 == Fraction(1, 2) for digits in (1, 2)):
            return None
        return [resource for _, resource, _ in inside]
    if scenario == "sparse":
        if len(of_unit) > 3 or any(bad for _, _, bad in results):
            return None
        return [resource for _, resource, _ in of_unit[-1:]]
    if latest is None or (scenario == "edge" and not 23 * 3600 <= (as_of - latest[0]).total_seconds() <= 25 * 3600):
        return None
    if scenario == "cluster" and (len(of_unit) < 2 or latest[0] - of_unit[-2][0] > timedelta(hours=2)):
        return None
    since = latest[0] if scenario != "edge" or latest in inside else as_of - timedelta(hours=24)
    if any(bad for taken, _, bad in results if taken >= since):
        return None
    return [latest[1]] if scenario != "edge" or latest in inside else []


@settings(max_examples=60)
@given(st.lists(_RESULT, max_size=14))
def test_finds_equal_those_of_a_simple_search(drawn: list[tuple[float, float, str, str, int, str]]) -> None:
    resources = [
        result(f"R{n}", ago(hours=hours), value, status=status, unit=unit, owner=owner, issued=minutes * _MINUTE)
        for n, (hours, value, status, unit, minutes, owner) in enumerate(drawn)
    ]
    with world_of(resources) as world:
        kinds: tuple[Scenario, ...] = ("sparse", "cluster", "edge", "window", "general")
        for kind in kinds:
            mined_candidates = candidates(world, kind, "K")
            having = {resource["subject"]["reference"].removeprefix("Patient/") for resource in resources}
            for owner in sorted(having):
                expected = _expected(resources, owner, kind, NOW)
                present = [
                    candidate for candidate in mined_candidates if candidate.as_of == NOW and candidate.patient == owner
                ]
                assert [candidate.ids for candidate in present] == (
                    [] if expected is None else [tuple(resource["id"] for resource in expected)]
                )
            for candidate in mined_candidates:
                if candidate.patient in having:
                    deciding = _expected(resources, candidate.patient, kind, candidate.as_of)
                    assert deciding is not None
                    assert candidate.ids == tuple(each["id"] for each in deciding)
                    _check_value(candidate, [each["valueQuantity"]["value"] for each in deciding])
            assert len({(candidate.patient, candidate.as_of) for candidate in mined_candidates}) == len(
                mined_candidates
            )


def _check_value(find: MinedCandidate, values: list[float]) -> None:
    if not values:
        assert find.value is None
    elif find.family == "aggregation":
        exact = sum(map(Fraction, map(str, values)), Fraction()) / len(values)
        assert find.value is not None
        assert abs(Fraction(str(find.value)) - exact) * 2 * 10 ** mean_digits("K") < 1
    else:
        assert find.value == values[-1]


# Whole worlds


def test_finds_are_the_same_each_time_and_the_present_comes_first(hospital: World) -> None:
    with World.open(hospital.path) as again:
        for scenario, labs in OFFERED.items():
            for lab in labs:
                mined_candidates = candidates(hospital, scenario, lab)
                assert mined_candidates == candidates(again, scenario, lab)
                assert candidates(hospital, scenario, lab) is mined_candidates
                of_now = [candidate.as_of == hospital.now for candidate in mined_candidates]
                assert of_now == sorted(of_now, reverse=True)
                assert {(candidate.family, candidate.scenario, candidate.lab) for candidate in mined_candidates} <= {
                    (FAMILY[scenario], scenario, lab)
                }
                assert all(candidate.pitfalls <= set(PITFALLS) for candidate in mined_candidates)
                assert len({(candidate.patient, candidate.as_of) for candidate in mined_candidates}) == len(
                    mined_candidates
                )


def test_a_chart_read_again_gives_the_same_finds() -> None:
    resources = [result(f"R{n}", ago(hours=7 * n), 3 + n % 7 / 2) for n in range(40)]
    found = []
    for extra in ([], [MAN]):
        with world_of(extra, resources) as world:
            found.append([candidates(world, scenario, "K") for scenario in OFFERED])
    assert found[0] == found[1]


def test_unknown_names_are_refused() -> None:
    with world_of() as world:
        with pytest.raises(UnknownNameError, match="unknown scenario 'spars'; did you mean 'sparse'"):
            candidates(world, cast("Scenario", "spars"), "K")
        with pytest.raises(UnknownNameError, match="unknown lab 'XX'"):
            candidates(world, "sparse", "XX")
        assert candidates(world, "demographic", "K") == ()


def test_the_survey_counts_finds_and_reasons_for_rejection(hospital: World) -> None:
    report = mining_report(hospital)
    assert [(offer.scenario, offer.lab) for offer in report.offers] == [
        (scenario, lab) for scenario, labs in OFFERED.items() for lab in labs
    ]
    for offer in report.offers:
        whole = mine(hospital, offer.scenario, offer.lab)
        assert offer.candidates == len(whole.candidates)
        assert offer.dropped == whole.dropped
        if offer.categories:
            assert sum(offer.categories.values()) == offer.candidates
    for heads, rows in (
        (report.columns, report.rows()),
        (report.category_columns, report.category_rows()),
        (report.pitfall_columns, report.pitfall_rows()),
    ):
        assert rows
        assert {len(row) for row in rows} == {len(heads)}
    data = json.loads(json.dumps(report.to_json()))
    assert data["world"] == hospital.name
    assert len(data["offers"]) == len(report.offers)
    assert data["offers"][0]["finds"] == report.offers[0].candidates


def test_a_world_without_results_offers_nothing(empty_world: World) -> None:
    assert {offer.candidates for offer in mining_report(empty_world).offers} == {0}
    with world_of() as world:
        assert {offer.candidates for offer in mining_report(world).offers} == {0}
