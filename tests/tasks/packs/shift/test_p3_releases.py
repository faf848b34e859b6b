from __future__ import annotations

from collections.abc import Callable
from functools import partial
from zlib import crc32

import pytest

from fhir_gym import Episode
from fhir_gym.actions import Action, Delete, Finish, Get, Post, Put
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.shift.outcomes import ALREADY_DONE, DONE, NOT_ALLOWED, NOTHING_TO_DO, letters
from fhir_gym.types import Json, Resource
from tests.tasks.packs.shift.playing import (
    ENV,
    checks_of_done_requests,
    edited,
    failed,
    in_transactions,
    only_reads,
    opened,
    params_of,
    play,
)
from tests.tasks.packs.shift.release_solver import FLAWS, Solver

RELEASE = "Communication"


@pytest.mark.parametrize(
    ("key", "variation"),
    [("P3-1", 0), *(pytest.param(*one, marks=pytest.mark.slow) for one in (("P3-1", 1_000), ("P3-2", 0)))],
)
def test_the_reference_solution_is_right(hospital: World, key: str, variation: int) -> None:
    with opened(hospital, key, variation) as episode:
        step = play(episode)
        assert (step.reward, failed(step)) == (1.0, [])
        assert step.info["step"] <= episode.step_limit


@pytest.mark.slow
def test_the_reference_solution_stays_within_the_step_limit(hospital: World) -> None:
    for key, fewest in (("P3-1", 8), ("P3-2", 25)):
        steps = []
        for variation in range(2):
            with opened(hospital, key, variation) as episode:
                step = play(episode)
                assert step.reward == 1, (key, variation, failed(step))
                steps.append(step.info["step"])
        assert sum(steps) / len(steps) >= fewest


def test_lookups_without_writes_earn_the_declined_requests(hospital: World) -> None:
    with opened(hospital, "P3-1", 0) as episode:
        wrong = checks_of_done_requests(episode)
        step = play(episode, only_reads)
        assert wrong and failed(step) == wrong


def on_each(edit: Callable[[Resource], object], action: Action) -> list[Action]:
    return edited(RELEASE, edit, action)


