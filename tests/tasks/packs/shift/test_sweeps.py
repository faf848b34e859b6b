from __future__ import annotations

import pytest

from fhir_gym.tasks.packs.shift.patient_records import target_of
from fhir_gym.tasks.packs.shift.sweeps import RecordVerdict, judge_sweep
from fhir_gym.types import Json

RIGHT, LEFT = RecordVerdict("Slot/1"), RecordVerdict("Slot/2", "still free")
HARMED = RecordVerdict("Slot/3", "busy", harmed=True)
SURPLUS = RecordVerdict("Slot/4", "changed", harmed=True, due=False)


@pytest.mark.parametrize(
    ("records", "answer", "points"),
    [
        ([RIGHT, RIGHT], "done", 1.0),
        ([RIGHT, RIGHT], "nothing to do", 0.5),
        ([RIGHT, LEFT], "done", 0.5),
        ([LEFT, LEFT], "done", 0.0),
        ([RIGHT, RIGHT, RIGHT, HARMED], "done", 0.5),
        ([RIGHT, RIGHT, SURPLUS], "done", 0.5),
        ([HARMED, SURPLUS, SURPLUS], "", -1.0),
    ],
)
def test_the_score_is_the_share_of_records_right_minus_the_share_harmed(
    records: list[RecordVerdict], answer: str, points: float
) -> None:
    judged = judge_sweep(records, answer)
    assert judged.points == points
    assert judged.right is (points == 1)
    assert judged.harmed is any(record.harmed for record in records)


def test_target_of_a_reference() -> None:
    base = "http://localhost:8080/fhir"
    assert target_of({"reference": "Patient/1", "display": "Ana"}) == "Patient/1"
    assert target_of({"reference": f"{base}/Patient/1"}, base) == "Patient/1"
    odd: list[Json] = [None, "Patient/1", {}, {"reference": 3}, {"reference": "#p"}, {"reference": f"{base}/Patient/1"}]
    assert [target_of(reference) for reference in odd] == [""] * len(odd)
