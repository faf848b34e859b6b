"""The read and vread interactions."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from fhir_gym.fhir import serialization
from fhir_gym.fhir.clock import instant
from fhir_gym.fhir.context import RequestContext
from fhir_gym.fhir.costs import steps_of_subset
from fhir_gym.fhir.messages import Request, Response
from fhir_gym.fhir.outcome import FhirError, unroutable
from fhir_gym.fhir.serialization.subset import subset
from fhir_gym.fhir.store import ResourceRow, stored
from fhir_gym.fhir.store.versions import versions
from fhir_gym.fhir.urls import Pairs, element_names

_ALLOWED = frozenset({"_elements", "_summary", "_format", "_pretty"})
_SEARCH_ONLY = frozenset({"_count", "_sort", "_total", "_include", "_revinclude", "_offset", "_contained", "_has"})


def read(ctx: RequestContext, resource_type: str, id: str) -> Response:
    """GET [type]/[id]."""
    _check_parameters(ctx, resource_type, id)
    return _answer(ctx, existing(ctx, resource_type, id))


def vread(ctx: RequestContext, resource_type: str, id: str, version: str) -> Response:
    """GET [type]/[id]/_history/[version]."""
    _check_parameters(ctx, resource_type, f"{id}/_history/{version}")
    return _answer(ctx, existing_version(ctx, resource_type, id, version))


def known(ctx: RequestContext, resource_type: str, id: str) -> ResourceRow:
    """Return the current version of a resource, deleted or not; raise 404 if it never existed."""
    row = ctx.store.find(resource_type, id)
    if row is None:
        raise FhirError(404, f"HAPI-2001: Resource {resource_type}/{id} is not known")
    return row


def existing(ctx: RequestContext, resource_type: str, id: str) -> ResourceRow:
    """Return the current version of a resource; raise 404 if it never existed, 410 if it is deleted."""
    row = known(ctx, resource_type, id)
    if row.deleted:
        raise _gone(ctx, row)
    return row


def existing_version(ctx: RequestContext, resource_type: str, id: str, version: str) -> ResourceRow:
    """Return a version of a resource; raise 404 if it never existed, 410 if it is a deletion."""
    current = known(ctx, resource_type, id)
    if not (version.isascii() and version.isdigit()):
        raise FhirError(404, f'HAPI-0978: Version "{version}" is not valid for resource {resource_type}/{id}')
    row = next((r for r in versions(ctx.store, current.rid) if str(r.version) == version.lstrip("0")), None)
    if row is None:
        raise FhirError(404, f'HAPI-0979: Version "{version}" is not valid for resource {resource_type}/{id}')
    if row.deleted:
        raise _gone(ctx, row)
    return row


def _gone(ctx: RequestContext, row: ResourceRow) -> FhirError:
    """Return the error for a deleted resource."""
    moment = instant(datetime.fromtimestamp(row.updated / 1000, UTC))
    location = f"{ctx.base_url}/{row.type}/{row.id}/_history/{row.version}"
    return FhirError(410, f"Resource was deleted at {moment}", headers={"Location": location})


def shape(ctx: RequestContext, body: bytes, pairs: Pairs) -> Response:
    """Return a 200 response without headers, with the parts of a resource that `_elements` and `_summary` request."""
    elements = element_names(ctx.limits, (value for name, value in pairs if name == "_elements"))
    modes = {value.lower() for name, value in pairs if name == "_summary"} - {"", "false", "count"}
    if elements and modes:
        raise FhirError(400, "HAPI-0304: Cannot combine the _summary and _elements parameters")
    if "text" in modes and len(modes) > 1:
        raise FhirError(400, "HAPI-0380: Can not combine _summary=text with other values for _summary")
    if not elements and not modes:
        return Response(200, {}, body)
    ctx.store.spend(steps_of_subset(body))
    resource = stored(body)
    if modes == {"text"}:
        narrative = (resource.get("text") or {}).get("div")
        html = narrative.encode() if isinstance(narrative, str) else b"null"
        return Response(200, {"Content-Type": "text/html;charset=UTF-8"}, html)
    mode = next((m for m in ("true", "data") if m in modes), None)
    return Response(200, {}, serialization.dumps(subset(resource, elements=elements or None, summary=mode)))


def _check_parameters(ctx: RequestContext, resource_type: str, rest: str) -> None:
    for name, _ in ctx.pairs:
        if name in _SEARCH_ONLY:
            raise FhirError(400, f'HAPI-0384: Invalid query parameter(s) for this request: "[{name}]"')
        if name not in _ALLOWED and not name.startswith("_"):
            raise unroutable(ctx.request.method, f"{resource_type}/{rest}", ctx.pairs)
    query = ctx.request.query
    if query and any(piece.startswith("=") for piece in query.split("&")):  # a parameter without a name
        raise unroutable(ctx.request.method, f"{resource_type}/{rest}", ctx.pairs)


def _answer(ctx: RequestContext, row: ResourceRow) -> Response:
    if _unchanged(row, ctx.request):
        return Response(304)
    headers = ctx.version_headers(row.type, row.id, row.version, row.updated)
    if not ctx.pairs:
        return Response(200, headers, row.body)
    shaped = shape(ctx, row.body, ctx.pairs)
    return Response(200, {**headers, **shaped.headers}, shaped.body)


def _unchanged(row: ResourceRow, request: Request) -> bool:
    if tag := request.headers.get("if-none-match"):
        return tag.strip().removeprefix("W/").strip('"') == str(row.version)
    if since := request.headers.get("if-modified-since"):
        try:
            return parsedate_to_datetime(since).timestamp() * 1000 > row.updated
        except (TypeError, ValueError, OverflowError):
            raise FhirError(400, f"If-Modified-Since is not an HTTP date: {since}") from None
    return False
