"""The search interaction: compile the query, find the matches and answer page by page.

The searchset Bundles are assembled from the stored JSON without parsing it.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from json.encoder import encode_basestring as quoted

from fhir_gym.fhir import serialization
from fhir_gym.fhir.context import RequestContext
from fhir_gym.fhir.definitions import search_parameters
from fhir_gym.fhir.limits import STEPS_OF_A_REQUEST, steps_of_subset
from fhir_gym.fhir.messages import Response
from fhir_gym.fhir.outcome import FhirError, unroutable
from fhir_gym.fhir.search.conditions.dispatch import compile_query
from fhir_gym.fhir.search.includes import included
from fhir_gym.fhir.search.predicates import Condition, Scope, Sql
from fhir_gym.fhir.search.query import (
    DEFAULT_COUNT,
    WHOLE,
    Include,
    SearchOptions,
    Shape,
    parse_includes,
    parse_name,
    parse_options,
    parse_shape,
    whole_number,
)
from fhir_gym.fhir.search.sql_query import (
    MAX_NESTED,
    SortKey,
    count_query,
    default_keys,
    impossible,
    in_compartment_order,
    rids_query,
    simplify,
    sort_keys,
    unnested,
)
from fhir_gym.fhir.serialization.subset import subset
from fhir_gym.fhir.store import stored
from fhir_gym.fhir.urls import Pairs, decode_query, encode, encode_pairs

Link = tuple[str, str]
"""Relation and URL of a Bundle's link."""

Pieces = Sequence[bytes]
"""Pieces of JSON, joined once for the whole answer."""

_AROUND = 200  # upper bound of the bytes that an entry adds to its resource
_SUMMARY_TAG = (
    b'"tag":[{"system":"http://terminology.hl7.org/CodeSystem/v3-ObservationValue","code":"SUBSETTED",'
    b'"display":"Resource encoded in summary mode"}]'
)


def searchset(
    ctx: RequestContext,
    *,
    token: str,
    matches: Pieces = (),
    included: Sequence[int] = (),
    total: int | None = None,
    links: Iterable[Link] = (),
    shape: Shape = WHOLE,
) -> Response:
    """Return a page of a search as a response.

    `matches` are entries from `fill`, `included` are the rids of included resources.
    """
    meta = f'"lastUpdated":"{ctx.now_text}"'.encode()
    if shape.summary in ("true", "data", "count"):
        meta += b"," + _SUMMARY_TAG
    parts = [b'{"resourceType":"Bundle","id":"%s","meta":{%s},"type":"searchset"' % (token.encode(), meta)]
    if total is not None:
        parts.append(b',"total":%d' % total)
    shown = [f'{{"relation":{quoted(relation)},"url":{quoted(url)}}}' for relation, url in links]
    if shown:
        parts.append(f',"link":[{",".join(shown)}]'.encode())
    room = ctx.limits.answer_bytes - sum(map(len, matches))
    beside, _ = _entries(ctx, included, shape, b"include", room)
    if matches or beside:
        parts += (b',"entry":[', *matches, *((b",",) if matches and beside else ()), *beside, b"]")
    parts.append(b"}")
    return Response(200, {"Last-Modified": ctx.now_http}, b"".join(parts))


def fill(ctx: RequestContext, rids: Sequence[int], shape: Shape) -> tuple[Pieces, int]:
    """Return the entries of as many matches as fit on a page, and the number of these matches."""
    room = ctx.limits.answer_bytes // 2
    entries, complete = _entries(ctx, rids, shape, b"match", room)
    if complete:
        return entries, len(rids)
    ends = accumulate(size + _AROUND for size in ctx.store.sizes(rids))
    most = max(1, sum(1 for end in ends if end <= room))
    return _entries(ctx, rids[:most], shape, b"match", ctx.limits.answer_bytes)[0], most


