"""Operations on resources: meta, validation, $everything and value sets. All other operations get HAPI's errors."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

from fhir_gym.fhir import serialization
from fhir_gym.fhir.context import RequestContext
from fhir_gym.fhir.definitions import RESOURCE_TYPE_SET, RESOURCE_TYPES, patient_parameters, search_parameters
from fhir_gym.fhir.hash_order import resources_in_hash_order
from fhir_gym.fhir.index import index_spec
from fhir_gym.fhir.interactions.persistence import check_room
from fhir_gym.fhir.interactions.read import existing, existing_version, known
from fhir_gym.fhir.interactions.references import check_unreferenced
from fhir_gym.fhir.limits import check_size, steps_of_storing, steps_of_subset
from fhir_gym.fhir.messages import Effect, Interaction, Request, Response
from fhir_gym.fhir.outcome import FhirError, unroutable
from fhir_gym.fhir.routes import Target
from fhir_gym.fhir.search.conditions.dispatch import FULLTEXT, no_fulltext
from fhir_gym.fhir.search.engine import CompiledQuery, SearchResult, fetch, fill, remember, searchset
from fhir_gym.fhir.search.includes import CHUNK, MAX_INCLUDED, MAX_ROUNDS, check_number, included, referring
from fhir_gym.fhir.search.predicates import MAX_VALUES
from fhir_gym.fhir.search.query import DEFAULT_COUNT, Include, SearchOptions, Shape, parse_options
from fhir_gym.fhir.store import ResourceRow, stored
from fhir_gym.fhir.store.versions import versions
from fhir_gym.fhir.terminology import expand, validate_code
from fhir_gym.fhir.urls import Pairs, decode_form, encode_pairs
from fhir_gym.fhir.validation import described, validate
from fhir_gym.types import Json, Resource, as_object, objects_in

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
    tags: dict[str, dict[str, Any]] = {name: {} for name in _TAGS}
    types = [resource_type] if resource_type else RESOURCE_TYPES
    specs = [index_spec(kind).fields for kind in types]
    pids = {pid for fields in specs for name in _TAGS if f"_{name}" in fields for pid in fields[f"_{name}"].pids}
    for row in ctx.store.tagged(sorted(pids)):
        ctx.store.spend(steps_of_subset(row.body))
        meta = stored(row.body).get("meta", {})
        for name in _TAGS:
            for value in meta.get(name, []):
                tags[name].setdefault(_key(value), value)
    return {name: [values[key] for key in sorted(values)] for name, values in tags.items() if values}


def posted_meta(request: Request) -> Resource:
    """Return the labels in the body of a request to add or remove labels.

    Raises:
        FhirError: The body has none.
    """
    parameters = serialization.parse_resource(request.body, None) if request.body else {}
    meta = next((p.get("valueMeta") for p in _parameters(parameters) if p.get("name") == "meta"), None)
    if not isinstance(meta, dict):
        raise FhirError(400, "HAPI-0554: Input contains no parameter with name 'meta'")
    return meta


def _change_meta(ctx: RequestContext, resource_type: str, id: str, request: Request, *, add: bool) -> Response:
    operation = "$meta-add" if add else "$meta-delete"
    ctx.doing("update", resource_type, id, operation)
    posted = posted_meta(request)
    row = _find(ctx, resource_type, id)
    resource = stored(row.body)
    meta = dict(resource.get("meta", {}))
    for name in _TAGS:
        values = {_key(value): value for value in meta.pop(name, [])}
        for value in posted.get(name, []) if isinstance(posted.get(name), list) else []:
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
    return objects_in(as_object(resource).get("parameter"))


def _returned(meta: Resource) -> Response:
    answer = {"resourceType": "Parameters", "parameter": [{"name": "return", "valueMeta": meta}]}
    return Response(200, {}, serialization.dumps(answer))


EVERYTHING_TYPES = ("Encounter", "Patient")
_STEPS, _STEPS_OF_A_RESOURCE = 10_000, 100
_REFERENCES = Include(backwards=False, iterate=False, source="*", parameter="*", target=None)


def everything(ctx: RequestContext, resource_type: str, id: str | None, path: str) -> Response:
    """GET or POST [type]/$everything and [type]/[id]/$everything, for the types of `EVERYTHING_TYPES`.

    Without an id in the path, `_id` selects resources of the type; without `_id`, all of them are selected. With
    `_type`, only referring resources of these types are returned, and references are followed for one step only.
    As in HAPI, `start` and `end` are ignored.

    Raises:
        FhirError: The resource or a type is unknown, or there are too many resources.
    """
    options, rest = parse_options([*ctx.pairs, *_posted(ctx)])
    shape = options.shape(ctx.limits, resource_type)
    for name, _ in rest:
        if name in FULLTEXT:
            raise no_fulltext(name)
    asked = [piece for name, value in rest if name == "_type" for piece in value.split(",") if piece]
    for name in asked:
        if name not in RESOURCE_TYPE_SET:
            raise FhirError(404, f"HAPI-2197: Unknown resource type '{name}' in _type parameter.")
    ids = [id] if id else [piece for name, value in rest if name == "_id" for piece in value.split(",") if piece]
    selected = _selected(ctx, resource_type, ids)
    rids = _compartment(ctx, resource_type, selected, frozenset(asked or RESOURCE_TYPE_SET))
    ctx.store.spend(_STEPS + _STEPS_OF_A_RESOURCE * (len(selected) - 1 + len(rids)))
    start = rids if asked else [*selected, *rids]
    seen = {*selected, *rids}
    rids += _referred_to(ctx, resource_type, start, seen=seen, rounds=1 if asked else MAX_ROUNDS)
    return _page(ctx, array("q", [*selected, *rids]), CompiledQuery(resource_type, (), ()), options, shape, path)


def _posted(ctx: RequestContext) -> Pairs:
    """Return the parameters in the body of a POST: a form, or a Parameters resource."""
    if ctx.request.method != "POST":
        return []
    if form := decode_form(ctx.request.headers.get("content-type", ""), ctx.request.body):
        return form
    resource = serialization.parse_resource(ctx.request.body, "Parameters")
    return [
        (name, str(value))
        for parameter in _parameters(resource)
        if isinstance(name := parameter.get("name"), str)
        for key, value in parameter.items()
        if key.startswith("value") and isinstance(value, (str, int))
    ]


def _selected(ctx: RequestContext, resource_type: str, ids: list[str]) -> list[int]:
    """Return the resources with these ids, in hash order, or all resources of the type in creation order."""
    if not ids:
        return check_number(fetch(ctx, CompiledQuery(resource_type, (), ()), MAX_INCLUDED + 1))
    if len(ids) > MAX_VALUES:
        raise FhirError(400, f"More than {MAX_VALUES} ids are not supported by this server")
    rows = [ctx.store.find(resource_type, id) for id in ids]
    rids = resources_in_hash_order(sorted({row.rid for row in rows if row is not None and not row.deleted}))
    if not rids:
        shown = ", ".join(f"TokenParam[system=,value={id}]" for id in ids)
        raise FhirError(404, f"HAPI-2841: Resource [[{shown}]] is not known.")
    return rids


def _page(
    ctx: RequestContext, rids: array[int], query: CompiledQuery, options: SearchOptions, shape: Shape, path: str
) -> Response:
    """Return the first page; later pages are answered like those of a search."""
    size = min(options.count or DEFAULT_COUNT, ctx.limits.page_entries)
    counted = shape.summary == "count"
    entries, shown = ((), size) if counted else fill(ctx, rids[:size], shape)
    token = ctx.counters.new_token()
    self_url = f"{ctx.base_url}/{path}" + (f"?{encode_pairs(ctx.pairs)}" if ctx.pairs else "")
    links = [] if counted else [("self", self_url)]
    if len(rids) > shown and not counted:
        remember(ctx, token, SearchResult(query, rids, True, None, (), shape))
        pretty = "&_pretty=true" if ctx.pretty_default else ""
        following = f"_getpages={token}&_getpagesoffset={shown}&_count={size}{pretty}&_bundletype=searchset"
        links.append(("next", f"{ctx.base_url}?{following}"))
    total = len(rids) if len(rids) <= shown else None
    answer = searchset(ctx, token=token, matches=entries, total=total, links=links, shape=shape)
    headers = ctx.bundle_headers(token)
    if ctx.request.method == "POST":
        headers |= {"Location": headers["Content-Location"]}
    return Response(answer.status, headers, answer.body)


def _compartment(ctx: RequestContext, resource_type: str, rids: list[int], types: frozenset[str]) -> list[int]:
    """Return the other resources that refer to any of these resources, in creation order."""
    parameters = {source: _links(resource_type, source) for source in RESOURCE_TYPES if source in types}
    selected: set[int] = set()
    for chunk in (rids[i : i + CHUNK] for i in range(0, len(rids), CHUNK)):
        selected.update(other for _, other in referring(ctx, parameters, resource_type, chunk))
        check_number(selected)
    return sorted(selected - set(rids))


def _links(resource_type: str, source: str) -> tuple[str, ...]:
    """Return the search parameters by which resources of a type refer to a patient or an encounter."""
    names = {p.name for p in search_parameters(source).values() if p.type == "reference" and resource_type in p.targets}
    if resource_type == "Patient":  # HAPI adds `patient` and `subject` to the specification's compartment
        names &= {*patient_parameters(source), "patient", "subject"}
    return tuple(sorted(names))


def _referred_to(ctx: RequestContext, resource_type: str, rids: list[int], *, seen: set[int], rounds: int) -> list[int]:
    """Return the resources that can be reached by at most `rounds` references in a row, in hash order.

    References in a Patient are not followed, because they could lead to other patients' data.
    """
    referred: list[int] = []
    frontier = rids
    for _ in range(rounds):
        by_type: dict[str, list[int]] = {}
        for row in ctx.store.rows(frontier):
            by_type.setdefault(row.type, []).append(row.rid)
        reached = {rid for type_, group in by_type.items() for rid in included(ctx, [_REFERENCES], type_, group)}
        rows = ctx.store.rows(sorted(reached - seen))
        frontier = [row.rid for row in rows if resource_type != "Patient" or row.type != "Patient"]
        if not frontier:
            break
        seen.update(frontier)
        referred += frontier
    return resources_in_hash_order(sorted(referred))


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
            resource, mode_parameter = _from_parameters(resource)
            mode = mode_parameter or mode
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
    issues = described(validate(serialization.read_body(text), ctx.store.spend), text)
    return _outcome(issues or [{**_INFORMATION, "diagnostics": "No issues detected during validation"}])


def _from_parameters(parameters: Resource) -> tuple[Resource | None, str | None]:
    """Return the resource and the mode."""
    resource, mode = None, None
    for parameter in _parameters(parameters):
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
