"""The resources that the agent's reads and searches returned."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from fhir_gym.tasks.grading.end_state import LoggedRequest, read_by_verdicts
from fhir_gym.tasks.grading.responses import ParsedResponses
from fhir_gym.types import Resource


def returned_resources(
    logged: Iterable[LoggedRequest], wanted: Collection[str] | None = None, parsed: ParsedResponses | None = None
) -> dict[str, Resource]:
    """Map references to the resources that the agent's reads and searches returned, up to the verdict's size limit.

    If several responses returned a resource (for example one with `_elements`), its elements are merged. The latest
    value of an element wins.

    Args:
        logged: The agent's requests with their responses.
        wanted: References of interest; None for all resources. The result may lack other resources.
        parsed: Responses that are parsed already.
    """
    parsed = parsed or ParsedResponses()
    ids = None if wanted is None else [_in_json(one) for one in wanted]
    found: dict[str, Resource] = {}
    for one in read_by_verdicts(logged):
        if ids is None or any(id in one.response.content for id in ids):
            for reference, resource in parsed.parse(one.response).returned_resources.items():
                known = found.get(reference, {})
                found[reference] = resource if known.keys() <= resource.keys() else {**known, **resource}
    return found


def _in_json(reference: str) -> bytes:
    """The id of a reference as JSON text. Every response that contains the record contains this text."""
    return f'"{reference.rpartition("/")[2]}"'.encode()
