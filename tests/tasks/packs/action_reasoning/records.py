"""Hand-made worlds with a few patients and their results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fhir_gym.fhir import World, WorldBuilder
from fhir_gym.tasks.core.dates import instant
from fhir_gym.tasks.packs.action_reasoning.ranges import LABS
from fhir_gym.types import Resource

NOW = datetime(2023, 11, 13, 10, 15, tzinfo=UTC)

WOMAN: Resource = {
    "resourceType": "Patient",
    "id": "S1",
    "name": [{"given": ["Ann"], "family": "Lee"}],
    "gender": "female",
    "birthDate": "1970-11-14",
}
MAN: Resource = {"resourceType": "Patient", "id": "S2", "gender": "male", "birthDate": "1956-02-01"}
TAKEN = "2023-11-13T01:18:00+00:00"
FIGURE_2: dict[str, Any] = {
    "id": "taskthreshold_37",
    "instruction": (
        "Review most recent magnesium value for elderly male patient S6227720. Order IV replacement if clinically low."
    ),
    "context": "Lab code: MG. Patient requires IV magnesium protocol if below threshold.",
    "sol": [1.8, False],
    "eval_MRN": "S6227720",
    "ground_truth": {
        "value": 1.8,
        "timestamp": TAKEN,
        "patient_age": 67,
        "patient_gender": "male",
        "threshold_low": 1.7,
        "threshold_high": None,
        "is_low": False,
        "is_high": False,
        "should_order": False,
        "value_category": "borderline_low",
    },
}
"""The paper's example task."""


def ago(**parts: float) -> datetime:
    """An instant some time ago."""
    return NOW - timedelta(**parts)


def result(
    id: str,
    taken: datetime,
    value: float | None,
    *,
    lab: str = "K",
    owner: str = "S1",
    unit: str = "",
    status: str = "final",
    issued: timedelta = timedelta(minutes=40),
    **more: Any,
) -> Resource:
    """One Observation; `more` replaces elements, or removes those whose value is None."""
    unit = unit or LABS[lab].unit
    resource: Resource = {
        "resourceType": "Observation",
        "id": id,
        "status": status,
        "code": {"coding": [{"system": "http://loinc.org", "code": lab}]},
        "subject": {"reference": f"Patient/{owner}"},
        "effectiveDateTime": instant(taken),
        "issued": instant(taken + issued),
        "valueQuantity": {"value": value, "unit": unit, "code": unit},
    }
    if value is None:
        del resource["valueQuantity"]
    return {name: content for name, content in {**resource, **more}.items() if content is not None}


def results(values: Mapping[datetime, float], **settings: Any) -> list[Resource]:
    """Several Observations with numbered ids."""
    return [result(f"R{n}", taken, value, **settings) for n, (taken, value) in zip(count(1), values.items())]


@contextmanager
def world_of(*resources: Resource | Iterable[Resource], now: datetime = NOW) -> Iterator[World]:
    """A context manager for a world with Ann Lee (S1), a man (S2) and some resources."""
    flat: list[Resource] = []
    for resource in resources:
        flat += [resource] if isinstance(resource, dict) else list(resource)
    given = {resource["id"] for resource in flat if resource["resourceType"] == "Patient"}
    people = [resource for resource in (WOMAN, MAN) if resource["id"] not in given]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "small.world"
        with WorldBuilder(path, name="small", seed=None, now=now) as builder:
            for person in (*people, *flat):
                builder.add(person)
        with World.open(path) as world:
            yield world
