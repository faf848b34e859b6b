"""The values false and 0 are treated like other values: in responses, searches, sorting, patches and comparisons."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fhir_gym import worlds
from fhir_gym.types import Json, Resource
from tests.fhir.writing import JSON_PATCH, Client, patient


def _observation(id: str, value: float, subject: str) -> Resource:
    amount = {"value": value, "unit": "mg", "system": "http://unitsofmeasure.org", "code": "mg"}
    code = {"coding": [{"system": "http://loinc.org", "code": "1-1"}]}
    return {
        **{"resourceType": "Observation", "id": id, "status": "final", "code": code},
        **{"subject": {"reference": f"Patient/{subject}"}, "valueQuantity": amount},
        "component": [{"code": code, "valueQuantity": amount}],
    }


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    preferred = [{"language": {"text": "en"}, "preferred": False}]
    with worlds.load("empty") as world, world.session() as session:
        client = Client(session)
        client.put(patient("no", active=False, multipleBirthInteger=0, deceasedBoolean=False, communication=preferred))
        client.put(patient("yes", active=True, multipleBirthInteger=2, deceasedBoolean=True))
        client.put(patient("unsaid"))
        for n, (value, subject) in enumerate(((0, "no"), (0.0, "yes"), (-1, "unsaid"), (5, "no"))):
            client.put(_observation(f"o{n}", value, subject))
        yield client


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("Patient/no?_elements=active", {"active": False}),
        ("Patient/no?_elements=Patient.active", {"active": False}),
        ("Patient/no?_elements=deceased", {"deceasedBoolean": False}),
        ("Patient/no?_elements=multipleBirth,deceasedBoolean", {"multipleBirthInteger": 0, "deceasedBoolean": False}),
        ("Patient/no?_elements=communication.preferred", {"communication": [{"preferred": False}]}),
        ("Patient/no?_summary=true", {"name": [{"family": "Doe"}], "active": False, "deceasedBoolean": False}),
        ("Observation/o0?_elements=value.value", {"valueQuantity": {"value": 0}}),
        ("Observation/o0?_elements=component.valueQuantity.value", {"component": [{"valueQuantity": {"value": 0}}]}),
        ("Observation/o1?_elements=valueQuantity.value", {"valueQuantity": {"value": 0.0}}),
    ],
)
def test_parts_of_resources_show_it(client: Client, url: str, shown: Json) -> None:
    found = client.send("GET", f"/{url}")
    assert {name: value for name, value in found.items() if name not in ("resourceType", "id", "meta")} == shown


@pytest.mark.parametrize(
    ("url", "ids"),
    [
        ("Patient?active=false", ["no"]),
        ("Patient?active:missing=true", ["unsaid"]),
        ("Patient?active:not=true", ["no", "unsaid"]),
        ("Patient?_filter=active eq false", ["no"]),
        ("Patient?_has:Observation:patient:value-quantity=0", ["no", "yes"]),
        ("Observation?patient.active=false", ["o0", "o3"]),
        ("Observation?value-quantity=0", ["o0", "o1"]),
        ("Observation?value-quantity=ne0", ["o2", "o3"]),
        ("Observation?value-quantity=lt0", ["o2"]),
        ("Observation?value-quantity:missing=false", ["o0", "o1", "o2", "o3"]),
        ("Observation?code-value-quantity=1-1$0", ["o0", "o1"]),
        ("Observation?component-value-quantity=0||mg", ["o0", "o1"]),
        ("Observation?_sort=value-quantity", ["o2", "o0", "o1", "o3"]),
        ("Observation?_sort=-value-quantity", ["o3", "o0", "o1", "o2"]),
    ],
)
def test_searches_find_it(client: Client, url: str, ids: list[str]) -> None:
    assert [entry["resource"]["id"] for entry in client.send("GET", f"/{url}")["entry"]] == ids


@pytest.mark.parametrize(
    ("path", "value", "status"),
    [
        ("/active", False, 200),
        ("/active", 0, 400),
        ("/multipleBirthInteger", 0, 200),
        ("/multipleBirthInteger", False, 400),
        ("/multipleBirthInteger", None, 400),
        ("/communication/0/preferred", False, 200),
    ],
)
def test_a_patch_tests_it(client: Client, path: str, value: Json, status: int) -> None:
    test = [{"op": "test", "path": path, "value": value}]
    client.send("PATCH", "/Patient/no", test, content_type=JSON_PATCH)
    assert client.status == status


@pytest.mark.parametrize(("name", "key", "value"), [("active", "Boolean", False), ("multipleBirth", "Integer", 0)])
def test_a_patch_sets_it(client: Client, name: str, key: str, value: Json) -> None:
    parts = [
        ("type", "valueCode", "replace"),
        ("path", "valueString", f"Patient.{name}"),
        ("value", f"value{key}", value),
    ]
    operation = {"name": "operation", "part": [{"name": part, key: given} for part, key, given in parts]}
    body = {"resourceType": "Parameters", "parameter": [operation]}
    patched = client.send("PATCH", "/Patient/yes", body)
    assert client.status == 200
    assert patched["active" if name == "active" else "multipleBirthInteger"] == value
