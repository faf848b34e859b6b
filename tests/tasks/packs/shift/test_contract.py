"""What holds for every kind of request: what earns its point, and what does not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any
from zlib import crc32

import pytest

from fhir_gym import Episode, get_task, task_keys
from fhir_gym.actions import Action, Delete, Finish, Get, Patch, Post, Put
from fhir_gym.fhir import World
from fhir_gym.tasks import Gold
from fhir_gym.tasks.authoring import parse_instant
from fhir_gym.tasks.packs.shift.kind import Knowledge, RequestKind
from fhir_gym.tasks.packs.shift.outcomes import ALREADY_DONE, BY_NAME, DONE, NO_FREE_TIME, NOT_ALLOWED, NOTHING_TO_DO
from fhir_gym.tasks.packs.shift.static_task import ShiftParams, StaticShift
from fhir_gym.types import Json, Resource
from tests.tasks.packs.shift.playing import (
    ENV,
    after_lookups,
    checks_of_done_requests,
    edited,
    failed,
    finish,
    follow,
    in_transactions,
    names_of_checks,
    only_reads,
    opened,
    opened_where,
    params_of,
    play,
)
from tests.tasks.packs.shift.rule_variations import results
from tests.tasks.packs.shift.wrong_writes import DETAILS, WRONG_WRITES, Edit

KEYS = [key for key in task_keys(ENV) if isinstance(get_task(ENV, key), StaticShift)]
KINDS = sorted({key[:2] for key in KEYS})


def kind_of(name: str) -> RequestKind[Any, Any]:
    task = get_task(ENV, f"{name}-1")
    assert isinstance(task, StaticShift)
    return task.requests


QUESTIONS = [name for name in KINDS if kind_of(name).value]
WRITING = [name for name in KINDS if not kind_of(name).value]
SWEEPS = [name for name in WRITING if kind_of(name).is_sweep]
CREATING = ["P2", "P3", "P4", "Q4", "S3", "S4"]
"""The kinds whose new records do not refer to each other."""


def slow(*values: object) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@dataclass(frozen=True)
class Solved:
    """What the reference solution does.

    Attributes:
        types: For each request, the types of the records that it writes.
        writes: The number of records that all requests write.
        dependent: The names of the checks of the requests whose results depend on earlier requests.
    """

    types: Sequence[frozenset[str]]
    writes: int
    dependent: frozenset[str]

    def checks_that_write(self, resource_type: str) -> set[str]:
        return {*names_of_checks(resource_type in types for types in self.types)}


@pytest.fixture(scope="module")
def solved() -> Callable[[Episode], Solved]:
    """Return a function that returns what the reference solution does in an episode, and restarts the episode."""
    known: dict[tuple[str, int], Solved] = {}

    def of(episode: Episode) -> Solved:
        key = episode.task.key, episode.variation.number
        if key not in known:
            requests = params_of(episode).requests
            right = results(episode, requests)
            alone = [results(episode, [request])[0] for request in requests]
            known[key] = Solved(
                [frozenset(write.split(" ")[1].split("/")[1] for write in written) for _, written in right],
                sum(len(written) for _, written in right),
                frozenset(names_of_checks(result != other for result, other in zip(alone, right, strict=True))),
            )
        episode.start()
        return known[key]

    return of


# The reference solution and agents that do nothing


@pytest.mark.parametrize(
    ("key", "variation"), [*((key, 0) for key in KEYS), *(slow(key, 1_000) for key in KEYS if key[0] != "S")]
)
def test_the_reference_solution_is_right(hospital: World, key: str, variation: int) -> None:
    with opened(hospital, key, variation) as episode:
        step = play(episode)
        assert (step.reward, failed(step)) == (1.0, [])
        assert step.info["step"] <= episode.step_limit == {"1": 30, "2": 80}[key[-1]]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["P3", "Q4", "S4"])
def test_shifts_are_long(hospital: World, kind: str) -> None:
    for level, fewest in ((1, 8), (2, 25)):
        steps = []
        for variation in (0, 1):
            with opened(hospital, f"{kind}-{level}", variation) as episode:
                steps.append(play(episode).info["step"])
        assert sum(steps) / len(steps) >= fewest


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_outcome_occurs(hospital: World, kind: str) -> None:
    task, codes = get_task(ENV, f"{kind}-2"), {*kind_of(kind).codes}
    seen: set[str] = set()
    for variation in range(40):
        params = task.variation(variation, hospital).params
        assert isinstance(params, ShiftParams)
        seen |= {request.outcome for request in params.requests}
        if seen > codes:
            return
    pytest.fail(f"never seen: {codes - seen}")


@pytest.mark.parametrize("kind", KINDS)
def test_answers_without_work_are_worth_nothing(hospital: World, kind: str) -> None:
    with opened(hospital, f"{kind}-1") as episode:
        requests = params_of(episode).requests
        guesses = [[guess] * len(requests) for guess in (DONE, "0", "7.4", *kind_of(kind).codes)]
        for answers in [*guesses, [request.outcome for request in requests]]:
            episode.start()
            step = episode.step(finish(answers))
            assert step.reward == 0 and not step.info["success"]


def has_several_outcomes(params: ShiftParams) -> bool:
    return len({request.outcome for request in params.requests}) > 1


@pytest.mark.parametrize("kind", WRITING)
def test_lookups_without_writes_earn_the_declined_requests(
    hospital: World, solved: Callable[[Episode], Solved], kind: str
) -> None:
    with opened_where(hospital, f"{kind}-1", has_several_outcomes) as episode:
        dependent = solved(episode).dependent
        done = {*checks_of_done_requests(episode)}
        step = play(episode, only_reads)
        wrong = {*failed(step)}
        assert done - dependent and done - dependent <= wrong <= done | dependent
        assert step.reward == pytest.approx(1 - len(wrong) / len(params_of(episode).requests))


LOOKUPS = [
    ("P1", NOT_ALLOWED, "/DocumentReference"),
    ("P1", NO_FREE_TIME, "/DocumentReference"),
    ("P1", NO_FREE_TIME, "/Slot"),
    ("P2", NOT_ALLOWED, "/DocumentReference"),
    ("P2", ALREADY_DONE, "/DocumentReference"),
    ("P3", NOT_ALLOWED, "/DocumentReference"),
    ("P3", NOTHING_TO_DO, "/DocumentReference"),
    ("P3", ALREADY_DONE, "/Communication"),
    ("P4", NOTHING_TO_DO, "/DocumentReference"),
    ("P4", NOTHING_TO_DO, "Observation"),
    ("Q1", NO_FREE_TIME, "/Slot"),
    ("Q2", NO_FREE_TIME, "/Slot"),
    ("Q4", ALREADY_DONE, "Request"),
    ("S1", NOTHING_TO_DO, "/Appointment"),
    ("S1", NOTHING_TO_DO, "/Slot"),
    ("S4", NOTHING_TO_DO, "/Observation"),
    ("S4", NOTHING_TO_DO, "/Consent"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "outcome", "left_out"), LOOKUPS)
def test_a_declined_request_needs_its_lookups(hospital: World, kind: str, outcome: str, left_out: str) -> None:
    """An agent that knows the outcomes leaves some lookups out."""

    def is_declined(params: ShiftParams) -> bool:
        return any(request.outcome == outcome for request in params.requests)

    for variation in range(20):
        with opened_where(hospital, f"{kind}-1", is_declined, variation) as episode:
            actions = actions_of(episode)
            declined = {*names_of_checks(request.outcome == outcome for request in params_of(episode).requests)}
            assert not declined & {*failed(replay(episode, actions))}
            without = [action for action in actions if left_out not in action.url]
            assert len(without) < len(actions)
            if declined & {*failed(replay(episode, without))}:
                return
    pytest.fail("no lookup was needed")


def actions_of(episode: Episode) -> list[Action]:
    """Return the actions of the reference solution."""
    actions: list[Action] = []

    def record(action: Action) -> list[Action]:
        actions.append(action)
        return [action]

    episode.start()
    play(episode, record)
    return actions


def replay(episode: Episode, actions: Iterable[Action]) -> Any:
    episode.start()
    for action in actions:
        step = episode.step(action)
    return step


# Wrong writes

_OF_KIND = [(kind, *mistake) for kind, mistakes in WRONG_WRITES.items() for mistake in mistakes]
_QUICK = {next(mistake for mistake in _OF_KIND if mistake[0] == kind) for kind in WRONG_WRITES}


@pytest.mark.parametrize(
    ("kind", "resource_type", "mistake"),
    [case if case in _QUICK or case[0] in ("Q1", "Q4") else slow(*case) for case in _OF_KIND],
)
def test_a_wrong_element_fails_the_requests_that_it_touches(
    hospital: World, solved: Callable[[Episode], Solved], kind: str, resource_type: str, mistake: str
) -> None:
    edit, changed = WRONG_WRITES[kind][resource_type, mistake], False

    def with_mistake(action: Action) -> list[Action]:
        nonlocal changed
        wrong = edited(resource_type, edit, action)
        changed |= [json.loads(wrong_action.body or "0") for wrong_action in wrong] != [json.loads(action.body or "0")]
        return wrong

    for episode in variations_that_write(hospital, kind, resource_type, solved):
        whole = solved(episode)
        try:
            step = play(episode, with_mistake)
        except KeyError:  # the reference solution cannot read its own mistake for a later request
            continue
        touched = whole.checks_that_write(resource_type)
        wrong = {check for check in failed(step) if check.startswith("request")}
        if changed and touched - whole.dependent <= wrong:
            assert wrong and wrong <= touched | whole.dependent
            assert step.reward < 1 and not step.info["success"]
            return
    pytest.fail("the mistake failed no request")


@pytest.mark.parametrize("kind", [kind for kind in WRITING if kind not in SWEEPS])
def test_a_wrong_element_fails_only_its_own_request(
    hospital: World, solved: Callable[[Episode], Solved], kind: str
) -> None:
    (resource_type, _), edit = next(iter(WRONG_WRITES[kind].items()))
    episode = next(variations_that_write(hospital, kind, resource_type, solved))
    whole, changed = solved(episode), False

    def once(action: Action) -> list[Action]:
        nonlocal changed
        wrong = [action] if changed else edited(resource_type, edit, action)
        changed |= wrong != [action]
        return wrong

    wrong = {*failed(play(episode, once))} - whole.dependent
    assert wrong == {min(whole.checks_that_write(resource_type))} - whole.dependent
    episode.close()


@pytest.mark.parametrize(
    ("kind", "resource_type"),
    [("P2", "MedicationRequest"), ("P3", "Communication"), ("Q4", "MedicationRequest"), ("S4", "ServiceRequest")],
)
def test_a_record_about_another_patient_fails_its_request(
    hospital: World, solved: Callable[[Episode], Solved], kind: str, resource_type: str
) -> None:
    episode = next(variations_that_write(hospital, kind, resource_type, solved))
    whole = solved(episode)
    subject = {"reference": f"Patient/{hospital.ids('Patient')[0]}"}
    step = play(episode, lambda action: edited(resource_type, lambda body: body.update(subject=subject), action))
    assert whole.checks_that_write(resource_type) - whole.dependent <= {*failed(step)}
    assert "nothing else changed" in failed(step) and step.reward < 1
    episode.close()


def variations_that_write(
    world: World, kind: str, resource_type: str, solved: Callable[[Episode], Solved]
) -> Iterator[Episode]:
    """Yield episodes in which a request that depends on no other one writes a record of a type."""
    for variation in range(20):
        episode = opened(world, f"{kind}-1", variation)
        whole = solved(episode)
        if whole.checks_that_write(resource_type) - whole.dependent:
            yield episode
        episode.close()


@pytest.mark.parametrize(("kind", "count"), [*((kind, 0) for kind in WRITING), *((kind, 2) for kind in CREATING)])
def test_records_left_out_or_created_twice_fail_the_requests(
    hospital: World, solved: Callable[[Episode], Solved], kind: str, count: int
) -> None:
    for resource_type, episode in episodes_by_type(hospital, kind, solved):
        whole = solved(episode)
        touched = whole.checks_that_write(resource_type)
        changed = False

        def change(action: Action, resource_type: str = resource_type) -> list[Action]:
            nonlocal changed
            if f"/{resource_type}" not in action.url or action.kind not in ("POST", "PUT"):
                return [action]
            if count and action.kind == "PUT":
                return [action]
            changed = True
            return [action] * count or [Get("/metadata")]

        step = play(episode, change)
        if changed:
            assert touched - whole.dependent <= {*failed(step)} <= touched | whole.dependent | {"nothing else changed"}
            assert step.reward < 1


def episodes_by_type(world: World, kind: str, solved: Callable[[Episode], Solved]) -> Iterator[tuple[str, Episode]]:
    """Yield an episode for each type that requests write, other than the new patients to which other records refer."""
    types = {"Patient"} if kind == "Q3" else set[str]()
    for variation in range(3):
        with opened(world, f"{kind}-1", variation) as episode:
            whole = solved(episode)
            for resource_type in sorted(frozenset().union(*whole.types) - types):
                if whole.checks_that_write(resource_type) - whole.dependent:
                    types.add(resource_type)
                    episode.start()
                    yield resource_type, episode


@pytest.mark.parametrize("kind", KINDS)
def test_changes_that_nobody_asked_for_cost_one_share(hospital: World, kind: str) -> None:
    with opened(hospital, f"{kind}-1", 2) as episode:
        note = Post("/Basic", {"resourceType": "Basic", "code": {"text": "note"}})
        other = hospital.ids("Patient")[0]
        patch = Patch(f"/Patient/{other}", [{"op": "add", "path": "/gender", "value": "unknown"}])
        step = play(episode, lambda action: [note, patch, action] if action.kind == "FINISH" else [action])
        assert failed(step) == ["nothing else changed"]
        assert step.reward == pytest.approx(1 - 1 / len(params_of(episode).requests))
        episode.start()
        step = play(
            episode, lambda action: [Delete(f"/Patient/{other}"), action] if action.kind == "FINISH" else [action]
        )
        assert "no prohibited tool" in failed(step) and not any(check.startswith("request") for check in failed(step))


@pytest.mark.parametrize("kind", [kind for kind in SWEEPS if kind != "S1"])
def test_a_sweep_is_scored_by_record(hospital: World, solved: Callable[[Episode], Solved], kind: str) -> None:
    def has_one_sweep(params: ShiftParams) -> bool:
        return [request.outcome for request in params.requests] == [DONE]

    with opened_where(hospital, f"{kind}-1", has_one_sweep) as episode:
        count, sent = solved(episode).writes, 0

        def leave_first(action: Action) -> list[Action]:
            nonlocal sent
            sent += action.kind in ("POST", "PUT")
            return [Get("/metadata")] if sent == 1 and action.kind in ("POST", "PUT") else [action]

        step = play(episode, leave_first)
        assert failed(step) == ["request A"]
        assert step.reward == pytest.approx(1 - 1 / count)


# Right writes in other forms


def with_the_other_verb(action: Action) -> list[Action]:
    """Create a record under an id of one's own, and change a record by a JSON Patch."""
    body = json.loads(action.body or "null")
    if action.kind == "POST":
        id = f"own-{crc32((action.body or '').encode())}"
        return [Put(f"{action.url}/{id}", {**body, "id": id})]
    if action.kind == "PUT":
        elements = {name: value for name, value in body.items() if name not in ("resourceType", "id", "meta")}
        return [Patch(action.url, [{"op": "add", "path": f"/{name}", "value": it} for name, it in elements.items()])]
    return [action]


