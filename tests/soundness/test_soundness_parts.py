"""Tests of the parts of the soundness harness."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from fhir_gym.actions import Action, Delete, Finish, Get, Patch, Post, Put
from fhir_gym.errors import TaskError
from fhir_gym.fhir.messages import Request, Response
from fhir_gym.soundness import available
from fhir_gym.soundness.answer_variants import (
    consists_of_ids,
    made_up_values,
    neighbour_values,
    none_answer,
    spellings,
    wrong_answers,
)
from fhir_gym.soundness.equivalents import equivalents
from fhir_gym.soundness.flawed_policies import constant_answers, flawed_policies
from fhir_gym.soundness.near_misses import near_misses
from fhir_gym.soundness.policy_runner import Policy, PolicyRun, PolicyRunner, Script, script
from fhir_gym.soundness.recording import GoldRecording
from fhir_gym.tasks import LatestResponse, LoggedRequest, Variation, get_task
from fhir_gym.tasks.grading.answers import (
    AnswerForm,
    CountAnswer,
    CountedIdsAnswer,
    IdAnswer,
    IdSetAnswer,
    LetteredAnswer,
)
from tests.tasks.fakes import FakeView, end_state

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fhir_gym.fhir import World
    from fhir_gym.types import Resource

PACK = "FHIRAgent/Appointment-v0"
BASE = "http://localhost:8080/fhir"
NOW = "2023-11-13T10:15:00Z"
FORMS: list[tuple[AnswerForm, list[Any]]] = [
    (IdAnswer(("Slot",)), ["e1"]),
    (IdAnswer(("Appointment", "Slot")), ["e1", "e2"]),
    (IdSetAnswer("Slot"), ["e1", "e2"]),
    (IdSetAnswer("Slot"), []),
    (CountAnswer(), [4]),
    (CountAnswer(), [0]),
    (CountedIdsAnswer("Slot"), [2, "e1", "e2"]),
    (CountedIdsAnswer("Slot"), [0]),
    (LetteredAnswer(), ["A: done", "B: no free time"]),
]


@pytest.mark.parametrize(("form", "answer"), FORMS)
def test_spellings_are_valid_and_equivalent(form: AnswerForm, answer: list[Any]) -> None:
    def said(items: list[Any]) -> Any:
        end = end_state(items)
        if isinstance(form, IdAnswer):
            return end.answer_ids(*form.types)
        start = 1 if isinstance(form, CountedIdsAnswer) else 0
        return end.answer_count() if not isinstance(form, IdSetAnswer) else None, end.answer_id_set("Slot", start)

    found = {name: respell(list(answer)) for name, respell in spellings(form, answer, BASE)}
    assert found or answer == []
    for name, items in found.items():
        assert form.problem(items, BASE) is None, name
        if not isinstance(form, CountAnswer):
            assert said(items) == said(answer), name
        else:
            assert end_state(items).answer_count() == answer[0]


@pytest.mark.parametrize(("form", "answer"), FORMS)
def test_wrong_answers_are_wrong(form: AnswerForm, answer: list[Any]) -> None:
    found = dict(wrong_answers(form, answer, ["e1", "e2", "e3"]))
    assert len(found) >= 4
    assert answer not in found.values()
    if consists_of_ids(form) and answer not in ([0], []):
        assert any(form.problem(items, BASE) is None for items in found.values())
    assert any(form.problem(items, BASE) is not None for items in found.values())


def test_empty_answers_of_each_type() -> None:
    assert none_answer(CountAnswer()) == none_answer(CountedIdsAnswer("Slot")) == [0]
    assert none_answer(IdSetAnswer("Slot")) == none_answer(IdAnswer(("Slot",))) == []


def test_constants_come_from_the_prompt() -> None:
    policies = list(constant_answers("See Patient/e12 and Slot/e13 on 2024-05-01.\nFinish.", number_asked=False))
    answers = [answer for policy in policies for _, answer in policy.answers]
    for expected in (["e12"], ["e12", "e13"], [2, "e12", "e13"], ["Patient"], ["2024-05-01"], [20], ["20"], ["none"]):
        assert expected in answers
    assert ["See Patient/e12 and Slot/e13 on 2024-05-01"] in answers
    assert all(policy.expected == "fail" for policy in policies)


def test_numbers_are_guessed_only_where_one_is_asked_for() -> None:
    policies = list(constant_answers("How many on day 7?", number_asked=True))
    guesses = [answer for policy in policies if policy.expected == "may pass" for _, answer in policy.answers]
    assert [7] in guesses
    others = [answer for policy in policies if policy.expected == "fail" for _, answer in policy.answers]
    assert [7] not in others
    assert ["7"] not in others


class Played:
    """A variation of a task and its reference episode."""

    def __init__(self, key: str, world: World, k: int = 0) -> None:
        self.task = get_task(PACK, key)
        self.variation: Variation = self.task.variation(k, world)
        self.params: Any = self.variation.params
        with PolicyRunner(self.task, self.variation, world) as runner:
            self.gold = GoldRecording.of(runner.gold(), self.variation.setup)

    def policies(self) -> list[Policy]:
        return [*near_misses(self.task, self.gold, False), *flawed_policies(self.task, self.params, self.gold)]

    def scripts(self, group: str) -> Iterable[tuple[str, tuple[Action, ...]]]:
        return [
            (policy.name, policy.play.actions)
            for policy in self.policies()
            if policy.group == group and isinstance(policy.play, Script)
        ]


def test_every_written_element_is_tried_wrong_and_missing(tiny_world: World) -> None:
    played = Played("01", tiny_world)
    missing = {name.split(" without ")[0] + name.rpartition(" ")[2] for name, _ in played.scripts("missing value")}
    for element in ("name.0.family", "name.0.given.0", "birthDate", "telecom.0.value", "address.0.city"):
        assert any(element in name for name in missing), element
        assert any(element in name for name, _ in played.scripts("wrong value")), element
    stolen = [actions for name, actions in played.scripts("neighbour's value") if "birthDate" in name]
    assert all(played.params.decoys[0].birth_date in (actions[0].body or "") for actions in stolen)
    assert stolen


def test_wrong_writes(tiny_world: World) -> None:
    played = Played("14a", tiny_world)
    kinds = [[action.kind for action in actions] for _, actions in played.scripts("write left out")]
    assert kinds == [["GET", "GET", "GET", "PUT", "FINISH"], ["GET", "GET", "GET", "POST", "FINISH"]]
    assert all(actions[-1].answer == played.gold.answer for _, actions in played.scripts("write left out"))
    (only_looks,) = played.scripts("right answer, no write")
    assert {action.kind for action in only_looks[1]} == {"GET", "FINISH"}
    twice = [[action.kind for action in actions].count("POST") for _, actions in played.scripts("twice")]
    assert twice == [2, 2]
    recreated = [[action.kind for action in actions][-3:-1] for _, actions in played.scripts("delete and recreate")]
    assert recreated == [["DELETE", "PUT"], ["DELETE", "POST"]]
    touched = dict(played.scripts("something else touched"))
    assert {"and creates something else", "and changes a Slot", "and deletes a Slot"} <= set(touched)


def test_each_decoy_is_mistaken_for_the_target(tiny_world: World) -> None:
    played = Played("15a", tiny_world)
    names = [policy.name for policy in played.policies() if policy.group == "ignores decoys"]
    p = played.params
    others = [resource["id"] for resource in played.variation.setup if resource["resourceType"] == "Appointment"]
    others.remove(p.booking.id)
    for id in others[:12]:
        assert f"Appointment/{id} taken for {p.booking.id}" in names
        assert f"PUT Appointment/{id} instead" in names
    for person in p.scene.people:
        assert (f"Patient/{person.id} taken for {p.patient.id}" in names) == (person != p.patient)


def test_a_decoy_replaces_the_target_consistently(tiny_world: World) -> None:
    played = Played("15a", tiny_world)
    p = played.params
    decoys = [
        booking.id
        for booking in p.scene.bookings
        if booking.status == "booked" and booking.slot.id and booking != p.booking
    ]
    names = {f"Appointment/{id} taken for {p.booking.id}": id for id in decoys}
    policy = next(policy for policy in played.policies() if policy.name in names)
    decoy = names[policy.name]
    with PolicyRunner(played.task, played.variation, tiny_world) as runner:
        (run,) = runner.run(policy)
    changed = {(change.resource_type, change.id): change for change in run.end.changes}
    cancelled = changed["Appointment", decoy]
    assert cancelled.before is not None
    assert cancelled.after is not None
    assert cancelled.after["status"] == "cancelled"
    assert cancelled.after["start"] == cancelled.before["start"]
    assert not run.verdict.success


def test_an_agent_without_matches_says_none(tiny_world: World) -> None:
    """If the reference solution raises an exception, a flawed policy answers that there is no record."""
    played = Played("14a", tiny_world)
    policies = [
        flawed_policy
        for flawed_policy in flawed_policies(played.task, played.params, played.gold)
        if flawed_policy.group == "first hit"
    ]
    assert policies
    with PolicyRunner(played.task, played.variation, tiny_world) as runner:
        for policy in policies:
            (run,) = runner.run(policy)
            assert run.actions[-1].kind == "FINISH"


def test_equivalent_routes(tiny_world: World) -> None:
    names = {
        equivalent.name for equivalent in equivalents(get_task(PACK, "15a"), Played("15a", tiny_world).gold, BASE, NOW)
    }
    assert {
        "PATCH instead of PUT",
        "FHIRPath Patch instead of PUT",
        "all writes in one transaction",
        "all writes in one batch",
        "writes in another order",
        "the same updates once more",
        "searches by POST",
        "answer Type/id",
    } <= names


def test_links_to_further_pages_stay_as_they_are() -> None:
    urls = ["/Slot?_count=1", f"{BASE}?_getpages=a&_getpagesoffset=1"]
    policies = equivalents(get_task(PACK, "01"), recorded(*map(Get, urls)), BASE, NOW)
    (absolute,) = (policy for policy in policies if policy.name == "absolute urls")
    sent = [action.url for action in absolute.play(LatestResponse())]
    assert sent[:2] == [f"{BASE}/Slot?_count=1", urls[1]]


def test_updates_of_the_same_record_keep_their_order() -> None:
    free, busy = ({"resourceType": "Slot", "id": "e1", "status": status} for status in ("free", "busy"))
    gold = recorded(Put("/Slot/e1", free), Put("/Slot/e1", busy), before=(busy,))
    assert [step.before for step in gold.steps] == [busy, free]
    policies = {equivalent.name: equivalent for equivalent in equivalents(get_task(PACK, "01"), gold, BASE, NOW)}
    assert not {"writes in another order", "all writes in one transaction"} & policies.keys()
    patches = [action.body for action in policies["PATCH instead of PUT"].play(LatestResponse())][:2]
    assert [json.loads(patch or "")[0]["value"] for patch in patches] == ["free", "busy"]


@pytest.mark.parametrize(("env", "key", "first"), [(PACK, "01", "/metadata"), ("FHIRAgent/Shift-v0", "day-3", "/Task")])
def test_further_reads_come_first_unless_they_take_time(env: str, key: str, first: str) -> None:
    policies = equivalents(get_task(env, key), recorded(Get("/Task"), Finish([])), BASE, NOW)
    sent = [*next(policy for policy in policies if policy.name.startswith("further reads")).play(LatestResponse())]
    assert sent[0].url == first and [action.url for action in sent[-3:-1]] == ["/metadata", "/Patient/nobody-0"]


def test_a_refused_write_may_be_left_out() -> None:
    slot = {"resourceType": "Slot", "id": "e1", "status": "busy"}
    for status, names in ((200, {"without PUT /Slot/e1"}), (412, set[str]())):
        gold = recorded(Put("/Slot/e1", slot), Post("/Slot", slot), before=(slot,), statuses=(status, 201))
        left_out = {
            near_miss.name
            for near_miss in near_misses(get_task(PACK, "01"), gold, False)
            if near_miss.group == "write left out"
        }
        assert left_out - {"without POST /Slot"} == names


def recorded(
    *actions: Action, before: Iterable[Resource] = (), statuses: Iterable[int] = itertools.repeat(200)
) -> GoldRecording:
    """Record an episode that sent these actions."""
    requests = tuple(
        LoggedRequest(action, Request(action.kind, action.url), Response(status))
        for action, status in zip(actions, statuses, strict=False)
    )
    end = replace(end_state([]), requests=requests, before=FakeView(*before))
    return GoldRecording.of(PolicyRun("gold", actions, end, cast(Any, None)), ())


def test_wrong_values() -> None:
    assert made_up_values("Patient", ("birthDate",), "1980-02-29") == ["1980-03-01"]
    assert "male" in made_up_values("Patient", ("gender",), "female")
    assert made_up_values("Slot", ("schedule", "reference"), "Schedule/1") == []
    ids = {"Schedule": ["1", "2", "3"]}
    assert neighbour_values(("schedule", "reference"), "Schedule/1", ids, []) == ["Schedule/2", "Schedule/3"]
    others = [{"resourceType": "Patient", "birthDate": day} for day in ("1980-01-01", "1980-02-29", "1980-01-01")]
    assert neighbour_values(("birthDate",), "1980-02-29", {}, others) == ["1980-01-01"]


def test_the_runner_starts_each_policy_afresh(tiny_world: World) -> None:
    task = get_task(PACK, "02a")
    variation = task.variation(0, tiny_world)
    with PolicyRunner(task, variation, tiny_world) as runner:
        first = runner.gold()
        id = str(variation.setup[0]["id"])
        writes = script(
            [
                Put(f"/Patient/{id}", {"resourceType": "Patient", "id": id}),
                Post("/Patient", {"resourceType": "Patient"}),
                Delete("/Patient/S2"),
                Get(f"/Patient/{id}"),
                Patch("/Patient/S1", [{"op": "add", "path": "/language", "value": "fr"}]),
                Finish([]),
            ]
        )
        (changed,) = runner.run(Policy("by hand", "writes", writes))
        assert {(c.kind, c.id) for c in changed.end.changes} == {
            ("updated", id),
            ("created", str(variation.next_id)),
            ("deleted", "S2"),
            ("updated", "S1"),
        }
        assert b'"birthDate"' not in changed.end.requests[3].response.body
        again = runner.gold()
    assert again.end.changes == ()
    assert [request.response.body for request in again.end.requests] == [
        request.response.body for request in first.end.requests
    ]
    assert again.verdict == first.verdict


def test_the_runner_grades_like_an_episode(tiny_world: World) -> None:
    from fhir_gym import Episode

    for key in ("01", "02b", "15a"):
        task = get_task(PACK, key)
        with (
            PolicyRunner(task, task.variation(1, tiny_world), tiny_world) as runner,
            Episode(PACK, task=key, variation=1, world=tiny_world) as episode,
        ):
            run = runner.gold()
            episode.start()
            for action in run.actions:
                episode.step(action)
            assert episode.verdict() == run.verdict


def test_paged_searches_are_repeated(tiny_world: World) -> None:
    task = get_task(PACK, "02b")
    with PolicyRunner(task, task.variation(0, tiny_world), tiny_world) as runner:
        runs = [
            runner.run(Policy("by hand", "pages", script([Get("/Patient?_count=1"), Finish([])])))[0] for _ in range(2)
        ]
    bodies = [run.end.requests[0].response.body for run in runs]
    assert b"_getpages" in bodies[0]
    assert bodies[0] == bodies[1]


def test_a_world_is_checked_for_required_records(hospital: World) -> None:
    pack = "FHIRAgent/ActionReasoning-v0"
    chosen = [get_task(pack, "01"), get_task(pack, "02"), get_task("FHIRAgent/Appointment-v0", "01")]
    assert available(hospital, chosen, named=False) == [chosen[0], chosen[2]]
    with pytest.raises(TaskError, match="does not support 02 of"):
        available(hospital, chosen, named=True)
