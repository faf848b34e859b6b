"""`_include` and `_revinclude`: the resources that a page contains in addition to its matches."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeVar

from fhir_gym.fhir.context import RequestContext
from fhir_gym.fhir.definitions import RESOURCE_TYPE_SET, RESOURCE_TYPES
from fhir_gym.fhir.hash_order import resources_in_hash_order
from fhir_gym.fhir.index import index_spec
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.search.query import Include
from fhir_gym.fhir.store import references

MAX_ROUNDS = 10
MAX_INCLUDED = 10_000
CHUNK = 400
_Rids = TypeVar("_Rids", list[int], set[int])
_STEPS_PER_LINK = 20


def included(ctx: RequestContext, includes: Sequence[Include], resource_type: str, matches: Sequence[int]) -> list[int]:
    """Return the rids of a page's included resources, without repeats.

    The groups are in HAPI's order: resources that refer to the matches, resources that the matches refer to, then the
    resources found by iteration. Each group is in hash order.
    """
    seen = set(matches)
    rids: list[int] = []
    start = {resource_type: list(matches)}
    frontier: dict[str, list[int]] = {}
    for backwards in (True, False):
        group: dict[str, set[int]] = {}
        for include in includes:
            if include.backwards == backwards:
                _follow(ctx, include, start, group)
        _take(group, seen, rids, frontier)
    first = len(rids)
    again = [include for include in includes if include.iterate]
    for _ in range(MAX_ROUNDS if again else 0):
        if not frontier:
            break
        group = {}
        for include in again:
            _follow(ctx, include, frontier, group)
        frontier = {}
        _take(group, seen, rids, frontier)
    return rids[:first] + resources_in_hash_order(sorted(rids[first:]))


def _take(group: dict[str, set[int]], seen: set[int], collected: list[int], frontier: dict[str, list[int]]) -> None:
    """Add new resources to the answer and to the starting points of the next round."""
    types = {rid: type_ for type_, rids in group.items() for rid in rids if rid not in seen}
    for rid in resources_in_hash_order(sorted(types)):
        type_ = types[rid]
        seen.add(rid)
        collected.append(rid)
        frontier.setdefault(type_, []).append(rid)
    check_number(collected)


def check_number(rids: _Rids) -> _Rids:
    """Return the given resources, or raise if a page may not include so many."""
    if len(rids) > MAX_INCLUDED:
        raise FhirError(400, f"More than {MAX_INCLUDED} included resources on a page: ask for fewer", code="too-costly")
    return rids


def _follow(ctx: RequestContext, include: Include, start: dict[str, list[int]], group: dict[str, set[int]]) -> None:
    step = _backwards if include.backwards else _forwards
    for type_, rids in start.items():
        for chunk in (rids[i : i + CHUNK] for i in range(0, len(rids), CHUNK)):
            for found_type, rid in step(ctx, include, type_, chunk):
                ctx.store.spend(_STEPS_PER_LINK)
                group.setdefault(found_type, set()).add(rid)


def _pids(source: str, parameter: str) -> tuple[tuple[int, ...], str | None]:
    """Return the path ids of a type's reference rows, and the target type to which they are restricted, if any."""
    fields = index_spec(source).fields
    if parameter == "*":
        return tuple(sorted({pid for f in fields.values() if f.kind == "reference" for pid in f.pids})), None
    field = fields.get(parameter)
    if field is None or field.kind != "reference":
        return (), None
    return field.pids, field.target


def _forwards(ctx: RequestContext, include: Include, type_: str, rids: list[int]) -> Iterator[tuple[str, int]]:
    if include.source not in ("*", type_):
        return
    pids, only = _pids(type_, include.parameter)
    for target_type, id in references.targets(ctx.store, type_, rids, pids):
        if target_type in RESOURCE_TYPE_SET and include.target in (None, target_type) and only in (None, target_type):
            ctx.store.spend(_STEPS_PER_LINK)
            row = ctx.store.find(target_type, id)
            if row and not row.deleted:
                yield target_type, row.rid


def _backwards(ctx: RequestContext, include: Include, type_: str, rids: list[int]) -> Iterator[tuple[str, int]]:
    if include.target not in (None, type_):
        return
    sources = RESOURCE_TYPES if include.source == "*" else (include.source,)
    yield from referring(ctx, {source: (include.parameter,) for source in sources}, type_, rids)


def referring(
    ctx: RequestContext, parameters: Mapping[str, Collection[str]], type_: str, rids: Sequence[int]
) -> Iterator[tuple[str, int]]:
    """Yield type and rid of the resources that refer to any of the given resources.

    `parameters` are the search parameters to follow, by referring type; ``*`` stands for all parameters.
    """
    asked = (_pids(source, name) for source, names in parameters.items() for name in names)
    pids = tuple(sorted({pid for pids_of_source, only in asked if only in (None, type_) for pid in pids_of_source}))
    for source, rid in references.referring(ctx.store, parameters, pids, type_, rids):
        if source in parameters:
            yield source, rid
