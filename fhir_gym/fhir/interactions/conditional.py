"""Conditional writes: a search (the match URL) selects the resource to write.

A match URL is a search of one type (``family=X&gender=female``). Messages quote the match URL as sent.
"""

from __future__ import annotations

from fhir_gym.fhir import search
from fhir_gym.fhir.context import RequestContext
from fhir_gym.fhir.interactions import persistence
from fhir_gym.fhir.interactions.patch import Patch
from fhir_gym.fhir.interactions.persistence import Success, WriteContext, WriteResult
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.store import ResourceRow
from fhir_gym.types import Resource

_CODES = {"CREATE": "0958", "UPDATE": "0988", "PATCH": "0972", "DELETE": "0962"}


def if_none_exist(header: str) -> str:
    """Return the query in an If-None-Exist header, without the type and ``?`` that may precede it."""
    before, mark, after = header.strip().partition("?")
    return after if mark and "=" not in before else header.strip()


def find_one(ctx: RequestContext, resource_type: str, query: str, operation: str, quoted: str) -> ResourceRow | None:
    """Return the resource that a match URL selects, or None.

    `operation` and `quoted` (the match URL as sent) are for the message.

    Raises:
        FhirError: 412 for several matches, 400 for an invalid query.
    """
    rids = search.match(ctx, resource_type, query)
    if len(rids) > 1:
        raise FhirError(
            412,
            f'HAPI-{_CODES[operation]}: Failed to {operation} {resource_type} with match URL "{quoted}" '
            f"because this search matched {len(rids)} resources",
        )
    return ctx.store.row(rids[0]) if rids else None


def matched(writes: WriteContext, row: ResourceRow, quoted: str) -> WriteResult:
    """Return the result of a conditional create that found an existing resource."""
    where = f"{row.type}/{row.id}/_history/{row.version}"
    outcome = writes.outcome(Success.CREATE_WITH_CONDITIONAL_MATCH, where, quoted)
    return WriteResult(row.type, row.id, row.version, row.updated, 200, row.body, outcome)


def satisfied(ctx: RequestContext, written: WriteResult, query: str) -> None:
    """Raise if the match URL of a conditional create does not find the new resource."""
    row = ctx.store.find(written.type, written.id)
    if row is None or row.rid not in search.match(ctx, written.type, query):
        raise unsatisfied(written.type, query)


def unsatisfied(resource_type: str, query: str) -> FhirError:
    """Return the error for a conditional create if the match URL does not find the new resource."""
    return FhirError(
        400,
        f"HAPI-0929: Failed to process conditional create. The supplied resource {resource_type}?{query} "
        f"of type {resource_type} did not satisfy the conditional URL.",
    )


def create(writes: WriteContext, resource: Resource, header: str) -> WriteResult:
    """Create a resource unless an existing one matches.

    `header` is the If-None-Exist header; it is blank for an unconditional create.
    """
    query = if_none_exist(header)
    if not query:
        return persistence.create(writes, resource)
    quoted = header.strip()
    row = find_one(writes.ctx, resource["resourceType"], query, "CREATE", quoted)
    if row is not None:
        return matched(writes, row, quoted)
    written = persistence.create(writes, resource, kind=Success.CREATE_NO_CONDITIONAL_MATCH, url=quoted)
    satisfied(writes.ctx, written, query)
    return written


def update(writes: WriteContext, resource: Resource, query: str) -> WriteResult:
    """Update the resource that a query selects, or create a resource with a new id. The id in the body is ignored."""
    resource_type = resource["resourceType"]
    url = f"{resource_type}?{query}"
    row = find_one(writes.ctx, resource_type, query, "UPDATE", url)
    if row is not None:
        return persistence.update(writes, resource, row.id, kind=Success.UPDATE_WITH_CONDITIONAL_MATCH, url=url)
    written = persistence.create(writes, resource, kind=Success.UPDATE_NO_CONDITIONAL_MATCH, url=url)
    satisfied(writes.ctx, written, query)
    return written


def patch(writes: WriteContext, resource_type: str, query: str, change: Patch) -> WriteResult:
    """Patch the resource that a query selects."""
    url = f"{resource_type}?{query}"
    row = find_one(writes.ctx, resource_type, query, "PATCH", url)
    if row is None:
        raise FhirError(404, f'HAPI-0973: Invalid match URL "{url}" - No resources match this search')
    return persistence.patch(writes, row, change, kind=Success.CONDITIONAL_PATCH, url=url)


def delete(writes: WriteContext, resource_type: str, query: str) -> WriteResult:
    """Delete the resource that a query selects, if any."""
    url = f"{resource_type}?{query}"
    row = find_one(writes.ctx, resource_type, query, "DELETE", url)
    if row is None:
        outcome = writes.outcome(Success.DELETE_NOT_FOUND, resource_type, url)
        return WriteResult(resource_type, "", 0, 0, 200, b"", outcome)
    return persistence.delete(writes, resource_type, row.id)