OTHER = {"contentReference": {"reference": "DocumentReference/other"}}
MISTAKES: dict[str, Callable[[Resource], object]] = {
    "in progress": lambda one: one.update(status="in-progress"),
    "another department": lambda one: one["category"][0]["coding"][0].update(code="394592004"),
    "other departments in words": lambda one: one["category"][0].update(
        text="General practice, Cardiology, Dermatology, Endocrinology, Neurology, Obstetrics and gynecology"
    ),
    "no department": lambda one: one.pop("category"),
    "another system": lambda one: one["category"][0]["coding"][0].update(system="urn:x"),
    "another purpose": lambda one: one["reasonCode"][0]["coding"][0].update(code="HMARKT"),
    "two purposes": lambda one: one["reasonCode"].append({"coding": [{"system": "urn:x", "code": "1"}]}),
    "sent last year": lambda one: one.update(sent="2022-01-01"),
    "not sent": lambda one: one.pop("sent"),
    "two recipients": lambda one: one["recipient"].append({"reference": "Organization/other"}),
    "another recipient": lambda one: one.update(recipient=[{"reference": "Organization/other"}]),
    "a document too many": lambda one: one["payload"].append(OTHER),
    "a document left out": lambda one: one["payload"].pop(),
    "a message": lambda one: one["payload"].append({"contentString": "Best wishes"}),
    "nothing": lambda one: one.pop("payload"),
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_fails_the_requests_that_it_touches(hospital: World, mistake: str) -> None:
    with opened(hospital, "P3-1", 0) as episode:
        touched = checks_of_done_requests(episode)
        step = play(episode, partial(on_each, MISTAKES[mistake]))
        assert touched and failed(step) == touched and step.reward < 1


def test_a_mistake_fails_only_its_own_request(hospital: World) -> None:
    with opened(hospital, "P3-1", 0) as episode:
        touched = checks_of_done_requests(episode)
        left = ["a document too many"]
        assert len(touched) > len(left)

        def first_ones(action: Action) -> list[Action]:
            return on_each(MISTAKES[left.pop()], action) if action.kind == "POST" and left else [action]

        step = play(episode, first_ones)
        assert failed(step) == touched[:1]
        assert step.reward == pytest.approx(1 - 2 / len(params_of(episode).requests))


def test_a_release_about_another_patient_fails(hospital: World) -> None:
    with opened(hospital, "P3-1", 0) as episode:
        asked = {id for one in params_of(episode).requests for id in one.patients}
        other = next(one.id for one in params_of(episode).scene.people if one.id not in asked)
        subject = {"reference": f"Patient/{other}"}
        step = play(episode, partial(on_each, lambda one: one.update(subject=subject)))
        assert "nothing else changed" in failed(step) and step.reward < 1


def additions(action: Action) -> list[Action]:
    """Add elements that change nothing, and give a time of the day."""

    def edit(made: Resource) -> None:
        made.update(sender={"display": "The desk"}, note=[{"text": "Sent by courier."}], sent="2023-11-13T10:20:00Z")
        made["subject"]["display"] = "The patient"
        made["payload"].reverse()

    return on_each(edit, action)


def with_put(action: Action) -> list[Action]:
    """Create the records by PUT with an own id."""
    if action.kind != "POST":
        return [action]
    changed: list[Resource] = []
    on_each(changed.append, action)
    id = f"own-{crc32((action.body or '').encode())}"
    return [Put(f"/{RELEASE}/{id}", {**one, "id": id}) for one in changed]


@pytest.mark.slow
@pytest.mark.parametrize("other", [additions, with_put, in_transactions])
def test_other_kinds_of_writes_are_right_too(hospital: World, other: Callable[[Action], list[Action]]) -> None:
    with opened(hospital, "P3-1", 0) as episode:
        assert failed(play(episode, other)) == []


@pytest.mark.slow
def test_a_wrong_release_that_is_deleted_does_no_harm(hospital: World) -> None:
    with opened(hospital, "P3-1", 0) as episode:
        patient = next(one.patients[0] for one in params_of(episode).requests if one.patients)
        episode.step(Put(f"/{RELEASE}/mine", {"resourceType": RELEASE, "subject": {"reference": f"Patient/{patient}"}}))
        episode.step(Delete(f"/{RELEASE}/mine"))
        checks = play(episode).info["verdict"]["checks"]
        assert all(one["passed"] for one in checks if one["name"].startswith("request"))


def actions_of_gold(world: World, variation: int) -> tuple[list[str], list[Action]]:
    """Return the outcomes of a variation, and the reads of the reference solution."""
    actions: list[Action] = []

    def recorded(action: Action) -> list[Action]:
        actions.append(action)
        return [action]

    with opened(world, "P3-1", variation) as episode:
        play(episode, recorded)
        return [one.outcome for one in params_of(episode).requests], [one for one in actions if one.kind == "GET"]


SKIPPED = {
    NOT_ALLOWED: ("/Consent", "type="),
    NOTHING_TO_DO: ("/DocumentReference",),
    ALREADY_DONE: ("/Communication",),
}


@pytest.mark.slow
def test_declining_needs_lookups(hospital: World) -> None:
    left = {*SKIPPED}
    for variation in range(40):
        outcomes, actions = actions_of_gold(hospital, variation)
        answers: list[Json] = [f"{one}: {told}" for one, told in zip(letters(len(outcomes)), outcomes, strict=True)]
        for outcome in left & {*outcomes}:
            wanted = {f"request {one}" for one, told in zip(letters(9), outcomes, strict=False) if told == outcome}
            with opened(hospital, "P3-1", variation) as episode:
                for action in actions:
                    if not any(part in action.url for part in SKIPPED[outcome]):
                        episode.step(action)
                assert wanted <= {*failed(episode.step(Finish(answers)))}
            left.remove(outcome)
        if not left:
            return
    pytest.fail(f"outcomes that were not drawn: {left}")


def solved(world: World, key: str, variation: int, flaw: str = "") -> tuple[Solver, list[str]]:
    with Episode(ENV, task=key, variation=variation, world=world, phrasing=variation % 3, reward="dense") as episode:
        solver = Solver(episode.start(), flaw)
        return solver, failed(solver.solve(episode))


@pytest.mark.parametrize(("key", "variation"), [("P3-1", 1), pytest.param("P3-2", 1, marks=pytest.mark.slow)])
def test_a_solver_that_plans_everything_first_is_right(hospital: World, key: str, variation: int) -> None:
    assert solved(hospital, key, variation)[1] == []


@pytest.mark.slow
def test_flaws_fail_the_requests_that_they_touch(hospital: World) -> None:
    for variation in (20, 21):
        honest, wrong = solved(hospital, "P3-1", variation)
        assert wrong == []
        plans = ((flaw, honest.with_flaw(flaw)) for flaw in FLAWS)
        flaws = [flaw for flaw, one in plans if (one.answers, one.written) != (honest.answers, honest.written)]
        assert flaws
        for flaw in flaws:
            assert solved(hospital, "P3-1", variation, flaw)[1], (variation, flaw)


ODD: tuple[Resource, ...] = (
    {"resourceType": RELEASE},
    {"resourceType": RELEASE, "category": "x", "recipient": {"reference": 5}, "sent": 7, "status": ["completed"]},
    {"resourceType": RELEASE, "category": [{"coding": [{"system": ["x"], "code": {"y": 1}}]}], "payload": ["x", {}]},
    {"resourceType": RELEASE, "reasonCode": [7], "payload": [{"contentReference": "x"}], "recipient": [None]},
)
ODD_STATES: dict[str, Resource] = {
    "Consent": {"provision": {"period": {}, "actor": [{}], "purpose": [{}], "code": []}, "dateTime": "2023"},
    "DocumentReference": {"context": {}, "securityLabel": [], "date": "2023-01-01T00:00:00+25:00"},
    "Communication": {"recipient": [{}], "sent": "2023"},
}


def test_odd_records_are_judged(hospital: World) -> None:
    with opened(hospital, "P3-1", 0) as episode:
        scene = params_of(episode).scene
        patient = next(one.patients[0] for one in params_of(episode).requests if one.patients)
        for odd in ODD:
            episode.step(Post(f"/{RELEASE}", odd))
            episode.step(Post(f"/{RELEASE}", {**odd, "subject": {"reference": f"Patient/{patient}"}}))
        mine = [one for one in scene.records if patient in str(one)]
        for kind, odd in ODD_STATES.items():
            record = next((one for one in mine if one["resourceType"] == kind), None)
            if record is not None:
                episode.step(Put(f"/{kind}/{record['id']}", {**record, **odd}))
        episode.step(Get("/metadata"))
        told: list[Json] = ["A: done", "A: done", 7, None]
        step = episode.step(Finish(told))
        assert step.reward == 0 and "answer form" in failed(step)
        assert any(one.outcome == DONE for one in params_of(episode).requests)
