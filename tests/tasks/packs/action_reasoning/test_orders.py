"""Building and checking orders."""

from __future__ import annotations

from typing import get_args

import orjson
import pytest

from fhir_gym.fhir import Request
from fhir_gym.tasks import BeforeView, FinishedEpisode
from fhir_gym.tasks.packs.action_reasoning.cases import Direction
from fhir_gym.tasks.packs.action_reasoning.orders import ORDERS, OrderSpec
from fhir_gym.tasks.packs.action_reasoning.ranges import LABS
from fhir_gym.types import Resource

from .records import NOW, world_of

JSON = {"content-type": "application/fhir+json"}
PRESENT = "2023-11-13T10:15:00Z"
BARE = OrderSpec("magnesium by vein", "", "", bare="MedicationRequest")


def failed(order: OrderSpec, body: Resource, mrn: str = "S1", now: str = PRESENT) -> set[str]:
    """The checks of an order that fail if the agent stored `body`."""
    with world_of() as world, world.session(validation="strict") as session:
        start = session.checkpoint()
        response = session.handle(Request("POST", f"/{body['resourceType']}", "", JSON, orjson.dumps(body)))
        assert response.status == 201, response.text
        changes = tuple(session.changes(start))
        end = FinishedEpisode(
            [], (), BeforeView(world, (), session, changes), session, changes, world, session.base_url
        )
        return {check.name for check in order.checks(end, mrn, now) if not check.passed}


def test_every_test_has_an_order_for_every_side() -> None:
    assert list(ORDERS) == [f"{lab} {side}" for lab in LABS for side in ("low", "high", "outside")]
    assert get_args(Direction) == ("low", "high", "outside")


def test_orders_of_a_test_differ_by_side() -> None:
    for lab in LABS:
        assert len({ORDERS[f"{lab} {side}"] for side in get_args(Direction)}) == 3


@pytest.mark.parametrize("key", ORDERS)
def test_orders_are_valid_pass_their_checks_and_are_in_the_prompt(key: str) -> None:
    order = ORDERS[key]
    assert failed(order, order.body("S1", PRESENT)) == set()
    for fact in (order.code, order.system, order.name, order.resource_type, "active", "authoredOn"):
        assert fact in order.content
    if order.dose is None:
        assert f"priority {order.priority}" in order.content
    else:
        assert f"{order.dose.value:g} {order.dose.unit}" in order.content
        assert f"route {order.dose.route}" in order.content


@pytest.mark.parametrize("order", [ORDERS["K low"], ORDERS["K high"], BARE], ids=["drug", "service", "bare"])
def test_an_order_for_somebody_else_is_refused(order: OrderSpec) -> None:
    assert {name.split()[-1] for name in failed(order, order.body("S2", PRESENT))} == {"subject"}


def test_the_dose_of_another_side_is_refused() -> None:
    low, high = ORDERS["MG high"], ORDERS["CA low"]
    assert failed(low, high.body("S1", PRESENT)) == {"medication dose"}
    assert failed(ORDERS["GLU high"], {**ORDERS["GLU high"].body("S1", PRESENT), "status": "draft"}) == {
        "medication status"
    }


@pytest.mark.parametrize("unit", ["unit", "units", "U", "[iU]"])
def test_units_of_insulin_in_words(unit: str) -> None:
    order = ORDERS["GLU high"]
    body = orjson.loads(orjson.dumps(order.body("S1", PRESENT)).replace(b'"units"', orjson.dumps(unit)))
    assert failed(order, body) == set()


def test_a_bare_order_wants_a_patient_a_status_and_an_intent() -> None:
    body = BARE.body("S1", PRESENT)
    assert failed(BARE, body) == set()
    assert failed(BARE, {**body, "status": "draft", "intent": "plan"}) == {"order status", "order intent"}
    assert BARE.content.startswith("To order it, create one new MedicationRequest")
    assert BARE.body("S1", PRESENT)["authoredOn"] == NOW.isoformat().replace("+00:00", "Z")
