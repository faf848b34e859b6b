"""The records of each patient, as the server returned them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fhir_gym.tasks.grading import parse_reference
from fhir_gym.types import Resource


@dataclass(frozen=True, slots=True)
class Chart:
    """The records of a patient at one moment.

    Attributes:
        patient: The Patient.
        records: The other records.
    """

    patient: Resource
    records: tuple[Resource, ...]

    def of(self, resource_type: str) -> Iterator[Resource]:
        """Yield the records of a type."""
        return (one for one in self.records if one.get("resourceType") == resource_type)


def charts_of(patients: Sequence[Resource], records: Iterable[Resource], base_url: str = "") -> dict[str, Chart]:
    """Return the charts of patients by reference (``Patient/1``).

    Args:
        patients: The Patients.
        records: Records of these and of other patients.
        base_url: Base URL of the server.
    """
    found: dict[str, list[Resource]] = {f"Patient/{one['id']}": [] for one in patients}
    for one in records:
        for patient in patients_of(one, base_url) & found.keys():
            found[patient].append(one)
    people = {f"Patient/{one['id']}": one for one in patients}
    return {name: Chart(people[name], tuple(own)) for name, own in found.items()}


def patients_of(record: Resource, base_url: str = "") -> frozenset[str]:
    """Return references to the patients that a record is about."""
    participants = record.get("participant")
    actors = (
        [one.get("actor") for one in participants if isinstance(one, dict)] if isinstance(participants, list) else []
    )
    found = (parse_reference(one, base_url) for one in (record.get("subject"), record.get("patient"), *actors))
    return frozenset("/".join(one) for one in found if one and one[0] == "Patient")