def _entries(ctx: RequestContext, rids: Sequence[int], shape: Shape, mode: bytes, room: int) -> tuple[Pieces, bool]:
    """Return the entries of these resources separated by commas, and whether all fit; deleted resources are left out.

    Raises:
        FhirError: 413 if included resources do not fit.
    """
    tail = b',"search":{"mode":"%s"}}' % mode
    bodies: dict[int, bytes] = {}
    size = 0
    for rid, head, body, deleted in ctx.store.entries(rids, ctx.base_url, whole=shape.whole):
        if deleted:
            bodies.pop(rid, None)
            continue
        bodies[rid] = entry = head if body is None else head + _subset(ctx, body, shape)
        size += len(entry)
        if size > room and len(rids) > 1:
            if mode == b"include":
                raise FhirError(413, "The included resources do not fit into an answer: ask for fewer")
            return (), False
    pieces = [piece for rid in rids if rid in bodies for piece in (bodies[rid], tail + b",")]
    pieces[-1:] = [tail] if pieces else []
    return pieces, True


def _subset(ctx: RequestContext, body: bytes, shape: Shape) -> bytes:
    ctx.store.spend(steps_of_subset(body))
    return serialization.dumps(subset(stored(body), elements=shape.elements, summary=shape.summary, scope=shape.scope))


FIRST_PASS = 13
"""HAPI first looks for this number of matches (or one page, if a page is larger), then for 503, for 2003, for all."""

_LATER_PASSES = (503, 2003)
_ALL = -1
_MANY_ALTERNATIVES, _LONG = 1_000, 40_000
"""Query lengths in characters: from the first length on, comparisons take most time; from the second on, lookups."""
_LOOKUP = "INDEXED BY"
"""A query that contains this text looks up an index for each resource, which is slower than a comparison."""
_CHEAP, _EXPENSIVE = 5, 1 / 3
_STEPS_PER_CHARACTER = 3  # the cost of compiling a query here and in SQLite, per character of its text
_MAX_SQL_VALUES = 32_000  # SQLite's own limit is 32,766
_FORM = "application/x-www-form-urlencoded"
_NOT_SEARCHES = frozenset({"_getpages", "_query"})


