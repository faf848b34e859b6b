from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from typing_extensions import override

from fhir_gym.actions import Action, Get, Post, Put, to_request
from fhir_gym.fhir.adapters.remote_interactions import interactions
from fhir_gym.fhir.messages import Request, Response
from fhir_gym.tasks.grading.counterfactuals import Version, counterfactuals_shown, shows_counterfactual
from fhir_gym.tasks.grading.end_state import LoggedRequest, returned_resources
from fhir_gym.tasks.grading.verdict import missing_records
from fhir_gym.types import Resource
from tests.fhir.request_parts import request_parts

BASE = "http://localhost:8080/fhir"
PHANTOM = {"resourceType": "Patient", "id": "99", "name": [{"family": "Lee"}]}
OTHER = {"resourceType": "Patient", "id": "1"}
KIM = {**OTHER, "active": True, "name": [{"family": "Kim"}]}


def bundle(*resources: Resource, next: str = "", **more: Any) -> dict[str, Any]:
    links = [{"relation": "next", "url": next}] if next else []
    return {
        "resourceType": "Bundle",
        "entry": [{"resource": resource} for resource in resources],
        "link": links,
        **more,
    }


def logged(action: Action, body: Any, status: int = 200) -> LoggedRequest:
    request = to_request(action, BASE)
    assert isinstance(request, Request)
    return LoggedRequest(action, request, answer(request, body, status))


def answer(request: Request, body: Any, status: int = 200) -> Response:
    """A response with an interaction log in the form for remote servers."""
    response = Response(status, body=json.dumps(body).encode())
    parts = request_parts(request)
    return replace(response, done=interactions(request, response, parts, [[]] * len(parts)))


