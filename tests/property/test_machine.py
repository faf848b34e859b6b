"""After random interactions, the session agrees with the model, and a rollback restores every byte of the responses."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from fhir_gym.fhir import Request, Response, World
from fhir_gym.fhir.session import Checkpoint
from tests.property.model import Key, Model, Op, RefusedError, Version
from tests.property.scene import (
    CRITERIA,
    FHIR,
    OBSERVATION_CRITERIA,
    VERBS,
    bare,
    content_of,
    entry_of,
    operations,
    parameter,
    probe,
    request_of,
    resources,
    send,
    version_of,
)


class Machine(RuleBasedStateMachine):
    """A session and its model."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.session = world.session()
        versions = {}
        for resource in resources():
            key = (resource["resourceType"], resource["id"])
            versions[key] = [Version(key, 1, content_of(resource))]
        next_id = world.manifest.next_id
        self.model = Model(versions, next_id, next_id)
        self.bare = self.model.copy()
        self.untouched = self.answers()
        self.stack: list[tuple[Checkpoint | None, Model, list[Response]]] = [(None, self.bare, self.untouched)]

    def teardown(self) -> None:
        with self.world.session() as fresh:
            assert probe(fresh) == self.untouched, "the world itself changed"
        self.session.close()

    def answers(self) -> list[Response]:
        """Return the responses to the probe's fixed requests, which do not change the session."""
        here = self.session.checkpoint()
        found = probe(self.session)
        self.session.rollback(here)
        return found

    # writes

    @rule(data=st.data())
    def post(self, data: st.DataObject) -> None:
        self.single(data.draw(operations(self.model, ("POST",)), label="op"))

    @rule(data=st.data())
    def put(self, data: st.DataObject) -> None:
        self.single(data.draw(operations(self.model, ("PUT",)), label="op"))

    @rule(data=st.data())
    def patch(self, data: st.DataObject) -> None:
        self.single(data.draw(operations(self.model, ("PATCH",)), label="op"))

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        self.single(data.draw(operations(self.model, ("DELETE",)), label="op"))

    def single(self, op: Op) -> None:
        response = send(self.session, **request_of(op))
        try:
            status, key = self.model.apply(op)
        except RefusedError as error:
            assert response.status == error.status, response.text
            return
        assert response.status == status, response.text
        if op.verb == "DELETE":
            return
        assert key is not None
        found = self.model.current(key)
        assert found is not None and version_of(response.json()) == found
        where = f"{key[0]}/{key[1]}/_history/{found.number}"
        assert response.headers["Content-Location"].endswith(where)
        assert op.verb == "PATCH" or response.headers["ETag"] == f'W/"{found.number}"'

    @rule(data=st.data())
    def batch(self, data: st.DataObject) -> None:
        ops = data.draw(st.lists(operations(self.model, VERBS), min_size=1, max_size=4), label="ops")
        self.compare_bundle(self.send_bundle("batch", ops), ops, self.model.batch(ops))

    @rule(data=st.data())
    def transaction(self, data: st.DataObject) -> None:
        ops = data.draw(st.lists(operations(self.model, VERBS), min_size=1, max_size=4), label="ops")
        before = self.answers()
        response = self.send_bundle("transaction", ops)
        try:
            expected = self.model.transaction(ops)
        except RefusedError as error:
            assert response.status == error.status, response.text
            self.settle_next_id()
            assert bare(self.answers()) == bare(before), "a failed transaction left something"
            return
        self.compare_bundle(response, ops, expected)

    def settle_next_id(self) -> None:
        """Find out how many ids a failed transaction used up."""
        here = self.session.checkpoint()
        made = send(self.session, "POST", "Patient", {"resourceType": "Patient"}, content_type=FHIR).json()
        self.session.rollback(here)
        assert self.model.low <= int(made["id"]) <= self.model.high
        self.model.low = self.model.high = int(made["id"])

    def send_bundle(self, kind: str, ops: list[Op]) -> Response:
        bundle = {"resourceType": "Bundle", "type": kind, "entry": [entry_of(op) for op in ops]}
        return send(self.session, "POST", "", bundle, content_type=FHIR)

    def compare_bundle(self, response: Response, ops: list[Op], expected: list[tuple[int, Key | None]]) -> None:
        assert response.status == 200, response.text
        entries = response.json()["entry"]
        assert [int(e["response"]["status"][:3]) for e in entries] == [status for status, _ in expected], response.text
        for op, entry, (status, key) in zip(ops, entries, expected, strict=True):
            if status == 201 and not op.id:
                assert key is not None and entry["response"]["location"].startswith(f"{key[0]}/{key[1]}/_history/")
            if op.verb == "GET" and status == 200:
                assert key is not None and version_of(entry["resource"]) == self.model.current(key)

    @rule(id=st.sampled_from(("S1", "S2", "new-1")), code=st.sampled_from(("red", "blue")))
    def tag(self, id: str, code: str) -> None:
        found = self.model.current(("Patient", id))
        if found is None or found.content is None:
            return
        meta = {"name": "meta", "valueMeta": {"tag": [{"code": code}]}}
        body = {"resourceType": "Parameters", "parameter": [meta]}
        response = send(self.session, "POST", f"Patient/{id}/$meta-add", body, content_type=FHIR)
        assert response.status == self.model.tag(("Patient", id), code)

    # reads

    @rule(
        criteria=st.lists(CRITERIA, max_size=2, unique_by=parameter),
        count=st.sampled_from((None, 1, 2)),
        sort=st.sampled_from((None, "birthdate", "-birthdate")),
    )
    def search_patients(self, criteria: list[tuple[str, str]], count: int | None, sort: str | None) -> None:
        found = self.search("Patient", criteria, count, sort)
        expected = self.model.search("Patient", criteria)
        assert sorted(found) == sorted(expected)
        if sort is None:
            assert criteria or found == expected  # with criteria, HAPI orders matches by matched values
        else:
            dates = [date for key in found if (date := (self.model.content(key) or {}).get("birthDate"))]
            assert dates == sorted(dates, reverse=sort.startswith("-"))

    @rule(criteria=st.lists(OBSERVATION_CRITERIA, max_size=2, unique_by=parameter), count=st.sampled_from((None, 1, 2)))
    def search_observations(self, criteria: list[tuple[str, str]], count: int | None) -> None:
        found, expected = self.search("Observation", criteria, count, None), self.model.search("Observation", criteria)
        assert sorted(found) == sorted(expected)
        assert criteria or found == expected

    def search(self, type: str, criteria: list[tuple[str, str]], count: int | None, sort: str | None) -> list[Key]:
        """Search, check the pages, and return the keys of the matches."""
        more = [("_count", str(count))] * (count is not None) + [("_sort", str(sort))] * (sort is not None)
        url = f"{type}?" + "&".join(f"{name}={value}" for name, value in [*criteria, ("_total", "accurate"), *more])
        response = send(self.session, "GET", url)
        found: list[Key] = []
        while True:
            assert response.status == 200, response.text
            bundle = response.json()
            assert bundle["total"] == len(self.model.search(type, criteria))
            for entry in bundle.get("entry", []):
                version = version_of(entry["resource"])
                assert version == self.model.current(version.key)
                found.append(version.key)
            following = next((link["url"] for link in bundle["link"] if link["relation"] == "next"), None)
            if following is None:
                return found
            response = self.session.handle(Request("GET", "", urlsplit(following).query))

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from([*self.model.versions, ("Patient", "new-1"), ("Observation", "nobody")]))
        url = f"{key[0]}/{key[1]}"
        response = send(self.session, "GET", url)
        try:
            found = self.model.read(key)
        except RefusedError as error:
            assert response.status == error.status
        else:
            assert response.status == 200 and version_of(response.json()) == found
        versions = self.model.versions.get(key, [])
        for version in versions:
            past = send(self.session, "GET", f"{url}/_history/{version.number}")
            if version.content is None:
                assert past.status == 410
            else:
                assert past.status == 200 and version_of(past.json()) == version
        assert send(self.session, "GET", f"{url}/_history/{len(versions) + 1}").status == 404
        history = send(self.session, "GET", f"{url}/_history")
        assert history.status == (200 if versions else 404)
        if versions:
            assert history.json()["total"] == len(versions)
            shown = [entry.get("resource") for entry in history.json()["entry"]]
            assert [body and version_of(body) for body in shown] == [
                None if version.content is None else version for version in reversed(versions)
            ]

    # rollback

    @precondition(lambda self: len(self.stack) < 5)
    @rule()
    def checkpoint(self) -> None:
        point = self.session.checkpoint()
        self.stack.append((point, self.model.copy(), self.answers()))

    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.stack) - 1), label="checkpoint")
        gone = [point for point, _, _ in self.stack[index + 1 :] if point]
        del self.stack[index + 1 :]
        point, model, answers = self.stack[index]
        self.session.rollback(point)
        self.model = model.copy()
        assert self.answers() == answers
        for beyond in gone:
            with pytest.raises(ValueError, match="rolled back"):
                self.session.rollback(beyond)

    # invariants

    @invariant()
    def changes_are_the_difference(self) -> None:
        for point, model, _ in self.stack:
            changes = [
                (
                    change.kind,
                    (change.resource_type, change.id),
                    change.before and content_of(change.before),
                    change.after and content_of(change.after),
                )
                for change in self.session.changes(point)
            ]
            assert changes == self.model.changes(model)

    @invariant()
    def reads_agree(self) -> None:
        for key in self.model.versions:
            found = self.session.read(*key)
            current = self.model.current(key)
            assert (found and version_of(found)) == (current if current and current.content is not None else None)


def run(world: World, **bounds: Any) -> None:
    class Bound(Machine):
        def __init__(self) -> None:
            super().__init__(world)

    run_state_machine_as_test(Bound, settings=settings(**bounds, suppress_health_check=list(HealthCheck)))


def test_a_session_agrees_with_the_model(small_world: World) -> None:
    run(small_world, max_examples=30, stateful_step_count=25)


@pytest.mark.exhaustive
def test_a_session_agrees_with_the_model_for_long(small_world: World) -> None:
    run(small_world, max_examples=400, stateful_step_count=60, derandomize=False)
