"""Match URLs, which select the resource of a conditional interaction."""

from __future__ import annotations

import pytest

from fhir_gym.fhir import Request
from fhir_gym.fhir.context import RequestContext, ServerCounters
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.search import match

from .conftest import NOW, Client


def _ctx(client: Client) -> RequestContext:
    session = client.session
    return RequestContext(session.store, "http://x", ServerCounters(1000, NOW), session.handle, Request("GET", ""))


def _ids(client: Client, query: str, limit: int = 100) -> list[str]:
    rids = match(_ctx(client), "Patient", query, limit)
    return [client.session.store.row(rid).id for rid in rids]


def test_resources_come_in_creation_order(client: Client) -> None:
    assert _ids(client, "name=smith%65r,ana,smith") == ["P1", "P2", "P4"]
    assert _ids(client, "name=smith", limit=1) == ["P1"]
    assert _ids(client, "family=nobody") == []


def test_an_invalid_parameter_beside_a_valid_one_is_ignored(client: Client) -> None:
    assert _ids(client, "_sort=x&_count=1&gender=female&family=") == ["P2", "P3"]
    assert _ids(client, "_has:Observation:patient:code=GLU&gender=male") == ["P1"]


@pytest.mark.parametrize("query", ["", "name", "identifier=", "_sort=family", "family:exact", "_format=json"])
def test_a_parameter_is_needed(client: Client, query: str) -> None:
    with pytest.raises(FhirError) as caught:
        _ids(client, query)
    assert caught.value.diagnostics == (f"HAPI-0518: Invalid match URL[Patient?{query}] - URL has no search parameters")


def test_unknown_parameters_are_refused(client: Client) -> None:
    with pytest.raises(FhirError) as caught:
        _ids(client, "family=x&foo=1")
    assert (caught.value.status, caught.value.diagnostics) == (
        400,
        "HAPI-0488: Failed to parse match URL[Patient?family=x&foo=1] - Resource type Patient does not have "
        "a parameter with name: foo",
    )


def test_values_are_checked(client: Client) -> None:
    with pytest.raises(FhirError, match="HAPI-1940"):
        _ids(client, "birthdate=bogus")