@dataclass(slots=True)
class CompiledQuery:
    """The compiled conditions and sort keys of a search."""

    resource_type: str
    conditions: tuple[Condition, ...]
    keys: tuple[SortKey, ...]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A search that may have further pages.

    `known` are the matches found so far; `exhausted` says whether these are all matches.
    """

    query: CompiledQuery
    known: array[int]
    exhausted: bool
    total: int | None = None
    includes: tuple[Include, ...] = ()
    shape: Shape = WHOLE

    def upto(self, ctx: RequestContext, end: int) -> SearchResult:
        """Return the same search with at least `end` known matches, or with all matches if there are fewer."""
        if self.exhausted or end <= len(self.known):
            return self
        size = next((p for p in _LATER_PASSES if p >= end and p > len(self.known)), _ALL)
        before = set(self.known)
        rids = fetch(ctx, self.query, size)
        rids_so_far = self.known + array("q", (rid for rid in rids if rid not in before))
        return replace(self, known=rids_so_far, exhausted=size == _ALL or len(rids) < size)


# the first page


def search(ctx: RequestContext, resource_type: str, path: str) -> Response:
    """Search one resource type.

    A POST may contain further parameters in its form. `path` (``Patient`` or ``Patient/_search``) is the path in the
    self link.

    Raises:
        FhirError: The search is invalid or too costly.
    """
    shown = pairs = ctx.pairs
    if any(name in _NOT_SEARCHES for name, _ in pairs):
        raise unroutable(ctx.request.method, path, pairs)
    if ctx.request.method == "POST":
        shown = []
        if ctx.request.headers.get("content-type", "").partition(";")[0].strip().lower() == _FORM:
            if (size := len(ctx.request.body)) > ctx.limits.form_bytes:
                raise FhirError(413, f"The form has {size} bytes, more than the {ctx.limits.form_bytes} of a search")
            pairs = [*pairs, *decode_query(ctx.request.body.decode("utf-8", "replace"))]
    options, matching = parse_options(pairs)
    scope = _scope(ctx, resource_type, tuple([name for name, _ in pairs]))
    conditions = compile_query(scope, matching)
    has_sort = any(piece for _, value in options.sorts for piece in value.split(","))
    keys = sort_keys(scope, options.sorts) if has_sort else default_keys(scope, conditions, matching)
    includes = parse_includes(options.includes, ctx.limits.includes)
    query = CompiledQuery(resource_type, tuple(conditions), tuple(keys))
    link = f"{ctx.base_url}/{path}"
    shape = options.shape(ctx.limits, resource_type)
    if options.count == 0 and not shape.elements:
        shape = replace(shape, summary="count")  # as in HAPI
    self_link = ("self", f"{link}?{encode_pairs(shown)}" if shown else link)
    if options.count == 0 or shape.summary == "count":
        links = [self_link] if shape.elements else []  # as in HAPI
        return searchset(ctx, token=ctx.counters.new_token(), total=count(ctx, query), links=links, shape=shape)
    if options.count is not None and options.count < 0:
        return searchset(ctx, token=ctx.counters.new_token(), links=[self_link], shape=shape)
    if options.offset is not None:
        return _page_at_offset(ctx, query, options, shape, includes, self_link, link, shown)
    return _first_page(ctx, query, options, shape, includes, self_link)


def _first_page(
    ctx: RequestContext,
    query: CompiledQuery,
    options: SearchOptions,
    shape: Shape,
    includes: list[Include],
    self_link: Link,
) -> Response:
    size = min(options.count or DEFAULT_COUNT, ctx.limits.page_entries)
    limit = max(FIRST_PASS, size)
    no_store = "no-store" in (control := ctx.request.headers.get("cache-control", ""))
    asked = re.search(r"max-results=(\d{1,6})", control) if no_store else None
    most = int(asked[1]) if asked else None
    rids = fetch(ctx, query, min(limit + 1, most or limit + 1))
    exhausted = len(rids) <= limit and most is None
    entries, shown = fill(ctx, rids[:size], shape)
    more = len(rids) > shown and not no_store
    total = len(rids) if exhausted else None
    if options.accurate and total is None:
        total = count(ctx, query)
    token = ctx.counters.new_token()
    links = [self_link]
    if more:
        accurate = total if options.accurate else None
        state = SearchResult(query, array("q", rids[:limit]), exhausted, accurate, tuple(includes), shape)
        remember(ctx, token, state)
        pretty = ctx.pretty_default if options.pretty is None else options.pretty == "true"
        links.append(("next", _page_url(ctx, token, shown, size, options.format, pretty, options.includes, shape)))
    matches = rids[:shown]
    beside = included(ctx, includes, query.resource_type, matches) if includes and matches else []
    return searchset(ctx, token=token, matches=entries, included=beside, total=total, links=links, shape=shape)


def _page_at_offset(
    ctx: RequestContext,
    query: CompiledQuery,
    options: SearchOptions,
    shape: Shape,
    includes: list[Include],
    self_link: Link,
    link: str,
    shown: Pairs,
) -> Response:
    """Answer a search with `_offset`. The session does not remember this search; the page links repeat its query."""
    size = min(options.count or DEFAULT_COUNT, ctx.limits.page_entries)
    offset = options.offset or 0
    matches = fetch(ctx, query, size, offset)
    links = [self_link]
    rest = [(name, value) for name, value in shown if name not in ("_offset", "_count")] + [("_count", str(size))]
    entries, fitting = fill(ctx, matches, shape)
    if fitting < len(matches) or (len(matches) == size and options.count is not None):
        links.append(("next", f"{link}?{encode_pairs([*rest, ('_offset', str(offset + fitting))])}"))
    if offset:
        links.append(("previous", f"{link}?{encode_pairs([*rest, ('_offset', str(max(0, offset - size)))])}"))
    total = offset + len(matches) if len(matches) < size else None
    if options.accurate and total is None:
        total = count(ctx, query)
    matches = matches[:fitting]
    beside = included(ctx, includes, query.resource_type, matches) if includes and matches else []
    token = ctx.counters.new_token()
    return searchset(ctx, token=token, matches=entries, included=beside, total=total, links=links, shape=shape)


# match URLs


def match(ctx: RequestContext, resource_type: str, query: str, limit: int = 10_000) -> list[int]:
    """Return the resources that a match URL selects, in creation order.

    Raises:
        FhirError: The query has an unknown parameter, or no usable parameter.
    """
    if len(query) > ctx.limits.url_chars:
        raise FhirError(
            400, f"The match URL of {resource_type} has {len(query)} characters, more than {ctx.limits.url_chars}"
        )
    pairs = criteria(resource_type, query)
    ctx.store.spend(STEPS_OF_A_REQUEST)
    scope = _scope(ctx, resource_type, tuple([name for name, _ in pairs]))
    conditions = compile_query(scope, pairs)
    if not conditions:
        raise FhirError(400, f"HAPI-0518: Invalid match URL[{resource_type}?{query}] - URL has no search parameters")
    return fetch(ctx, CompiledQuery(resource_type, tuple(conditions), ()), limit)


def criteria(resource_type: str, query: str) -> Pairs:
    """Return the parameters of a match URL that select resources; other parameters that start with `_` are ignored.

    Raises:
        FhirError: The query has an unknown parameter.
    """
    parameters = search_parameters(resource_type)
    pairs = []
    for name, value in decode_query(query):
        base = parse_name(name).base
        if not base.startswith("_") and base not in parameters:
            raise FhirError(
                400,
                f"HAPI-0488: Failed to parse match URL[{resource_type}?{query}] - Resource type {resource_type} does "
                f"not have a parameter with name: {base}",
            )
        if base in parameters or base == "_has":
            pairs.append((name, value))
    return pairs


# later pages


def _page_url(
    ctx: RequestContext,
    token: str,
    offset: int,
    size: int,
    format_: str | None,
    pretty: bool,
    includes: Sequence[tuple[str, str]],
    shape: Shape,
) -> str:
    parts = [f"_getpages={token}", f"_getpagesoffset={offset}", f"_count={size}"]
    if format_:
        parts.append(f"_format={encode(format_)}")
    if pretty:
        parts.append("_pretty=true")
    iterated = [value for name, value in includes if name.startswith("_include:")]
    plain = [value for name, value in includes if name == "_include"]  # HAPI leaves `_revinclude` out
    parts += [f"_include={encode(value)}" for value in (*iterated, *plain) if value]
    parts.append("_bundletype=searchset")
    if shape.elements:
        parts.append("_elements=" + ",".join(encode(e) for e in sorted(set(shape.elements))))
    return f"{ctx.base_url}?{'&'.join(parts)}"


class _PageRequest:
    """The parameters of a request for a further page; the page's links repeat these parameters."""

    def __init__(self, ctx: RequestContext) -> None:
        self.first = dict(reversed(ctx.pairs))
        self.includes = tuple(p for p in ctx.pairs if p[0].partition(":")[0] in ("_include", "_revinclude"))
        elements = self.first.get("_elements")
        self.shape: Shape = parse_shape([elements] if elements else [], [], ctx.limits)