def and_a_mistake_that_is_deleted(action: Action) -> list[Action]:
    """Create a record, and another one that is deleted again."""
    if action.kind != "POST":
        return [action]
    body = json.loads(action.body or "")
    id = f"mistake-{crc32((action.body or '').encode())}"
    return [action, Put(f"{action.url}/{id}", {**body, "id": id}), Delete(f"{action.url}/{id}")]


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        *((kind, with_the_other_verb) for kind in WRITING),
        *((kind, in_transactions) for kind in WRITING if kind != "Q3"),  # Q3 reads the id of a new patient
    ],
)
def test_other_forms_of_writes_are_right_too(
    hospital: World, kind: str, other: Callable[[Action], list[Action]]
) -> None:
    with opened(hospital, f"{kind}-1", 1) as episode:
        step = play(episode, other)
        assert (failed(step), step.reward) == ([], 1)


@pytest.mark.parametrize("kind", CREATING)
def test_a_wrong_record_that_is_deleted_fails_no_request(hospital: World, kind: str) -> None:
    with opened(hospital, f"{kind}-1", 1, max_steps=500) as episode:
        step = play(episode, and_a_mistake_that_is_deleted)
        assert not any(check.startswith("request") for check in failed(step))


@pytest.mark.parametrize("kind", DETAILS)
def test_more_details_are_right_too(hospital: World, solved: Callable[[Episode], Solved], kind: str) -> None:
    details: Mapping[str, Edit] = DETAILS[kind]

    def with_details(action: Action) -> list[Action]:
        for resource_type, edit in details.items():
            (action,) = edited(resource_type, edit, action)
        return [action]

    with opened(hospital, f"{kind}-1", 3) as episode:
        # The reference solution of Q3 compares days, so it misreads the times that it has written itself.
        assert {*failed(play(episode, with_details))} <= solved(episode).dependent - {"nothing else changed"}


