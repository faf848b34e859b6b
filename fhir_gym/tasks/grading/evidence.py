"""Evidence: whether the agent read the records that its answer requires.

A record counts as retrieved if one of the agent's reads or searches returned it. If the right answer is that a record
is absent, the agent cannot retrieve it. The task then provides counterfactuals: records that would exist if the answer
were different; see `fhir_gym.tasks.grading.counterfactuals`. At least one of the agent's requests must return one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from pydantic import BaseModel, ConfigDict

from fhir_gym.tasks.grading.end_state import LoggedRequest, returned_resources


class Evidence(BaseModel):
    """Whether the agent read the records that its answer requires.

    Attributes:
        sufficient: Whether the evidence suffices.
        missing: References to the required records that were never retrieved.
        looked: For an answer that a record is absent, whether the requests would have found such a record; None for
            other answers.
        note: The result in words.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    sufficient: bool
    missing: tuple[str, ...] = ()
    looked: bool | None = None
    note: str

    @classmethod
    def of(cls, missing: Iterable[str], looked: bool | None, when: str = "") -> Evidence:
        """Build the evidence and its note. The note ends with `when`, for example " before the first change"."""
        missing = tuple(missing)
        lines = []
        if missing:
            lines.append(f"never retrieved {', '.join(missing)}{when}")
        if looked is False:
            lines.append(f"no request{when} would have shown the record, had there been one")
        sufficient = not missing and looked is not False
        note = "; ".join(lines) if lines else "every record the answer rests on was looked up"
        return cls(sufficient=sufficient, missing=missing, looked=looked, note=note + ".")


def missing_records(
    logged: Iterable[LoggedRequest], records: Iterable[str], evidence_fields: Mapping[str, Collection[str]]
) -> list[str]:
    """The records that no read or search returned together with the required elements.

    A conditional create that finds an existing record counts as a read of this record.

    Args:
        logged: The agent's requests with their responses.
        records: References to the records.
        evidence_fields: Required elements for each type; see `Task.evidence_fields`.
    """
    logged = list(logged)
    matched = _matched_by_creates(logged)
    sought = [one for one in records if one not in matched]
    found = returned_resources(logged, sought)
    return [
        one
        for one in sought
        if one not in found or not {*evidence_fields.get(one.partition("/")[0], ())} <= found[one].keys()
    ]


def _matched_by_creates(logged: Iterable[LoggedRequest]) -> set[str]:
    return {
        f"{done.resource_type}/{done.id}"
        for one in logged
        for done in one.response.done
        if done.kind == "create" and done.id and not done.effect and done.status < 300
    }
