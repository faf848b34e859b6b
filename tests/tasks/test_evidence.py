from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast

import pytest

from fhir_gym.actions import Action, Get, Post, Put, to_request
from fhir_gym.fhir.answered import interactions
from fhir_gym.fhir.messages import Request, Response
from fhir_gym.fhir.session import Session
from fhir_gym.fhir.touched import asked
from fhir_gym.tasks.endstate import LoggedRequest
from fhir_gym.tasks.evidence import shown, unread, would_have_seen
from fhir_gym.types import Resource

BASE = "http://localhost:8080/fhir"
PHANTOM = {"resourceType": "Patient", "id": "99", "name": [{"family": "Lee"}]}
OTHER = {"resourceType": "Patient", "id": "1"}


def bundle(*resources: Resource, next: str = "", **more: Any) -> dict[str, Any]:
    links = [{"relation": "next", "url": next}] if next else []
    return {"resourceType": "Bundle", "entry": [{"resource": one} for one in resources], "link": links, **more}


def logged(action: Action, body: Any, status: int = 200) -> LoggedRequest:
    request = to_request(action, BASE)
    assert isinstance(request, Request)
    return LoggedRequest(action, request, answer(request, body, status))


def answer(request: Request, body: Any, status: int = 200) -> Response:
    """An answer with the log that a server elsewhere leaves."""
    response = Response(status, body=json.dumps(body).encode())
    parts = asked(request, BASE)
    return replace(response, done=interactions(request, response, parts, [[]] * len(parts)))


