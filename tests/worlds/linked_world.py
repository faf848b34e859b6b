"""A small world whose resources refer to each other, also in cycles."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fhir_gym import worlds
from fhir_gym.fhir import World
from fhir_gym.types import Resource


def linked_resources() -> list[Resource]:
    """Return organizations in a chain, patients in two cycles, a self-reference, and what depends on them."""
    found: list[Resource] = []

    def add(kind: str, id: str, **elements: Any) -> None:
        found.append({"resourceType": kind, "id": id, **elements})

    for at in range(4):
        parent = {"partOf": {"reference": f"Organization/o{at + 1}"}} if at < 3 else {}
        add("Organization", f"o{at}", name=f"Clinic {at}", **parent)
    for first, second in (("a", "b"), ("b", "a"), ("c", "d"), ("d", "c")):
        links = [{"other": {"reference": f"Patient/{second}"}, "type": "seealso"}]
        if first == "c":
            links.append({"other": {"reference": "Patient/between"}, "type": "seealso"})
        add("Patient", first, managingOrganization={"reference": "Organization/o0"}, link=links)
    add("Patient", "between", link=[{"other": {"reference": "Patient/a", "display": "A"}, "type": "seealso"}])
    add("Patient", "self", link=[{"other": {"reference": "Patient/self"}, "type": "seealso"}])
    for at, patient in enumerate(("a", "c", "between", "self", "a")):
        member = {"hasMember": [{"reference": f"Observation/x{at - 1}"}]} if at else {}
        value = {"valueQuantity": {"value": 1.5}, "subject": {"reference": f"Patient/{patient}"}}
        add("Observation", f"x{at}", status="final", code={"text": "K"}, **value, **member)
    return found


def write_world(path: Path, resources: list[Resource], name: str = "linked") -> World:
    """Write resources to a world file and open it."""
    return World.open(worlds.write(path, resources, name=name, seed=None, now=datetime(2024, 1, 1, tzinfo=UTC)))
