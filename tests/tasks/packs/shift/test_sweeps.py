from __future__ import annotations

import pytest

from fhir_gym.tasks.packs.shift.sweeps import RecordVerdict, judge_sweep

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
    judged = judge_sweep(records, outcome="done", answer=answer)
    assert judged.points == points
    assert judged.right is (points == 1)
    assert judged.harmed is any(one.harmed for one in records)
