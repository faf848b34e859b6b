"""Error responses of searches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fhir_gym.fhir import World

from .conftest import Client


@pytest.fixture(scope="module")
def searcher(clinic: World) -> Iterator[Client]:
    """A client of the clinic: errors do not depend on where the resources are."""
    with clinic.session() as session:
        yield Client(session)


CASES = [
    ("Patient?foo=1", 400, 'HAPI-0524: Unknown search parameter "foo" for resource type "Patient". Valid search'),
    ("Patient?FAMILY=1", 400, 'HAPI-0524: Unknown search parameter "FAMILY"'),
    ("Patient?foo=1&_sort=bar", 400, 'HAPI-0524: Unknown search parameter "foo"'),
    ("Patient?_language=en", 400, "HAPI-1223: "),
    ("Patient?_text=x", 400, "HAPI-1192: Fulltext search is not enabled on this service"),
    ("Patient?_source=x", 400, "HAPI-1216: The _source parameter is disabled on this server"),
    ("Patient?_contained=true", 405, "HAPI-0984: "),
    ("Patient?_tag=http://t|", 400, "HAPI-1218: Missing _tag parameter (must supply a value/code"),
    ("Patient?_count=abc", 400, "HAPI-0375: Invalid _count value: abc"),
    ("Patient?_count=2147483648", 400, "HAPI-0375: Invalid _count value: 2147483648"),
    ("Patient?_offset=x", 400, "HAPI-0461: Invalid _offset value: x"),
    ("Patient?_offset=-1", 400, "Offset must be a positive integer"),
    ("Patient?_sort=foo", 400, 'HAPI-1194: Unknown _sort parameter value "foo" for resource type "Patient"'),
    ("Patient?_sort=birthdate:desc", 400, 'HAPI-1194: Unknown _sort parameter value "desc"'),
    ("Patient?_sort=_id&_sort=-_id", 400, 'HAPI-1194: Unknown _sort parameter value "-_id"'),
    ("Observation?_sort=patient.family", 400, "HAPI-2287: Unable to sort on a chained parameter from 'patient'"),
    ("Patient?_summary=text&_elements=id", 400, "HAPI-0304: Cannot combine the _summary and _elements parameters"),
    ("Patient?_summary=text,data", 400, "HAPI-0380: Can not combine _summary=text with other values for _summary"),
    ("Patient?_include=Patient", 400, 'HAPI-2018: Invalid _include parameter value: "Patient". '),
    ("Patient?_include=Nope:x", 400, 'HAPI-2017: Invalid _include parameter value: "Nope:x". '),
    ("Patient?_include=Patient:organization:Nope", 400, "HAPI-2016: "),
    ("Patient?_revinclude=Slot:x", 400, 'HAPI-2015: Invalid _revinclude parameter value: "Slot:x". Unknown search '
     'parameter "x" for resource type "Slot". Valid search parameters for this search are: [schedule]'),
    ("Patient?_include=a:b,c:d", 400, "HAPI-0441: 'OR' query parameters (values containing ',') are not supported in"),
    ("Observation?date=foo", 400, 'HAPI-1940: Invalid date/time/quantity format: "foo"'),
    ("Observation?date=GE2023", 400, 'HAPI-1941: Invalid prefix: "GE"'),
    ("Observation?date=20231113", 400, 'HAPI-1883: Invalid date/time format: "20231113": Expected character '
     "'-' at index 4 but found 1"),
    ("Observation?date=2023-11-13 10:15:00", 400, "HAPI-1883: Invalid date/time format: \"2023-11-13+10:15:00\": "
     "Expected character 'T' at index 10 but found +"),
    ("Observation?date=2023-02-30", 400, 'HAPI-1882: Invalid date/time format: "2023-02-30"'),
    ("Observation?date=2023-11-13T10", 400, 'HAPI-1882: Invalid date/time format: "2023-11-13T10"'),
    ("Observation?date=2023-11-13T10:00:00x", 400, 'HAPI-1883: Invalid date/time format: "2023-11-13T10:00:00x"'),
    ("Observation?date=ap2023", 400, "HAPI-1925: Unknown comparator: APPROXIMATE"),
    ("Observation?date=2023,2022", 400, "HAPI-1930: DateRange parameter does not support OR queries"),
    ("Observation?date=2023&date=2022", 400, "HAPI-1922: "),
    ("Observation?date=ge2023&date=gt2022", 400, "HAPI-1923: "),
    ("Observation?date=sa2023&date=sa2022", 400, "HAPI-1923: "),
    ("Observation?date=eb2023&date=eb2022", 400, "HAPI-1924: "),
    ("Observation?date=ge2023&date:missing=false", 400, "HAPI-1922: "),
    ("Observation?date:missing=true&date:missing=false", 400, "HAPI-1922: "),
    ("Observation?date=ge2023&date:exact=ge2022", 400, "HAPI-1923: "),
    ("Observation?status:above=GLU", 400, "HAPI-1240: Invalid token specified for parameter status - No code "),
    ("Observation?status:above=|final", 400, "HAPI-1240: "),
    ("Observation?status:below=http://x|a,http://x|", 400, "HAPI-1239: Invalid token specified for parameter status - "
     "No system specified: http://x|(missing)"),
    ("Patient?_tag=http://t|,vip", 400, "HAPI-1218: "),
    ("Observation?code:in=http://x|a", 404, "HAPI-2788: Unknown ValueSet: a"),
    ("Observation?has-member=Observation/B1,B1", 412, "HAPI-1099: "),
    ("DocumentReference?relationship=x", 400, "HAPI-1204: Don't know how to handle composite parameter with type of "
     "REFERENCE"),
    ("Patient?_filter=not (family eq smith)", 400, "HAPI-1221: "),
    ("Patient?_has:Observation:nope:code=K", 400, "HAPI-1209: Unknown parameter name: Observation:nope"),
    ("Observation?patient:Encounter.length=eb5", 400, "HAPI-1235: "),
    # of several errors
    ("Observation?status:of-type=x&code:in=http://x", 404, "HAPI-2788: "),
    ("Observation?code:in=http://x&date=2023,2022", 400, "HAPI-1930: "),
    ("Patient?gender:in=http://x&_summary=text&_elements=id", 404, "HAPI-2788: "),
    ("Observation?patient:identifier=1&code:not=K&focus:missing=true", 400,
     'HAPI-2498: Unsupported search modifier(s): "[:not, :identifier]"'),
    ("Observation?date=le2023&date=lt2022", 400, "HAPI-1924: "),
    ("Observation?value-quantity=sa5", 400, 'HAPI-1235: Unable to handle quantity prefix "sa" for value: sa5||'),
    ("Observation?value-quantity=5mg", 400, "HAPI-1940: "),
    ("Observation?value-quantity=x", 400, 'HAPI-1940: Invalid date/time/quantity format: "x"'),
    ("Observation?code-value-quantity=a$1$2", 400, "HAPI-1947: "),
    ("Observation?code:of-type=a|b|c", 405, "HAPI-2012: "),
    ("Observation?code:in=http://x", 404, "HAPI-2788: Unknown ValueSet: http%3A%2F%2Fx"),
    ("Patient?_tag=http://t|&gender:in=http://x", 404, "HAPI-2788: "),
    ("Observation?_tag=http://t|&code:of-type=a|b|c", 405, "HAPI-2012: "),
    ("Observation?_tag=http://t|&patient.nope=1", 400, "HAPI-1243: "),
    ("Observation?_security=http://t|&patient.nope=1", 400, "HAPI-1218: "),
    ("Patient?_tag=http://t|&_source=x&_id=http://example.org/a", 400, "HAPI-1216: "),
    ("Patient?_tag=http://t|&_id=http://example.org/a", 400, "HAPI-1101: "),
    ("Observation?patient:not=1&encounter:not=2&_sort:newest=date&_include:iterate=Observation:patient", 400,
     'HAPI-2498: Unsupported search modifier(s): "[:newest, :not]" for'),
    ("Patient?_id=http://example.org/a|", 400, "HAPI-1101: Parameter value missing in request"),
    ("Patient?_id:not=Patient/", 400, "HAPI-1101: Parameter value missing in request"),
    ("Patient?_has:Observation:patient:date=ap2023", 400, "HAPI-1921: Invalid comparator for date parameter: APPRO"),
    ("Observation?encounter.date=2022,ap2023", 400, "HAPI-1921: Invalid comparator for date parameter: APPROXIMATE"),
    ("RelatedPerson?email:below=x", 400, "HAPI-1700: Unknown child name 'where(system='email')' in element "
     "ContactPoint - Valid names are: [extension, extension[x], id, period, rank, system, use, value]"),
    ("Condition?onset-date=ap2023&verification-status:above=x", 400, "HAPI-1925: "),
    ("MedicationAdministration?code:above=x", 400, "HAPI-1700: Unknown child name 'medication as CodeableConcept)' in "
     "element MedicationAdministration - Valid names are: [category, contained, context, contextResource, "),
    ("Observation?code:above=GLU", 400, "HAPI-1240: Invalid token specified for parameter code - No code specified: "),
    ("Observation?value-concept:below=x", 400, "HAPI-1700: "),
    ("Observation?patient=Foo/1", 400, 'HAPI-1250: Invalid/unsupported resource type: "Foo"'),
    ("Observation?patient=Patient/", 400, "HAPI-1101: Parameter value missing in request"),
    ("Observation?patient:identifier=1", 400, 'HAPI-2498: Unsupported search modifier(s): "[:identifier]"'),
    ("Observation?patient:exact=1", 400, 'HAPI-1250: Invalid/unsupported resource type: "exact"'),
    ("Observation?patient.nope=1", 400, "HAPI-1243: Invalid parameter chain: patient.nope"),
    ("Observation?patient.family.foo=1", 400, "HAPI-1242: Invalid parameter chain: patient.family.foo"),
    ("Observation?code.text=1", 400, 'HAPI-1935: Invalid search parameter "code.text". Parameter contains a chain'),
    ("Patient?_has:Nope:patient:code=1", 400, "HAPI-1208: Invalid resource type: Nope"),
    ("Patient?_has:observation:patient:code=1", 400, "HAPI-1209: Unknown parameter name: observation:code"),
    ("Patient?_has:Observation:nope:code=1", 400, "HAPI-1209: Unknown parameter name: Observation:nope"),
    ("Patient?_has:Observation:patient:code:not=1", 400, "HAPI-1209: Unknown parameter name: Observation:code:not"),
    ("Patient?_has:Observation:patient=1", 400, "HAPI-1942: Invalid _has parameter syntax: :Observation:patient"),
    ("Patient?_filter=family xx y", 400, "HAPI-1221: Error parsing _filter syntax: HAPI-1064: Unknown operation xx at"),
    ("Patient?_filter=foo eq 1", 400, "HAPI-1206: "),
    ("Patient?_filter=family eq", 400, "HAPI-1221: "),
    ("Patient?_filter=(family eq x", 400, "HAPI-1221: "),
    ("Location?near=abc", 400, "HAPI-1230: Invalid position format 'abc'.  Required format is"),
    ("?_getpages=nope", 410, 'HAPI-0417: Search ID "nope" does not exist and may have expired'),
    ("Patient?_getpages=x", 400, "Invalid request: The FHIR endpoint on this server does not know how to handle GET"),
]  # fmt: skip


@pytest.mark.parametrize(("url", "status", "text"), CASES, ids=[c[0] for c in CASES])
def test_diagnostics(searcher: Client, url: str, status: int, text: str) -> None:
    found, diagnostics = searcher.error(f"/{url}")
    assert (found, diagnostics[: len(text)]) == (status, text)


def test_long_messages_of_the_search_itself_are_cut(searcher: Client) -> None:
    status, text = searcher.error("/Patient?family=" + "x" * 3000)
    assert status == 400
    assert text.startswith("HAPI-1260: Parameter[family] has length (3000) that is longer than maximum allowed (768)")
    assert len(text) == 500


@pytest.mark.parametrize(
    "url",
    [
        "Observation?" + "patient.organization.partof." + "partof." * 8 + "name=x",
        "Observation?code=" + ",".join(f"C{n}" for n in range(2000)),
        "Observation?" + "&".join(f"code=C{n}" for n in range(200)),
        "Patient?_filter=" + "(" * 200 + "family eq x" + ")" * 200,
        "Patient?_sort=" + ",".join(["_id"] * 30),
    ],
)
def test_costs_are_bounded(searcher: Client, url: str) -> None:
    status, text = searcher.error(f"/{url}")
    assert status == 400
    assert "not supported by this server" in text