class Scratch:
    """A server with fixed responses to some queries and 404 for all others."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[Request] = []
        self.written: list[Version] = []

    def handle(self, request: Request) -> Response:
        self.asked.append(request)
        body = self.answers.get(request.query, {"resourceType": "OperationOutcome"})
        return answer(request, body)

    def read(self, resource_type: str, id: str) -> Resource | None:
        return KIM if id == "1" else None

    def write(self, versions: Iterable[Version]) -> None:
        self.written += versions


def seen(log: list[LoggedRequest], answers: dict[str, Any], *known: str) -> bool:
    return shows_counterfactual(log, PHANTOM, Scratch(answers), known)


def test_reads_searches_and_pages_retrieve() -> None:
    log = [
        logged(Get("/Patient/1"), OTHER),
        logged(Get("/Patient?family=Lee"), bundle({"resourceType": "Patient", "id": "2"})),
        logged(Post("/Patient/_search", "family=Lee"), bundle({"resourceType": "Patient", "id": "3"})),
        logged(Get("/Patient/4"), {"resourceType": "Patient", "id": "4"}, status=410),
        logged(Put("/Patient/5", {}), {"resourceType": "Patient", "id": "5"}),
    ]
    assert {*returned_resources(log)} == {"Patient/1", "Patient/2", "Patient/3"}


def test_get_entries_of_a_batch_retrieve_and_its_writes_do_not() -> None:
    sent = {"entry": [{"request": {"method": m, "url": u}} for m, u in (("GET", "Patient/1"), ("PUT", "Patient/2"))]}
    answer = bundle(OTHER, {"resourceType": "Patient", "id": "2"})
    assert {*returned_resources([logged(Post("/", sent), answer)])} == {"Patient/1"}


@pytest.mark.parametrize(
    "body", [None, [], "text", {"resourceType": "Bundle"}, {"resourceType": "Bundle", "entry": [1]}]
)
def test_odd_answers_retrieve_nothing(body: Any) -> None:
    assert returned_resources([logged(Get("/Patient"), body)]) == {}


def test_a_search_that_shows_the_counterfactual() -> None:
    assert seen([logged(Get("/Patient?family=Lee"), bundle())], {"family=Lee": bundle(PHANTOM)})


def test_a_search_for_something_else() -> None:
    assert not seen([logged(Get("/Patient?family=Kim"), bundle())], {"family=Kim": bundle(OTHER)})
    assert not seen([], {})


@pytest.mark.parametrize(
    ("search", "replayed"),
    [
        ("/Observation?code=a&_count=1", False),
        ("/Observation/1", False),
        ("/Observation?code=a&_revinclude=Provenance:target", False),
        ("/Observation?code=a&_revinclude=Patient:link", True),
        ("/Observation?code=a&_include=Observation:subject", True),
        ("/Observation?subject.family=Lee", False),
        ("/Observation?subject:Patient=1", True),
        ("/Observation?_has:Patient:link:_id=1", True),
        ("/Observation/_history", True),
        ("/Patient?_count=1", True),
    ],
)
def test_requests_that_cannot_show_the_counterfactual_are_not_replayed(search: str, replayed: bool) -> None:
    scratch = Scratch({})
    page = f"{BASE}?_getpages=z&_getpagesoffset=1"
    log = [logged(Get(search), bundle(KIM, next=page)), logged(Get(page), bundle(KIM))]
    assert not shows_counterfactual(log, PHANTOM, scratch)
    assert len(scratch.asked) == (2 if replayed else 0)


def test_an_included_record_of_another_type_is_no_likeness() -> None:
    visit = {"resourceType": "Encounter", "id": "98", "status": "finished"}
    scratch = Scratch({"_include=Encounter:patient": bundle(visit, OTHER)})
    log = [logged(Get("/Encounter?_include=Encounter:patient"), bundle())]
    assert [*counterfactuals_shown(log, [PHANTOM, visit], scratch)] == [(0, frozenset({"Encounter/98"}))]


def test_a_count_that_was_zero_shows_it_and_another_does_not() -> None:
    query = "family=Lee&_summary=count"
    now = bundle(total=1)
    assert seen([logged(Get(f"/Patient?{query}"), bundle(total=0))], {query: now})
    assert not seen([logged(Get(f"/Patient?{query}"), bundle(total=7))], {query: bundle(total=8)})


def test_a_complete_search_is_followed_to_its_end() -> None:
    answers = {
        "family=L": bundle(KIM, next=f"{BASE}?_getpages=a&_getpagesoffset=20"),
        "_getpages=a&_getpagesoffset=20": bundle(PHANTOM),
    }
    complete = logged(Get("/Patient?family=L"), bundle(KIM))
    assert seen([complete], answers)
    first_page_only = logged(Get("/Patient?family=L"), bundle(KIM, next=f"{BASE}?_getpages=z&_getpagesoffset=20"))
    assert not seen([first_page_only], answers)


def test_a_complete_search_that_states_a_total_is_followed_to_its_end() -> None:
    """The matches fill the page exactly, so the counterfactual would be on a page of its own."""
    query = "family=L&_count=1"
    answers = {
        query: bundle(KIM, next=f"{BASE}?_getpages=a&_getpagesoffset=1", total=2),
        "_getpages=a&_getpagesoffset=1": bundle(PHANTOM, total=2),
    }
    assert seen([logged(Get(f"/Patient?{query}"), bundle(KIM, total=1))], answers)
    answers[query] = bundle(OTHER, next=f"{BASE}?_getpages=a&_getpagesoffset=1", total=2)
    assert not seen([logged(Get(f"/Patient?{query}"), bundle(OTHER, total=1))], answers)


def test_page_tokens_belong_to_the_scratch_server() -> None:
    answers = {
        "family=L": bundle(OTHER, next=f"{BASE}?_getpages=new&_getpagesoffset=20"),
        "_getpages=new&_getpagesoffset=20": bundle(PHANTOM),
    }
    log = [
        logged(Get("/Patient?family=L"), bundle(OTHER, next=f"{BASE}?_getpages=old&_getpagesoffset=20")),
        logged(Get(f"{BASE}?_getpages=old&_getpagesoffset=20"), bundle(OTHER)),
    ]
    assert seen(log, answers)


def test_pages_of_a_search_that_is_otherwise_the_same_belong_to_the_scratch_server() -> None:
    def begun(token: str, second: int) -> dict[str, Any]:
        head = {"resourceType": "Bundle", "id": token, "meta": {"lastUpdated": f"2023-11-13T10:15:0{second}.000+00:00"}}
        return head | bundle(OTHER, next=f"{BASE}?_getpages={token}&_getpagesoffset=20")

    answers = {"family=L": begun("new", 0), "_getpages=new&_getpagesoffset=20": bundle(PHANTOM)}
    log = [
        logged(Get("/Patient?family=L"), begun("old", 1)),
        logged(Get(f"{BASE}?_getpages=old&_getpagesoffset=20"), bundle(OTHER)),
    ]
    assert seen(log, answers)


def test_what_requests_wrote_is_stored_instead_of_sending_them_again() -> None:
    scratch = Scratch({"family=Lee": bundle(PHANTOM)})
    written = logged(Put("/Patient/5", {"resourceType": "Patient", "id": "5"}), {"resourceType": "Patient", "id": "5"})
    search = logged(Get("/Patient?family=Lee"), bundle())
    version: Version = ("Patient", "5", {"resourceType": "Patient", "id": "5", "active": True})
    log = [search, written, written, search]
    found = [*counterfactuals_shown(log, [PHANTOM], scratch, written={1: [version], 2: [("Patient", "5", None)]})]
    assert found == [(0, frozenset({"Patient/99"})), (3, frozenset({"Patient/99"}))]
    assert [request.method for request in scratch.asked] == ["GET", "GET"]
    assert scratch.written == [version, ("Patient", "5", None)]


def test_a_request_that_wrote_something_unknown_is_sent_again() -> None:
    scratch = Scratch({})
    written = logged(Put("/Patient/5", {"resourceType": "Patient", "id": "5"}), {"resourceType": "Patient", "id": "5"})
    refused = logged(Put("/Patient/5", {}), {"resourceType": "OperationOutcome"}, status=400)
    assert [*counterfactuals_shown([written, refused], [PHANTOM], scratch, written={})] == []
    assert [request.method for request in scratch.asked] == (["PUT"] if written.response.done[0].effect else [])


def test_searches_that_cannot_match_are_not_sent_again() -> None:
    scratch = Scratch({})
    page = f"{BASE}?_getpages=old&_getpagesoffset=20"
    log = [
        logged(Get("/Patient?family=Kim"), bundle(OTHER, next=page)),
        logged(Get(page), bundle(OTHER)),
        logged(Get("/Patient/1"), OTHER),
        logged(Get("/Coverage?beneficiary=Patient/99"), bundle()),
    ]
    assert not shows_counterfactual(log, PHANTOM, scratch)
    assert scratch.asked == []


def test_a_counterfactual_that_was_written_again_may_match_other_searches() -> None:
    renamed = {**PHANTOM, "name": [{"family": "Kim"}]}
    search = logged(Get("/Patient?family=Kim"), bundle())
    for written, positions in (({1: [("Patient", "99", renamed)]}, [2]), ({1: [("Patient", "5", renamed)]}, [])):
        scratch = Scratch({"family=Kim": bundle(renamed)})
        write = logged(Put("/Patient/5", {}), {"resourceType": "Patient", "id": "5"})
        found = counterfactuals_shown([search, write, search], [PHANTOM], scratch, written=written)
        assert [position for position, _ in found] == positions


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

    class Posted(Scratch):
        @override
        def handle(self, request: Request) -> Response:
            asked.append(request)
            body = bundle(total=2) if b"_summary" in request.body else bundle(OTHER, PHANTOM)
            return answer(request, body)

    log = [logged(Post("/Patient/_search", "family=L%C3%A9&_summary=count"), bundle(total=1))]
    assert shows_counterfactual(log, PHANTOM, Posted({}), ["Patient/1"])
    assert asked[-1].body == b"family=L%C3%A9"


def test_ids_of_known_records_alone_show_one_more() -> None:
    """If the answer is a number, the agent need not rule out other matches."""
    bare = {"resourceType": "Patient", "id": "99"}
    answers = {"_elements=id": bundle(OTHER, bare)}
    log = [logged(Get("/Patient?_elements=id"), bundle(OTHER))]
    assert not seen(log, answers)
    assert seen(log, answers, "Patient/1")


def test_repeated_ids_distinguish_nothing() -> None:
    """An element does not rule a record out if the counterfactual (the missing record) has the same value."""
    bare, active = {"resourceType": "Patient", "id": "99"}, {**OTHER, "active": True}
    answers = {"_elements=id": bundle(OTHER, bare), "_elements=active": bundle(active, {**bare, "active": True})}
    log = [
        logged(Get("/Patient?_elements=id"), bundle(OTHER)),
        logged(Get("/Patient?_elements=active"), bundle(active)),
    ]
    assert not shows_counterfactual(log, {**PHANTOM, "active": True}, Scratch(answers))
    read = logged(Get("/Patient/1"), {**active, "name": [{"family": "Kim"}]})
    assert shows_counterfactual([*log, read], {**PHANTOM, "active": True}, Scratch(answers))


def test_a_record_without_the_deciding_element_is_not_read() -> None:
    evidence_fields = {"Patient": ("name", "gender")}
    ids = logged(Get("/Patient?_elements=id"), bundle(OTHER))
    named = logged(Get("/Patient?_elements=name"), bundle({**OTHER, "name": [{"family": "Kim"}]}))
    gender = logged(Get("/Patient/1?_elements=gender"), {**OTHER, "gender": "male"})
    assert missing_records([ids], ["Patient/1", "Slot/2"], {}) == ["Slot/2"]
    assert missing_records([ids], ["Patient/1"], evidence_fields) == ["Patient/1"]
    assert missing_records([ids, named], ["Patient/1"], evidence_fields) == ["Patient/1"]
    assert missing_records([named, gender, ids], ["Patient/1"], evidence_fields) == []


def page(*resources: Resource, at: str, next: str = "") -> dict[str, Any]:
    links = [{"relation": "self", "url": f"{BASE}{at}"}] + ([{"relation": "next", "url": next}] if next else [])
    return bundle(*resources) | {"link": links}


@pytest.mark.parametrize("far", ["_count=5&_offset=1", "_offset=1", "_offset=900"])
def test_an_empty_page_behind_pages_that_were_not_seen_shows_nothing(far: str) -> None:
    """The agent did not read the earlier pages, so it could not know whether this page existed."""
    log = [logged(Get(f"/Patient?{far}"), page(at=f"/Patient?{far}"))]
    assert not seen(log, {far: page(PHANTOM, at=f"/Patient?{far}")})


def test_a_page_shows_the_counterfactual_if_all_pages_before_it_were_read() -> None:
    log = [
        logged(Get("/Patient?_count=1"), page(KIM, at="/Patient?_count=1")),
        logged(Get("/Patient?_count=1&_offset=1"), page(at="/Patient?_count=1&_offset=1")),
    ]
    first = page(KIM, at="/Patient?_count=1", next=f"{BASE}?_getpages=a&_getpagesoffset=1")
    answers = {"_count=1": first, "_count=1&_offset=1": page(PHANTOM, at="/Patient?_count=1&_offset=1")}
    assert seen(log, answers)
    assert not seen(log[1:], answers)
    assert not seen([log[1], log[0]][:1], answers)


def test_a_page_without_the_counterfactual_counts_as_read() -> None:
    first = page(KIM, at="/Patient?_count=1", next=f"{BASE}?_getpages=a&_getpagesoffset=1")
    log = [
        logged(Get("/Patient?_count=1"), first),
        logged(Get("/Patient?_count=1&_offset=1"), page(at="/Patient?_count=1&_offset=1")),
    ]
    answers = {"_count=1": first, "_count=1&_offset=1": page(PHANTOM, at="/Patient?_count=1&_offset=1")}
    assert seen(log, answers)
    assert not seen(log[1:], answers)


def test_records_of_earlier_pages_must_be_distinguished() -> None:
    """The agent saw only the ids of the records on the first page, so these records are not ruled out."""
    log = [
        logged(Get("/Patient?_count=1"), page(OTHER, at="/Patient?_count=1")),
        logged(Get("/Patient?_count=1&_offset=1"), page(at="/Patient?_count=1&_offset=1")),
    ]
    answers = {
        "_count=1": page(OTHER, at="/Patient?_count=1"),
        "_count=1&_offset=1": page(PHANTOM, at="/Patient?_count=1&_offset=1"),
    }
    assert not seen(log, answers)
    assert seen([*log, logged(Get("/Patient/1"), KIM)], answers)


def test_a_page_of_another_search_is_not_an_earlier_page() -> None:
    log = [
        logged(Get("/Patient?active=false"), page(KIM, at="/Patient?active=false")),
        logged(Get("/Patient?_offset=1"), page(at="/Patient?_offset=1")),
    ]
    answers = {
        "active=false": page(KIM, at="/Patient?active=false"),
        "_offset=1": page(PHANTOM, at="/Patient?_offset=1"),
    }
    assert not seen(log, answers)


def test_a_far_page_by_post_or_in_a_batch_shows_nothing() -> None:
    far = page(at="/Patient/_search?_offset=9")
    posted = logged(Post("/Patient/_search", "_offset=9"), far)

    class Far(Scratch):
        @override
        def handle(self, request: Request) -> Response:
            return answer(request, self.answers)

        @override
        def read(self, resource_type: str, id: str) -> Resource | None:
            return None

    now = page(PHANTOM, at="/Patient/_search?_offset=9")
    assert not shows_counterfactual([posted], PHANTOM, Far(now))
    sent = {"type": "batch", "entry": [{"request": {"method": "GET", "url": "Patient?_offset=9"}}]}
    before, after = (
        {"resourceType": "Bundle", "type": "batch-response", "entry": [{"resource": resource}]}
        for resource in (far, now)
    )
    assert not shows_counterfactual([logged(Post("/", sent), before)], PHANTOM, Far(after))


def test_each_search_of_a_batch_is_judged_by_its_own_results() -> None:
    def batch(*results: Resource) -> Resource:
        entries = [{"resource": result} for result in results]
        return {"resourceType": "Bundle", "type": "batch-response", "entry": entries}

    def sent(*urls: str) -> Action:
        entries = [{"request": {"method": "GET", "url": url}} for url in urls]
        return Post("/", {"resourceType": "Bundle", "type": "batch", "entry": entries})

    class Batches(Scratch):
        @override
        def handle(self, request: Request) -> Response:
            return answer(request, self.answers["" if request.method == "POST" else request.query])

    ids = bundle({**OTHER, "id": "3"})
    both = sent("Patient?family=Lee", "Patient?_elements=id")
    unclear = {"": batch(bundle({**OTHER, "id": "3"}, PHANTOM), bundle({**OTHER, "id": "4"}, PHANTOM))}
    clear = {"": batch(bundle(PHANTOM), bundle({**OTHER, "id": "4"}, PHANTOM))}
    assert shows_counterfactual([logged(both, batch(bundle(), ids))], PHANTOM, Batches(clear))
    assert not shows_counterfactual([logged(both, batch(ids, ids))], PHANTOM, Batches(unclear))
    far = page({**OTHER, "id": "4"}, at="/Patient?_offset=9")
    beside_far = logged(sent("Patient?family=Lee", "Patient?_offset=9"), batch(bundle(), far))
    assert shows_counterfactual([beside_far], PHANTOM, Batches({"": batch(bundle(PHANTOM), far)}))
    counted = batch(page(at="/Patient?family=Lee&_summary=count") | {"total": 0})
    now = {"": batch(page(at="/Patient?family=Lee&_summary=count") | {"total": 1}), "family=Lee": bundle(PHANTOM)}
    count = logged(sent("Patient?family=Lee&_summary=count"), counted)
    assert shows_counterfactual([count], PHANTOM, Batches(now))
    assert not shows_counterfactual([count], PHANTOM, Batches({"": counted}))


def test_page_tokens_are_replaced_in_batches_of_any_bytes() -> None:
    pages = [f"{BASE}?_getpages={token}&_getpagesoffset=1" for token in ("old", "new")]
    first = logged(Get("/Patient?_sort=family"), bundle(OTHER, next=pages[0]))

    class Refusing(Scratch):
        @override
        def handle(self, request: Request) -> Response:
            if request.method == "GET":
                return super().handle(request)
            self.asked.append(request)
            return Response(400)

    scratch = Refusing({"_sort=family": bundle(OTHER, PHANTOM, next=pages[1])})
    request = Request("POST", "/", "_getpages=\udc80", {}, b'{"url": "?_getpages=old&x"} _getpages=\xff\xed\xb2\x80')
    log = [first, LoggedRequest(Post("/", {}), request, Response(400))]
    assert all(position == 0 for position, _ in counterfactuals_shown(log, [PHANTOM], scratch))
    assert scratch.asked[-1].body == b'{"url": "?_getpages=new&x"} _getpages=\xff\xed\xb2\x80'
    assert scratch.asked[-1].query == "_getpages=\udc80"


def test_other_elements_distinguish_nothing() -> None:
    """A different telephone number does not rule a record out."""
    phone, other_phone = [{"value": "1"}], [{"value": "2"}]
    answers = {"_elements=telecom": bundle({**OTHER, "telecom": phone}, {"resourceType": "Patient", "id": "99"})}
    log = [logged(Get("/Patient?_elements=telecom"), bundle({**OTHER, "telecom": phone}))]
    counterfactual = {**PHANTOM, "telecom": other_phone}
    assert not shows_counterfactual(log, counterfactual, Scratch(answers))
    named = logged(Get("/Patient/1?_elements=name"), {**OTHER, "name": [{"family": "Kim"}]})
    assert shows_counterfactual([*log, named], counterfactual, Scratch(answers))


def test_a_differing_element_shows_a_record() -> None:
    """If the counterfactual replaces a stored record, only a response with a different element is evidence.

    A different version number is no evidence.
    """
    counterfactual = {**KIM, "active": False}
    names, states = ({**OTHER, "name": KIM["name"]}, {**OTHER, "active": True})
    now = {"_elements=name": bundle({**names, "meta": {"versionId": "2"}}), "_elements=active": bundle(counterfactual)}
    scratch = Scratch(now)
    assert not shows_counterfactual([logged(Get("/Patient?_elements=name"), bundle(names))], counterfactual, scratch)
    assert shows_counterfactual([logged(Get("/Patient?_elements=active"), bundle(states))], counterfactual, scratch)


def test_the_task_may_rule_records_out() -> None:
    answers = {"_elements=start": bundle({**OTHER, "start": "2024"}, PHANTOM)}
    log = [logged(Get("/Patient?_elements=start"), bundle({**OTHER, "start": "2024"}))]
    scratch = Scratch(answers)
    assert not shows_counterfactual(log, {**PHANTOM, "start": "2023"}, scratch)
    assert shows_counterfactual(
        log, {**PHANTOM, "start": "2023"}, scratch, may_match=lambda resource, _: resource.get("start") == "2023"
    )


def test_a_conditional_create_that_matched_has_looked_up_the_record() -> None:
    matched = logged(Post("/Patient", KIM), KIM)
    done = (matched.response.done[0]._replace(kind="create", resource_type="Patient", id="1", status=200, effect=""),)
    matched = replace(matched, response=replace(matched.response, done=done))
    assert missing_records([matched], ["Patient/1"], {"Patient": ("name",)}) == []
    created = replace(matched, response=replace(matched.response, done=(done[0]._replace(effect="created"),)))
    assert missing_records([created], ["Patient/1"], {}) == ["Patient/1"]