def page(ctx: RequestContext) -> Response:
    """Return a further page of a search (``?_getpages=…``).

    Raises:
        FhirError: 410 if the session no longer remembers the search.
    """
    asked = _PageRequest(ctx)
    token = asked.first.get("_getpages", "")
    result = ctx.searches.get(token)
    if not token:
        raise unroutable("GET", "", ctx.pairs)
    if not isinstance(result, SearchResult):
        raise FhirError(410, f'HAPI-0417: Search ID "{token}" does not exist and may have expired')
    offset = _number(asked.first.get("_getpagesoffset"), 0)
    size = min(_number(asked.first.get("_count"), DEFAULT_COUNT) or DEFAULT_COUNT, ctx.limits.page_entries)
    exhausted = result.exhausted
    result = result.upto(ctx, offset + size)
    remember(ctx, token, result)
    matches = list(result.known[offset : offset + size])
    shape = replace(asked.shape, scope=result.query.resource_type) if asked.shape.elements else result.shape
    entries, shown = fill(ctx, matches, shape)
    truncated, matches = shown < len(matches), matches[:shown]
    beside = included(ctx, result.includes, result.query.resource_type, matches) if matches else []
    total = result.total
    if total is None and (exhausted or (len(matches) + len(beside) < size and not truncated)):
        total = len(result.known)
    pretty = asked.first.get("_pretty")
    indent = ctx.pretty_default if pretty is None else pretty == "true"

    def url(start: int) -> str:
        return _page_url(ctx, token, start, size, asked.first.get("_format"), indent, asked.includes, asked.shape)

    own_query = "&".join(f"{encode(n)}={encode(v).replace('%2C', ',')}" for n, v in ctx.pairs)
    links = [("self", f"{ctx.base_url}?{own_query}")]
    if truncated or offset + size < len(result.known) or not result.exhausted:
        links.append(("next", url(offset + (shown if truncated else size))))
    if offset:
        links.append(("previous", url(max(0, offset - size))))
    response = searchset(ctx, token=token, matches=entries, included=beside, total=total, links=links, shape=shape)
    return replace(response, headers=ctx.bundle_headers(token))


