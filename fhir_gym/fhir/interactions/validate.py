"""`$validate`: the parser's errors, or the issues of validation with their places in the text."""

from __future__ import annotations

from fhir_gym.fhir import serialization
from fhir_gym.fhir.context import RequestContext
from fhir_gym.fhir.interactions.read import existing
from fhir_gym.fhir.interactions.references import check_unreferenced
from fhir_gym.fhir.messages import Response
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.validation import described, validate
from fhir_gym.types import Json, Resource

_MODES = frozenset({"create", "update", "delete", "profile"})
_INFORMATION = {"severity": "information", "code": "informational"}


def validate_operation(ctx: RequestContext, resource_type: str, id: str | None) -> Response:
    """Answer ``$validate`` on a type, with a resource in the body, or on a stored resource.

    A Parameters resource in the body, or the query, may give a `mode`: with ``create`` the resource must not have an
    id, with ``update`` it must have one, with ``delete`` the stored resource must not be referred to.

    Raises:
        FhirError: The body is invalid, there is nothing to validate, or the mode does not fit.
    """
    mode = dict(reversed(ctx.pairs)).get("mode") or None
    resource: Resource | None = None
    if ctx.request.method == "POST":
        resource = serialization.parse_resource(ctx.request.body, None)
        if resource["resourceType"] == "Parameters":
            resource, given = _from_parameters(resource)
            mode = given or mode
    if mode is not None and mode not in _MODES:
        raise FhirError(400, f'HAPI-0364: Invalid mode value: "{mode}"')
    if mode == "delete":
        return _deletable(ctx, resource_type, id)
    text = ctx.request.body
    if resource is None and id is not None and ctx.request.method != "POST":
        text = existing(ctx, resource_type, id).body
        resource = serialization.parse_resource(text, None)
    if resource is None:
        raise FhirError(
            400,
            'HAPI-0992: No resource supplied for $validate operation (resource is required unless mode is "delete")',
        )
    if mode == "create" and resource.get("id"):
        raise FhirError(422, "HAPI-0997: Resource has an ID - ID must not be populated for a FHIR create")
    if mode == "update" and not resource.get("id"):
        raise FhirError(422, "HAPI-0998: Resource has no ID - ID must be populated for a FHIR update")
    found = described(validate(serialization.read_body(text), ctx.store.spend), text)
    return _outcome(found or [{**_INFORMATION, "diagnostics": "No issues detected during validation"}])


def _from_parameters(parameters: Resource) -> tuple[Resource | None, str | None]:
    """Return the resource and the mode."""
    resource, mode = None, None
    listed = parameters.get("parameter")
    for parameter in listed if isinstance(listed, list) else []:
        if not isinstance(parameter, dict):
            continue
        inner = parameter.get("resource")
        if parameter.get("name") == "resource" and isinstance(inner, dict) and resource is None:
            resource = inner
        if parameter.get("name") == "mode":
            mode = str(parameter.get("valueCode", parameter.get("valueString", "")))
    return resource, mode


def _deletable(ctx: RequestContext, resource_type: str, id: str | None) -> Response:
    if id is None:
        raise FhirError(400, "HAPI-0991: No ID supplied. ID is required when validating with mode=DELETE")
    check_unreferenced(ctx.store, existing(ctx, resource_type, id))
    return _outcome([{**_INFORMATION, "diagnostics": "Ok to delete"}])


def _outcome(issues: list[Json]) -> Response:
    return Response(200, {}, serialization.dumps({"resourceType": "OperationOutcome", "issue": issues}))
