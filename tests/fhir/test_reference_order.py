"""The order in which resources of a server elsewhere are written and deleted."""

from __future__ import annotations

import json

import httpx
import pytest

from fhir_gym.fhir.adapters import undo
from fhir_gym.fhir.adapters.remote_client import RemoteClient
from fhir_gym.fhir.adapters.remote_interactions import ResourceStates
from fhir_gym.fhir.adapters.undo import batches_by_reference, put_back
from fhir_gym.types import Resource


def patient(id: str, *links: str) -> Resource:
    others = [{"other": {"reference": f"Patient/{link}"}, "type": "seealso"} for link in links]
    return {"resourceType": "Patient", "id": id, "link": others}


def result(id: str, about: str) -> Resource:
    return {"resourceType": "Observation", "id": id, "subject": {"reference": f"Patient/{about}"}}


def ids(batches: list[list[Resource]]) -> list[list[str]]:
    return [[resource["id"] for resource in batch] for batch in batches]


def test_few_resources_keep_their_order_in_one_batch() -> None:
    assert ids(batches_by_reference([result("a", "b"), patient("b")], 2)) == [["a", "b"]]
    assert batches_by_reference([], 2) == []


def test_referred_resources_come_first() -> None:
    given = [result("1", "b"), result("2", "a"), patient("b"), patient("a"), result("3", "elsewhere")]
    found = ids(batches_by_reference(given, 2))
    order = [id for batch in found for id in batch]
    assert sorted(order) == ["1", "2", "3", "a", "b"] and all(len(batch) <= 2 for batch in found)
    assert order.index("b") < order.index("1") and order.index("a") < order.index("2")


def test_resources_in_a_cycle_share_a_batch() -> None:
    given = [result("1", "c"), patient("a", "b"), patient("x"), patient("b", "c"), patient("c", "a"), patient("d", "d")]
    found = ids(batches_by_reference(given, 2))
    assert any({"a", "b", "c"} <= {*batch} for batch in found)
    order = [id for batch in found for id in batch]
    assert order.index("c") < order.index("1")


@pytest.mark.parametrize(
    ("batch", "transactions"),
    [
        (2, [["PUT Patient/old"], ["DELETE Observation/1", "DELETE Patient/new"]]),
        (3, [["DELETE Observation/1", "DELETE Patient/new", "PUT Patient/old"]]),
    ],
)
def test_several_transactions_remove_references_before_what_they_refer_to(
    monkeypatch: pytest.MonkeyPatch, batch: int, transactions: list[list[str]]
) -> None:
    sent: list[list[str]] = []

    def respond(request: httpx.Request) -> httpx.Response:
        entries = json.loads(request.content)["entry"]
        sent.append([f"{entry['request']['method']} {entry['request']['url']}" for entry in entries])
        return httpx.Response(200, json={"resourceType": "Bundle"})

    monkeypatch.setattr(undo, "_BATCH", batch)
    changed = [
        (ResourceStates("Patient", "new", None), patient("new")),
        (ResourceStates("Patient", "old", patient("old")), patient("old", "new")),
        (ResourceStates("Observation", "1", None), result("1", "new")),
    ]
    client = RemoteClient("http://x/fhir", client=httpx.Client(transport=httpx.MockTransport(respond)))
    assert put_back(client, changed) == []
    assert sent == transactions
