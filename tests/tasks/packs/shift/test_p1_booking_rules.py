from __future__ import annotations

from collections.abc import Sequence
from datetime import date

import pytest

from fhir_gym import Episode, Step
from fhir_gym.actions import Action, Finish, Post
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.shift.outcomes import NO_FREE_TIME, NOT_ALLOWED, letters
from fhir_gym.tasks.packs.shift.p1_booking_rules.rules import BOOKING, Attendance, PolicyLimits
from tests.tasks.packs.shift.playing import ENV, checks_of_done_requests, failed, only_reads, opened, params_of, play
from tests.tasks.packs.shift.policy_solver import POLICY_FLAWS, book_under_policies
from tests.tasks.packs.shift.solvers import solve

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


def checks_with(episode: Episode, outcomes: Sequence[str]) -> list[str]:
    """Return the names of the checks of the requests with some outcomes."""
    requests = params_of(episode).requests
    return [f"request {one}" for one, r in zip(letters(len(requests)), requests, strict=True) if r.outcome in outcomes]


def played(world: World, key: str, variation: int, flaw: str = "") -> Step:
    with Episode(ENV, task=key, variation=variation, phrasing=variation % 3, world=world, reward="dense") as episode:
        return solve(episode, lambda prompt: book_under_policies(prompt, flaw))


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
    limits = PolicyLimits.of(VALUES, MONDAY, [Attendance(*one) for one in appointments])
    assert limits is not None and limits.suits(start, minutes) is suits


def test_patients_who_missed_appointments_are_not_booked() -> None:
    missed = Attendance("2023-11-01T09:00:00Z", "noshow", False)
    assert PolicyLimits.of(VALUES, MONDAY, [missed]) is not None
    assert PolicyLimits.of(VALUES, MONDAY, [missed, missed]) is None
    never = VALUES | {"missed": "1 appointment or more"}
    assert PolicyLimits.of(never, MONDAY, [missed]) is None


def test_the_points_of_the_policies_are_the_values_that_limit() -> None:
    assert {one.name for one in BOOKING.rules} == {*VALUES}
    assert all(VALUES[one.name] in one.values for one in BOOKING.rules)


@pytest.mark.parametrize(("key", "variation"), [("P1-1", 0), ("P1-2", 1_000)])
def test_the_reference_solution_is_right(hospital: World, key: str, variation: int) -> None:
    with opened(hospital, key, variation) as episode:
        step = play(episode)
        assert (step.reward, failed(step)) == (1.0, [])
        assert step.info["step"] <= episode.step_limit


def test_a_solver_that_knows_only_the_prompt_succeeds(hospital: World) -> None:
    assert failed(played(hospital, "P1-1", 1)) == []


@pytest.mark.slow
def test_a_solver_that_knows_only_the_prompt_succeeds_in_other_variations(hospital: World) -> None:
    cases = [("P1-1", 2), ("P1-1", 1_001), ("P1-2", 2), ("P1-2", 1_001)]
    assert {case: wrong for case in cases if (wrong := failed(played(hospital, *case)))} == {}


def test_lookups_without_writes_earn_the_declined_requests(hospital: World) -> None:
    with opened(hospital, "P1-1", 1) as episode:
        wrong = checks_of_done_requests(episode)
        assert failed(play(episode, only_reads)) == wrong


def test_a_guess_without_the_policies_is_worth_nothing(hospital: World) -> None:
    with opened(hospital, "P1-1", 3) as episode:
        wrong = checks_with(episode, (NOT_ALLOWED, NO_FREE_TIME))
        assert wrong
        # The agent knows the outcomes, and looks up everything else.
        solution = [one for one in _gold_actions(episode) if "DocumentReference" not in one.url]
        episode.start()
        for one in solution:
            step = episode.step(one)
        assert failed(step) == wrong


def _gold_actions(episode: Episode) -> list[Action]:
    actions: list[Action] = []

    def noted(action: Action) -> list[Action]:
        actions.append(action)
        return [action]

    play(episode, noted)
    return actions


@pytest.mark.slow
@pytest.mark.parametrize("flaw", POLICY_FLAWS)
def test_a_solver_with_a_flaw_fails(hospital: World, flaw: str) -> None:
    # Not every flaw matters in every variation.
    assert any(failed(played(hospital, "P1-2", variation, flaw)) for variation in range(6))


def test_odd_appointments_and_documents_are_judged(hospital: World) -> None:
    with opened(hospital, "P1-1", 1) as episode:
        patient = next(one.patients[0] for one in params_of(episode).requests if one.patients)
        who = {"actor": {"reference": f"Patient/{patient}"}}
        episode.step(Post("/Appointment", {"resourceType": "Appointment", "participant": [who], "slot": [{}]}))
        episode.step(Post("/DocumentReference", {"resourceType": "DocumentReference", "content": [{}]}))
        step = episode.step(Finish(["A: done", 7]))
        assert step.reward == 0 and "nothing else changed" in failed(step)
