"""Batch and transaction: order, placeholders, responses, and atomicity."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fhir_gym.fhir import World
from fhir_gym.fhir.limits import Limits
from tests.fhir.writing import Client, entry, observation, patient

URN = "urn:uuid:0a0b0c0d-1111-4222-8333-00000000000"


@pytest.fixture
def client(empty_world: World) -> Iterator[Client]:
    with empty_world.session() as session:
        yield Client(session)


def statuses(bundle: Any) -> list[str]:
    return [item["response"]["status"] for item in bundle.get("entry", [])]


def diagnostics(item: Any) -> str:
    return str(item["response"]["outcome"]["issue"][0]["diagnostics"])


def patch_binary(*operations: dict[str, Any], content_type: str = "application/json-patch+json") -> dict[str, Any]:
    data = base64.b64encode(json.dumps(operations).encode()).decode()
    return {"resourceType": "Binary", "contentType": content_type, "data": data}


@pytest.mark.parametrize("kind", ["batch", "transaction"])
def test_an_empty_bundle(client: Client, kind: str) -> None:
    answer = client.bundle(kind)
    assert answer["type"] == f"{kind}-response"
    assert list(answer) == ["resourceType", "id", "type", "link"]
    assert answer["link"] == [{"relation": "self", "url": "http://localhost:8080/fhir"}]
    assert client.header("Location") == client.header("Content-Location")
    assert client.header("Location").endswith(f"/Bundle/{answer['id']}")


def test_a_bundle_is_not_executed_for_a_client_that_accepts_html(client: Client) -> None:
    """HAPI redirects such a client to a page about its operations, whatever the quality of HTML is."""
    bundle = {"resourceType": "Bundle", "type": "transaction", "entry": [entry("PUT", "Patient/p", patient(id="p"))]}
    assert client.send("POST", "", bundle, accept="text/html;q=0.1, application/fhir+json") is None
    assert (client.status, client.header("Location")) == (302, "http://localhost:8080/fhir/swagger-ui/")
    assert [interaction.effect for interaction in client.last.done] == [""]
    client.send("GET", "Patient/p")
    assert client.status == 404


def test_no_type_means_transaction(client: Client) -> None:
    assert client.send("POST", "/", {"resourceType": "Bundle"})["type"] == "transaction-response"
    client.bundle("collection")
    assert client.text == "HAPI-0527: Unable to process transaction where incoming Bundle.type = collection"
    client.send("POST", "/", patient())
    assert 'expected "Bundle" but found "Patient"' in client.text


def test_entries_may_refer_to_each_other_in_any_order(client: Client) -> None:
    answer = client.bundle(
        "transaction",
        entry("POST", "Observation", observation(f"{URN}1")),
        entry("POST", "Patient", patient(), full_url=f"{URN}1"),
        entry("PUT", "Encounter/E", {"resourceType": "Encounter", "id": "E", "subject": {"reference": f"{URN}1"}}),
    )
    assert statuses(answer) == ["201 Created"] * 3
    made = answer["entry"][1]["response"]["location"].partition("/_history")[0]
    assert client.send("GET", "/Encounter/E")["subject"] == {"reference": made}
    first = answer["entry"][0]["response"]
    assert list(first) == ["status", "location", "etag", "lastModified", "outcome"]
    assert first["etag"] == "1"
    times = {item["response"]["lastModified"] for item in answer["entry"]}
    assert len(times) == 1


def test_order_of_a_transaction(client: Client) -> None:
    client.put(patient("A"))
    answer = client.bundle(
        "transaction",
        entry("GET", "Patient/B"),
        entry("PUT", "Patient/A", patient("A", gender="male")),
        entry("PUT", "Patient/B", patient("B")),
        entry("DELETE", "Patient/A"),
        entry("DELETE", "Patient/never"),
        entry("PATCH", "Patient/B", patch_binary({"op": "add", "path": "/gender", "value": "other"})),
    )
    assert statuses(answer) == ["200 OK", "201 Created", "201 Created", "204 No Content", "204 No Content", "200 OK"]
    assert answer["entry"][0]["resource"]["gender"] == "other"
    assert client.send("GET", "/Patient/A")["meta"]["versionId"] == "3"
    assert "location" not in answer["entry"][4]["response"]


def test_order_of_a_batch(client: Client) -> None:
    answer = client.bundle(
        "batch",
        entry("GET", "Patient/A"),
        entry("PUT", "Patient/A", patient("A")),
        entry("DELETE", "Patient/A"),
        entry("POST", "Observation", observation("Patient/nobody")),
        entry("HEAD", "Patient/A"),
        entry("PUT", "Patient/B"),
    )
    assert statuses(answer) == [
        "410 Gone",
        "201 Created",
        "204 No Content",
        "400 Bad Request",
        "400 Bad Request",
        "400 Bad Request",
    ]
    assert answer["entry"][0]["response"]["outcome"]["issue"][0]["code"] == "exception"
    assert diagnostics(answer["entry"][4]) == "HAPI-0538: Unable to handle verb in transaction: HEAD"
    assert diagnostics(answer["entry"][5]) == (
        "HAPI-0543: Missing required resource in Bundle.entry[5].resource for operation PUT"
    )


def test_prefer_returns_the_written_resource(client: Client) -> None:
    answer = client.bundle(
        "transaction", entry("POST", "Patient", patient()), entry("DELETE", "Patient/x"), prefer="return=representation"
    )
    assert answer["entry"][0]["resource"]["name"] == [{"family": "Doe"}]
    assert "resource" not in answer["entry"][1]


# each of these fails as the second entry of a transaction
FAILING: list[tuple[dict[str, Any], int, str]] = [
    (entry("POST", "Observation", observation("Patient/nobody")), 400, "HAPI-1094: "),
    (entry("POST", "Observation", observation(f"{URN}9")), 400, f"HAPI-0541: Unable to satisfy placeholder ID {URN}9"),
    (entry("POST", "Patient", patient(managingOrganization={"reference": "Patient/1"})), 422, "HAPI-0931: "),
    (entry("POST", "Patient"), 400, "HAPI-0543: "),
    (entry("PUT", "Patient/a_b", patient("a_b")), 400, "HAPI-0521: "),
    (entry("PUT", "Patient/7777777", patient("7777777")), 400, "HAPI-0960: "),
    (entry("PUT", "Patient", patient()), 400, "HAPI-0518: Invalid match URL[Patient?Patient] - URL has no search par"),
    (entry("PUT", "Patient/there", patient("there"), ifMatch='W/"9"'), 409, "HAPI-0550: HAPI-0989: "),
    (entry("PUT", "Patient?family=Two", patient(family="Two")), 412, "HAPI-0988: "),
    (entry("PUT", "Patient?family=Nobody", patient(family="Else")), 400, "HAPI-0929: "),
    (entry("POST", "Patient", patient(family="Two"), ifNoneExist="family=Two"), 412, "HAPI-0958: "),
    (entry("POST", "Patient", patient(), ifNoneExist="family=First"), 400, "HAPI-0929: "),
    (entry("POST", "Patient", patient(family="Fir"), ifNoneExist="family=Fir"), 400, "HAPI-0542: "),
    (entry("POST", "Patient", patient(), ifNoneExist="nope=1"), 400, "HAPI-0488: "),
    (entry("PATCH", "Patient/nobody", patch_binary()), 404, "HAPI-1997: Patient/nobody"),
    (entry("PATCH", "Patient/there", patient()), 400, "HAPI-0537: Unable to determine PATCH body from request"),
    (entry("PATCH", "Patient/there", patch_binary({"op": "remove", "path": "/x"})), 400, "HAPI-1272: "),
    (entry("PATCH", "Patient/there", patch_binary(content_type="text/plain")), 400, "HAPI-1965: "),
    (entry("PATCH", "Patient?family=Nobody", patch_binary()), 404, "HAPI-0973: "),
    (entry("DELETE", "Patient/held"), 409, "Unable to delete Patient/held because"),
    (entry("DELETE", "Patient?family=Two"), 412, "HAPI-0962: "),
    (entry("HEAD", "Patient/there"), 400, "HAPI-0538: Unable to handle verb in transaction: HEAD"),
    ({"resource": patient()}, 400, "HAPI-0529: "),
    (entry("GET", ""), 400, "HAPI-0545: Unable to perform GET, no URL provided."),
    (entry("GET", "Nope/1"), 404, "HAPI-0302: "),
    (entry("GET", "Patient?birthdate=bogus"), 400, "HAPI-1940: "),
    (entry("GET", "$nope"), 400, "Invalid request: "),
    (entry("POST", "Patient", patient(), full_url=f"{URN}0"), 400, "HAPI-0534: Transaction bundle contains multiple"),
    (
        entry("PUT", "Patient/N", patient("N")),
        400,
        "HAPI-0535: Transaction bundle contains multiple resources with ID: ",
    ),
    (entry("PUT", "Nope/1", patient("1")), 400, "HAPI-2006: Unable to perform PUT, URL provided is invalid: Nope/1"),
    (entry("POST", "$validate", patient()), 400, "HAPI-2006: Unable to perform POST"),
    (entry("PUT", "Patient/1/", patient("1")), 400, "HAPI-1101: Parameter value missing in request"),
    (entry("DELETE", "Patient/there/foo"), 400, "HAPI-1742: Invalid FHIR resource URL: Patient/there/foo"),
    (entry("PUT", "Group/1", patient("1")), 400, "Unable to perform PUT"),
    (entry("DELETE", "http://elsewhere/fhir/Patient/1"), 400, "HAPI-2006: Unable to perform DELETE"),
]


@pytest.mark.parametrize(("failing", "status", "beginning"), FAILING)
def test_a_transaction_is_all_or_nothing(client: Client, failing: dict[str, Any], status: int, beginning: str) -> None:
    client.put(patient("there", family="There"))
    client.put(patient("held", family="Held"))
    client.put(observation("Patient/held", "holder"))
    for id in ("two1", "two2", "two3"):
        client.put(patient(id, family="Two"))
    seq, before = client.session.store.seq(), client.session.changes()
    client.bundle(
        "transaction",
        entry("POST", "Patient", patient(family="First"), full_url=f"{URN}0"),
        failing,
        entry("PUT", "Patient/N", patient("N", family="New")),
        entry("PUT", "Patient/there", patient("there", family="There", gender="male"))
        if "there" not in str(failing)
        else entry("DELETE", "Patient/two3"),
        entry("DELETE", "Patient/two2"),
    )
    assert (client.status, client.text[: len(beginning)]) == (status, beginning)
    assert client.session.store.seq() == seq
    assert client.session.changes() == before


@pytest.mark.parametrize(("url", "status"), [("Patient/nobody", "404 Not Found"), ("Patient?foo=1", "400 Bad Request")])
def test_some_reads_fail_for_themselves(client: Client, url: str, status: str) -> None:
    answer = client.bundle("transaction", entry("POST", "Patient", patient()), entry("GET", url))
    assert statuses(answer) == ["201 Created", status]


def test_a_conditional_entry_finds_existing_resources(client: Client) -> None:
    client.put(patient("A"))
    answer = client.bundle(
        "transaction",
        entry("POST", "Patient", patient(), full_url=f"{URN}1", ifNoneExist="family=Doe"),
        entry("POST", "Observation", observation(f"{URN}1")),
        entry("POST", "Observation", observation("Patient?family=Doe")),
    )
    assert statuses(answer) == ["200 OK", "201 Created", "201 Created"]
    assert answer["entry"][0]["response"]["location"] == "Patient/A/_history/1"
    assert client.send("GET", "/Observation?subject=Patient/A")["total"] == 2


def test_a_conditional_reference_finds_resources_of_the_transaction(client: Client) -> None:
    answer = client.bundle(
        "transaction",
        entry("POST", "Observation", observation("Patient?family=Doe")),
        entry("PUT", "Patient?family=Doe", patient()),
    )
    assert statuses(answer) == ["201 Created", "201 Created"]


def test_a_conditional_reference_with_several_matches(client: Client) -> None:
    for id in ("A", "B"):
        client.put(patient(id))
    client.bundle("transaction", entry("POST", "Observation", observation("Patient?family=Doe")))
    assert client.status == 412


def test_deletions_are_checked_at_the_end(client: Client) -> None:
    client.put(patient("A"))
    client.put(observation("Patient/A", "O"))
    answer = client.bundle("transaction", entry("DELETE", "Patient/A"), entry("DELETE", "Observation/O"))
    assert statuses(answer) == ["204 No Content"] * 2
    client.put(patient("A"))
    client.put(observation("Patient/A", "O"))
    answer = client.bundle("batch", entry("DELETE", "Patient/A"), entry("DELETE", "Observation/O"))
    assert statuses(answer) == ["409 Conflict", "204 No Content"]
    assert diagnostics(answer["entry"][0]).startswith("HAPI-0550: HAPI-0515: Unable to delete Patient/A because")


def test_an_already_deleted_resource_has_an_entry(client: Client) -> None:
    client.put(patient("A"))
    for _ in range(2):
        answer = client.bundle("transaction", entry("DELETE", "Patient/A"))
        assert answer["entry"][0]["response"]["location"] == "Patient/A/_history/2"


def test_a_post_may_be_called_by_the_id_it_states(client: Client) -> None:
    answer = client.bundle(
        "transaction",
        entry("POST", "Observation", observation("Patient/mine")),
        entry("POST", "Patient", patient("mine")),
    )
    assert statuses(answer) == ["201 Created"] * 2


def test_full_urls_of_a_batch_apply_only_to_their_own_entry(client: Client) -> None:
    answer = client.bundle(
        "batch",
        entry("POST", "Patient", patient(), full_url=f"{URN}1"),
        entry("POST", "Observation", observation(f"{URN}1")),
    )
    assert statuses(answer) == ["201 Created", "400 Bad Request"]
    assert diagnostics(answer["entry"][1]).startswith("HAPI-0505: ")


def test_urls_of_entries(client: Client) -> None:
    client.put(patient("A"))
    for url in ("Patient/A", "/Patient/A", "http://localhost:8080/fhir/Patient/A", "Patient/A/_history/1"):
        answer = client.bundle("transaction", entry("GET", url))
        assert answer["entry"][0]["resource"]["id"] == "A"
    answer = client.bundle("batch", entry("POST", "Observation", patient()))
    assert answer["entry"][0]["response"]["location"].startswith("Patient/")


def test_a_read_in_a_bundle_may_be_conditional(client: Client) -> None:
    client.put(patient("A"))
    answer = client.bundle("batch", entry("GET", "Patient/A", ifNoneMatch='W/"1"'))
    assert statuses(answer) == ["304 Not Modified"]
    assert "resource" not in answer["entry"][0]


def test_a_type_without_id_or_criteria_is_nothing_to_delete(client: Client) -> None:
    answer = client.bundle("batch", entry("DELETE", "Linkage"))
    assert statuses(answer) == ["204 No Content"]
    assert diagnostics(answer["entry"][0]) == (
        'Unable to find resource matching URL "Linkage?null". Nothing has been deleted.'
    )


def test_a_batch_entry_that_fails_leaves_nothing(client: Client) -> None:
    answer = client.bundle(
        "batch",
        entry("POST", "Patient", patient(family="Roe"), ifNoneExist="family=Doe"),
        entry("POST", "Patient", patient(family="Poe")),
    )
    assert statuses(answer) == ["400 Bad Request", "201 Created"]
    assert [c.after and c.after["name"] for c in client.session.changes()] == [[{"family": "Poe"}]]


def test_the_number_of_entries_is_bounded(empty_world: World) -> None:
    with empty_world.session(limits=Limits(bundle_entries=2)) as session:
        client = Client(session)
        client.bundle("batch", *[entry("GET", "Patient/1")] * 3)
        assert client.status == 413


VERBS = st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"])
URLS = st.sampled_from(
    [
        "",
        "Patient",
        "Patient/A",
        "Patient/B",
        "Patient?family=Doe",
        "Patient?x=1",
        "Nope",
        "/",
        "?",
        "Patient/A/$x",
        "%",
    ]
)
RESOURCES = st.sampled_from(
    [
        None,
        patient(),
        patient("A"),
        patient("B", link=[{"other": {"reference": "Patient/A"}, "type": "seealso"}]),
        observation(f"{URN}1"),
        observation("Patient?family=Doe"),
        patch_binary({"op": "add", "path": "/gender", "value": "male"}),
        {"resourceType": "Parameters"},
    ]
)
CONDITIONS = st.fixed_dictionaries(
    {}, optional={"ifMatch": st.sampled_from(['W/"1"', "x"]), "ifNoneExist": st.sampled_from(["family=Doe", "?"])}
)
ENTRY = st.builds(
    lambda verb, url, resource, named, more: entry(verb, url, resource, full_url=f"{URN}1" if named else "", **more),
    VERBS,
    URLS,
    RESOURCES,
    st.booleans(),
    CONDITIONS,
)


@given(kind=st.sampled_from(["batch", "transaction"]), entries=st.lists(ENTRY, max_size=5))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bundle_is_answered(client: Client, kind: str, entries: list[Any]) -> None:
    seq = client.session.store.seq()
    answer = client.bundle(kind, *entries)
    if client.status == 200:
        assert len(answer.get("entry", [])) == len(entries)
    else:
        assert 400 <= client.status < 500
        assert client.session.store.seq() == seq


def test_a_batch_that_is_broken_off_leaves_nothing(hospital: World) -> None:
    with hospital.session(limits=Limits(sql_steps=50_000)) as session:
        client = Client(session)
        costly = entry("DELETE", "Observation?code:not=nothing")
        client.bundle("batch", entry("POST", "Patient", patient()), *[costly] * 20)
        assert (client.status, client.last.json()["issue"][0]["code"]) == (400, "too-costly")
        assert session.changes() == []
