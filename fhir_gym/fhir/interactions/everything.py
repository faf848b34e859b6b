"""`$everything`: the resources that refer to a patient or encounter, and the resources to which those refer."""

from __future__ import annotations

from array import array

from fhir_gym.fhir.context import RequestContext
from fhir_gym.fhir.definitions import RESOURCE_TYPE_SET, RESOURCE_TYPES, patient_parameters, search_parameters
from fhir_gym.fhir.messages import Response
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.search.bundles import fill, searchset
from fhir_gym.fhir.search.engine import CompiledQuery, SearchResult, remember
from fhir_gym.fhir.search.includes import MAX_ROUNDS, check_number, included, referring
from fhir_gym.fhir.search.query import DEFAULT_COUNT, Include, parse_options
from fhir_gym.fhir.urls import encode_pairs

EVERYTHING_TYPES = ("Encounter", "Patient")
_STEPS, _STEPS_OF_A_RESOURCE = 10_000, 100
_REFERENCES = Include(backwards=False, iterate=False, source="*", parameter="*", target=None)


def everything(ctx: RequestContext, resource_type: str, id: str, path: str) -> Response:
    """GET [type]/[id]/$everything, for the types of `EVERYTHING_TYPES`.

    With `_type`, only referring resources of these types are returned, and references are followed for one step only.
    As in HAPI, `start` and `end` are ignored.

    Raises:
        FhirError: The resource or a type is unknown, or there are too many resources.
    """
    row = ctx.store.find(resource_type, id)
    if row is None or row.deleted:
        raise FhirError(404, f"HAPI-2841: Resource [[TokenParam[system=,value={id}]]] is not known.")
    options, rest = parse_options(ctx.pairs, ctx.limits)
    asked = [piece for name, value in rest if name == "_type" for piece in value.split(",") if piece]
    for name in asked:
        if name not in RESOURCE_TYPE_SET:
            raise FhirError(404, f"HAPI-2197: Unknown resource type '{name}' in _type parameter.")
    found = _compartment(ctx, resource_type, row.rid, frozenset(asked or RESOURCE_TYPE_SET))
    ctx.store.spend(_STEPS + _STEPS_OF_A_RESOURCE * len(found))
    start = found if asked else [row.rid, *found]
    found += _referred_to(ctx, resource_type, start, seen={row.rid, *found}, rounds=1 if asked else MAX_ROUNDS)
    rids = array("q", [row.rid, *found])
    size = min(options.count or DEFAULT_COUNT, ctx.limits.page_entries)
    entries, shown = fill(ctx, rids[:size], options.shape)
    token = ctx.counters.new_token()
    query = f"?{encode_pairs(ctx.pairs)}" if ctx.pairs else ""
    links = [("self", f"{ctx.base_url}/{path}{query}")]
    if len(rids) > shown:
        remember(ctx, token, SearchResult(CompiledQuery(resource_type, (), ()), rids, True, None, (), options.shape))
        pretty = "&_pretty=true" if ctx.pretty_default else ""
        following = f"_getpages={token}&_getpagesoffset={shown}&_count={size}{pretty}&_bundletype=searchset"
        links.append(("next", f"{ctx.base_url}?{following}"))
    total = len(rids) if len(rids) <= shown else None
    answer = searchset(ctx, token=token, matches=entries, total=total, links=links, shape=options.shape)
    return Response(answer.status, ctx.bundle_headers(token), answer.body)


def _compartment(ctx: RequestContext, resource_type: str, rid: int, types: frozenset[str]) -> list[int]:
    """Return the resources that refer to this resource, in creation order."""
    parameters = {source: _links(resource_type, source) for source in RESOURCE_TYPES if source in types}
    found = {other for _, other in referring(ctx, parameters, resource_type, [rid])} - {rid}
    return check_number(sorted(found))


def _links(resource_type: str, source: str) -> tuple[str, ...]:
    """Return the search parameters by which resources of a type refer to a patient or an encounter."""
    found = {p.name for p in search_parameters(source).values() if p.type == "reference" and resource_type in p.targets}
    if resource_type == "Patient":  # HAPI adds `patient` and `subject` to the specification's compartment
        found &= {*patient_parameters(source), "patient", "subject"}
    return tuple(sorted(found))


def _referred_to(ctx: RequestContext, resource_type: str, rids: list[int], *, seen: set[int], rounds: int) -> list[int]:
    """Return the resources that can be reached by at most `rounds` references in a row, in creation order.

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
    return sorted(found)
