"""Classification of results: they count, are ignored, or make a question ambiguous."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from fhir_gym.errors import TaskError, UnknownNameError
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.action_reasoning import series
from fhir_gym.tasks.packs.action_reasoning.series import Series, lab_chart
from tests.tasks.packs.action_reasoning.records import MAN, NOW, WOMAN, ago, result, world_of

_LATER = timedelta(hours=3)


def _ids(readings: tuple[series.LabResult, ...]) -> list[str]:
    return [reading.id for reading in readings]


def _series(world: World, patient: str = "S1", lab: str = "K") -> Series:
    return lab_chart(world).one(patient, lab)


def test_results_are_sorted_by_when_they_were_taken_whatever_their_order() -> None:
    with world_of(
        result("B", ago(hours=2), 4.1),
        result("C", ago(hours=1), 4),
        result("A", ago(days=9), 3.9, status="preliminary"),
        result("N", ago(hours=1), 140, lab="NA"),
        result("X", ago(hours=1), 5.0, owner="S2"),
    ) as world:
        found = _series(world)
        assert _ids(found.counted) == ["A", "B", "C"]
        assert found.listed == ("B", "C", "A")
        assert [lab_result.value for lab_result in found.counted] == [3.9, 4.1, 4.0]
        assert found.counted[2].text == "2023-11-13T09:15:00Z"
        assert list(lab_chart(world).series("K")) == ["S1", "S2"]
        assert _ids(_series(world, "S2").counted) == ["X"]


def test_a_code_counts_under_any_system_and_only_as_it_is_written() -> None:
    def coded(*codings: dict[str, str]) -> dict[str, Any]:
        return {"code": {"coding": list(codings)}}

    with world_of(
        result(
            "A", ago(hours=3), 4.0, **coded({"system": "urn:x", "code": "2823-3"}, {"system": "urn:y", "code": "K"})
        ),
        result("B", ago(hours=2), 4.0, **coded({"code": "K"})),
        result("C", ago(hours=1), 4.0, **coded({"system": "urn:y", "code": "k"})),
    ) as world:
        assert _ids(_series(world).counted) == ["A", "B"]


def test_withdrawn_results_do_not_count() -> None:
    with world_of(
        result("A", ago(hours=3), 4.0),
        result("B", ago(hours=2), 4.4, status="cancelled"),
        result("C", ago(hours=1), 9.4, status="entered-in-error"),
        result("D", ago(minutes=1), None, status="cancelled"),
        result("E", ago(minutes=1), None),
    ) as world:
        found = _series(world)
        assert _ids(found.counted) == ["A"]
        assert _ids(found.void) == ["B", "C"]
        assert found.listed == ("A", "B", "C", "D", "E")
        assert found.objection(None, NOW, NOW) is None


def test_of_one_instant_the_one_issued_later_counts() -> None:
    with world_of(
        result("A", ago(hours=3), 4.0, issued=_LATER),
        result("B", ago(hours=3), 4.4),
        result("C", ago(hours=1), 3.0),
        result("D", ago(hours=1), 3.3, issued=timedelta(minutes=41), effectiveDateTime="2023-11-13T10:15:00+01:00"),
    ) as world:
        found = _series(world)
        assert _ids(found.counted) == ["A", "D"]
        assert _ids(found.superseded) == ["B", "C"]
        assert not found.ambiguous


def test_results_of_one_time_and_issue_conflict_only_with_different_values() -> None:
    with world_of(
        result("A", ago(hours=3), 4.0),
        result("B", ago(hours=3), 4.0),
        result("C", ago(hours=1), 3.0),
        result("D", ago(hours=1), 3.3),
        result("E", ago(hours=1), 3.1, issued=timedelta()),
    ) as world:
        found = _series(world)
        assert _ids(found.counted) == ["A", "C"]  # of two duplicates, only the one created first counts
        assert found.ambiguous == {"C", "D"}
        assert found.objection(None, ago(hours=2), NOW) is None
        assert found.objection(None, NOW, NOW) == "two values with the same instant and issue time"
        assert found.objection(ago(minutes=59), NOW, NOW) is None


def test_a_later_issue_breaks_a_tie() -> None:
    with world_of(
        result("A", ago(hours=3), 4.0), result("B", ago(hours=3), 4.1), result("C", ago(hours=3), 4.2, issued=_LATER)
    ) as world:
        assert not _series(world).ambiguous
        assert _ids(_series(world).counted) == ["C"]


def test_results_in_another_unit_are_separate() -> None:
    comparator = {"value": 2.0, "unit": "mmol/L", "comparator": "<"}
    with world_of(
        result("A", ago(hours=5), 4.0),
        result("B", ago(hours=4), 4.1, unit="mEq/L"),
        result("C", ago(hours=3), 4.2, valueQuantity=comparator),
        result("D", ago(hours=2), 16.0, unit="mg/dL"),
        result("E", ago(hours=2), 4.1, issued=_LATER),
        result("F", ago(hours=1), 4.5, valueQuantity={"value": 4.5, "code": "mmol/L"}),
    ) as world:
        found = _series(world)
        assert _ids(found.counted) == ["A", "E", "F"]  # E replaced D
        assert found.foreign == {"B", "C"}
        assert found.objection(ago(hours=3), NOW, NOW) == "a result in another unit"  # both ends belong to the span
        assert found.objection(ago(hours=3) + timedelta(seconds=1), NOW, NOW) is None
        assert found.objection(None, ago(hours=4), NOW) == "a result in another unit"
        assert found.objection(None, ago(hours=4) - timedelta(seconds=1), NOW) is None


def test_nothing_rests_on_results_without_an_instant() -> None:
    period: dict[str, Any] = {"effectiveDateTime": None, "effectivePeriod": {"start": "2023-11-13T01:00:00Z"}}
    with world_of(
        result("A", ago(hours=3), 4.0),
        result("B", ago(hours=2), 4.1, effectiveDateTime="2023-11-12"),
        result("C", ago(hours=2), 4.1, **period),
        result("D", ago(hours=2), 4.1, effectiveDateTime="2023-11-12", status="cancelled"),
    ) as world:
        found = _series(world)
        assert found.undated == {"B", "C"}
        assert _ids(found.counted) == ["A"]
        assert found.objection(None, NOW, NOW) == "a result without an instant"


def test_a_missing_issue_is_the_time_of_taking() -> None:
    bare = result("B", ago(hours=3), 4.1)
    del bare["issued"]
    with world_of(bare, result("A", ago(hours=3), 4.0)) as world:
        assert _ids(_series(world).counted) == ["A"]
        assert _ids(_series(world).superseded) == ["B"]


def test_windows_include_both_ends() -> None:
    with world_of(
        result("A", ago(hours=24, seconds=1), 1.0),
        result("B", ago(hours=24), 2.0),
        result("C", ago(hours=5), 3.0),
        result("D", NOW, 4.0),
        result("E", ago(seconds=-1), 5.0),
    ) as world:
        found = _series(world)
        assert _ids(found.window(NOW, 24)) == ["B", "C", "D"]
        assert _ids(found.upto(NOW)) == ["A", "B", "C", "D"]
        assert _ids(found.upto(ago(hours=5))) == ["A", "B", "C"]
        assert found.latest(NOW) == found.counted[3]
        assert found.latest(ago(hours=5, seconds=1)) == found.counted[1]
        assert found.latest(ago(days=2)) is None
        assert found.window(ago(days=2), 24) == ()


@pytest.mark.parametrize(
    ("born", "years"),
    [("1970-11-13", 53), ("1970-11-14", 52), ("2023-11-13", 0), ("1970-11", None), ("1970", None), ("", None)],
)
def test_age_is_in_full_years_at_the_worlds_present(born: str, years: int | None) -> None:
    with world_of({**WOMAN, "birthDate": born} if born else {"resourceType": "Patient", "id": "S1"}) as world:
        assert lab_chart(world).age("S1") == years


def test_people() -> None:
    text = {"resourceType": "Patient", "id": "S3", "name": [{"text": "Mrs. Ng", "family": "Ng"}]}
    with world_of(text, result("A", NOW, 4.0)) as world:
        known = lab_chart(world)
        assert known.patients == ("S1", "S2", "S3")
        ann = known.person("S1")
        assert (ann.id, ann.name, ann.sex, ann.birth_date) == ("S1", "Ann Lee", "female", date(1970, 11, 14))
        assert (known.person("S2").name, known.person("S2").sex) == ("", MAN["gender"])
        assert (known.person("S3").name, known.person("S3").sex) == ("Mrs. Ng", "")
        assert known.one("S3", "K") == Series("S3", "K")
        with pytest.raises(TaskError, match="small has no patient S9"):
            known.one("S9", "K")
        with pytest.raises(UnknownNameError, match="unknown lab 'KK'"):
            known.series("KK")


def test_a_chart_is_kept_by_content_and_reads_a_test_once(monkeypatch: pytest.MonkeyPatch) -> None:
    resources = [result("A", ago(hours=1), 4.0)]
    with world_of(resources) as world, world_of(resources) as same, world_of(resources, result("B", NOW, 4)) as other:
        known = lab_chart(world)
        assert lab_chart(same) is known
        assert lab_chart(other) is not known
        first = known.series("K")
        assert known.series("K") is first
    with world_of(resources) as again:  # the files of the first world are deleted
        assert lab_chart(again) is known
        assert known.series("NA") == {}
    monkeypatch.setattr(series, "_CHARTS", 1)
    with world_of(resources, result("C", NOW, 4)) as third:
        lab_chart(third)
    with world_of(resources) as dropped:
        assert lab_chart(dropped) is not known


def test_more_patients_than_one_search_reads() -> None:
    people = [{"resourceType": "Patient", "id": f"P{n}"} for n in range(20)]
    found = [result(f"R{n}", ago(hours=n + 1), float(n), owner=f"P{19 - n}") for n in range(20)]
    with world_of(people, found) as world:
        of_all = lab_chart(world).series("K")
        assert list(of_all) == [f"P{n}" for n in range(20)]
        assert {patient: _ids(series.counted) for patient, series in of_all.items()} == {
            f"P{19 - n}": [f"R{n}"] for n in range(20)
        }


def test_times_are_in_utc() -> None:
    with world_of(result("A", NOW, 4.0, effectiveDateTime="2023-11-12T23:30:00.250-05:00")) as world:
        reading = _series(world).counted[0]
        assert reading.taken == datetime(2023, 11, 13, 4, 30, 0, 250_000, tzinfo=UTC)
        assert reading.taken.tzinfo is UTC
        assert reading.text == "2023-11-12T23:30:00.250-05:00"