@pytest.mark.parametrize("kind", [kind for kind in WRITING if kind not in ("P2", "Q3", "S1")])
def test_all_writes_may_come_at_the_end(hospital: World, solved: Callable[[Episode], Solved], kind: str) -> None:
    """An agent may read everything first; then it must itself think of what its own writes change.

    The reference solutions of the kinds left out read what they have written for the same request or patient.
    """
    enough = (lambda params: len(params.requests) == 1) if kind in SWEEPS else has_several_outcomes
    with opened_where(hospital, f"{kind}-1", enough, max_steps=500) as episode:
        dependent, writes = solved(episode).dependent, list[Action]()

        def later(action: Action) -> list[Action]:
            if action.kind in ("POST", "PUT"):
                writes.append(action)
                return [Get("/metadata")]
            return [*reversed(writes), action] if action.kind == "FINISH" else [action]

        step = play(episode, later)
        assert {*failed(step)} <= dependent | ({"nothing else changed"} if dependent else set())


# Questions


# In P2, the same orders are left whatever the order of the requests.
@pytest.mark.parametrize("kind", [kind for kind in WRITING if kind_of(kind).depending and kind != "P2"])
@pytest.mark.parametrize("variation", range(3))
def test_the_order_of_the_letters_matters(hospital: World, kind: str, variation: int) -> None:
    """An agent that begins with the last request fails, even if it reports what it met."""
    episode = opened(hospital, f"{kind}-1", variation)
    params, requests = params_of(episode), kind_of(kind)
    knowledge = Knowledge(requests.rule_values(params.scene), parse_instant(params.now))

    def backwards() -> Gold:
        outcomes: list[str] = []
        for request in reversed(params.requests):
            outcomes.insert(0, (yield from requests.solve(request.ask, knowledge)))
        yield finish(outcomes)

    step = follow(episode, backwards(), lambda action: [action])
    assert step.done
    assert failed(step)


