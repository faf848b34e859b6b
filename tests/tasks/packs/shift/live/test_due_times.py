"""Due times that a steady worker can keep."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from fhir_gym.tasks.packs.shift.live.due_times import (
    LONGEST_STRETCH,
    SHORTEST_NOTICE,
    Work,
    completion_times,
    draw_due_times,
)

WORKS = st.lists(
    st.builds(
        Work,
        arrival=st.integers(-60, 240),
        priority=st.sampled_from(["routine", "urgent", "stat"]),
        minutes=st.integers(2, 40),
        hurried=st.none() | st.integers(1, 250),
    ),
    min_size=1,
    max_size=40,
).map(lambda works: sorted(works, key=lambda work: work.arrival))


def test_work_that_is_due_earlier_interrupts_long_work() -> None:
    long, short = 3 * LONGEST_STRETCH, LONGEST_STRETCH
    assert completion_times([0, 1], [1, 0], [long, short]) == [long + short, 5 + short]
    assert completion_times([0, 1], [1, 0], [short, short]) == [short, 2 * short]


def test_without_work_time_passes_until_the_next_request() -> None:
    assert completion_times([-5, 30], [0, 0], [2, 2]) == [2, 32]


@given(works=WORKS, seed=st.integers(0, 9), speed=st.sampled_from([0.4, 0.55, 0.7, 0.85, 1.0]))
@settings(deadline=None)
def test_a_steady_worker_is_in_time(works: list[Work], seed: int, speed: float) -> None:
    dues = draw_due_times(random.Random(seed), works)
    arrivals, minutes = [work.arrival for work in works], [work.minutes * speed for work in works]
    ends = completion_times(arrivals, [due_time.hurried for due_time in dues], minutes)
    # Later rounds of the drawing move some due times, and so the order of the work.
    late = [end - due.hurried for end, due in zip(ends, dues, strict=True) if end > due.hurried]
    assert len(late) <= len(works) // 10
    for work, due in zip(works, dues, strict=True):
        assert due.usual >= due.hurried >= work.arrival + max(SHORTEST_NOTICE, work.minutes + LONGEST_STRETCH)
        assert due.usual % 5 == due.hurried % 5 == 0
