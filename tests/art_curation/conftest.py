from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import pytest

from fhir_gym import worlds
from fhir_gym.art_curation.audit import AuditReport, audit_cases
from fhir_gym.fhir import World
from fhir_gym.tasks.core.dates import instant
from fhir_gym.tasks.packs.action_reasoning.cases import ReasoningCase
from fhir_gym.tasks.packs.action_reasoning.generation import generate

NOW = datetime(2023, 11, 13, 10, 15, tzinfo=UTC)


@pytest.fixture(scope="session")
def cases(mini: World) -> tuple[ReasoningCase, ...]:
    return generate(mini, per_family=60)


@pytest.fixture(scope="session")
def report(mini: World, cases: tuple[ReasoningCase, ...]) -> AuditReport:
    return audit_cases(cases, mini)


def patient(id: str = "S1", gender: str | None = "female", birth: str | None = "1960-03-05") -> dict[str, Any]:
    found: dict[str, Any] = {"resourceType": "Patient", "id": id, "name": [{"family": "Grau", "given": ["Ida"]}]}
    found |= {"identifier": [{"value": id}]}
    return found | ({"gender": gender} if gender else {}) | ({"birthDate": birth} if birth else {})


def result(
    hours: float,
    value: float | None,
    *,
    lab: str = "K",
    unit: str = "mmol/L",
    owner: str = "S1",
    delay: float = 0.5,
    **more: Any,
) -> dict[str, Any]:
    """A result that was taken some hours ago."""
    taken = NOW - timedelta(hours=hours)
    quantity = {} if value is None else {"valueQuantity": {"value": value, "unit": unit}}
    return {
        "resourceType": "Observation",
        "status": "final",
        "code": {"coding": [{"system": "http://loinc.org", "code": lab}]},
        "subject": {"reference": f"Patient/{owner}"},
        "effectiveDateTime": instant(taken),
        "issued": instant(taken + timedelta(hours=delay)),
        **quantity,
        **more,
    }


class Ward(Protocol):
    def __call__(self, *resources: dict[str, Any]) -> World: ...


@pytest.fixture
def ward(tmp_path: Path) -> Iterator[Ward]:
    """Build a world from a few resources; resources without an id get a new id."""
    opened: list[World] = []

    def make(*resources: dict[str, Any]) -> World:
        path = tmp_path / f"ward{len(opened)}.world"
        numbered = ({"id": f"o{n}", **resource} for n, resource in enumerate(resources))
        worlds.write(path, numbered, name=path.stem, seed=None, now=NOW)
        opened.append(World.open(path))
        return opened[-1]

    yield make
    for world in opened:
        world.close()
