"""The interactions of requests that write one resource: create, update, patch and delete, plain or conditional.

This module parses the request and builds the response; `fhir_gym.fhir.interactions.persistence` changes the store.
"""

from __future__ import annotations

import base64
import re

from fhir_gym.fhir.context import CheckValid, RequestContext
from fhir_gym.fhir.interactions import conditional, persistence
from fhir_gym.fhir.interactions.patch import Patch, read_patch
from fhir_gym.fhir.interactions.persistence import WriteContext, WriteResult
from fhir_gym.fhir.interactions.read import existing, shape
from fhir_gym.fhir.messages import Request, Response
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.routes import Target
from fhir_gym.fhir.serialization import dumps, parse_resource, read_body
from fhir_gym.fhir.serialization.xml import parse_xml
from fhir_gym.types import Resource

_JSON_TYPES = frozenset({"application/fhir+json", "application/json", "application/json+fhir", "text/json"})
_XML_TYPES = frozenset({"application/fhir+xml", "application/xml", "application/xml+fhir", "text/xml"})
_FORM_TYPES = frozenset({"application/x-www-form-urlencoded"})
_PREFERENCES = frozenset({"minimal", "representation", "OperationOutcome"})


# interactions


def create(ctx: RequestContext, target: Target) -> Response:
    """POST [type]; conditional if there is an If-None-Exist header."""
    resource_type = target.resource_type
    ctx.doing("create", resource_type)
    if target.id:
        if not (ctx.request.body or ctx.request.headers.get("content-type", "").strip()):
            raise _no_body("CREATE")
        raise FhirError(
            400,
            f'HAPI-0365: Can not create resource with ID "{target.id}", ID must not be supplied on a create (POST) '
            "operation (use an HTTP PUT / update operation if you wish to supply an ID)",
        )
    resource = posted_resource(ctx.request, target, ctx.strict)
    writes = WriteContext(ctx)
    written = conditional.create(writes, resource, ctx.request.headers.get("if-none-exist", ""))
    ctx.log = (written.interaction("create"),)
    headers = _headers(ctx, written)
    return _answer(ctx, written, {"Location": headers["Content-Location"], **headers})


def update(ctx: RequestContext, target: Target) -> Response:
    """PUT [type]/[id]. The URL or an If-Match header may name the version to replace."""
    resource_type, id = target.resource_type, target.id
    ctx.doing("update", resource_type, id)
    resource = posted_resource(ctx.request, target, ctx.strict)
    _check_version(ctx, target, "HAPI-0989: Trying to update {url} but this is not the current version")
    written = persistence.update(WriteContext(ctx), resource, id, if_match=ctx.request.headers.get("if-match", ""))
    ctx.log = (written.interaction("update"),)
    return _answer(ctx, written, _headers(ctx, written))


def update_where(ctx: RequestContext, resource_type: str) -> Response:
    """PUT [type]?[criteria]."""
    ctx.doing("update", resource_type)
    resource = parse_body(ctx.request, resource_type, "UPDATE", ctx.strict)
    if not ctx.request.query:
        raise FhirError(
            400,
            "HAPI-0418: Can not update resource, request URL must contain an ID element for update (PUT) operation "
            "(it must be of the form [base]/[resource type]/[id])",
        )
    written = conditional.update(WriteContext(ctx), resource, ctx.request.query)
    ctx.log = (written.interaction("update"),)
    return _answer(ctx, written, _headers(ctx, written))


def patch(ctx: RequestContext, target: Target) -> Response:
    """PATCH [type]/[id], which may name the current version; an If-Match header is respected."""
    resource_type, id = target.resource_type, target.id
    ctx.doing("patch", resource_type, id)
    change = _patch_body(ctx.request)
    row = existing(ctx, resource_type, id)
    text = "HAPI-0974: Version {version} is not the most recent version of this resource, unable to apply patch"
    _check_version(ctx, target, text)
    written = persistence.patch(WriteContext(ctx), row, change, if_match=ctx.request.headers.get("if-match", ""))
    ctx.log = (written.interaction("patch"),)
    return _answer(ctx, written, _headers(ctx, written, etag=False))


def patch_where(ctx: RequestContext, resource_type: str) -> Response:
    """PATCH [type]?[criteria]."""
    ctx.doing("patch", resource_type)
    change = _patch_body(ctx.request)
    if not ctx.request.query:
        raise FhirError(400, f"PATCH needs an id or search criteria: PATCH {resource_type}/[id]")
    written = conditional.patch(WriteContext(ctx), resource_type, ctx.request.query, change)
    ctx.log = (written.interaction("patch"),)
    return _answer(ctx, written, _headers(ctx, written, etag=False))


def delete(ctx: RequestContext, target: Target) -> Response:
    """DELETE [type]/[id], which may name the current version."""
    resource_type, id = target.resource_type, target.id
    ctx.doing("delete", resource_type, id)
    _check_version(ctx, target, "HAPI-0961: Trying to delete {url} but this is not the current version")
    written = persistence.delete(WriteContext(ctx), resource_type, id)
    ctx.log = (written.interaction("delete"),)
    headers = {"Content-Location": f"{ctx.base_url}/{written.location}"}
    return Response(200, headers, dumps(written.outcome.resource()))


def delete_where(ctx: RequestContext, resource_type: str) -> Response:
    """DELETE [type]?[criteria]: at most one match."""
    ctx.doing("delete", resource_type)
    if not ctx.request.query:
        raise FhirError(400, "HAPI-0967: Can not perform delete, no ID provided")
    written = conditional.delete(WriteContext(ctx), resource_type, ctx.request.query)
    ctx.log = (written.interaction("delete"),)
    return Response(200, {}, dumps(written.outcome.resource()))


