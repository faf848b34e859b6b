"""Operations on resources: meta, validation, $everything and value sets. All other operations get HAPI's errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fhir_gym.fhir import serialization
from fhir_gym.fhir.context import RequestContext
from fhir_gym.fhir.costs import check_size, steps_of_storing, steps_of_subset
from fhir_gym.fhir.definitions import RESOURCE_TYPES
from fhir_gym.fhir.index import index_spec
from fhir_gym.fhir.interaction_log import Effect, Interaction
from fhir_gym.fhir.interactions.everything import EVERYTHING_TYPES, everything
from fhir_gym.fhir.interactions.persistence import check_room
from fhir_gym.fhir.interactions.read import existing_version, known
from fhir_gym.fhir.interactions.validate import validate_operation
from fhir_gym.fhir.messages import Request, Response
from fhir_gym.fhir.outcome import FhirError, unroutable
from fhir_gym.fhir.routes import Target
from fhir_gym.fhir.store import ResourceRow, stored
from fhir_gym.fhir.store.versions import versions
from fhir_gym.fhir.terminology import expand, validate_code
from fhir_gym.types import Resource

_ON_VALUE_SETS = {"$expand": expand, "$validate-code": validate_code}
_STEPS_OF_A_VALUE_SET = 20_000
CHANGE_META = frozenset({"$meta-add", "$meta-delete"})
"""The operations that write."""
_SWITCHED_OFF = "$expunge"  # HAPI knows this operation, but its default settings switch it off
_TAGS = ("profile", "security", "tag")


def operate(ctx: RequestContext, target: Target) -> Response:
    """Run an operation at system, type or instance level."""
    request, name = ctx.request, target.operation
    resource_type = target.resource_type or None
    id = (target.id or None) if resource_type else None
    ctx.doing("operation", resource_type or "", id or "", name)
    path = request.path.removeprefix("/")
    methods = _methods(target)
    if not methods:
        raise unroutable(request.method, path, ctx.pairs)
    if request.method not in methods:
        code = "0426" if request.method == "GET" else "0427"
        raise FhirError(
            405,
            f"HAPI-{code}: HTTP Method {request.method} is not allowed for this operation. "
            f"Allowed method(s): {', '.join(methods)}",
        )
    if name == "$meta":
        return _meta(ctx, resource_type, id, target.version)
    if name in CHANGE_META and resource_type and id:
        return _change_meta(ctx, resource_type, id, request, add=name == "$meta-add")
    if name == "$validate" and resource_type:
        return validate_operation(ctx, resource_type, id)
    if name == "$everything" and resource_type:
        return everything(ctx, resource_type, id, path)
    if name in _ON_VALUE_SETS:
        ctx.store.spend(_STEPS_OF_A_VALUE_SET)
        return _ON_VALUE_SETS[name](ctx.pairs)
    raise unroutable(request.method, path, ctx.pairs)


def is_implemented(method: str, target: Target) -> bool:
    """Return whether the server runs the operation that a request names."""
    return target.operation != _SWITCHED_OFF and method in _methods(target)


def _methods(target: Target) -> tuple[str, ...]:
    """Return the methods of an operation at this level; empty if there is no such operation."""
    name, resource_type, id = target.operation, target.resource_type, target.id
    if id and not resource_type:
        return ()
    if name == _SWITCHED_OFF or (name in CHANGE_META and id):
        return ("POST",)
    exists = (
        name == "$meta"
        or (name == "$validate" and resource_type)
        or (name == "$everything" and resource_type in EVERYTHING_TYPES)
        or (name in _ON_VALUE_SETS and resource_type == "ValueSet" and not id)
    )
    return ("POST", "GET") if exists else ()


def _find(ctx: RequestContext, resource_type: str, id: str) -> ResourceRow:
    row = known(ctx, resource_type, id)
    if row.deleted:  # use the meta of the version before the deletion
        last = next((version for version in versions(ctx.store, row.rid) if version.body), row)
        return row._replace(body=last.body)
    return row


def _meta(ctx: RequestContext, resource_type: str | None, id: str | None, version: str) -> Response:
    if resource_type is None or id is None:
        return _returned(_all_tags(ctx, resource_type))
    if version:
        return _returned(stored(existing_version(ctx, resource_type, id, version).body).get("meta", {}))
    return _returned(stored(_find(ctx, resource_type, id).body).get("meta", {}))


def _all_tags(ctx: RequestContext, resource_type: str | None) -> Resource:
    """Return all profiles, security labels and tags in use, without repeats."""
    found: dict[str, dict[str, Any]] = {name: {} for name in _TAGS}
    types = [resource_type] if resource_type else RESOURCE_TYPES
    specs = [index_spec(kind).fields for kind in types]
    pids = {pid for fields in specs for name in _TAGS if f"_{name}" in fields for pid in fields[f"_{name}"].pids}
    for row in ctx.store.tagged(sorted(pids)):
        ctx.store.spend(steps_of_subset(row.body))
        meta = stored(row.body).get("meta", {})
        for name in _TAGS:
            for value in meta.get(name, []):
                found[name].setdefault(_key(value), value)
    return {name: [values[key] for key in sorted(values)] for name, values in found.items() if values}


def posted_meta(request: Request) -> Resource:
    """Return the labels in the body of a request to add or remove labels.

    Raises:
        FhirError: The body has none.
    """
    parameters = serialization.parse_resource(request.body, None) if request.body else {}
    given = next((p.get("valueMeta") for p in _parameters(parameters) if p.get("name") == "meta"), None)
    if not isinstance(given, dict):
        raise FhirError(400, "HAPI-0554: Input contains no parameter with name 'meta'")
    return given


def _change_meta(ctx: RequestContext, resource_type: str, id: str, request: Request, *, add: bool) -> Response:
    operation = "$meta-add" if add else "$meta-delete"
    ctx.doing("update", resource_type, id, operation)
    given = posted_meta(request)
    row = _find(ctx, resource_type, id)
    resource = stored(row.body)
    meta = dict(resource.get("meta", {}))
    for name in _TAGS:
        values = {_key(value): value for value in meta.pop(name, [])}
        for value in given.get(name, []) if isinstance(given.get(name), list) else []:
            if add:
                values.setdefault(_key(value), value)
            else:
                values.pop(_key(value), None)
        if values:
            meta[name] = list(values.values())
    if row.deleted:
        meta |= {"versionId": str(row.version)}
    else:
        resource["meta"] = meta
        body = serialization.dumps(resource)
        check_size(ctx.limits, body)
        ctx.store.spend(steps_of_storing(body))
        check_room(ctx)
        ctx.store.amend(row, body, resource)
        effect: Effect = "" if body == row.body else "updated"
        ctx.log = (Interaction("update", resource_type, id, 200, effect, operation),)
    return _returned(meta)


def _key(value: object) -> str:
    """Return the key of a tag (system and code) or of a profile (its URL)."""
    if isinstance(value, dict):
        return f"{value.get('system', '')}|{value.get('code', '')}"
    return str(value)


def _parameters(resource: object) -> Iterable[Resource]:
    listed = resource.get("parameter") if isinstance(resource, dict) else None
    return [p for p in listed if isinstance(p, dict)] if isinstance(listed, list) else []


def _returned(meta: Resource) -> Response:
    answer = {"resourceType": "Parameters", "parameter": [{"name": "return", "valueMeta": meta}]}
    return Response(200, {}, serialization.dumps(answer))
