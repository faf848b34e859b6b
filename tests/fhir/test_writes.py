"""Create, update, patch and delete."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fhir_gym.fhir import World
from fhir_gym.fhir.session import Session
from tests.fhir.writing import JSON_PATCH, Client, observation, patient


@pytest.fixture
def client(empty_world: World) -> Iterator[Client]:
    with empty_world.session() as session:
        yield Client(session)


# create


def test_create(client: Client) -> None:
    made = client.send("POST", "/Patient", patient("mine", gender="male"))
    assert client.status == 201
    assert made["id"] != "mine" and made["id"].isdigit()
    assert made["meta"]["versionId"] == "1"
    place = f"http://localhost:8080/fhir/Patient/{made['id']}/_history/1"
    assert client.header("Location") == client.header("Content-Location") == place
    assert client.header("ETag") == 'W/"1"'
    assert client.header("Last-Modified").endswith("GMT")
    assert client.send("GET", f"/Patient/{made['id']}") == made


def test_ids_count_up_and_a_refused_create_uses_none(client: Client) -> None:
    first = int(client.send("POST", "/Patient", patient())["id"])
    client.send("POST", "/Observation", observation("Patient/nobody"))
    assert client.status == 400
    client.put(patient("named"))
    assert int(client.send("POST", "/Patient", patient())["id"]) == first + 2


@pytest.mark.parametrize(
    ("preference", "shows"),
    [
        ("return=minimal", None),
        ("return=OperationOutcome", "OperationOutcome"),
        ("return=representation", "Patient"),
        ("return=MINIMAL", "Patient"),
        ("return=minimal, return=representation", "Patient"),
        ("handling=strict; return=minimal", None),
        ("respond-async", "Patient"),
    ],
)
def test_prefer(client: Client, preference: str, shows: str | None) -> None:
    body = client.send("POST", "/Patient", patient(), prefer=preference)
    assert client.status == 201
    assert (body["resourceType"] if body else None) == shows
    assert ("Content-Type" in client.last.headers) == (shows is not None)


@pytest.mark.parametrize(
    ("content_type", "body", "beginning"),
    [
        ("text/plain", b"{}", 'HAPI-0449: Incorrect Content-Type header value of "text/plain"'),
        ("application/x-www-form-urlencoded", b"a=b", "HAPI-0446: "),
        ("", b"{}", "HAPI-0448: No Content-Type header was provided"),
        ("", b"", "HAPI-0956: No body was supplied in request"),
        ("application/fhir+json", b"", "HAPI-0450: "),
        ("application/fhir+json", b"[]", "HAPI-0450: "),
        ("application/fhir+xml", b"{}", "HAPI-0450: Failed to parse request body as XML resource."),
        ("APPLICATION/JSON", b"{}", "HAPI-0449: "),
    ],
)
def test_content_types(client: Client, content_type: str, body: bytes, beginning: str) -> None:
    client.last = client.session.handle(request("POST", "/Patient", body, {"content-type": content_type}))
    assert client.status == 400
    assert client.text.startswith(beginning)


def request(method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Any:
    from fhir_gym.fhir.messages import Request

    return Request(method, path, "", headers or {}, body)


def test_post_to_an_id(client: Client) -> None:
    client.send("POST", "/Patient/A", patient())
    assert client.status == 400
    assert client.text.startswith('HAPI-0365: Can not create resource with ID "A"')


def test_a_binary_may_be_posted_as_raw_bytes(client: Client) -> None:
    made = client.send("POST", "/Binary", b"plain words", content_type="text/plain")
    assert (made["contentType"], made["data"]) == ("text/plain", "cGxhaW4gd29yZHM=")
    made = client.send("PUT", "/Binary/B", b"words", content_type="image/png")
    assert (client.status, made["id"], made["contentType"]) == (201, "B", "image/png")


def test_only_some_bundles_are_stored(client: Client) -> None:
    client.send("POST", "/Bundle", {"resourceType": "Bundle", "type": "collection"})
    assert client.status == 201
    client.send("POST", "/Bundle", {"resourceType": "Bundle", "type": "transaction"})
    assert client.status == 422
    assert client.text.startswith("HAPI-0522: ")


def test_the_answer_may_be_a_subset_and_the_store_is_not(client: Client) -> None:
    made = client.send("POST", "/Patient?_elements=gender", patient(gender="male"))
    assert "name" not in made and made["gender"] == "male"
    assert "name" in client.send("GET", f"/Patient/{made['id']}")


# meta


def test_tags_accumulate_and_profiles_are_replaced(client: Client) -> None:
    tag, label = {"system": "http://x", "code": "t"}, {"system": "http://x", "code": "s"}
    client.put(patient("A", meta={"tag": [tag], "profile": ["http://x/1"]}))
    client.put(patient("A", meta={"security": [label], "profile": ["http://x/2"]}))
    meta = client.send("GET", "/Patient/A")["meta"]
    assert (meta["tag"], meta["security"], meta["profile"]) == ([tag], [label], ["http://x/2"])
    assert list(meta) == ["versionId", "lastUpdated", "profile", "security", "tag"]


def test_meta_elements_that_are_returned_but_not_stored(client: Client) -> None:
    tag = {"system": "http://x", "code": "t"}
    meta = {"id": "m", "source": "http://s", "tag": [tag, tag, {"display": "only"}], "versionId": "9"}
    made = client.put(patient("A", meta=meta))
    assert (made["meta"]["id"], made["meta"]["versionId"]) == ("m", "1")
    kept = client.send("GET", "/Patient/A")["meta"]
    assert set(kept) == {"versionId", "lastUpdated", "tag"}
    assert kept["tag"] == [tag]


# update


def test_update(client: Client) -> None:
    client.put(patient("A"))
    assert (client.status, client.header("ETag"), client.header("Location")) == (201, 'W/"1"', "")
    changed = client.put(patient("A", gender="male"))
    assert (client.status, client.header("ETag")) == (200, 'W/"2"')
    assert changed["meta"]["versionId"] == "2"
    again = client.put(patient("A", gender="male", meta={"versionId": "7", "lastUpdated": "2000-01-01T00:00:00Z"}))
    assert (client.status, again) == (200, changed)
    client.put(patient("A", gender="male"), prefer="return=OperationOutcome")
    assert "no changes detected" in client.text


@pytest.mark.parametrize(
    ("place", "body", "status", "beginning"),
    [
        ("A", patient(), 400, "HAPI-0419: "),
        ("A", patient("B"), 400, "HAPI-0420: "),
        ("a_b", patient("a_b"), 400, "HAPI-0521: Can not process entity with ID[a_b], this is not a valid FHIR ID"),
        ("123", patient("123"), 400, "HAPI-0960: Can not create resource with ID[123]"),
        ("x" * 65, patient("x" * 65), 400, "HAPI-0521: "),
    ],
)
def test_update_ids(client: Client, place: str, body: Any, status: int, beginning: str) -> None:
    client.send("PUT", f"/Patient/{place}", body)
    assert client.status == status
    assert client.text.startswith(beginning)


def test_an_id_may_be_written_with_its_type(client: Client) -> None:
    client.send("PUT", "/Patient/A", patient("Patient/A"))
    assert client.status == 201
    assert client.send("GET", "/Patient/A")["id"] == "A"


def test_put_without_an_id_or_criteria(client: Client) -> None:
    client.send("PUT", "/Patient", patient("A"))
    assert client.text.startswith("HAPI-0418: ")


@pytest.mark.parametrize("header", ['W/"1"', '"1"', "1", ""])
def test_if_match(client: Client, header: str) -> None:
    client.put(patient("A"))
    client.put(patient("A", gender="male"), if_match=header)
    assert client.status == 200


def test_if_match_of_another_version(client: Client) -> None:
    client.put(patient("A"))
    client.put(patient("A", gender="male"), if_match='W/"9"')
    assert client.status == 409
    assert client.text == (
        "HAPI-0550: HAPI-0989: Trying to update Patient/A/_history/9 but this is not the current version"
    )
    client.put(patient("A", gender="male"), if_match="*")
    assert client.status == 400


def test_a_deleted_resource_is_recreated_with_the_next_version(client: Client) -> None:
    client.put(patient("A", meta={"tag": [{"code": "t"}]}))
    client.send("DELETE", "/Patient/A")
    client.put(patient("A"), if_match='W/"1"')
    assert client.status == 409
    back = client.put(patient("A"), if_match='W/"2"')
    assert (client.status, back["meta"]["versionId"]) == (201, "3")


# delete


def test_delete(client: Client) -> None:
    client.put(patient("A"))
    client.send("DELETE", "/Patient/A")
    assert (client.status, client.text) == (200, "Successfully deleted 1 resource(s). Took 1ms.")
    assert client.header("Content-Location").endswith("/Patient/A/_history/2")
    client.send("GET", "/Patient/A")
    assert client.status == 410
    client.send("DELETE", "/Patient/A")
    assert client.text == "Not deleted, resource Patient/A/_history/2 was already deleted."
    client.send("DELETE", "/Patient/nobody")
    assert (client.status, client.text) == (200, "Not deleted, resource Patient/nobody does not exist.")
    client.send("DELETE", "/Patient")
    assert client.text == "HAPI-0967: Can not perform delete, no ID provided"


def test_referenced_resources_are_not_deleted(client: Client) -> None:
    client.put(patient("A"))
    client.put(observation("Patient/A", "O"))
    client.send("DELETE", "/Patient/A")
    assert client.status == 409
    assert client.text.startswith(
        "Unable to delete Patient/A because at least one resource has a reference to this resource. "
        "First reference found was resource Observation/O in path Observation.subject"
    )
    client.put(observation("Patient/A", "O") | {"subject": {"display": "nobody"}})
    client.send("DELETE", "/Patient/A")
    assert client.status == 200


def test_a_self_reference_does_not_prevent_deletion(client: Client) -> None:
    client.put(patient("A"))
    client.put(patient("A", link=[{"other": {"reference": "Patient/A"}, "type": "seealso"}]))
    client.send("DELETE", "/Patient/A")
    assert client.status == 200


def test_references_of_the_world_count_until_the_session_changes_them(session: Session) -> None:
    client = Client(session)
    found = client.send("GET", "/Observation?_count=1")["entry"][0]["resource"]
    target = found["subject"]["reference"]
    client.send("DELETE", f"/{target}")
    assert client.status == 409


def test_a_write_to_an_operation_does_not_touch_the_resource(client: Client) -> None:
    client.put(patient("A"))
    client.send("DELETE", "/Patient/A/$expunge")
    assert client.status == 405
    client.send("GET", "/Patient/A")
    assert client.status == 200


# references


@pytest.mark.parametrize(
    ("reference", "status", "beginning"),
    [
        ("Organization/none", 400, "HAPI-1094: Resource Organization/none not found, specified in path: Patient."),
        ("Organization/gone", 400, "HAPI-1096: Resource Organization/gone is deleted, specified in path: Patient."),
        ("Practitioner/1", 422, "HAPI-0931: Invalid reference found at path 'Patient.managingOrganization'. "),
        ("Organization/A/", 422, "HAPI-0931: Invalid reference found at path 'Patient.managingOrganization'. "),
        ("ORG1", 400, "HAPI-0505: Invalid resource reference found at path[Patient.managingOrganization] - Does not c"),
        ("urn:uuid:x", 400, "HAPI-0505: "),
        ("Organization/", 400, "HAPI-0508: Invalid resource reference found at path[Patient.managingOrganization] - D"),
        (
            "http://x/fhir/Organization/1",
            400,
            'HAPI-0507: Resource contains external reference to URL "http://x/fhir/Org',
        ),
        ("http://x/fhir/Nope/1", 422, "HAPI-0931: "),
        ("Organization?name=nobody", 404, 'HAPI-1091: Invalid match URL "Organization?name=nobody" - No'),
        ("Organization?name=twice", 412, 'HAPI-1092: Invalid match URL "Organization?name=twice" - Multiple resources'),
        ("Organization?nope=1", 400, "HAPI-0488: "),
        ("Nope?name=x", 400, "Invalid match URL"),
    ],
)
def test_bad_references(client: Client, reference: str, status: int, beginning: str) -> None:
    client.put({"resourceType": "Organization", "id": "gone"})
    client.send("DELETE", "/Organization/gone")
    for id in ("t1", "t2"):
        client.put({"resourceType": "Organization", "id": id, "name": "twice"})
    client.send("POST", "/Patient", patient(managingOrganization={"reference": reference}))
    assert (client.status, client.text[: len(beginning)]) == (status, beginning)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("Organization/O", "Organization/O"),
        ("/Organization/O", "Organization/O"),
        ("Organization/O/_history/9", "Organization/O"),
        ("Organization?name=one", "Organization/O"),
        ("#x", "#x"),
    ],
)
def test_how_references_are_kept(client: Client, given: str, kept: str) -> None:
    client.put({"resourceType": "Organization", "id": "O", "name": "one"})
    made = client.send("POST", "/Patient", patient(managingOrganization={"reference": given}))
    assert client.status == 201
    assert made["managingOrganization"]["reference"] == kept


def test_an_element_of_any_type_takes_known_types_only(client: Client) -> None:
    client.put(patient("A"))
    client.send("POST", "/Observation", observation("Patient/A") | {"focus": [{"reference": "Nope/1"}]})
    assert (client.status, client.text) == (
        400,
        "HAPI-0506: Invalid resource reference found at path[Observation.focus] - "
        "Resource type is unknown or not supported on this server - Nope/1",
    )


# patch


def test_json_patch(client: Client) -> None:
    client.put(patient("A"))
    changed = client.send(
        "PATCH", "/Patient/A", [{"op": "add", "path": "/gender", "value": "male"}], content_type=JSON_PATCH
    )
    assert (client.status, changed["gender"], changed["meta"]["versionId"]) == (200, "male", "2")
    assert client.header("Content-Location").endswith("/Patient/A/_history/2")
    assert client.header("ETag") == ""


def test_patches_do_not_change_id_and_version(client: Client) -> None:
    client.put(patient("A"))
    change = [
        {"op": "replace", "path": "/id", "value": "B"},
        {"op": "replace", "path": "/meta/versionId", "value": "9"},
    ]
    same = client.send("PATCH", "/Patient/A", change, content_type=JSON_PATCH)
    assert (same["id"], same["meta"]["versionId"]) == ("A", "1")


def test_fhirpath_patch(client: Client) -> None:
    client.put(patient("A", gender="male"))
    parts = [{"name": "type", "valueCode": "delete"}, {"name": "path", "valueString": "Patient.gender"}]
    changed = client.send(
        "PATCH", "/Patient/A", {"resourceType": "Parameters", "parameter": [{"name": "operation", "part": parts}]}
    )
    assert client.status == 200
    assert "gender" not in changed


def test_a_patch_may_not_break_references(client: Client) -> None:
    client.put(patient("A"))
    change = [{"op": "add", "path": "/managingOrganization", "value": {"reference": "Organization/none"}}]
    client.send("PATCH", "/Patient/A", change, content_type=JSON_PATCH)
    assert client.text.startswith("HAPI-1094: ")
    assert client.send("GET", "/Patient/A")["meta"]["versionId"] == "1"


@pytest.mark.parametrize(
    ("content_type", "status", "text"),
    [
        ("application/json", 400, "HAPI-1965: Invalid Content-Type for PATCH operation: application/json"),
        ("", 400, "HAPI-1964: Missing or invalid content type for PATCH operation"),
        ("application/xml-patch+xml", 415, "This server does not read application/xml-patch+xml"),
    ],
)
def test_patch_content_types(client: Client, content_type: str, status: int, text: str) -> None:
    client.put(patient("A"))
    client.last = client.session.handle(request("PATCH", "/Patient/A", b"[]", {"content-type": content_type}))
    assert client.status == status
    assert client.text.startswith(text)


def test_patch_of_a_missing_resource(client: Client) -> None:
    client.send("PATCH", "/Patient/A", [], content_type=JSON_PATCH)
    assert (client.status, client.text) == (404, "HAPI-2001: Resource Patient/A is not known")
    client.put(patient("A"))
    client.send("PATCH", "/Patient/A", [], content_type=JSON_PATCH, if_match='W/"2"')
    assert client.status == 409
    client.send("DELETE", "/Patient/A")
    client.send("PATCH", "/Patient/A", [], content_type=JSON_PATCH)
    assert client.status == 410
    client.send("PATCH", "/Patient", [], content_type=JSON_PATCH)
    assert client.status == 400


# conditional


@pytest.mark.parametrize("header", ["family=Doe", "?family=Doe", "Patient?family=Doe", "/Patient?family=Doe"])
def test_conditional_create(client: Client, header: str) -> None:
    made = client.send("POST", "/Patient", patient(), if_none_exist=header)
    assert client.status == 201
    again = client.send("POST", "/Patient", patient(gender="male"), if_none_exist=header)
    assert (client.status, again) == (200, made)
    client.send("POST", "/Patient", patient(), if_none_exist=header, prefer="return=OperationOutcome")
    assert client.text == (
        f'Successfully conditionally created resource "{made["id"]}". Existing resource matched URL "{header}".'
    )
    client.send("POST", "/Patient", patient(), if_none_exist=" ")
    assert client.status == 201
    client.send("POST", "/Patient", patient(), if_none_exist=header)
    assert client.status == 412
    assert client.text.startswith(f'HAPI-0958: Failed to CREATE Patient with match URL "{header}" because')


def test_a_conditional_create_must_match_its_own_url(client: Client) -> None:
    client.send("POST", "/Patient", patient(family="Roe"), if_none_exist="family=Doe")
    assert client.status == 400
    assert client.text == (
        "HAPI-0929: Failed to process conditional create. The supplied resource Patient?family=Doe of type Patient "
        "did not satisfy the conditional URL."
    )
    assert client.send("GET", "/Patient?_total=accurate")["total"] == 0


def test_conditional_update(client: Client) -> None:
    made = client.send("PUT", "/Patient?family=Doe", patient("mine"))
    assert (client.status, made["id"] != "mine") == (201, True)
    changed = client.send("PUT", "/Patient?family=Doe", patient(gender="male"))
    assert (client.status, changed["id"], changed["meta"]["versionId"]) == (200, made["id"], "2")
    client.put(patient("B"))
    client.send("PUT", "/Patient?family=Doe", patient())
    assert (client.status, client.text[:9]) == (412, "HAPI-0988")
    client.send("PUT", "/Patient?foo=1", patient())
    assert client.text.startswith("HAPI-0488: Failed to parse match URL[Patient?foo=1]")


def test_conditional_patch(client: Client) -> None:
    change = [{"op": "add", "path": "/gender", "value": "male"}]
    client.send("PATCH", "/Patient?family=Doe", change, content_type=JSON_PATCH)
    assert (client.status, client.text) == (
        404,
        'HAPI-0973: Invalid match URL "Patient?family=Doe" - No resources match this search',
    )
    client.put(patient("A"))
    client.send("PATCH", "/Patient?family=Doe", change, content_type=JSON_PATCH, prefer="return=OperationOutcome")
    assert client.text == (
        "Successfully conditionally patched resource. Existing resource Patient/A/_history/2 matched URL: "
        "Patient?family=Doe. Took 1ms."
    )
    client.put(patient("B"))
    client.send("PATCH", "/Patient?family=Doe", change, content_type=JSON_PATCH)
    assert (client.status, client.text[:9]) == (412, "HAPI-0972")


def test_conditional_delete(client: Client) -> None:
    client.send("DELETE", "/Patient?family=Doe")
    assert client.last.json()["issue"][0]["severity"] == "warning"
    client.put(patient("A"))
    client.send("DELETE", "/Patient?family=Doe")
    assert (client.status, client.header("Content-Location")) == (200, "")
    for id in ("A", "B"):
        client.put(patient(id))
    client.send("DELETE", "/Patient?family=Doe")
    assert (client.status, client.text[:9]) == (412, "HAPI-0962")


# XML bodies


def test_an_xml_body_is_read_like_a_json_one(client: Client) -> None:
    body = (
        b'<Patient xmlns="http://hl7.org/fhir"><id value="A"/>'
        b'<text><status value="generated"/><div xmlns="http://www.w3.org/1999/xhtml"><p>a &amp; b</p></div></text>'
        b'<active value="true"/><name id="n"><family value="Doe"/><given value="Jane"/>'
        b'<given value="Q"><extension url="http://x"><valueInteger value="3"/></extension></given></name>'
        b'<foo value="1"/><multipleBirthInteger value="2"/>'
        b'<contained><Organization><id value="o"/></Organization></contained></Patient>'
    )
    made = client.send("PUT", "/Patient/A", body, content_type="application/fhir+xml")
    assert client.status == 201, client.last.text
    assert (made["active"], made["multipleBirthInteger"]) == (True, 2)
    assert made["name"] == [
        {
            "id": "n",
            "family": "Doe",
            "given": ["Jane", "Q"],
            "_given": [None, {"extension": [{"url": "http://x", "valueInteger": 3}]}],
        }
    ]
    assert made["contained"] == [{"resourceType": "Organization", "id": "o"}]
    assert made["text"]["div"] == '<div xmlns="http://www.w3.org/1999/xhtml"><p>a &amp; b</p></div>'
    assert "foo" not in made


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"", "HAPI-1852: "),
        (b"<Patient>", "Unexpected EOF; was expecting a close tag for element <Patient>\n at [row,col "),
        (b"<Patient></Group>", "mismatched tag"),
        (b"<Group xmlns='http://hl7.org/fhir'/>", 'HAPI-1814: Incorrect resource type found, expected "Patient"'),
        (b"<!DOCTYPE p [<!ENTITY a 'b'>]><Patient>&a;</Patient>", "DOCTYPE p"),
        (b"<Patient>" + b"<name>" * 5_000, "levels deep"),
        (b"<?xml version='1.0' encoding='nope'?><Patient/>", "HAPI-1852: "),
        (
            b"<Patient xmlns='http://hl7.org/fhir'><gender value='x'/></Patient>",
            "Unknown AdministrativeGender code 'x'",
        ),
    ],
)
def test_invalid_xml_resources(client: Client, body: bytes, part: str) -> None:
    client.send("POST", "/Patient", body or b" ", content_type="application/fhir+xml")
    assert client.status == 400
    assert part in client.text


@given(body=st.binary(max_size=60) | st.text("<Patient/>nmevalu='\"&; !?[]", max_size=60).map(str.encode))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_xml_body_is_answered(client: Client, body: bytes) -> None:
    client.send("POST", "/Patient", body or b" ", content_type="application/fhir+xml")
    assert client.status in (201, 400)


# rollback


def test_a_refused_write_leaves_nothing(client: Client) -> None:
    before = client.session.store.seq()
    client.send("POST", "/Patient", patient(family="Roe"), if_none_exist="family=Doe")
    assert client.session.store.seq() == before
    assert client.session.changes() == []


def test_strict_validation(empty_world: World) -> None:
    pytest.importorskip("fhir_gym.fhir.validation")
    with empty_world.session(validation="strict") as session:
        client = Client(session)
        client.send("POST", "/Observation", {"resourceType": "Observation", "status": "final"})
        assert client.status == 422
        assert json.loads(client.last.body)["resourceType"] == "OperationOutcome"