def _number(text: str | None, default: int) -> int:
    number = whole_number(text) if text else None
    return default if number is None or number < 0 else number


def remember(ctx: RequestContext, token: str, result: SearchResult) -> None:
    """Keep a search for its later pages, and drop the oldest kept searches if there are too many."""
    ctx.searches[token] = result
    matches = sum(len(kept.known) for kept in ctx.searches.values())
    while len(ctx.searches) > ctx.limits.searches or (matches > ctx.limits.remembered and len(ctx.searches) > 1):
        _, oldest = ctx.searches.popitem(last=False)
        matches -= len(oldest.known)


# matches


def _scope(ctx: RequestContext, resource_type: str, names: tuple[str, ...] = ()) -> Scope:
    return Scope(resource_type, ctx.store, names=names, identifier_of_type=ctx.identifier_of_type)


def fetch(ctx: RequestContext, query: CompiledQuery, limit: int, offset: int = 0) -> list[int]:
    """Return matches in order; a negative limit means no limit."""
    scope = _scope(ctx, query.resource_type)
    conditions = simplify(scope, query.conditions)
    if impossible(conditions):
        return []
    quick = in_compartment_order(scope, conditions, query.keys) if limit > 0 else None
    if quick:
        rids = _numbers(ctx, rids_query(scope, quick, query.keys), limit, offset)
        if len(rids) == limit:
            return rids
    return _numbers(ctx, rids_query(scope, conditions, query.keys), limit, offset)


def count(ctx: RequestContext, query: CompiledQuery) -> int:
    """Return the number of matches."""
    scope = _scope(ctx, query.resource_type)
    conditions = simplify(scope, query.conditions)
    return 0 if impossible(conditions) else _numbers(ctx, count_query(scope, conditions))[0]


def _numbers(ctx: RequestContext, query: Sql, *more: int) -> list[int]:
    """Return the first column of a query's rows. The `more` values follow the query's own values.

    Raises:
        FhirError: The query exceeds SQLite's limits, for example because of a chain to many types with value sets.
    """
    text, values = query[0], (*query[1], *more)
    if len(text) > ctx.limits.sql_chars or len(values) > _MAX_SQL_VALUES:
        raise FhirError(
            400, "This search is too costly for this server: it looks in too many places, narrow it", code="too-costly"
        )
    ctx.store.spend(_STEPS_PER_CHARACTER * len(text))
    if text.count("IN (SELECT ") > MAX_NESTED:
        text, values = unnested((text, values))
    if len(query[0]) < _MANY_ALTERNATIVES:
        return [row[0] for row in ctx.store.select(text, values)]
    with ctx.store.at_rate(_rate(query[0])):
        return [row[0] for row in ctx.store.select(text, values)]


def _rate(text: str) -> float:
    """Return how many SQLite steps of a long query usually take as long as one step of a short query."""
    if len(text) >= _LONG:
        return _EXPENSIVE
    return 1 if _LOOKUP in text else _CHEAP