def _check_version(ctx: RequestContext, target: Target, text: str) -> None:
    """Refuse a write whose URL names another version than the current one."""
    version = target.version
    if not version:
        return
    if not (version.isascii() and version.lstrip("+-").isdigit()):
        raise FhirError(400, f'HAPI-2223: For input string: "{version}"')
    row = ctx.store.find(target.resource_type, target.id)
    if row is not None and str(row.version) != (version.lstrip("+0") or "0"):
        url = f"{target.resource_type}/{target.id}/_history/{version}"
        raise FhirError(409, "HAPI-0550: " + text.format(url=url, version=version))


# requests


def _no_body(operation: str) -> FhirError:
    code = "0986" if operation == "UPDATE" else "0956"
    return FhirError(400, f"HAPI-{code}: No body was supplied in request")


def parse_body(request: Request, resource_type: str, operation: str, check_valid: CheckValid | None = None) -> Resource:
    """Check the Content-Type of a request and parse the resource in its body.

    Args:
        request: The request.
        resource_type: The type that the body must have.
        operation: HAPI's name of the interaction, for messages.
        check_valid: In strict mode, `RequestContext.check_valid`, which gets what was sent.
    """
    content_type = request.headers.get("content-type", "").strip()
    if not content_type:
        if not request.body:
            raise _no_body(operation)
        raise FhirError(
            400,
            "HAPI-0448: No Content-Type header was provided in the request. "
            f'This is required for "{operation}" operation',
        )
    kind = media_type(content_type)
    if kind in _XML_TYPES:
        resource = parse_xml(request.body, resource_type)
        if check_valid is not None:
            check_valid(resource, b"")
        return resource
    if kind not in _JSON_TYPES:
        code = "0446" if kind in _FORM_TYPES else "0449"
        raise FhirError(
            400,
            f'HAPI-{code}: Incorrect Content-Type header value of "{content_type}" was provided in the request. '
            f'A FHIR Content-Type is required for "{operation}" operation',
        )
    if check_valid is not None:
        check_valid(read_body(request.body), request.body)  # the parser drops what is not valid
    return parse_resource(request.body, resource_type)


def posted_resource(request: Request, target: Target, check_valid: CheckValid | None = None) -> Resource:
    """Return the resource in the body of a create, or of an update by id. The raw content of a Binary is wrapped.

    Raises:
        FhirError: The body is invalid, or has another id than the URL of the update.
    """
    resource = _binary(request) if target.resource_type == "Binary" else None
    if resource is None:
        resource = parse_body(request, target.resource_type, "UPDATE" if target.id else "CREATE", check_valid)
        if target.id:
            _check_body_id(resource, target.id)
    return resource


def media_type(header: str) -> str:
    """Return the media type in a Content-Type header, without its parameters."""
    return re.split("[;,]", header, maxsplit=1)[0].strip()


def _binary(request: Request) -> Resource | None:
    """Wrap a raw body in a Binary; None if the body is a FHIR resource."""
    content_type = request.headers.get("content-type", "").strip()
    if not content_type or media_type(content_type) in _JSON_TYPES | _XML_TYPES:
        return None
    data = base64.b64encode(request.body).decode("ascii")
    return {"resourceType": "Binary", "contentType": media_type(content_type), **({"data": data} if data else {})}


def _patch_body(request: Request) -> Patch:
    content_type = request.headers.get("content-type", "").strip()
    if not content_type:
        raise FhirError(400, "HAPI-1964: Missing or invalid content type for PATCH operation")
    return read_patch(media_type(content_type), request.body)


def _check_body_id(resource: Resource, id: str) -> None:
    body_id = resource.get("id")
    if not body_id:
        raise FhirError(
            400,
            "HAPI-0419: Can not update resource, resource body must contain an ID element for update (PUT) operation",
        )
    if str(body_id).rpartition("/")[2] != id:
        raise FhirError(
            400,
            "HAPI-0420: Can not update resource, resource body must contain an ID element which matches the request "
            f'URL for update (PUT) operation - Resource body ID of "{body_id}" does not match URL ID of "{id}"',
        )


def preference(request: Request) -> str:
    """Return the value of `Prefer: return=`: ``minimal``, ``representation`` or ``OperationOutcome``, else ""."""
    chosen = ""
    for part in re.split("[;,]", request.headers.get("prefer", "")):
        name, equals, value = part.partition("=")
        if equals and name.strip() == "return":
            chosen = value.strip().strip('"')
    return chosen if chosen in _PREFERENCES else ""


# answers


def _headers(ctx: RequestContext, written: WriteResult, *, etag: bool = True) -> dict[str, str]:
    headers = ctx.version_headers(written.type, written.id, written.version, written.updated)
    if not etag:
        del headers["ETag"]
    return headers


def _answer(ctx: RequestContext, written: WriteResult, headers: dict[str, str]) -> Response:
    shown = preference(ctx.request)
    if shown == "minimal":
        return Response(written.status, headers)
    if shown == "OperationOutcome":
        return Response(written.status, headers, dumps(written.outcome.resource()))
    body = written.body
    if ctx.pairs:
        shaped = shape(ctx, body, ctx.pairs)
        headers, body = {**headers, **shaped.headers}, shaped.body
    return Response(written.status, headers, body)