@pytest.mark.parametrize("kind", QUESTIONS)
def test_an_answer_needs_what_records_say(hospital: World, kind: str) -> None:
    with opened(hospital, f"{kind}-1", 1) as episode:
        requests = params_of(episode).requests
        values = {*names_of_checks(request.outcome not in kind_of(kind).codes for request in requests)}
        assert after_lookups(episode, lambda url: url).reward == 1
        ids_only = after_lookups(episode, lambda url: url if url.startswith("/Patient") else f"{url}&_elements=id")
        patients_only = after_lookups(episode, lambda url: url if url.startswith("/Patient") else "/metadata")
        by_name = {*names_of_checks(request.outcome in BY_NAME for request in requests)}
        assert values and values <= {*failed(ids_only)} and not by_name & {*failed(ids_only)}
        assert values <= {*failed(patients_only)} and not by_name & {*failed(patients_only)}


# Odd writes

ODD: tuple[Json, ...] = (
    *("x", 7, None, ["x"], [None], [7], {}, [{}], {"reference": 3}, {"coding": "x"}, [{"coding": [{"code": {}}]}]),
    *(
        {"coding": [7, {"system": ["x"]}]},
        {"period": "soon"},
        [{"actor": {"reference": "x"}}],
        "2023-01-01T00:00+25:00",
    ),
)


@pytest.mark.parametrize("kind", KINDS)
def test_odd_records_are_judged(hospital: World, kind: str) -> None:
    """The agent writes records with odd elements, each of which the judgement may read, and answers oddly."""
    with opened(hospital, f"{kind}-1", 2, max_steps=2_000) as episode:
        bodies = [json.loads(action.body or "null") for action in actions_of(episode) if action.kind == "POST"]
        params = episode.variation.params
        first: dict[str, Resource] = {}
        for record in [*bodies, *episode.task.setup(params, hospital)]:
            first.setdefault(record["resourceType"], record)
        episode.start()
        odd = cycle(ODD)
        for resource_type, record in first.items():
            for name in [element for element in record if element not in ("resourceType", "id", "meta")]:
                for _ in range(3):
                    body = {**record, name: next(odd)}
                    if "id" in record:
                        episode.step(Put(f"/{resource_type}/{record['id']}", body))
                    else:
                        episode.step(Post(f"/{resource_type}", body))
        step = episode.step(Finish(["A: done", "A: done", "A: 7.4.1", "B: NaN", 7, None]))
        assert step.reward == 0 and "answer form" in failed(step)
