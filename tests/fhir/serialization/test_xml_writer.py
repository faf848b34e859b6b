"""Resources as XML, and the format that a request asks for."""

from __future__ import annotations

import json
from xml.etree.ElementTree import fromstring

import pytest

from fhir_gym.fhir import Request, World
from fhir_gym.fhir.formats import requested_format
from fhir_gym.fhir.serialization import loads
from fhir_gym.fhir.serialization.xml import parse_xml, write_xml

RICH = {
    "resourceType": "Observation",
    "id": "o1",
    "text": {"status": "generated", "div": '<div xmlns="http://www.w3.org/1999/xhtml">a &amp; <b>b</b></div>'},
    "contained": [{"resourceType": "Patient", "id": "p", "active": False}],
    "extension": [{"id": "e1", "url": "http://x", "valueString": 'a"<&>\n'}],
    "status": "final",
    "code": {"text": "x"},
    "_effectiveDateTime": {"extension": [{"url": "http://y", "valueCode": "unknown"}]},
    "note": [{"text": "one"}, {"text": "two"}],
}


def test_elements_keep_their_order_digits_and_extensions() -> None:
    body = json.dumps(RICH)[:-1].encode() + b', "valueQuantity": {"value": 7.10, "unit": "mg"}}'
    text = write_xml(loads(body), indent=False).decode()
    assert '<value value="7.10"/>' in text
    assert '<extension id="e1" url="http://x"><valueString value="a&quot;&lt;&amp;&gt;&#xa;"/></extension>' in text
    assert '<effectiveDateTime><extension url="http://y"><valueCode value="unknown"/></extension>' in text
    assert '<contained><Patient xmlns="http://hl7.org/fhir"><id value="p"/><active value="false"/></Patient>' in text
    assert "a &amp; <b>b</b></div>" in text
    back = parse_xml(text.encode(), "Observation")
    assert {name: back[name] for name in RICH if name != "text"} == {n: v for n, v in RICH.items() if n != "text"}


def test_an_indented_resource_is_laid_out_like_hapi() -> None:
    given = {"resourceType": "Patient", "id": "1", "name": [{"given": ["A", None], "_given": [None, {"id": "x"}]}]}
    assert write_xml(given, indent=True).decode() == (
        '<Patient xmlns="http://hl7.org/fhir">\n   <id value="1"/>\n   <name>\n      <given value="A"/>\n'
        '      <given id="x"/>\n   </name>\n</Patient>'
    )


@pytest.mark.parametrize(
    "hostile",
    [
        {"resourceType": "Patient", "id": "\x00\ud800\uffff", "name": [{"family": "]]><script>"}]},
        {"resourceType": "</x>", "a b": 1, "<": {"": 2}, "id": None},
        {"resourceType": "Patient", "text": {"div": "<div>"}, "name": [[], [[1]], None, 3, {}]},
        {
            "resourceType": "Patient",
            "text": {"div": "<!DOCTYPE x [<!ENTITY a 'b'>]><div>&a;</div>"},
            "extension": [1, {}],
        },
        {"resourceType": 7, "_x": 3, "x": {"resourceType": None}},
    ],
)
@pytest.mark.parametrize("indent", [False, True])
def test_hostile_content_stays_well_formed(hostile: dict[str, object], indent: bool) -> None:
    fromstring(write_xml(hostile, indent=indent).decode())


@pytest.mark.parametrize(
    ("accept", "query", "media_type"),
    [
        (None, None, "application/fhir+json"),
        ("application/fhir+json;q=0.1, application/fhir+xml", None, "application/fhir+xml"),
        ("text/xml", None, "application/fhir+xml"),
        ("application/json+fhir", None, "application/json+fhir"),
        ("text/html,application/xhtml+xml,*/*;q=0.8", None, "text/html"),
        ("image/png", None, "application/fhir+json"),
        ("application/fhir+xml", "application/json", "application/fhir+json"),
        ("application/fhir+xml", "JSON", "application/fhir+xml"),
        ("application/fhir+xml", "html/xml", "text/html"),
        (None, "application/fhir xml", "application/fhir+xml"),
        ("application/fhir+xml;q=nan;q=x,,;", "", "application/fhir+xml"),
    ],
)
def test_the_format_that_a_request_asks_for(accept: str | None, query: str | None, media_type: str) -> None:
    request = Request("GET", "/Patient", headers={} if accept is None else {"accept": accept})
    assert requested_format(request, [] if query is None else [("_format", query)]).media_type == media_type


def test_a_session_answers_in_the_requested_format(empty_world: World) -> None:
    with empty_world.session() as session:
        patient = b'{"resourceType": "Patient", "id": "x<y", "name": [{"family": "<script>"}]}'
        headers = {"content-type": "application/fhir+json", "accept": "application/fhir+xml"}
        created = session.handle(Request("PUT", "/Patient/x", "", headers, patient.replace(b"x<y", b"x")))
        assert created.status == 201
        assert created.headers["Content-Type"] == "application/fhir+xml;charset=UTF-8"
        assert json.loads(created.content)["id"] == "x"
        page = session.handle(Request("GET", "/Patient/x", "_format=html"))
        assert page.headers["Content-Type"] == "text/html;charset=UTF-8"
        assert "&lt;script&gt;" in page.text and "<script>" not in page.text
        missing = session.handle(Request("GET", "/Patient/nobody", "_format=xml"))
        assert missing.status == 404
        assert missing.body.startswith(
            b'<OperationOutcome xmlns="http://hl7.org/fhir"><issue><severity value="error"/>'
        )


def test_turtle_has_values_types_and_indexes(empty_world: World) -> None:
    body = (
        b'{"resourceType": "Observation", "id": "x", "status": "final", "issued": "2020-01-01T00:00:00Z", '
        b'"code": {"text": "a\\"\\n"}, "valueQuantity": {"value": 1.50}, "note": [{"text": "one"}]}'
    )
    with empty_world.session() as session:
        session.handle(Request("PUT", "/Observation/x", "", {"content-type": "application/fhir+json"}, body))
        text = session.handle(Request("GET", "/Observation/x", "_format=ttl")).text
    for part in (
        "rdf:type fhir:Observation ;",
        'fhir:Resource.id [ fhir:value "x" ]',
        'fhir:Observation.issued [ fhir:value "2020-01-01T00:00:00Z"^^xsd:dateTime ]',
        'fhir:Observation.valueQuantity [ fhir:Quantity.value [ fhir:value "1.50"^^xsd:decimal ] ]',
        'fhir:Observation.code [ fhir:CodeableConcept.text [ fhir:value "a\\"\\n" ] ]',
        'fhir:Observation.note [ fhir:Annotation.text [ fhir:value "one" ] ; fhir:index 0 ]',
    ):
        assert part in text
