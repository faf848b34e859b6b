"""`$everything`: the resources that refer to a patient or encounter, and the resources to which those refer."""

from __future__ import annotations

from array import array

from fhir_gym.fhir import serialization
from fhir_gym.fhir.context import RequestContext
from fhir_gym.fhir.definitions import RESOURCE_TYPE_SET, RESOURCE_TYPES, patient_parameters, search_parameters
from fhir_gym.fhir.hash_order import resources_in_hash_order
from fhir_gym.fhir.messages import Response
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.search.bundles import fill, searchset
from fhir_gym.fhir.search.conditions.dispatch import FULLTEXT, no_fulltext
from fhir_gym.fhir.search.engine import CompiledQuery, SearchResult, fetch, remember
from fhir_gym.fhir.search.includes import CHUNK, MAX_INCLUDED, MAX_ROUNDS, check_number, included, referring
from fhir_gym.fhir.search.query import DEFAULT_COUNT, Include, SearchOptions, Shape, parse_options
from fhir_gym.fhir.search.sql.predicates import MAX_VALUES
from fhir_gym.fhir.urls import Pairs, decode_form, encode_pairs

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
    found = _compartment(ctx, resource_type, selected, frozenset(asked or RESOURCE_TYPE_SET))
    ctx.store.spend(_STEPS + _STEPS_OF_A_RESOURCE * (len(selected) - 1 + len(found)))
    start = found if asked else [*selected, *found]
    seen = {*selected, *found}
    found += _referred_to(ctx, resource_type, start, seen=seen, rounds=1 if asked else MAX_ROUNDS)
    return _page(ctx, array("q", [*selected, *found]), CompiledQuery(resource_type, (), ()), options, shape, path)


def _posted(ctx: RequestContext) -> Pairs:
    """Return the parameters in the body of a POST: a form, or a Parameters resource."""
    if ctx.request.method != "POST":
        return []
    if form := decode_form(ctx.request.headers.get("content-type", ""), ctx.request.body):
        return form
    resource = serialization.parse_resource(ctx.request.body, "Parameters")
    listed = resource.get("parameter")
    return [
        (name, str(value))
        for parameter in (listed if isinstance(listed, list) else [])
        if isinstance(parameter, dict) and isinstance(name := parameter.get("name"), str)
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
    found = resources_in_hash_order(sorted({row.rid for row in rows if row is not None and not row.deleted}))
    if not found:
        shown = ", ".join(f"TokenParam[system=,value={id}]" for id in ids)
        raise FhirError(404, f"HAPI-2841: Resource [[{shown}]] is not known.")
    return found


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
    found: set[int] = set()
    for chunk in (rids[i : i + CHUNK] for i in range(0, len(rids), CHUNK)):
        found.update(other for _, other in referring(ctx, parameters, resource_type, chunk))
        check_number(found)
    return sorted(found - set(rids))


def _links(resource_type: str, source: str) -> tuple[str, ...]:
    """Return the search parameters by which resources of a type refer to a patient or an encounter."""
    found = {p.name for p in search_parameters(source).values() if p.type == "reference" and resource_type in p.targets}
    if resource_type == "Patient":  # HAPI adds `patient` and `subject` to the specification's compartment
        found &= {*patient_parameters(source), "patient", "subject"}
    return tuple(sorted(found))


def _referred_to(ctx: RequestContext, resource_type: str, rids: list[int], *, seen: set[int], rounds: int) -> list[int]:
    """Return the resources that can be reached by at most `rounds` references in a row, in hash order.

    References in a Patient are not followed, because they could lead to other patients' data.
    """
    found: list[int] = []
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
        found += frontier
    return resources_in_hash_order(sorted(found))