class Scratch:
    """A server with prepared answers by query; everything else is unknown to it."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[Request] = []

    def handle(self, request: Request) -> Response:
        self.asked.append(request)
        body = self.answers.get(request.query, {"resourceType": "OperationOutcome"})
        return answer(request, body)


def seen(log: list[LoggedRequest], answers: dict[str, Any], *known: str) -> bool:
    return would_have_seen(log, [PHANTOM], cast(Session, Scratch(answers)), known)


def test_reads_searches_and_pages_retrieve() -> None:
    log = [
        logged(Get("/Patient/1"), OTHER),
        logged(Get("/Patient?family=Lee"), bundle({"resourceType": "Patient", "id": "2"})),
        logged(Post("/Patient/_search", "family=Lee"), bundle({"resourceType": "Patient", "id": "3"})),
        logged(Get("/Patient/4"), {"resourceType": "Patient", "id": "4"}, status=410),
        logged(Put("/Patient/5", {}), {"resourceType": "Patient", "id": "5"}),
    ]
    assert {*shown(log)} == {"Patient/1", "Patient/2", "Patient/3"}


def test_get_entries_of_a_batch_retrieve_and_its_writes_do_not() -> None:
    sent = {"entry": [{"request": {"method": m, "url": u}} for m, u in (("GET", "Patient/1"), ("PUT", "Patient/2"))]}
    answer = bundle(OTHER, {"resourceType": "Patient", "id": "2"})
    assert {*shown([logged(Post("/", sent), answer)])} == {"Patient/1"}


@pytest.mark.parametrize(
    "body", [None, [], "text", {"resourceType": "Bundle"}, {"resourceType": "Bundle", "entry": [1]}]
)
def test_odd_answers_retrieve_nothing(body: Any) -> None:
    assert shown([logged(Get("/Patient"), body)]) == {}


def test_a_search_that_shows_the_phantom() -> None:
    assert seen([logged(Get("/Patient?family=Lee"), bundle())], {"family=Lee": bundle(PHANTOM)})


def test_a_search_elsewhere() -> None:
    assert not seen([logged(Get("/Patient?family=Kim"), bundle())], {"family=Kim": bundle(OTHER)})
    assert not seen([], {})


def test_a_count_that_was_zero_shows_it_and_another_does_not() -> None:
    query = "family=Lee&_summary=count"
    now = bundle(total=1)
    assert seen([logged(Get(f"/Patient?{query}"), bundle(total=0))], {query: now})
    assert not seen([logged(Get(f"/Patient?{query}"), bundle(total=7))], {query: bundle(total=8)})


def test_a_complete_search_is_followed_to_its_end() -> None:
    answers = {
        "family=L": bundle(OTHER, next=f"{BASE}?_getpages=a&_getpagesoffset=20"),
        "_getpages=a&_getpagesoffset=20": bundle(PHANTOM),
    }
    complete = logged(Get("/Patient?family=L"), bundle(OTHER))
    assert seen([complete], answers)
    first_page_only = logged(Get("/Patient?family=L"), bundle(OTHER, next=f"{BASE}?_getpages=z&_getpagesoffset=20"))
    assert not seen([first_page_only], answers)


def test_page_tokens_are_those_of_the_scratch_server() -> None:
    answers = {
        "family=L": bundle(OTHER, next=f"{BASE}?_getpages=new&_getpagesoffset=20"),
        "_getpages=new&_getpagesoffset=20": bundle(PHANTOM),
    }
    log = [
        logged(Get("/Patient?family=L"), bundle(OTHER, next=f"{BASE}?_getpages=old&_getpagesoffset=20")),
        logged(Get(f"{BASE}?_getpages=old&_getpagesoffset=20"), bundle(OTHER)),
    ]
    assert seen(log, answers)


@pytest.mark.parametrize("search", [Get("/Patient?family=L&_summary=count"), Get("/Patient?family=L&_count=0")])
def test_a_total_of_known_records_alone_shows_one_more(search: Action) -> None:
    answers = {"family=L": bundle(OTHER, PHANTOM), search.url.partition("?")[2]: bundle(total=2)}
    log = [logged(search, bundle(total=1))]
    assert seen(log, answers, "Patient/1")
    assert not seen(log, answers)
    assert not seen(
        log, {**answers, "family=L": bundle(OTHER, PHANTOM, {"resourceType": "Patient", "id": "2"})}, "Patient/1"
    )


def test_a_total_by_post_shows_one_more() -> None:
    asked: list[Request] = []

    class Posted:
        def handle(self, request: Request) -> Response:
            asked.append(request)
            body = bundle(total=2) if b"_summary" in request.body else bundle(OTHER, PHANTOM)
            return answer(request, body)

    log = [logged(Post("/Patient/_search", "family=L%C3%A9&_summary=count"), bundle(total=1))]
    assert would_have_seen(log, [PHANTOM], cast(Session, Posted()), ["Patient/1"])
    assert asked[-1].body == b"family=L%C3%A9"


def test_ids_of_known_records_alone_show_one_more() -> None:
    """Where the answer is a number, what matched need not be told apart."""
    bare = {"resourceType": "Patient", "id": "99"}
    answers = {"_elements=id": bundle(OTHER, bare)}
    log = [logged(Get("/Patient?_elements=id"), bundle(OTHER))]
    assert not seen(log, answers)
    assert seen(log, answers, "Patient/1")


def test_ids_twice_tell_nothing_apart() -> None:
    """Elements that are the same in the phantom tell nothing, however often they are asked for."""
    bare, active = {"resourceType": "Patient", "id": "99"}, {**OTHER, "active": True}
    answers = {"_elements=id": bundle(OTHER, bare), "_elements=active": bundle(active, {**bare, "active": True})}
    log = [
        logged(Get("/Patient?_elements=id"), bundle(OTHER)),
        logged(Get("/Patient?_elements=active"), bundle(active)),
    ]
    assert not would_have_seen(log, [{**PHANTOM, "active": True}], cast(Session, Scratch(answers)))
    read = logged(Get("/Patient/1"), {**active, "name": [{"family": "Kim"}]})
    assert would_have_seen([*log, read], [{**PHANTOM, "active": True}], cast(Session, Scratch(answers)))


def test_a_record_without_what_decides_is_not_read() -> None:
    decisive = {"Patient": ("name", "gender")}
    ids = logged(Get("/Patient?_elements=id"), bundle(OTHER))
    named = logged(Get("/Patient?_elements=name"), bundle({**OTHER, "name": [{"family": "Kim"}]}))
    gender = logged(Get("/Patient/1?_elements=gender"), {**OTHER, "gender": "male"})
    assert unread([ids], ["Patient/1", "Slot/2"], {}) == ["Slot/2"]
    assert unread([ids], ["Patient/1"], decisive) == ["Patient/1"]
    assert unread([ids, named], ["Patient/1"], decisive) == ["Patient/1"]
    assert unread([named, gender, ids], ["Patient/1"], decisive) == []
